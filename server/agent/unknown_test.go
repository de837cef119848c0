package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// TestUnknownOutcomeNeedsLeave interrupts a call and grants it: alone, beside another one, and in a child. A grant must
// say that the call may be made again; one that does not changes nothing.
func TestUnknownOutcomeNeedsLeave(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(pay *counter) func(*rig) []agent.Registration
	}{
		{"own", func(pay *counter) func(*rig) []agent.Registration {
			return single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"end: {{lastTool}}"}]}`, pay))
		}},
		{"a child's", func(pay *counter) func(*rig) []agent.Registration {
			return func(*rig) []agent.Registration {
				return []agent.Registration{
					{ID: "a", LLM: llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"subagent_b","args":{"input":"x"}}]},{"text":"end: {{lastTool}}"}]}`, agent.SubAgentTool("b", ""))},
					{ID: "b", LLM: llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"end: {{lastTool}}"}]}`, pay)}}
			}
		}},
	} {
		t.Run(tc.name, bubble(func(t *testing.T) {
			pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
			hang(pay)
			r := newRig(t, tc.make(pay))
			h := r.start(run.StartRequest{Owner: "a"})
			waitFor(t, func() bool { return pay.count() == 1 })
			pay.succeed()
			r.restart()
			s := r.settled(h.ID)
			if len(s.PendingApprovals) != 1 || !s.PendingApprovals[0].MayHaveHappened() {
				t.Fatalf("after the restart %s waits for %+v, want one call of unknown outcome", s.Status, s.PendingApprovals)
			}
			p := s.PendingApprovals[0]
			word := run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true}
			leave := word
			leave.Again = true
			for _, decisions := range [][]run.Decision{{word}, {leave, word}, {word, {ToolCallID: "other", Granted: true}}} { // of several for one call, the last counts
				_, _, err := r.engine.Resume(t.Context(), h.ID, decisions, "tester", nil)
				if f := fault.Of(err); !fault.Is(err, fault.OutcomeUnknown) || fmt.Sprint(f.Extra["toolCallId"]) != p.ToolCallID {
					t.Errorf("Resume(%+v) = %v, want outcome-unknown of %s", decisions, err, p.ToolCallID)
				}
			}
			if now := r.settled(h.ID); now.Status != store.Awaiting || now.StepNumber != s.StepNumber || pay.count() != 1 {
				t.Errorf("after refused grants: %s in step %d with %d calls, want nothing changed", now.Status, now.StepNumber, pay.count())
			}
			if res := resume(t, r, h.ID, leave); res.Status != store.Completed || pay.count() != 2 {
				t.Errorf("after leave was given: %s %+v with %d calls, want completed with two", res.Status, res.Error, pay.count())
			}
		}))
	}
}

// doubtfulPayer is an agent that pays once and says what came of it. The tool's outcome is unknown the first time.
func doubtfulPayer(t *testing.T, spec tool.Spec) (*rig, *counter) {
	spec.Name, spec.Description = "pay", "d"
	pay := &counter{spec: spec}
	pay.execute = func(context.Context, tool.Call) (tool.Result, error) {
		if pay.count() > 1 {
			return tool.JSON("paid")
		}
		return tool.Result{}, &tool.Error{Message: "The server answered 504 Gateway Timeout.", Unknown: true}
	}
	return newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{"n":1}}]},{"text":"end: {{lastTool}}"}]}`, pay))), pay
}

