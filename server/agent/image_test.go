package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"agentd/server/agent"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// image is what a crash at one moment would leave on disk, and how often each tool had taken effect by then.
type image struct {
	name   string
	path   string
	counts map[string]int
}

// camera is a provider that calls snap before each model call.
type camera struct {
	provider.Provider
	snap func(string)
}

func (c camera) Stream(ctx context.Context, req *provider.Request, sink func(provider.Delta)) (*provider.Response, error) {
	c.snap(fmt.Sprintf("before the model call of step %d", req.Meta.StepNumber))
	return c.Provider.Stream(ctx, req, sink)
}

const imageScript = `{"turns":[
	{"when":{"step":0},"text":"one","toolCalls":[{"name":"once","args":{}}]},
	{"when":{"step":1},"toolCalls":[{"name":"look","args":{}}]},
	{"when":{"step":2},"toolCalls":[{"name":"ask","args":{"x":1}},{"name":"look","args":{"again":true}}]},
	{"text":"the end"}]}`

// imageAgent has a tool with an effect, a tool without, and one that a person must allow. before and after are called
// around the effect of each call.
func imageAgent(t *testing.T, counts map[string]int, before, after func(string)) func(*rig) []agent.Registration {
	make := func(name string, spec tool.Spec) tool.Tool {
		spec.Name, spec.Description, spec.Sequential = name, "d", true
		return tool.Func(spec, func(context.Context, tool.Call) (tool.Result, error) {
			before("before the effect of " + name)
			counts[name]++
			after("after the effect of " + name)
			return tool.JSON("did " + name)
		})
	}
	return func(*rig) []agent.Registration {
		l := llm(t, imageScript, make("once", tool.Spec{OnUnknownOutcome: tool.ReportError}), make("look", tool.Spec{SideEffect: tool.ReadOnly}), make("ask", tool.Spec{}))
		l.Models[0].Provider = camera{l.Models[0].Provider, before}
		l.Policy.Tools = map[string]agent.Gate{"ask": {Always: true}}
		return []agent.Registration{{ID: "a", LLM: l}}
	}
}

// TestCrashAtEveryStep is the fault table of a run: it takes an image of the disk before and after everything that the
// run persists or effects, recovers from each image, and lets a person decide where one is asked. Each recovered run
// must complete, with its events numbered without gap, and no effect may have happened twice.
func TestCrashAtEveryStep(t *testing.T) {
	var images []image
	counts := map[string]int{}
	var r *rig
	snap := func(name string) { images = append(images, takeImage(t, r, name, counts)) }
	r = newRig(t, imageAgent(t, counts, snap, snap))
	h := r.start(run.StartRequest{Owner: "a", SessionID: "s"})
	res := r.wait(h)
	if res.Status != store.Awaiting || len(res.State.PendingApprovals) != 1 {
		t.Fatalf("the run is %s: %+v", res.Status, res.Error)
	}
	snap("parked")
	res = resume(t, r, h.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
	if res.Status != store.Completed || counts["once"] != 1 || counts["ask"] != 1 || counts["look"] != 2 {
		t.Fatalf("the run is %s with effects %v: %+v", res.Status, counts, res.Error)
	}
	snap("completed")
	if len(images) < 13 {
		t.Fatalf("only %d images were taken", len(images))
	}
	for _, im := range images {
		nothing := func(string) {}
		t.Run(im.name, func(t *testing.T) {
			recoverImage(t, im, h.ID, imageAgent(t, im.counts, nothing, nothing), "the end")
		})
	}
}

// TestCrashAtEveryStepOfAChain is the same for a run whose hand-off calls a sub-agent whose tool a person must allow.
func TestCrashAtEveryStepOfAChain(t *testing.T) {
	register := func(counts map[string]int, snap func(string)) func(*rig) []agent.Registration {
		make, pay := chain(t, func(desk, clerk, payer *agent.LLM) {
			for _, l := range []*agent.LLM{desk, clerk, payer} {
				l.Models[0].Provider = camera{l.Models[0].Provider, func(name string) { snap(l.Instructions + " " + name) }}
			}
		})
		pay.execute = func(context.Context, tool.Call) (tool.Result, error) {
			snap("before the payment")
			counts["once"]++
			snap("after the payment")
			return tool.JSON("paid")
		}
		return make
	}
	var images []image
	counts := map[string]int{}
	var r *rig
	snap := func(name string) { images = append(images, takeImage(t, r, name, counts)) }
	r = newRig(t, register(counts, snap))
	res, _ := r.run("desk", "pay")
	snap("parked")
	p := res.State.PendingApprovals[0]
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
	snap("completed")
	want := "desk: clerk: payer: paid"
	if string(res.Output) != fmt.Sprintf("%q", want) || len(images) != 10 {
		t.Fatalf("output %s, %d images", res.Output, len(images))
	}
	for _, im := range images {
		t.Run(im.name, func(t *testing.T) {
			r := recoverImage(t, im, res.State.ID, register(im.counts, func(string) {}), "")
			if r.Usage.TotalTokens != res.Usage.TotalTokens {
				t.Errorf("the recovered run used %d tokens, want %d: each model call once", r.Usage.TotalTokens, res.Usage.TotalTokens)
			}
		})
	}
}

func takeImage(t testing.TB, r *rig, name string, counts map[string]int) image {
	im := image{name: name, path: filepath.Join(t.TempDir(), "data.db"), counts: map[string]int{}}
	for k, v := range counts {
		im.counts[k] = v
	}
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(r.path + suffix)
		if err == nil {
			err = os.WriteFile(im.path+suffix, b, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}
	return im
}

// recoverImage takes up what a crash left and brings the run to its end, whose text is known unless it is empty.
func recoverImage(t *testing.T, im image, runID string, make func(*rig) []agent.Registration, text string) agent.Snapshot {
	r := &rig{t: t, path: im.path, make: make}
	r.open()
	t.Cleanup(r.close)
	if _, err := r.engine.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := r.settled(runID)
	for range 3 {
		if s.Status != store.Awaiting {
			break
		}
		var decisions []run.Decision
		for _, a := range s.PendingApprovals {
			decisions = append(decisions, run.Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: a.Reason != "outcome-unknown", Reason: "it may have happened"})
		}
		resume(t, r, runID, decisions...)
		s = r.settled(runID)
	}
	if s.Status != store.Completed {
		t.Errorf("the recovered run is %s: %+v", s.Status, s.Error)
	}
	if im.counts["once"] > 1 || im.counts["ask"] > 1 {
		t.Errorf("effects: %v, want none twice", im.counts)
	}
	last := 0
	for _, st := range s.State.Steps {
		if st.StepNumber <= last {
			t.Errorf("step %d after step %d", st.StepNumber, last)
		}
		last = st.StepNumber
	}
	r.checkNumbers(runID)
	if msgs := s.State.Messages; len(msgs) == 0 || text != "" && msgs[len(msgs)-1].Content.String() != text {
		t.Errorf("the transcript does not end with the answer: %+v", msgs)
	}
	return s
}
