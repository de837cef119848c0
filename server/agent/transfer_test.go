package agent_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/recording"
	"agentd/server/run"
	"agentd/server/schema"
	"agentd/server/tool"
	"agentd/store"
)

// asked counts the model calls of agents.
type asked struct {
	mu    sync.Mutex
	calls []string
}

func (a *asked) add(agentID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls = append(a.calls, agentID)
}

// since lists the agents whose models were asked since the last time.
func (a *asked) since() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := strings.Join(a.calls, " ")
	a.calls = nil
	return list
}

// office registers desk, which gives its conversation to clerk, which pays with approval, gives it to auditor, or back. What
// the user says decides. snap is called before each model call and around the payment.
func office(t testing.TB, snap func(string), edit func(desk, clerk, auditor *agent.LLM)) (func(*rig) []agent.Registration, *asked, *counter) {
	pay := &counter{spec: tool.Spec{Name: "pay", Description: "pays"}}
	pay.execute = func(context.Context, tool.Call) (tool.Result, error) {
		snap("before the payment")
		defer snap("after the payment")
		return tool.JSON("paid")
	}
	look := &counter{spec: tool.Spec{Name: "look", Description: "looks", SideEffect: tool.ReadOnly}}
	desk := llm(t, `{"turns":[
		{"when":{"lastTool":"."},"text":"desk: {{lastTool}}"},
		{"when":{"lastUser":"back"},"text":"desk: again"},
		{"when":{"lastUser":"own"},"text":"desk: itself"},
		{"when":{"lastUser":"both"},"toolCalls":[{"name":"look","args":{}},{"name":"transfer_to_clerk","args":{}}]},
		{"toolCalls":[{"name":"transfer_to_clerk","args":{}}]}]}`, agent.TransferTool("clerk", ""), look)
	clerk := llm(t, `{"turns":[
		{"when":{"lastTool":"."},"text":"clerk: {{lastTool}}"},
		{"when":{"lastUser":"back"},"toolCalls":[{"name":"transfer_to_desk","args":{}}]},
		{"when":{"lastUser":"audit"},"toolCalls":[{"name":"transfer_to_auditor","args":{}}]},
		{"when":{"lastUser":"pay"},"toolCalls":[{"name":"pay","args":{"n":12}}]},
		{"when":{"lastUser":"fail"},"error":{"kind":"unauthorized","message":"bad key"}},
		{"when":{"lastUser":"json"},"text":"{\"n\":12}"},
		{"text":"clerk: {{lastUser}}"}]}`, agent.TransferTool("desk", ""), agent.TransferTool("auditor", ""), pay)
	auditor := llm(t, `{"turns":[
		{"when":{"lastUser":"back"},"toolCalls":[{"name":"transfer_to_desk","args":{}}]},
		{"when":{"lastUser":"clerk"},"toolCalls":[{"name":"transfer_to_clerk","args":{}}]},
		{"when":{"lastUser":"fail"},"error":{"kind":"unauthorized","message":"bad key"}},
		{"text":"auditor: {{lastUser}}"}]}`, agent.TransferTool("desk", ""), agent.TransferTool("clerk", ""))
	clerk.Policy.Tools = map[string]agent.Gate{"pay": {Always: true}}
	if edit != nil {
		edit(desk, clerk, auditor)
	}
	a := &asked{}
	regs := []agent.Registration{{ID: "desk", LLM: desk}, {ID: "clerk", LLM: clerk}, {ID: "auditor", LLM: auditor}}
	for _, reg := range regs {
		reg.LLM.Models[0].Provider = camera{reg.LLM.Models[0].Provider, func(name string) {
			snap(reg.ID + " " + name)
			a.add(reg.ID)
		}}
	}
	return func(*rig) []agent.Registration { return regs }, a, pay
}

func quiet(string) {}

// say runs desk with a text in a session.
func (r *rig) say(session, text string) (agent.RunResult, []event.Event) {
	r.t.Helper()
	in, _ := json.Marshal(text)
	h := r.start(run.StartRequest{Owner: "desk", Input: in, SessionID: session})
	return r.wait(h), r.events("desk", h.ID)
}