// TestUnknownOutcomeWithoutACrash: what becomes of a call that may have happened follows its tool, and a model is told of
// no failure.
func TestUnknownOutcomeWithoutACrash(t *testing.T) {
	const told = "Error: The outcome of this call is unknown: the server answered 504 Gateway Timeout. Its effect may have happened."
	r, pay := doubtfulPayer(t, tool.Spec{OnUnknownOutcome: tool.ReportError})
	if res, _ := r.run("a", "go"); res.Status != store.Completed || !strings.Contains(string(res.Output), told) || pay.count() != 1 {
		t.Errorf("error: %s with %d calls, told %s", res.Status, pay.count(), res.Output)
	}
	r, pay = doubtfulPayer(t, tool.Spec{SideEffect: tool.ReadOnly})
	if res, _ := r.run("a", "go"); res.Status != store.Completed || !strings.Contains(string(res.Output), "Error: The server answered 504") {
		t.Errorf("read-only: %s with %d calls, told %s", res.Status, pay.count(), res.Output)
	}
	for _, again := range []bool{false, true} {
		r, pay := doubtfulPayer(t, tool.Spec{})
		res, events := r.run("a", "go")
		if res.Status != store.Awaiting || len(res.State.PendingApprovals) != 1 || contains(events, "tool.execute.error", "") || !contains(events, "tool.approval.requested", "outcome-unknown") {
			t.Fatalf("ask: %s waits for %+v", res.Status, res.State.PendingApprovals)
		}
		p := res.State.PendingApprovals[0]
		if p.RequestedBy != "anonymous" || p.RequestedByAgent != "a" || p.Previous == nil || p.Previous.Attempts != 1 || p.Previous.Known != "The server answered 504 Gateway Timeout." || p.Previous.BegunAt == "" {
			t.Errorf("the approval is %+v, before it %+v", p, p.Previous)
		}
		r.restart()
		res = resume(t, r, res.State.ID, run.Decision{ToolCallID: p.ToolCallID, Granted: again, Again: again, Reason: "I looked"})
		want, calls := "end: paid", 2
		if !again {
			want, calls = told+" A person decided not to repeat it: I looked", 1
		}
		if res.Status != store.Completed || !strings.Contains(string(res.Output), want) || pay.count() != calls {
			t.Errorf("again %t: %s with %d calls, told %s", again, res.Status, pay.count(), res.Output)
		}
	}
}

// TestTimeOutOfATool: a call that its time cut off is of unknown outcome, without and beside others.
func TestTimeOutOfATool(t *testing.T) {
	for _, others := range []string{"", `,{"name":"free","args":{}}`} {
		slow := &counter{spec: tool.Spec{Name: "slow", Description: "d", Timeout: 50 * time.Millisecond}}
		hang(slow)
		free := &counter{spec: tool.Spec{Name: "free", Description: "d"}}
		r := newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"slow","args":{}}`+others+`]},{"text":"end"}]}`, slow, free)))
		res, _ := r.run("a", "go")
		if p := res.State.PendingApprovals; res.Status != store.Awaiting || len(p) != 1 || !p[0].MayHaveHappened() || p[0].Previous.Known != "The tool did not answer within 50ms." {
			t.Errorf("after a time-out: %s waits for %+v", res.Status, p)
		}
	}
}

// TestAbortWithACallInFlight: what the call has done stays a question, however the run was aborted, and the run ends when
// that is answered.
func TestAbortWithACallInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, opts := range []run.AbortOptions{{}, {NoWait: true}, {OnPending: "hold"}, {OnPending: "fail", NoWait: true}} {
			pay := &counter{spec: tool.Spec{Name: "pay", Description: "d"}}
			hang(pay)
			r := newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"never"}]}`, pay)))
			h := r.start(run.StartRequest{Owner: "a"})
			waitFor(t, func() bool { return pay.count() == 1 })
			if _, err := r.engine.Abort(t.Context(), h.ID, opts); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { s := r.settled(h.ID); return s.Status == store.Awaiting && s.Error != nil })
			s := r.settled(h.ID)
			waiting, err := r.engine.Approvals(t.Context(), nil, nil)
			if len(s.PendingApprovals) != 1 || !s.PendingApprovals[0].MayHaveHappened() || s.Error.Code != "run-aborted" || len(waiting) != 1 || err != nil {
				t.Fatalf("%+v: %s %+v waits for %+v", opts, s.Status, s.Error, s.PendingApprovals)
			}
			if _, _, err := r.engine.Resume(t.Context(), h.ID, []run.Decision{{ToolCallID: s.PendingApprovals[0].ToolCallID, Reason: "seen"}}, "ann", nil); err != nil {
				t.Fatal(err)
			}
			waitFor(t, func() bool { return r.settled(h.ID).Status.Terminal() })
			text, _ := json.Marshal(r.settled(h.ID).State.Messages)
			if !strings.Contains(string(text), "The outcome of this call is unknown") || pay.count() != 1 {
				t.Errorf("%+v: %d calls, and the transcript is %s", opts, pay.count(), text)
			}
			r.checkNumbers(h.ID)
		}
	})
}
