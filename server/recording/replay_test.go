package recording_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/provider"
	"agentd/server/recording"
	"agentd/server/run"
	"agentd/server/schema"
	"agentd/server/tool"
	"agentd/store"
	"agentd/store/storetest"
)

func TestUnchangedAgentsDoNotDiverge(t *testing.T) {
	fallback := func(l *agent.LLM) {
		l.Models = append(l.Models, agent.Model{Provider: l.Models[0].Provider, Model: "second"})
	}
	out := func(l *agent.LLM) {
		s, err := schema.Compile([]byte(`{"type":"object"}`))
		if err != nil {
			t.Fatal(err)
		}
		l.Output = &agent.Output{Schema: s, Spec: provider.OutputSpec{Name: "o", Schema: []byte(`{"type":"object"}`)}}
	}
	for _, tc := range []struct {
		name          string
		req           run.StartRequest
		decisions     []run.Decision
		edit          func(*agent.LLM)
		status        store.Status
		models, tools int
	}{
		{name: "plain answer", req: text("plain"), status: store.Completed, models: 1},
		{name: "messages", req: run.StartRequest{Owner: "clerk", UserID: "ann",
			Input: []byte(`[{"role":"user","content":"one"},{"role":"assistant","content":"ok"},{"role":"user","content":[{"type":"text","text":"plain"}]}]`)},
			status: store.Completed, models: 1},
		{name: "system message of the input", req: run.StartRequest{Owner: "clerk", Input: []byte(`[{"role":"system","content":"s"},{"role":"user","content":"plain"}]`)},
			edit: func(l *agent.LLM) { l.Instructions, l.CallerInstructions = "", true }, status: store.Completed, models: 1},
		{name: "parallel tools, one fails, one is unknown", req: text("two"), status: store.Completed, models: 2, tools: 3},
		{name: "granted", req: text("pay"), decisions: []run.Decision{{ToolCallID: "pay", Granted: true}}, status: store.Completed, models: 2, tools: 2},
		{name: "denied", req: text("pay"), decisions: []run.Decision{{ToolCallID: "pay", Reason: "too dear"}}, status: store.Completed, models: 2, tools: 2},
		{name: "one after the other", req: text("both"), decisions: []run.Decision{{ToolCallID: "give", Reason: "no"}, {ToolCallID: "pay", Granted: true}},
			status: store.Completed, models: 2, tools: 2},
		{name: "structured output", req: text("json"), edit: out, status: store.Completed, models: 1},
		{name: "invalid output", req: text("plain"), edit: out, status: store.Failed, models: 1},
		{name: "fallback", req: text("busy"), edit: fallback, status: store.Completed, models: 1},
		{name: "spilled result", req: text("large"), status: store.Completed, models: 2, tools: 1},
		{name: "cut-off answer", req: text("cut"), status: store.Failed, models: 1},
		{name: "step limit", req: text("loop"), edit: func(l *agent.LLM) { l.MaxSteps = 3 }, status: store.Failed, models: 3, tools: 3},
		{name: "tool budget", req: text("loop"), edit: func(l *agent.LLM) { l.Budget.ToolCalls = 2 }, status: store.Failed, models: 3, tools: 2},
		{name: "token budget", req: text("loop"), edit: func(l *agent.LLM) { l.Budget.Tokens = 1 }, status: store.Failed, models: 1, tools: 1},
		{name: "conversation given away", req: text("hand"), edit: func(l *agent.LLM) { l.Tools, _ = tool.NewSet(agent.TransferTool("clerk", "")) },
			status: store.Completed, models: 1, tools: 1},
		{name: "failing model", req: text("error"), status: store.Failed, models: 0},
		{name: "failing models", req: text("busy"), status: store.Failed, models: 0},
		{name: "no tools", req: text("plain"), edit: func(l *agent.LLM) { l.Tools = nil }, status: store.Completed, models: 1},
		{name: "time is up in a model", req: text("slow"), edit: func(l *agent.LLM) { l.Budget.Wall = 300 * time.Millisecond }, status: store.Failed, models: 0},
		{name: "time is up in a tool", req: text("hang"), edit: func(l *agent.LLM) {
			l.Budget.Wall = 300 * time.Millisecond
			hang, _ := l.Tools.Get("hang")
			spec := hang.Spec()
			spec.SideEffect = tool.ReadOnly // else a person is asked what it did
			l.Tools, _ = tool.NewSet(tool.Func(spec, hang.Execute))
		}, status: store.Failed, models: 1, tools: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			edit := func(l *agent.LLM) {
				if tc.edit != nil {
					tc.edit(l)
				}
			}
			rec := record(t, clerk(t, nil, edit), tc.req, tc.decisions...)
			if rec.Result.Status != string(tc.status) {
				t.Fatalf("the recorded run is %s %+v, want %s", rec.Result.Status, rec.Result.Error, tc.status)
			}
			var q recording.Request
			for i, c := range rec.ModelCalls {
				if q = c.Request(q); q.Hash(rec.Meta.RunID) != c.RequestSHA256 || len(q.Messages) != c.MessageCount {
					t.Errorf("request %d as the cassette tells it is not the one that was sent: %+v", i, q)
				}
			}
			ran := 0
			report := play(t, clerk(t, &ran, edit), rec)
			if report.Divergence != nil || report.ModelCalls != tc.models || report.ToolCalls != tc.tools {
				t.Errorf("report = %+v, %+v; want no divergence, %d model calls and %d tool calls", report, report.Divergence, tc.models, tc.tools)
			}
			if ran != 0 {
				t.Errorf("%d tools ran in the replay, want none", ran)
			}
			if cut := tc.edit != nil && strings.HasPrefix(tc.name, "time is up"); cut != (len(report.Notes) > 0) {
				t.Errorf("notes = %q", report.Notes)
			}
		})
	}
}

