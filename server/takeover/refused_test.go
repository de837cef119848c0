package takeover_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/server/takeover"
	"agentd/store"
)

// TestImportRefused: everything that is wrong is told at once, and nothing is written.
func TestImportRefused(t *testing.T) {
	unfit := func(version, issues string, edits ...string) func(*rig) (*runstate.State, string) {
		return func(*rig) (*runstate.State, string) { return fixture(t, version, edits...), issues }
	}
	register, _ := strangers(t)
	r := newRig(t, register)
	for name, make := range map[string]func(*rig) (*runstate.State, string){
		"running":       unfit("1.0", `status is "running"; a run can be taken over once it is completed, failed, aborted or awaiting_approval`, `"completed"`, `"running"`),
		"unknown agent": unfit("1.0", "agentId is no agent that is registered here", "luggage-desk", "stranger"),
		"ids": unfit("1.0", "sessionId is no id of a session here: choose another with the parameter sessionId; "+
			"id is no id of a run here: it has 1 to 128 characters of A-Z a-z 0-9 _ -", "run_01HV3K9Q2M", "a/b", "sess-ferry-88", "s s"),
		"times and steps": unfit("1.0", `startedAt is no time: "then"; steps.1.stepNumber is not above 2, the number before it`,
			"2024-04-02T07:15:02.000Z", "then", `"stepNumber": 1`, `"stepNumber": 2`),
		"opaque agent that waits": unfit("1.1", "agentId is no agent of kind llm here, so its run cannot continue from a state", `"orchard"`, `"program"`),
		"unknown tool": unfit("1.2", `pendingApprovals.1.toolName cannot be called here: There is no tool named "publisher".`,
			`"publish"`, `"publisher"`),
		"another agent below": unfit("1.2", "pendingSubRuns.0.state.agentId is not treasurer, the agent that the tool subagent_treasurer calls here",
			`"agentId": "treasurer"`, `"agentId": "scout"`),
		"approval of other arguments": unfit("1.1", "pendingSubRuns.0.state.pendingApprovals.0.args are not the arguments that the messages name; "+
			"pendingApprovals.0 has another tool or other arguments than in the child run",
			"\"args\": {\"to\": \"growers@example.org\", \"subject\": \"Late frost\"},\n            \"reason\"", "\"args\": {\"to\": \"me\"},\n            \"reason\""),
		"call of a hidden argument": unfit("1.2", "pendingApprovals.1.args were made unreadable where the state comes from, so the call cannot be made with them",
			"Friday, harbour hall <doors 19:00>", "[redacted]"),
		"an approval without a call": unfit("1.2", "messages.4.toolCalls.1 has neither an outcome nor an approval that it waits for; "+
			"pendingApprovals.1.toolCallId is no tool call in the messages that waits for its outcome", "\"toolCallId\": \"s3\",\n      \"toolName\"", "\"toolCallId\": \"s9\",\n      \"toolName\""),
		"a child that nobody waits for": unfit("1.1", "pendingApprovals.0.subRunToolCallId leads to no approval of a pending child run; "+
			"pendingSubRuns.0.state.pendingApprovals.0 is not among the pending approvals of the run above", `"subRunToolCallId": "o2"`, `"subRunToolCallId": "o3"`),
		"an answer to nothing": unfit("1.2", "messages.3.toolCallId answers no tool call before it",
			`"The hall at the harbour is free on Friday.", "toolCallId": "s1"`, `"The hall at the harbour is free on Friday.", "toolCallId": "s0"`),
		"nothing waits": unfit("1.0", "pendingApprovals is empty, so the run would wait for ever", `"completed"`, `"awaiting_approval"`),
		"a role":        unfit("1.0", `messages.1.role is "critic"; it is system, user, assistant or tool`, `"role": "user"`, `"role": "critic"`),
		"the same id":   unfit("1.1", "pendingSubRuns.0.state.id is the id of another run in the state", "run_01J2CHILD7", "run_01J2ORCHARD"),
		"a child run of an odd agent": func(*rig) (*runstate.State, string) {
			st := fixture(t, "1.1", `"agentId": "mailer"`, `"agentId": "x/runs/y z"`)
			kid := &st.PendingSubRuns[0].State
			st.Status, kid.Status = "failed", "failed"
			st.PendingApprovals, kid.PendingApprovals = []journal.Approval{}, []journal.Approval{}
			return st, "pendingSubRuns.0.state.agentId is no id of an agent here: it has 1 to 128 characters of A-Z a-z 0-9 _ -"
		},
		"too deep": func(*rig) (*runstate.State, string) {
			st := fixture(t, "1.1")
			path := ""
			for range 9 {
				path += "pendingSubRuns.0.state."
				inner := fixture(t, "1.1")
				inner.PendingSubRuns[0].State = *st
				st = inner
			}
			return st, path[:len(path)-1] + " is a child run nested more than 8 deep"
		},
	} {
		st, want := make(r)
		_, err := takeover.Import(t.Context(), r.engine, st, takeover.Options{})
		var issues []string
		for _, i := range fault.Of(err).Issues {
			var place []string
			for _, p := range i.Path {
				place = append(place, fmt.Sprint(p))
			}
			issues = append(issues, strings.Join(place, ".")+" "+i.Message)
		}
		if got := strings.Join(issues, "; "); !fault.Is(err, fault.RunStateUnfit) || got != want && !(name == "too deep" && strings.Contains(got, want)) {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, got, want)
		}
		if runs, _, err := r.engine.List(t.Context(), store.RunFilter{Limit: 10}); err != nil || len(runs) != 0 {
			t.Errorf("%s: %d runs were written, %v", name, len(runs), err)
		}
	}
}