// TestTransfer: who answers what is said to desk, whose models are asked for that, and who has the conversation then.
func TestTransfer(t *testing.T) {
	register, asked, _ := office(t, quiet, nil)
	r := newRig(t, register)
	for i, tt := range []struct{ say, output, holder, asked string }{
		{"own", "desk: itself", "desk", "desk"},
		{"hello", "clerk: hello", "clerk", "desk clerk"},
		{"hello", "clerk: hello", "clerk", "clerk"},
		{"own", "clerk: own", "clerk", "clerk"},
		{"audit", "auditor: audit", "auditor", "clerk auditor"},
		{"hello", "auditor: hello", "auditor", "auditor"},
		{"the clerk", "clerk: the clerk", "clerk", "auditor clerk"},
		{"hello", "clerk: hello", "clerk", "clerk"},
		{"audit", "auditor: audit", "auditor", "clerk auditor"},
		{"back", "desk: again", "desk", "auditor desk"},
		{"own", "desk: itself", "desk", "desk"},
		{"hello", "clerk: hello", "clerk", "desk clerk"},
		{"back", "desk: again", "desk", "clerk desk"},
		{"own", "desk: itself", "desk", "desk"},
	} {
		if i%2 == 1 {
			r.restart()
		}
		res, events := r.say("s", tt.say)
		var output string
		json.Unmarshal(res.Output, &output) //nolint:errcheck // compared below
		last := res.State.Messages[len(res.State.Messages)-1]
		if res.Status != store.Completed || output != tt.output || res.State.CurrentAgentID != tt.holder || last.AgentID != tt.holder || last.Content.String() != tt.output {
			t.Fatalf("%d: %q is answered %s %s by %s: %+v", i, tt.say, res.Status, res.Output, res.State.CurrentAgentID, res.Error)
		}
		if got := asked.since(); got != tt.asked {
			t.Errorf("%d: %q asks the models of %q, want %q", i, tt.say, got, tt.asked)
		}
		want := "agent.start step.start tool.call.start tool.call.end tool.execute.start handoff "
		got := strings.ReplaceAll(strings.ReplaceAll(types(events), "tool.call.delta* ", ""), "subagent.event ", "")
		if tt.asked != "desk" && got != want+"tool.execute.end text.complete step.end agent.end" {
			t.Errorf("%d: events %s", i, got)
		}
	}
	// Others are not led astray: not another agent of the session, nor another session.
	r.say("s", "hello")
	asked.since()
	h := r.start(run.StartRequest{Owner: "clerk", Input: json.RawMessage(`"hello"`), SessionID: "s"})
	if res := r.wait(h); string(res.Output) != `"clerk: hello"` || len(res.State.Handoffs) != 0 {
		t.Errorf("another agent of the session: %s", res.Output)
	}
	if res, _ := r.say("other", "own"); string(res.Output) != `"desk: itself"` {
		t.Errorf("another session: %s", res.Output)
	}
	if res, _ := r.say("", "own"); string(res.Output) != `"desk: itself"` {
		t.Errorf("no session: %s", res.Output)
	}
	if res, _ := r.say("s", "own"); string(res.Output) != `"clerk: own"` {
		t.Errorf("afterwards: %s", res.Output)
	}
}

// TestTransferFails: a child that fails is given nothing, and one that holds the conversation keeps it.
func TestTransferFails(t *testing.T) {
	register, asked, _ := office(t, quiet, nil)
	r := newRig(t, register)
	for i, tt := range []struct{ say, output, asked string }{
		{"fail", "desk: ", "desk clerk desk"},
		{"own", "desk: itself", "desk"},
		{"hello", "clerk: hello", "desk clerk"},
		{"fail", "desk: ", "clerk desk"},
		{"own", "clerk: own", "clerk"},
		{"audit", "auditor: audit", "clerk auditor"},
		{"fail", "clerk: ", "auditor clerk"},
		{"own", "auditor: own", "auditor"},
	} {
		res, _ := r.say("s", tt.say)
		var output string
		json.Unmarshal(res.Output, &output) //nolint:errcheck // compared below
		if res.Status != store.Completed || !strings.HasPrefix(output, tt.output) || (tt.say == "fail") != strings.Contains(output, "bad key") {
			t.Errorf("%d: %q is answered %s %s: %+v", i, tt.say, res.Status, res.Output, res.Error)
		}
		if got := asked.since(); got != tt.asked {
			t.Errorf("%d: %q asks the models of %q, want %q", i, tt.say, got, tt.asked)
		}
	}
}

