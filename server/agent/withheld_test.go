package agent_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"agentd/server/agent"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// overheard is a provider whose requests are kept.
type overheard struct {
	provider.Provider
	mu    sync.Mutex // guards asked
	asked [][]message.Message
}

func (o *overheard) Stream(ctx context.Context, req *provider.Request, sink func(provider.Delta)) (*provider.Response, error) {
	o.mu.Lock()
	o.asked = append(o.asked, req.Messages)
	o.mu.Unlock()
	return o.Provider.Stream(ctx, req, sink)
}

// overhear lets the first model of an agent be overheard.
func overhear(a *agent.LLM) *overheard {
	o := &overheard{Provider: a.Models[0].Provider}
	a.Models[0].Provider = o
	return o
}

// The event that ends a run has no instructions.
func TestEndWithoutInstructions(t *testing.T) {
	make, _ := chain(t, nil)
	_, events := newRig(t, make).run("desk", "pay the bill")
	if contains(events, "agent.end", "You are the desk.") || contains(events, "agent.end", "You are the clerk.") || !contains(events, "agent.end", `"withheld":true`) {
		t.Error("agent.end has the instructions, want them withheld")
	}
}

// A model is told which instructions are the caller's, after those of the operator.
func TestCallerInstructions(t *testing.T) {
	var model *overheard
	r := newRig(t, func(*rig) []agent.Registration {
		open := llm(t, `{"turns":[{"text":"hello"}]}`)
		open.Instructions, open.CallerInstructions = "operator", true
		model = overhear(open)
		return []agent.Registration{{ID: "open", LLM: open}}
	})
	for range 2 { // the caller's stay out of the session
		res := r.wait(r.start(run.StartRequest{Owner: "open", SessionID: "s", Input: []byte(`[{"role":"system","content":[{"type":"text","text":"caller"}]},{"role":"user","content":"hi"}]`)}))
		if res.Status != store.Completed {
			t.Fatal(res.Status, res.Error)
		}
	}
	asked := model.asked[1]
	var systems []string
	for _, m := range asked {
		if m.Role == message.System {
			systems = append(systems, m.Content.String())
		}
	}
	if len(systems) != 2 || systems[0] != "operator" || !strings.HasSuffix(systems[1], "\ncaller") || !strings.Contains(systems[1], "caller of this run") {
		t.Errorf("system messages %q, want the operator's, then the caller's marked as that", systems)
	}
}

// A call that came with an import stays one, also when a crash leaves its outcome unknown; what a model asks for later is none.
func TestImportedCallOfUnknownOutcome(t *testing.T) {
	const script = `{"turns":[{"when":{"lastTool":"."},"toolCalls":[{"name":"pay","args":{"n":2}}]},{"toolCalls":[{"name":"pay","args":{"n":1}}]}]}`
	gated := func(execute func(context.Context, tool.Call) (tool.Result, error)) func(*rig) []agent.Registration {
		a := llm(t, script, &counter{spec: tool.Spec{Name: "pay", Description: "pays"}, execute: execute})
		a.Policy.Tools = map[string]agent.Gate{"pay": {Always: true}}
		return single(a)
	}
	home := newRig(t, gated(nil))
	res, _ := home.run("a", "pay")
	began := make(chan struct{}, 1)
	away := newRig(t, gated(func(ctx context.Context, c tool.Call) (tool.Result, error) {
		if strings.Contains(string(c.Args), "1") {
			began <- struct{}{}
			<-ctx.Done()
			return tool.Result{}, context.Cause(ctx)
		}
		return tool.Result{Output: []byte(`"paid"`)}, nil
	}))
	away.imports(state(t, encode(t, res.State)))
	id, p := res.State.ID, res.State.PendingApprovals[0]
	decide := func(granted, again bool) {
		t.Helper()
		if _, _, err := away.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: p.ToolCallID, Granted: granted, Again: again}}, "ann", nil); err != nil {
			t.Fatal(err)
		}
	}
	decide(true, false)
	<-began
	away.crash()
	s := away.settled(id)
	if len(s.PendingApprovals) != 1 || !s.Imported {
		t.Fatalf("after a crash: %+v, want an imported run with one approval", s)
	}
	if p = s.PendingApprovals[0]; p.Reason != "outcome-unknown" || !p.Imported {
		t.Errorf("after a crash there waits %+v, want a call of unknown outcome that was imported", p)
	}
	decide(false, false)
	s = away.settled(id)
	if len(s.PendingApprovals) != 1 || s.PendingApprovals[0].ToolCallID == p.ToolCallID || s.PendingApprovals[0].Imported {
		t.Errorf("then there waits %+v, want a call that the model asked for here", s.PendingApprovals)
	}
}
