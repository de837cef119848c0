package recording_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/hub"
	"agentd/server/provider"
	"agentd/server/recording"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
	"agentd/store/storetest"
)

// studio records runs of one agent. It can be closed in the middle of a run and opened again.
type studio struct {
	t      *testing.T
	path   string
	db     *store.DB
	engine *agent.Engine
}

func newStudio(t *testing.T, reg agent.Registration) *studio {
	t.Helper()
	s := &studio{t: t, path: filepath.Join(t.TempDir(), "data.db")}
	s.open(reg)
	t.Cleanup(s.close)
	return s
}

func (s *studio) open(reg agent.Registration) {
	s.t.Helper()
	s.db = storetest.OpenAt(s.t, s.path)
	agents := &agent.Registry{}
	if err := agents.Register(reg); err != nil {
		s.t.Fatal(err)
	}
	s.engine = agent.New(agents, run.Options{Runs: s.db.Runs(), Sessions: s.db.Sessions(), Hub: hub.New(hub.Options{})})
}

func (s *studio) close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := errors.Join(s.engine.Drain(ctx), s.db.Close()); err != nil {
		s.t.Error(err)
	}
}

func (s *studio) run(req run.StartRequest, decisions ...run.Decision) agent.RunResult {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	h, err := s.engine.Start(ctx, req)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := h.Wait(ctx)
	for i := 0; err == nil && res.Status == store.Awaiting && i < len(decisions); i++ {
		d := decisions[i]
		for _, p := range res.State.PendingApprovals {
			if p.ToolName == d.ToolCallID { // the tests name the tool
				d.ToolCallID = p.ToolCallID
				break
			}
		}
		var unmatched []run.Decision
		if h, unmatched, err = s.engine.Resume(ctx, res.State.ID, []run.Decision{d}, "ann", nil); err == nil && len(unmatched) > 0 {
			s.t.Fatalf("Resume(%v) leaves %v", d, unmatched)
		}
		if err == nil {
			res, err = h.Wait(ctx)
		}
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

func (s *studio) cassette(runID string) []byte {
	s.t.Helper()
	var b bytes.Buffer
	if err := recording.Export(s.t.Context(), s.engine, runID, &b); err != nil {
		s.t.Fatalf("Cassette(%s): %v", runID, err)
	}
	return b.Bytes()
}

// record runs an agent once and reads its cassette back.
func record(t *testing.T, reg agent.Registration, req run.StartRequest, decisions ...run.Decision) *recording.Recording {
	t.Helper()
	s := newStudio(t, reg)
	res := s.run(req, decisions...)
	return read(t, s.cassette(res.State.ID))
}

func read(t *testing.T, file []byte) *recording.Recording {
	t.Helper()
	rec, err := recording.Read(bytes.NewReader(file))
	if err != nil || len(rec.Warnings) > 0 {
		t.Fatalf("Read = %v, warnings %q; of\n%s", err, rec.Warnings, file)
	}
	return rec
}

func play(t *testing.T, reg agent.Registration, rec *recording.Recording) recording.Report {
	t.Helper()
	report, err := recording.Replay(t.Context(), reg, rec)
	if err != nil {
		t.Fatalf("Run: %v", err)
	}
	return report
}

const script = `{"turns":[
	{"when":{"lastUser":"^plain"},"text":"Hello <b>ann</b>.","reasoning":"She greets me."},
	{"when":{"lastUser":"^json"},"text":"{\"n\": 7}"},
	{"when":{"lastUser":"^two","step":0},"text":"Let me look.","toolCalls":[{"name":"look","args":{"at":"door"}},{"name":"fail","args":{}},{"name":"nope","args":{}}]},
	{"when":{"lastUser":"^pay","step":0},"text":"I pay.","toolCalls":[{"name":"pay","args":{"to":"ann"}},{"name":"look","args":{"at":"purse"}}]},
	{"when":{"lastUser":"^both","step":0},"toolCalls":[{"name":"pay","args":{"to":"ann"}},{"name":"give","args":{"to":"bob"}}]},
	{"when":{"lastUser":"^large","step":0},"toolCalls":[{"name":"large","args":{}}]},
	{"when":{"lastUser":"^cut","step":0},"text":"half","toolCalls":[{"name":"look","args":{"at":"x"}},{"name":"look","args":{"at":"y"}}],"finishReason":"length"},
	{"when":{"lastUser":"^loop"},"toolCalls":[{"name":"look","args":{"at":"loop"}}]},
	{"when":{"lastUser":"^error"},"error":{"kind":"unauthorized","message":"no key"}},
	{"when":{"lastUser":"^busy","model":"first"},"error":{"kind":"capacity","message":"full"}},
	{"when":{"lastUser":"^busy"},"text":"The second answers."},
	{"when":{"lastUser":"^hang","step":0},"toolCalls":[{"name":"hang","args":{}}]},
	{"when":{"lastUser":"^hand","step":0},"toolCalls":[{"name":"transfer_to_clerk","args":{}}]},
	{"when":{"lastUser":"^slow"},"text":"late","delayMs":60000},
	{"text":"Found: {{lastTool}}"}]}`

// clerk is the agent that is recorded. Its tools must not run in a replay; ran counts their calls.
func clerk(t *testing.T, ran *int, edits ...func(*agent.LLM)) agent.Registration {
	t.Helper()
	p, err := provider.NewScripted("script", []byte(script))
	if err != nil {
		t.Fatal(err)
	}
	l := &agent.LLM{Instructions: "You help.", Models: []agent.Model{{Provider: p, Model: "first"}}, HistoryTokens: 1000, NewTape: recording.NewTape,
		Temperature: new(0.5), MaxParallel: 4}
	l.Tools = toolbox(t, ran, `{"type":"object","properties":{"at":{"type":"string"}}}`)
	l.Policy.Tools = map[string]agent.Gate{"pay": {Always: true}, "give": {Default: true}}
	for _, edit := range edits {
		edit(l)
	}
	return agent.Registration{ID: "clerk", LLM: l}
}

// toolbox is the tools of the clerk, without those that are named. look takes arguments of the given schema.
func toolbox(t *testing.T, ran *int, look string, without ...string) *tool.Set {
	t.Helper()
	count := make(chan func(), 1) // tools run side by side
	count <- func() {
		if ran != nil {
			*ran++
		}
	}
	var tools []tool.Tool
	add := func(name, input string, effect tool.SideEffect, execute func(context.Context, tool.Call) (tool.Result, error)) {
		if slices.Contains(without, name) {
			return
		}
		tools = append(tools, tool.Func(tool.Spec{Name: name, Description: "Tool " + name, Input: json.RawMessage(input), SideEffect: effect},
			func(ctx context.Context, c tool.Call) (tool.Result, error) {
				inc := <-count
				inc()
				count <- inc
				return execute(ctx, c)
			}))
	}
	says := func(v any) func(context.Context, tool.Call) (tool.Result, error) {
		return func(context.Context, tool.Call) (tool.Result, error) { return tool.JSON(v) }
	}
	add("look", look, tool.ReadOnly, says("nothing there"))
	add("fail", `{}`, tool.ReadOnly, func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{}, &tool.Error{Message: "It is broken.", Hint: "Try look."}
	})
	add("pay", `{"type":"object"}`, "", func(_ context.Context, c tool.Call) (tool.Result, error) {
		return tool.JSON(map[string]string{"key": c.Key})
	})
	add("give", `{"type":"object"}`, "", says("given"))
	add("large", `{}`, tool.ReadOnly, says(strings.Split(strings.Repeat("word ", 20000), " ")))
	add("hang", `{}`, "", func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	})
	set, err := tool.NewSet(append(tools, tool.NewReadResult(nil))...)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func text(s string) run.StartRequest {
	b, _ := json.Marshal(s)
	return run.StartRequest{Owner: "clerk", Input: b}
}