// TestTransferCannotBeFollowed: an agent that does not give its conversation away any more has it back.
func TestTransferCannotBeFollowed(t *testing.T) {
	for name, change := range map[string]func(*agent.LLM){
		"no such hand-off": func(l *agent.LLM) { l.Tools, _ = tool.NewSet() },
		"it returns":       func(l *agent.LLM) { l.Tools, _ = tool.NewSet(agent.HandoffTool("clerk", "")) },
		"it is denied":     func(l *agent.LLM) { l.Policy.Deny = []agent.Pattern{{Tool: "transfer_to_clerk"}} },
	} {
		var desk *agent.LLM
		register, asked, _ := office(t, quiet, func(d, _, _ *agent.LLM) { desk = d })
		r := newRig(t, register)
		r.say("s", "hello")
		before := *desk
		change(desk)
		asked.since()
		r.restart()
		if res, _ := r.say("s", "own"); string(res.Output) != `"desk: itself"` || asked.since() != "desk" {
			t.Errorf("%s: %s %+v", name, res.Output, res.Error)
		}
		*desk = before
		r.restart()
		if res, _ := r.say("s", "own"); string(res.Output) != `"desk: itself"` || asked.since() != "desk" {
			t.Errorf("%s, and then as before: %s", name, res.Output)
		}
	}
	var clerk *agent.LLM
	register, asked, _ := office(t, quiet, func(_, c, _ *agent.LLM) { clerk = c })
	r := newRig(t, register)
	r.say("s", "audit")
	clerk.Tools, _ = tool.NewSet()
	asked.since()
	for range 2 {
		if res, _ := r.say("s", "hello"); string(res.Output) != `"clerk: hello"` || asked.since() != "clerk" {
			t.Errorf("the path ends early: %s %+v", res.Output, res.Error)
		}
	}
}

// TestTransferWaits: while the child waits so does the run, which ends when the child has; also where another call of the
// step waits longer, and where a person must allow the hand-off itself.
func TestTransferWaits(t *testing.T) {
	for name, edit := range map[string]func(desk, clerk, auditor *agent.LLM){
		"the child waits":   nil,
		"a call beside it":  func(desk, _, _ *agent.LLM) { desk.Policy.Ask = []agent.Pattern{{Tool: "look"}} },
		"the hand-off does": func(desk, _, _ *agent.LLM) { desk.Policy.Ask = []agent.Pattern{{Tool: "transfer_to_clerk"}} },
	} {
		for _, granted := range []bool{true, false} {
			register, asked, pay := office(t, quiet, edit)
			r := newRig(t, register)
			text, want, models := "pay", `"clerk: paid"`, "desk clerk clerk"
			if strings.Contains(name, "beside") {
				text, want, models = "both", `"clerk: both"`, "desk clerk"
			}
			res, _ := r.say("s", text)
			for res.Status == store.Awaiting {
				p := res.State.PendingApprovals[0]
				r.restart()
				res = resume(t, r, res.State.ID, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: granted})
			}
			holder := "clerk"
			if !granted {
				want = strings.Replace(want, "paid", "Error: Approval was denied.", 1)
				if strings.Contains(name, "hand-off") {
					want, models, holder = `"desk: Error: Approval was denied.`, "desk desk", "desk"
				}
			}
			text = string(res.Output)
			if res.Status != store.Completed || !granted && !strings.Contains(text, strings.Trim(want, `"`)) || granted && text != want || res.State.CurrentAgentID != holder {
				t.Errorf("%s, granted %v: %s %s by %s %+v", name, granted, res.Status, text, res.State.CurrentAgentID, res.Error)
			}
			if granted != (pay.count() == 1) && !strings.Contains(name, "beside") {
				t.Errorf("%s, granted %v: %d payments", name, granted, pay.count())
			}
			if got := asked.since(); got != models {
				t.Errorf("%s, granted %v: models of %q, want %q", name, granted, got, models)
			}
			r.events("desk", res.State.ID)
		}
	}
}

