package agent_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"agentd/server/agent"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/session"
	"agentd/server/tool"
	"agentd/store"
)

// A talker is a model that calls a tool once, with the arguments as they are.
type talker struct{ args string }

func (talker) Name() string { return "talker" }

func (p talker) Stream(_ context.Context, req *provider.Request, _ func(provider.Delta)) (*provider.Response, error) {
	res := &provider.Response{Finish: provider.FinishStop, Text: "done", Model: "m"}
	if req.Messages[len(req.Messages)-1].Role == message.User {
		res.Finish, res.Text = provider.FinishToolCalls, ""
		res.ToolCalls = []message.ToolCall{{ID: "c1", Name: "deep", Args: message.Args(p.args)}}
	}
	return res, nil
}

// JSON that is nested as deeply as a decoder takes it can be read, but no longer when it is a part of something else.
// Neither a model nor a tool makes a run or a session unreadable with it.
func TestDeepJSONHarmsNoTranscript(t *testing.T) {
	for _, depth := range []int{900, 1100, 9_990, 10_000} {
		nested := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		deep := &counter{spec: tool.Spec{Name: "deep", Description: "d", SideEffect: tool.ReadOnly, MaxResultTokens: -1}}
		deep.execute = func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{Output: []byte(nested)}, nil }
		r := newRig(t, func(*rig) []agent.Registration {
			l := llm(t, `{"turns":[{"text":"x"}]}`, deep)
			l.Models = []agent.Model{{Provider: talker{`{"x":` + nested[1:depth*2-1] + `}`}, Model: "m"}}
			return []agent.Registration{{ID: "a", LLM: l}}
		})
		h := r.start(run.StartRequest{Owner: "a", SessionID: "s", Input: []byte(`"go"`)})
		if res := r.wait(h); res.Status != store.Completed {
			t.Errorf("a run with JSON %d levels deep = %s %+v, want completed", depth, res.Status, res.Error)
		}
		if _, err := r.engine.Snapshot(t.Context(), h.ID); err != nil {
			t.Errorf("Snapshot of a run with JSON %d levels deep = %.200v, want none", depth, err)
		}
		if err := session.New(r.db.Sessions()).Export(t.Context(), "s", io.Discard, session.ExportOptions{}); err != nil {
			t.Errorf("Export of a session with JSON %d levels deep = %.200v, want none", depth, err)
		}
	}
}
