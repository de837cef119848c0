package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// chain registers desk, which hands over to clerk, which asks the sub-agent payer, whose tool pay needs approval.
func chain(t testing.TB, edit func(desk, clerk, payer *agent.LLM)) (func(*rig) []agent.Registration, *counter) {
	pay := &counter{spec: tool.Spec{Name: "pay", Description: "pays"}}
	use := func(u int) string {
		return fmt.Sprintf(`"usage":{"promptTokens":%d,"completionTokens":1,"totalTokens":%d}`, u, u+1)
	}
	desk := llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"desk: {{lastTool}}",`+use(100)+`},
		{"toolCalls":[{"name":"transfer_to_clerk","args":{}}],`+use(100)+`}]}`, agent.HandoffTool("clerk", "does the books"))
	clerk := llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"clerk: {{lastTool}}",`+use(10)+`},
		{"text":"let me see","toolCalls":[{"name":"subagent_payer","args":{"input":"pay 12"}}],`+use(10)+`}]}`, agent.SubAgentTool("payer", ""))
	payer := llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"payer: {{lastTool}}",`+use(1)+`},
		{"toolCalls":[{"name":"pay","args":{"n":12}}],`+use(1)+`}]}`, pay)
	payer.Policy.Tools = map[string]agent.Gate{"pay": {Always: true}}
	desk.Instructions, clerk.Instructions = "You are the desk.", "You are the clerk."
	if edit != nil {
		edit(desk, clerk, payer)
	}
	return func(*rig) []agent.Registration {
		return []agent.Registration{{ID: "desk", LLM: desk}, {ID: "clerk", LLM: clerk}, {ID: "payer", LLM: payer}}
	}, pay
}

func TestChainParkedOnAGrandchild(t *testing.T) {
	make, pay := chain(t, nil)
	r := newRig(t, make)
	res, events := r.run("desk", "pay the bill")
	id := res.State.ID
	if res.Status != store.Awaiting || len(res.State.PendingApprovals) != 1 || pay.count() != 0 {
		t.Fatalf("parked: %s %+v %v", res.Status, res.State.PendingApprovals, res.Error)
	}
	p := res.State.PendingApprovals[0]
	if p.ToolName != "pay" || strings.Count(p.SubRunToolCallID, "/") != 1 || string(p.Args) != `{"n":12}` {
		t.Fatalf("mirrored approval = %+v, want pay with a path of two calls", p)
	}
	want := "agent.start step.start tool.call.start tool.call.delta* tool.call.end tool.execute.start handoff " +
		"subagent.event subagent.event subagent.event subagent.event tool.approval.requested agent.end"
	if got := types(events); got != want {
		t.Errorf("events of the root:\n got %s\nwant %s", got, want)
	}
	if !contains(events, event.SubagentEvent, `"agentName":"clerk","event":{"type":"subagent.event"`) {
		t.Error("no event of the grandchild inside one of the child")
	}
	checkParked := func(st *agent.State) {
		t.Helper()
		if st.CurrentAgentID != "desk" || len(st.Handoffs) != 1 || len(st.PendingSubRuns) != 1 || st.PendingSubRuns[0].ToolName != "transfer_to_clerk" {
			t.Fatalf("parked state: current %s, %d hand-offs, sub-runs %+v", st.CurrentAgentID, len(st.Handoffs), st.PendingSubRuns)
		}
		sub := st.PendingSubRuns[0].State
		if sub.AgentID != "clerk" || sub.Status != string(store.Awaiting) || sub.ID == st.ID || len(sub.PendingSubRuns) != 1 ||
			sub.PendingSubRuns[0].State.PendingApprovals[0].SubRunToolCallID != "" {
			t.Fatalf("sub-run state = %+v", sub)
		}
		if sys := sub.Messages[0]; sys.Content.Text != "You are the clerk." {
			t.Errorf("the clerk's system prompt = %q", sys.Content.Text)
		}
		for _, m := range sub.Messages[1:] {
			if m.Role == message.System {
				t.Error("the desk's system prompt went along")
			}
		}
	}
	checkParked(&res.State)
	r.restart()
	snap, err := r.engine.Snapshot(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	checkParked(snap.State)
	childID := snap.State.PendingSubRuns[0].State.ID
	if _, _, err := r.engine.Resume(t.Context(), childID, []run.Decision{{ToolCallID: p.ToolCallID, Granted: true}}, "", nil); !fault.Is(err, fault.RunIsChild) {
		t.Errorf("Resume of a child = %v, want run-is-child", err)
	}
	if _, err := r.engine.Abort(t.Context(), childID, run.AbortOptions{}); !fault.Is(err, fault.RunIsChild) {
		t.Errorf("Abort of a waiting child = %v, want run-is-child", err)
	}
	head, _, _ := strings.Cut(p.SubRunToolCallID, "/")
	for _, path := range []string{"", head, p.SubRunToolCallID + "/x", "nonsense"} {
		_, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: p.ToolCallID, Granted: true, SubRunToolCallID: path}}, "", nil)
		if !fault.Is(err, fault.ApprovalNotWaiting) {
			t.Errorf("Resume with the path %q = %v, want approval-not-waiting", path, err)
		}
	}
	res = resume(t, r, id, run.Decision{ToolCallID: p.ToolCallID, Granted: true, SubRunToolCallID: p.SubRunToolCallID})
	if res.Status != store.Completed || pay.count() != 1 || len(res.State.PendingSubRuns) != 0 {
		t.Fatalf("resumed: %s %+v with %d payments", res.Status, res.Error, pay.count())
	}
	if want := `"desk: clerk: payer: did pay"`; string(res.Output) != want {
		t.Errorf("output = %s, want %s", res.Output, want)
	}
	// Each agent made two model calls: 2*100+2, 2*10+2 and 2*1+2 tokens.
	if got := res.Usage.TotalTokens; got != 202+22+4 {
		t.Errorf("total tokens = %d, want each model call once: 228", got)
	}
	if got := res.State.UsageByModel["m"]; got.TotalTokens != 228 {
		t.Errorf("usage by model = %+v", res.State.UsageByModel)
	}
	var own int64
	for _, s := range res.State.Steps {
		if s.Usage != nil {
			own += s.Usage.TotalTokens
		}
	}
	if own != 202 {
		t.Errorf("the root's steps used %d tokens, want its own 202", own)
	}
	all := r.events("desk", id)
	if !contains(all, event.SubagentEvent, "tool.execute.end") || !contains(all, event.ApprovalGranted, p.SubRunToolCallID) {
		t.Errorf("after the resumption: %s", types(all))
	}
	kid, err := r.engine.Snapshot(t.Context(), childID)
	if err != nil || kid.ParentRunID != id || kid.Status != store.Completed {
		t.Errorf("the child: %+v, %v", kid.Status, err)
	}
	r.events("clerk", childID)
	runs, _, err := r.engine.List(t.Context(), store.RunFilter{Limit: 10})
	if err != nil || len(runs) != 1 {
		t.Errorf("List gave %d runs, %v; want the root alone", len(runs), err)
	}
}

// TestForwardingPolicies: what a parent tells of its child.
func TestForwardingPolicies(t *testing.T) {
	for policy, want := range map[string][]string{
		"none":      {},
		"lifecycle": {event.ToolStart, event.ToolEnd},
		"all":       {event.AgentStart, event.StepStart, event.TextDelta, event.TextComplete, event.ToolStart, event.ToolEnd, event.StepEnd, event.AgentEnd},
	} {
		make, _ := chain(t, func(desk, clerk, payer *agent.LLM) {
			clerk.Forward = policy
			payer.Policy = agent.Policy{}
		})
		r := newRig(t, make)
		_, events := r.run("clerk", "pay")
		got := map[string]bool{}
		for _, e := range events {
			var body struct{ Event struct{ Type string } }
			if e.Type == event.SubagentEvent && json.Unmarshal(e.Payload, &body) == nil {
				got[body.Event.Type] = true
			}
		}
		for _, typ := range want {
			if !got[typ] {
				t.Errorf("policy %s does not forward %s", policy, typ)
			}
		}
		if policy != "all" && len(got) != len(want) {
			t.Errorf("policy %s forwards %v, want %v", policy, got, want)
		}
	}
}

func TestChildFailureIsAToolError(t *testing.T) {
	make, _ := chain(t, func(_, _, payer *agent.LLM) {
		payer.Models[0].Provider = scripted(t, `{"turns":[{"error":{"kind":"unauthorized","message":"bad key"}}]}`)
	})
	r := newRig(t, make)
	res, events := r.run("clerk", "pay")
	if res.Status != store.Completed || !strings.Contains(string(res.Output), `sub-agent`) || !strings.Contains(string(res.Output), "bad key") {
		t.Errorf("the parent of a failed child: %s %s", res.Status, res.Output)
	}
	if o := res.State.Steps[0].ToolCalls[0].Outcome; o.Kind != message.ExecutionFailed {
		t.Errorf("outcome = %+v, want execution_failed", o)
	}
	if !contains(events, event.SubagentEvent, event.AgentError) {
		t.Error("the child's error was not forwarded")
	}
}

// TestUsageOfAFailedChildCounts: what a child used before it failed is part of its parent's usage.
func TestUsageOfAFailedChildCounts(t *testing.T) {
	register, _ := chain(t, func(_, _, payer *agent.LLM) {
		payer.Policy = agent.Policy{}
		payer.Models[0].Provider = scripted(t, `{"turns":[{"when":{"lastTool":"."},"error":{"kind":"unauthorized","message":"bad key"}},
			{"toolCalls":[{"name":"pay","args":{"n":12}}],"usage":{"promptTokens":1000,"completionTokens":1,"totalTokens":1001}}]}`)
	})
	r := newRig(t, register)
	res, _ := r.run("clerk", "pay")
	if res.Status != store.Completed || res.State.Steps[0].ToolCalls[0].Outcome.Kind != message.ExecutionFailed {
		t.Fatalf("the parent of a failed child: %s %+v", res.Status, res.State.Steps)
	}
	// Two model calls of the parent and one of the child.
	if got := res.Usage.TotalTokens; got != 11+11+1001 {
		t.Errorf("total tokens = %d, want 1023", got)
	}
}

func TestMultipleHandoffsFail(t *testing.T) {
	desk := llm(t, `{"turns":[{"toolCalls":[{"name":"transfer_to_a","args":{}},{"name":"transfer_to_b","args":{}}]}]}`,
		agent.HandoffTool("a", ""), agent.HandoffTool("b", ""))
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "desk", LLM: desk}} })
	res, _ := r.run("desk", "go")
	if res.Status != store.Failed || res.Error.Code != fault.MultipleHandoffs.Code {
		t.Errorf("two hand-offs in a step: %s %+v", res.Status, res.Error)
	}
}

// TestAgentsThatCallThemselves: recursion ends at its bound as a tool error.
func TestAgentsThatCallThemselves(t *testing.T) {
	self := llm(t, `{"turns":[{"when":{"lastTool":"."},"text":"{{lastTool}}"},{"toolCalls":[{"name":"subagent_a","args":{"input":"again"}}]}]}`, agent.SubAgentTool("a", ""))
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", LLM: self}} })
	res, _ := r.run("a", "go")
	if res.Status != store.Completed || !strings.Contains(string(res.Output), "deep") {
		t.Errorf("recursion: %s %s %+v", res.Status, res.Output, res.Error)
	}
}

// TestGatedSubAgent: the call of an agent may itself need an approval, and its child may need one too.
func TestGatedSubAgent(t *testing.T) {
	make, pay := chain(t, func(_, clerk, _ *agent.LLM) { clerk.Policy.Ask = []agent.Pattern{{Tool: "subagent_*"}} })
	r := newRig(t, make)
	res, _ := r.run("clerk", "pay")
	if p := res.State.PendingApprovals; res.Status != store.Awaiting || len(p) != 1 || p[0].ToolName != "subagent_payer" || p[0].SubRunToolCallID != "" {
		t.Fatalf("pending = %+v", p)
	}
	r.restart()
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
	p := res.State.PendingApprovals
	if res.Status != store.Awaiting || len(p) != 1 || p[0].ToolName != "pay" || p[0].SubRunToolCallID == "" || pay.count() != 0 {
		t.Fatalf("after the grant: %s %+v", res.Status, p)
	}
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: p[0].ToolCallID, SubRunToolCallID: p[0].SubRunToolCallID, Reason: "no money"})
	if res.Status != store.Completed || pay.count() != 0 || !strings.Contains(string(res.Output), "no money") {
		t.Errorf("after the denial: %s %s", res.Status, res.Output)
	}
	r.checkNumbers(res.State.ID)
}

// TestAbortOfAParkedChain: what becomes of the parent, the child and their approvals.
func TestAbortOfAParkedChain(t *testing.T) {
	for policy, want := range map[string]struct {
		status  store.Status
		pending int
	}{"deny": {store.Aborted, 0}, "fail": {store.Failed, 0}, "hold": {store.Aborted, 1}} {
		make, pay := chain(t, nil)
		r := newRig(t, make)
		res, _ := r.run("desk", "pay")
		id, child := res.State.ID, res.State.PendingSubRuns[0].State.ID
		p := res.State.PendingApprovals[0]
		if status, err := r.engine.Abort(t.Context(), id, run.AbortOptions{OnPending: policy}); err != nil || status != want.status {
			t.Errorf("Abort(%s) = %s, %v", policy, status, err)
		}
		r.events("desk", id)
		r.events("clerk", child)
		kid, err := r.engine.Snapshot(t.Context(), child)
		if err != nil || kid.Status != want.status {
			t.Errorf("%s: the child is %s, %v", policy, kid.Status, err)
		}
		snap, err := r.engine.Snapshot(t.Context(), id)
		if err != nil || len(snap.PendingApprovals) != want.pending {
			t.Fatalf("%s: %d approvals pending, %v", policy, len(snap.PendingApprovals), err)
		}
		switch policy {
		case "deny":
			last := snap.State.Messages[len(snap.State.Messages)-1]
			if last.Role != message.Tool || !strings.Contains(last.Content.Text, "aborted") || snap.Usage.TotalTokens != 101+11+2 {
				t.Errorf("deny: last message %+v, usage %+v", last, snap.Usage)
			}
		case "hold":
			r.restart()
			if _, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: p.ToolCallID, Granted: true, SubRunToolCallID: "wrong"}}, "", nil); !fault.Is(err, fault.ApprovalNotWaiting) {
				t.Errorf("hold: %v", err)
			}
			res = resume(t, r, id, run.Decision{ToolCallID: p.ToolCallID, Granted: true, SubRunToolCallID: p.SubRunToolCallID})
			if res.Status != store.Completed || pay.count() != 1 || res.Usage.TotalTokens != 228 {
				t.Errorf("hold, then granted: %s %+v with %d payments and %d tokens", res.Status, res.Error, pay.count(), res.Usage.TotalTokens)
			}
		}
		if policy != "hold" && pay.count() != 0 {
			t.Errorf("%s: paid", policy)
		}
	}
}

// TestAbortReachesARunningChild: the grandchild's own tool aborts the root, hard or with a drain. A hard abort cancels
// the tool; a drain lets it finish, and nobody begins a further step.
func TestAbortReachesARunningChild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, drain := range []bool{false, true} {
			register, pay := chain(t, func(_, _, payer *agent.LLM) { payer.Policy = agent.Policy{} })
			r := newRig(t, register)
			root := make(chan string, 1)
			var cancelled bool
			pay.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
				r.engine.Abort(ended(), <-root, run.AbortOptions{Drain: drain})
				cancelled = ctx.Err() != nil
				return tool.JSON("paid")
			}
			h := r.start(run.StartRequest{Owner: "desk", Input: json.RawMessage(`"pay"`)})
			root <- h.ID
			res := r.wait(h)
			waitFor(t, func() bool { return r.engine.Moving() == 0 })
			if res.Status != store.Aborted || cancelled == drain || len(res.State.Steps) != 1 {
				t.Errorf("drain %v: %s after %d steps, the tool cancelled: %v", drain, res.Status, len(res.State.Steps), cancelled)
			}
			r.events("desk", h.ID)
			for _, m := range res.State.Messages {
				if m.Role == message.Tool && !strings.Contains(m.Content.Text, "was aborted") {
					t.Errorf("drain %v: the root's model would be told %q", drain, m.Content.Text)
				}
			}
		}
	})
}