// TestTransferToAWaitingRun: a run that waits for its session's turn follows what the one before it has done, and a person
// is asked about the call with which it follows where the agent's permissions say so.
func TestTransferToAWaitingRun(t *testing.T) {
	var desk *agent.LLM
	register, asked, _ := office(t, quiet, func(d, _, _ *agent.LLM) { desk = d })
	r := newRig(t, register)
	first, _ := r.say("s", "pay")
	second := r.start(run.StartRequest{Owner: "desk", Input: json.RawMessage(`"own"`), SessionID: "s", Queue: true})
	p := first.State.PendingApprovals[0]
	resume(t, r, first.State.ID, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
	if res := r.wait(second); string(res.Output) != `"clerk: own"` {
		t.Errorf("the run that waited: %s %s", res.Status, res.Output)
	}
	desk.Policy.Ask = []agent.Pattern{{Tool: "transfer_to_clerk"}}
	for _, granted := range []bool{true, false} {
		asked.since()
		res, _ := r.say("s", "own")
		if len(res.State.PendingApprovals) != 1 || res.State.PendingApprovals[0].ToolName != "transfer_to_clerk" || asked.since() != "" {
			t.Fatalf("to be allowed: %s %+v", res.Status, res.State.PendingApprovals)
		}
		r.restart()
		res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: granted})
		if res.Status != store.Completed || asked.since() != map[bool]string{true: "clerk", false: "desk"}[granted] {
			t.Errorf("granted %v: %s %s", granted, res.Status, res.Output)
		}
	}
}