// TestImportMemory refuses a state in which many approvals lie below a call with a long id.
func TestImportMemory(t *testing.T) {
	register, _ := strangers(t)
	r := newRig(t, register)
	st := fixture(t, "1.1")
	leaf := st.PendingSubRuns[0].State
	leaf.PendingApprovals = nil
	for i := range 2000 {
		leaf.PendingApprovals = append(leaf.PendingApprovals, journal.Approval{ToolCallID: fmt.Sprint(i), ToolName: "send_mail", RequestedAt: st.StartedAt})
	}
	middle := *fixture(t, "1.1")
	middle.PendingApprovals = nil
	for _, a := range leaf.PendingApprovals {
		middle.PendingApprovals = append(middle.PendingApprovals, a.Under(middle.PendingSubRuns[0].ToolCallID))
	}
	middle.PendingSubRuns[0].State = leaf
	st.PendingSubRuns[0].State = middle
	st.PendingSubRuns[0].ToolCallID = strings.Repeat("x", 100<<10)
	size := uint64(len(encode(t, st)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := takeover.Import(t.Context(), r.engine, st, takeover.Options{})
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / size; n > 100 || !fault.Is(err, fault.RunStateUnfit) {
		t.Errorf("Import = %v with %d bytes per byte of the state, want run-state-unfit and at most 100", err, n)
	}
}

// TestImportConflicts: ids that are taken, and sessions in which something goes on or was said.
func TestImportConflicts(t *testing.T) {
	register, _ := strangers(t)
	r := newRig(t, register)
	refused := func(what string, kind *fault.Kind, st *runstate.State, o takeover.Options) {
		t.Helper()
		if _, err := takeover.Import(t.Context(), r.engine, st, o); !fault.Is(err, kind) {
			t.Errorf("Import %s = %v, want %s", what, err, kind.Code)
		}
	}
	r.imports(fixture(t, "1.1"), takeover.Options{})
	refused("again", fault.RunExists, fixture(t, "1.1"), takeover.Options{SessionID: "new"})
	refused("with a child that exists", fault.RunExists, fixture(t, "1.1", "run_01J2ORCHARD", "other"), takeover.Options{SessionID: "new"})
	refused("into a session that waits", fault.SessionBusy, fixture(t, "1.0", "marta", "ines"), takeover.Options{SessionID: "sess-orchard"})
	r.run(run.StartRequest{Owner: "pilot", SessionID: "talked", UserID: "marta"})
	refused("into a session with content", fault.SessionExists, fixture(t, "1.0"), takeover.Options{SessionID: "talked"})
	refused("with an odd session", fault.ConfigInvalid, fixture(t, "1.0"), takeover.Options{SessionID: "a b"})
	refused("for another user", fault.ConfigInvalid, fixture(t, "1.0"), takeover.Options{SessionID: "sess-orchard"})
}