func TestChangesDiverge(t *testing.T) {
	type edit = func(*agent.LLM)
	granted := []run.Decision{{ToolCallID: "pay", Granted: true}}
	for _, tc := range []struct {
		name      string
		req       run.StartRequest
		decisions []run.Decision
		before    edit // the recording
		edit      edit
		want      recording.Divergence // CALL stands for the id of the first call of pay or look
	}{
		{"instructions", text("plain"), nil, nil, func(l *agent.LLM) { l.Instructions = "You help quickly." },
			recording.Divergence{Kind: "message", Step: 1, Where: "message 1 (system)", Recorded: "You help.", Now: "You help quickly."}},
		{"no instructions", text("plain"), nil, nil, func(l *agent.LLM) { l.Instructions = "" },
			recording.Divergence{Kind: "message", Step: 1, Where: "message 1 (user)", Recorded: `{"content":"You help.","role":"system"}`, Now: `{"content":"plain","role":"user"}`}},
		{"tool removed", text("plain"), nil, nil, func(l *agent.LLM) { l.Tools = toolbox(t, nil, `{}`, "pay") },
			recording.Divergence{Kind: "tool", Step: 1, Where: "tool pay", Recorded: "offered", Now: "not offered"}},
		{"tool denied", text("plain"), nil, nil, func(l *agent.LLM) { l.Policy.Deny = []agent.Pattern{{Tool: "give"}} },
			recording.Divergence{Kind: "tool", Step: 1, Where: "tool give", Recorded: "offered", Now: "not offered"}},
		{"tool added", text("plain"), nil, func(l *agent.LLM) { l.Policy.Deny = []agent.Pattern{{Tool: "give"}} }, nil,
			recording.Divergence{Kind: "tool", Step: 1, Where: "tool give", Recorded: "not offered", Now: "offered"}},
		{"tool schema", text("plain"), nil, nil, func(l *agent.LLM) {
			l.Tools = toolbox(t, nil, `{"type":"object","properties":{"at":{"type":"integer"}}}`)
		}, recording.Divergence{Kind: "tool", Step: 1, Where: "input schema of the tool look", Recorded: `{"properties":{"at":{"type":"string"}},"type":"object"}`,
			Now: `{"properties":{"at":{"type":"integer"}},"type":"object"}`}},
		{"temperature", text("plain"), nil, nil, func(l *agent.LLM) { l.Temperature = new(0.0) },
			recording.Divergence{Kind: "setting", Step: 1, Where: "temperature", Recorded: "0.5", Now: "0"}},
		{"tool choice", text("plain"), nil, nil, func(l *agent.LLM) { l.ToolChoice.Tool = "look" },
			recording.Divergence{Kind: "setting", Step: 1, Where: "tool choice", Recorded: "(not set)", Now: "tool:look"}},
		{"approval dropped", text("pay"), granted, nil, func(l *agent.LLM) { l.Policy.Tools = nil },
			recording.Divergence{Kind: "approval", Step: 2, Where: "call CALL of pay", Recorded: "a person is asked about the call", Now: "the call is made without asking"}},
		{"approval added", text("two"), nil, nil, func(l *agent.LLM) { l.Policy.Ask = []agent.Pattern{{Tool: "look"}} },
			recording.Divergence{Kind: "approval", Step: 1, Where: "call CALL of look", Recorded: "the call is made without asking", Now: "a person is asked about the call"}},
		{"call refused", text("pay"), granted, nil, func(l *agent.LLM) { l.Policy.Deny = []agent.Pattern{{Tool: "pay", Arg: "to", Glob: "ann"}} },
			recording.Divergence{Kind: "message", Step: 3, Where: "message 4 (tool pay)", Recorded: `{"key":"{run}:1:CALL"}`,
				Now: "Error: This agent may not make this call.\n[kind: capability_blocked; recoverable: no; suggested action: report_to_user]"}},
		{"call allowed", text("two"), nil, func(l *agent.LLM) { l.Policy.Deny = []agent.Pattern{{Tool: "look", Arg: "at", Glob: "d*"}} }, nil,
			recording.Divergence{Kind: "tool-call", Step: 1, Where: "call CALL of look", Recorded: "the call is refused: This agent may not make this call.", Now: "the call is made"}},
		{"fallback removed", text("busy"), nil, func(l *agent.LLM) {
			l.Models = append(l.Models, agent.Model{Provider: l.Models[0].Provider, Model: "second"})
		}, nil,
			recording.Divergence{Kind: "fallback", Step: 1, Where: "model call", Recorded: "another model is asked", Now: "the run ends as failed, capacity: full"}},
		{"fallback added", text("busy"), nil, nil, func(l *agent.LLM) {
			l.Models = append(l.Models, agent.Model{Provider: l.Models[0].Provider, Model: "second"})
		},
			recording.Divergence{Kind: "fallback", Step: 1, Where: "model call 1", Recorded: "no model is left", Now: "script/second is asked"}},
		{"fewer steps", text("loop"), nil, func(l *agent.LLM) { l.MaxSteps = 3 }, func(l *agent.LLM) { l.MaxSteps = 2 },
			recording.Divergence{Kind: "model-call", Step: 3, Where: "model call", Recorded: "a model is asked",
				Now: "the run ends as failed, stop-condition: The run made 2 steps without finishing (step >= 2)."}},
		{"more steps", text("loop"), nil, func(l *agent.LLM) { l.MaxSteps = 2 }, nil,
			recording.Divergence{Kind: "model-call", Step: 3, Where: "model call 3",
				Recorded: "the run ends as failed, stop-condition: The run made 2 steps without finishing (step >= 2).", Now: "a model is asked"}},
		{"more calls", text("loop"), nil, func(l *agent.LLM) { l.Budget.ToolCalls = 1 }, nil,
			recording.Divergence{Kind: "tool-call", Step: 2, Where: "call CALL of look",
				Recorded: "the call is not made: the run ends as failed, budget-exceeded: The run asked for more than its budget of 1 tool calls.", Now: "the call is made"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			edits := func(e edit) []edit {
				if e == nil {
					return nil
				}
				return []edit{e}
			}
			rec := record(t, clerk(t, nil, edits(tc.before)...), tc.req, tc.decisions...)
			report := play(t, clerk(t, nil, edits(tc.edit)...), rec)
			if report.Divergence == nil {
				t.Fatalf("report = %+v, want %+v", report, tc.want)
			}
			got := *report.Divergence
			for _, c := range rec.ModelCalls {
				if c.Answer != nil {
					for _, call := range c.Answer.ToolCalls {
						got.Where = strings.ReplaceAll(got.Where, call.ID, "CALL")
						got.Recorded = strings.ReplaceAll(got.Recorded, call.ID, "CALL")
					}
				}
			}
			if got != tc.want {
				t.Errorf("divergence:\n got %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// TestHistory replays the second run of a session, which saw the first one.
func TestHistory(t *testing.T) {
	s := newStudio(t, clerk(t, nil))
	first, second := text("two"), text("plain")
	first.SessionID, second.SessionID, second.UserID = "s1", "s1", "ann"
	s.run(first)
	rec := read(t, s.cassette(s.run(second).State.ID))
	if n := len(rec.Input.History); n != 6 || rec.ModelCalls[0].MessageCount != 8 {
		t.Errorf("the cassette has %d messages of history and a request of %d, want 6 and 8", n, rec.ModelCalls[0].MessageCount)
	}
	if report := play(t, clerk(t, nil), rec); report.Divergence != nil {
		t.Errorf("divergence = %+v, want none", report.Divergence)
	}
	report := play(t, clerk(t, nil, func(l *agent.LLM) { l.HistoryTokens = 0 }), rec)
	if d := report.Divergence; d == nil || d.Where != "message 2 (user)" || d.Recorded != "two" || d.Now != "plain" {
		t.Errorf("divergence without history = %+v, want the first message of the history", d)
	}
}

// TestAborted replays runs that were aborted, as far as they came.
func TestAborted(t *testing.T) {
	for name, abort := range map[string]run.AbortOptions{"deny": {}, "hold": {OnPending: "hold"}, "fail": {OnPending: "fail"}} {
		t.Run(name, func(t *testing.T) {
			s := newStudio(t, clerk(t, nil))
			id := s.run(text("pay")).State.ID
			if _, err := s.engine.Abort(t.Context(), id, abort); err != nil {
				t.Fatal(err)
			}
			rec := read(t, s.cassette(id))
			report := play(t, clerk(t, nil), rec)
			if report.Divergence != nil || !rec.Result.Cut || len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "ended from outside ("+rec.Result.Status) {
				t.Errorf("report = %+v %+v, want no divergence and a note", report, report.Divergence)
			}
			report = play(t, clerk(t, nil, func(l *agent.LLM) { l.Policy.Tools = nil }), rec)
			if d := report.Divergence; d == nil || d.Kind != "approval" {
				t.Errorf("divergence without approvals = %+v, want that of the approval", d)
			}
		})
	}
}

// TestCrash replays a run that was interrupted in a tool whose effect may have happened: there is no crash, so nobody is
// asked about it.
func TestCrash(t *testing.T) {
	began := make(chan struct{}, 1)
	s := newStudio(t, clerk(t, nil, func(l *agent.LLM) {
		hang, _ := l.Tools.Get("hang")
		set, err := tool.NewSet(tool.Func(hang.Spec(), func(ctx context.Context, c tool.Call) (tool.Result, error) {
			began <- struct{}{}
			return hang.Execute(ctx, c)
		}))
		if err != nil {
			t.Fatal(err)
		}
		l.Tools = set
	}))
	only := func(l *agent.LLM) {
		hang, _ := l.Tools.Get("hang")
		l.Tools, _ = tool.NewSet(hang)
	}
	h, err := s.engine.Start(t.Context(), text("hang"))
	if err != nil {
		t.Fatal(err)
	}
	<-began
	s.close()
	s.open(clerk(t, nil, only))
	if _, err := s.engine.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.engine.Drain(t.Context()); err != nil { // until it waits
		t.Fatal(err)
	}
	s.close()
	s.open(clerk(t, nil, only))
	waiting, err := s.engine.Approvals(t.Context(), nil, nil)
	if err != nil || len(waiting) != 1 || waiting[0].Reason != "outcome-unknown" {
		t.Fatalf("Approvals = %+v, %v; want one of a call of unknown outcome", waiting, err)
	}
	again, _, err := s.engine.Resume(t.Context(), h.ID, []run.Decision{{ToolCallID: waiting[0].ToolCallID, Reason: "seen it"}}, "ann", nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := again.Wait(t.Context()); err != nil || res.Status != store.Completed {
		t.Fatalf("Wait = %s %+v, %v", res.Status, res.Error, err)
	}
	rec := read(t, s.cassette(h.ID))
	if a := rec.Approvals; len(a) != 1 || a[0].Asked != "outcome-unknown" || a[0].Granted == nil || *a[0].Granted || a[0].By != "ann" || a[0].Reason != "seen it" || a[0].StepNumber != 2 {
		t.Errorf("approvals = %+v, want one that was denied by ann in step 2", a)
	}
	if report := play(t, clerk(t, nil, only), rec); report.Divergence != nil || report.ModelCalls != 2 || report.ToolCalls != 1 {
		t.Errorf("report = %+v %+v, want no divergence", report, report.Divergence)
	}
}

// TestAnotherModel notes that the answers are those of another model.
func TestAnotherModel(t *testing.T) {
	rec := record(t, clerk(t, nil), text("plain"))
	report := play(t, clerk(t, nil, func(l *agent.LLM) { l.Models[0].Model = "newer" }), rec)
	if want := "the answers are those of script/first; now script/newer would be asked"; report.Divergence != nil || len(report.Notes) != 1 || report.Notes[0] != want {
		t.Errorf("report = %+v, want no divergence and the note %q", report, want)
	}
}

func TestRunRefusesWhatCannotBeReplayed(t *testing.T) {
	rec := record(t, clerk(t, nil), text("plain"))
	for name, tc := range map[string]struct {
		reg  agent.Registration
		edit func(*recording.Recording)
		want string
	}{
		"an agent without model": {agent.Registration{ID: "x"}, nil, "config-invalid"},
		"a cassette of tools":    {clerk(t, nil), func(r *recording.Recording) { r.ModelCalls = nil }, "cassette-invalid"},
	} {
		r := *rec
		if tc.edit != nil {
			tc.edit(&r)
		}
		if _, err := recording.Replay(t.Context(), tc.reg, &r); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("Run with %s = %v, want %s", name, err, tc.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := recording.Replay(ctx, clerk(t, nil), rec); err == nil {
		t.Error("Run in a context that has ended succeeds")
	}
}

// What replays that were killed left behind is removed, and nothing else.
func TestFoldersOfKilledReplays(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	reg := clerk(t, new(int))
	rec := record(t, reg, text("plain"))
	long := time.Now().Add(-2 * time.Minute)
	folder := func(name string, at time.Time) string {
		dir := filepath.Join(tmp, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "replay.db-wal"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, at, at); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	folder("agentd-replay-killed", long)
	folder("agentd-replay-young", time.Now())
	folder("agentd-other", long)
	slow := filepath.Join(tmp, "agentd-replay-slow")
	storetest.OpenAt(t, filepath.Join(slow, "replay.db"))
	if err := os.Chtimes(slow, long, long); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder("elsewhere", long), filepath.Join(tmp, "agentd-replay-link")); err != nil {
		t.Fatal(err)
	}
	if _, err := recording.Replay(t.Context(), reg, rec); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(tmp)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"agentd-other", "agentd-replay-link", "agentd-replay-slow", "agentd-replay-young", "elsewhere"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("after a replay there are %v, %v; want %v", left, err, want)
	}
}