// TestTransferImported: an imported run whose child waits continues here, and the child's agent gets the conversation.
func TestTransferImported(t *testing.T) {
	register, _, _ := office(t, quiet, nil)
	here := newRig(t, register)
	here.say("s", "hello")
	res, _ := here.say("s", "pay") // it follows
	text := encode(t, res.State)
	register, asked, pay := office(t, quiet, nil)
	there := newRig(t, register)
	there.imports(state(t, text))
	p := res.State.PendingApprovals[0]
	res = resume(t, there, res.State.ID, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
	if res.Status != store.Completed || string(res.Output) != `"clerk: paid"` || pay.count() != 1 || res.State.CurrentAgentID != "clerk" {
		t.Errorf("imported: %s %s by %s with %d payments, %+v", res.Status, res.Output, res.State.CurrentAgentID, pay.count(), res.Error)
	}
	asked.since()
	if res, _ = there.say(res.State.SessionID, "own"); string(res.Output) != `"clerk: own"` || asked.since() != "clerk" {
		t.Errorf("the next message: %s", res.Output)
	}
}

// TestTransferAborted: an aborted run gives nothing away.
func TestTransferAborted(t *testing.T) {
	register, asked, _ := office(t, quiet, nil)
	r := newRig(t, register)
	res, _ := r.say("s", "pay")
	if status, err := r.engine.Abort(t.Context(), res.State.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
		t.Fatalf("Abort = %s, %v", status, err)
	}
	asked.since()
	if res, _ := r.say("s", "own"); string(res.Output) != `"desk: itself"` || asked.since() != "desk" {
		t.Errorf("after the abort: %s", res.Output)
	}
}

// TestTransferOutput: the run's answer has the form that the answers of its agent have.
func TestTransferOutput(t *testing.T) {
	form := func(t *testing.T) *agent.Output {
		text := json.RawMessage(`{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}`)
		s, err := schema.Compile(text)
		if err != nil {
			t.Fatal(err)
		}
		return &agent.Output{Schema: s, Spec: provider.OutputSpec{Name: "o", Schema: text}}
	}
	for _, who := range []string{"clerk", "desk", "both"} {
		register, _, _ := office(t, quiet, func(desk, clerk, _ *agent.LLM) {
			if who != "desk" {
				clerk.Output = form(t)
			}
			if who != "clerk" {
				desk.Output = form(t)
			}
		})
		r := newRig(t, register)
		if res, _ := r.say("s", "json"); res.Status != store.Completed || string(res.Output) != `{"n":12}` {
			t.Errorf("%s: %s %s %+v", who, res.Status, res.Output, res.Error)
		}
		res, _ := r.say("s2", "hello")
		if who == "desk" && (res.Status != store.Failed || res.Error.Code != fault.OutputInvalid.Code) {
			t.Errorf("an answer of another form: %s %s %+v", res.Status, res.Output, res.Error)
		}
	}
}

// TestTransferRecorded: a run that began with what no model asked for has no cassette; one that gives away has.
func TestTransferRecorded(t *testing.T) {
	register, _, _ := office(t, quiet, func(desk, _, _ *agent.LLM) { desk.NewTape = recording.NewTape })
	r := newRig(t, register)
	for i, text := range []string{"hello", "hello", "fail"} {
		res, _ := r.say("s", text)
		if err := recording.Export(t.Context(), r.engine, res.State.ID, io.Discard); (i > 0) != fault.Is(err, fault.RunNotRecorded) || i == 0 && err != nil {
			t.Errorf("%d: %q: %v", i, text, err)
		}
	}
}

// TestTransferredState: the state of a run whose conversation was given away goes through an import as it is.
func TestTransferredState(t *testing.T) {
	register, _, _ := office(t, quiet, nil)
	r := newRig(t, register)
	res, _ := r.say("s", "audit")
	if res.State.CurrentAgentID != "auditor" || len(res.State.Handoffs) != 1 {
		t.Fatalf("state: %+v", res.State)
	}
	st := state(t, encode(t, res.State))
	st.ID, st.SessionID = "elsewhere", ""
	want := encode(t, st)
	r.imports(st)
	if got := encode(t, r.state("elsewhere")); got != want {
		t.Errorf("imported:\n got %s\nwant %s", got, want)
	}
	for _, m := range res.State.Messages[1:] {
		if m.Role == message.User {
			t.Error("the user said it twice")
		}
	}
}

// TestCrashAtEveryStepOfATransfer: of runs that give the conversation away, follow it, wait for a person below, and give it
// back. Whatever the crash, the answers are the same, and so is who is asked next.
func TestCrashAtEveryStepOfATransfer(t *testing.T) {
	var images []image
	var r *rig
	counts := map[string]int{}
	var ids []string
	on := true
	began := 0
	var mu sync.Mutex
	snap := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		if name == "after the payment" {
			counts["once"]++
		}
		if on {
			images = append(images, takeImage(t, r, name, counts))
			images[len(images)-1].name += strings.Repeat("'", began)
		}
	}
	register, _, _ := office(t, snap, nil)
	r = newAuditedRig(t, register, func(list []run.Happening) (func(*store.Tx) error, error) {
		snap("before " + list[0].AgentID + " " + list[0].Event)
		return func(*store.Tx) error { return nil }, nil
	})
	outputs := []string{"clerk: hello", "auditor: audit", "clerk: paid", "clerk: paid", "desk: again"}
	for i, text := range []string{"hello", "audit", "pay, clerk", "pay", "back"} {
		began, counts["once"] = i, 0
		res, _ := r.say("s", text)
		for res.Status == store.Awaiting {
			snap("parked")
			p := res.State.PendingApprovals[0]
			res = resume(t, r, res.State.ID, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
		}
		snap("completed")
		ids = append(ids, res.State.ID)
		if want := `"` + outputs[i] + `"`; string(res.Output) != want {
			t.Fatalf("%d: output %s, want %s", i, res.Output, want)
		}
	}
	on = false
	if len(images) < 48 {
		t.Fatalf("%d images", len(images))
	}
	for _, im := range images {
		t.Run(im.name, func(t *testing.T) {
			i := strings.Count(im.name, "'")
			again, asked, pay := office(t, quiet, nil)
			text := outputs[i]
			if strings.Contains(im.name, "payment") || im.name == "before clerk tool.execute.end"+strings.Repeat("'", i) && im.counts["once"] == 1 {
				text = "" // it is told that nobody knows
			}
			var recovered *rig
			s := recoverImage(t, im, ids[i], func(r *rig) []agent.Registration {
				recovered = r
				return again(r)
			}, text)
			if im.counts["once"]+pay.count() > 1 {
				t.Errorf("%d and %d payments", im.counts["once"], pay.count())
			}
			holder := []string{"clerk", "auditor", "clerk", "clerk", "desk"}[i]
			if s.State.CurrentAgentID != holder {
				t.Errorf("%s has the conversation, want %s", s.State.CurrentAgentID, holder)
			}
			asked.since()
			if res, _ := recovered.say("s", "own"); asked.since() != holder || res.State.CurrentAgentID != holder {
				t.Errorf("the next message is answered %s", res.Output)
			}
		})
	}
}
