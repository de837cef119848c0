package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// imageFlow has nodes of every kind that persists a step: tools that may and may not be called twice, an approval, a map, a
// parallel, a wait, a sleep, an attempt that fails, and a failure that is caught.
const imageFlow = `{"state":{"price":{},"lines":{},"ship":{},"bill":{},"got":{},"told":{},"problem":{}},
	"output":"${ {'lines': state.lines, 'ship': state.ship, 'bill': state.bill, 'got': state.got, 'told': state.told, 'problem': state.problem.node} }",
	"start":"price","nodes":{
	"price":{"kind":"tool","tool":"look","args":{"at":"price"},"save":"price","next":"size"},
	"size":{"kind":"branch","cases":[{"if":"input.total > 100","next":"ask"}],"else":"each"},
	"ask":{"kind":"approval","name":"big","show":{"total":"${ input.total }"},"next":"each"},
	"each":{"kind":"map","over":"${ [1, 2] }","concurrency":1,"save":"lines","do":{"kind":"tool","tool":"once","args":{"line":"${ item }"}},"next":"both"},
	"both":{"kind":"parallel","branches":["ship","bill"],"next":"wait"},
	"ship":{"kind":"tool","tool":"flaky","args":{"at":"ship"},"save":"ship","retry":{"maxAttempts":5,"backoffMs":1},"next":"end"},
	"bill":{"kind":"set","values":{"bill":"${ input.total * 2 }"},"next":"end"},
	"wait":{"kind":"await","name":"paid","save":"got","next":"nap"},
	"nap":{"kind":"sleep","forMs":5,"next":"wreck"},
	"wreck":{"kind":"tool","tool":"wreck","args":{},"onError":{"next":"tell","save":"problem"},"next":"end"},
	"tell":{"kind":"tool","tool":"once","args":{"line":3},"save":"told","next":"end"}}}`

const imageOutput = `{"bill":400,"got":{"by":"bank"},"lines":["did 1","did 2"],"problem":"wreck","ship":"shipped","told":"did 3"}`

// An image is what a crash at one moment would leave on disk, and how often each effect had happened by then.
type image struct {
	name, path string
	effects    map[string]int
}

// imageTools has effects, which it counts by what they are, and calls snap around each.
func imageTools(effects map[string]int, snap func(string)) []tool.Tool {
	var mu sync.Mutex // guards effects, and makes images one at a time
	tries := 0
	make := func(spec tool.Spec, do func(call tool.Call) (effect string, res tool.Result, err error)) tool.Tool {
		return tool.Func(spec, func(_ context.Context, call tool.Call) (tool.Result, error) {
			mu.Lock()
			defer mu.Unlock()
			effect, res, err := do(call)
			snap(fmt.Sprintf("before %s %s", spec.Name, effect))
			if effect != "" {
				effects[effect]++
			}
			snap(fmt.Sprintf("after %s %s", spec.Name, effect))
			return res, err
		})
	}
	answer := func(effect, text string) (string, tool.Result, error) {
		res, err := tool.JSON(text)
		return effect, res, err
	}
	return []tool.Tool{
		make(tool.Spec{Name: "look", SideEffect: tool.ReadOnly}, func(tool.Call) (string, tool.Result, error) { return answer("", "seen") }),
		make(tool.Spec{Name: "once"}, func(call tool.Call) (string, tool.Result, error) {
			var args struct{ Line int }
			json.Unmarshal(call.Args, &args) //nolint:errcheck // the flow gives it
			return answer(fmt.Sprint("line ", args.Line), fmt.Sprint("did ", args.Line))
		}),
		make(tool.Spec{Name: "flaky", Idempotent: true}, func(call tool.Call) (string, tool.Result, error) {
			if tries++; tries < 3 {
				return "", tool.Result{}, &tool.Error{Message: "not yet"}
			}
			if effects["ship "+call.Key] > 0 {
				return answer("", "shipped")
			}
			return answer("ship "+call.Key, "shipped")
		}),
		make(tool.Spec{Name: "wreck", SideEffect: tool.ReadOnly}, func(tool.Call) (string, tool.Result, error) {
			return "", tool.Result{}, &tool.Error{Message: "it always fails"}
		}),
	}
}

// finish brings a run to its end: it grants what waits, gives what is awaited, and says what calls gave whose outcome is unknown.
func (r *rig) finish(thread, runID string, snap func(string)) workflow.Outcome {
	r.tb.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		out, err := r.Outcome(context.Background(), runID)
		if err != nil {
			r.tb.Fatal(err)
		}
		switch {
		case out.Status.Terminal():
			return out
		case time.Now().After(end):
			b, _ := json.Marshal(out)
			r.tb.Fatalf("the run does not end: %s", b)
		case len(out.PendingApprovals) > 0:
			snap("while it asks")
			var decisions []run.Decision
			for _, a := range out.PendingApprovals {
				d := run.Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: true}
				if a.Reason == "outcome-unknown" {
					var args struct{ Line int }
					json.Unmarshal(a.Args, &args) //nolint:errcheck // the flow gives it
					d.Granted, d.Result = false, fmt.Appendf(nil, `"did %d"`, args.Line)
				}
				decisions = append(decisions, d)
			}
			if _, _, err := r.kernel.Resume(context.Background(), runID, decisions, "token:t", nil); err != nil {
				r.tb.Fatal(err)
			}
		case slices.ContainsFunc(out.PendingPauses, func(p workflow.Pause) bool { return p.Name == "paid" }):
			snap("while it waits")
			if err := r.resume("w", thread, "paid", `{"by":"bank"}`); err != nil {
				r.tb.Fatal(err)
			}
		}
	}
}

// TestCrashAtEveryStep is the fault table of a workflow: it takes an image of the disk around every effect and in every wait,
// recovers from each, and lets people answer what they are asked. Each recovered run must end with the same output, its events
// numbered without gap, and no effect may have happened twice.
func TestCrashAtEveryStep(t *testing.T) {
	effects := map[string]int{}
	var images []image
	var r *rig
	snap := func(name string) {
		im := image{fmt.Sprintf("%02d %s", len(images), name), filepath.Join(t.TempDir(), "agentd.db"), maps.Clone(effects)}
		r.copyTo(im.path)
		images = append(images, im)
	}
	r = newRig(t, map[string]string{"w": imageFlow}, imageTools(effects, snap)...)
	h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t", Input: json.RawMessage(`{"total":200}`), By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	out := r.finish("t", h.RunID, snap)
	r.want(out, store.Completed, imageOutput)
	snap("at its end")
	if len(images) < 19 {
		t.Fatalf("only %d images were taken", len(images))
	}
	for _, im := range images {
		t.Run(im.name, func(t *testing.T) {
			kept := &rig{tb: t, path: im.path, declared: r.declared, tools: newTools(t, imageTools(im.effects, func(string) {})...)}
			kept.start()
			t.Cleanup(kept.stop)
			out := kept.finish("t", h.RunID, func(string) {})
			kept.want(out, store.Completed, imageOutput)
			for effect, n := range im.effects {
				if n > 1 {
					t.Errorf("the effect %q has happened %d times", effect, n)
				}
			}
			next := 1
			err := kept.kernel.Replay(context.Background(), h.RunID, event.RunView, 0, func(e *hub.Entry) error {
				if e.Pos.Seq != next {
					t.Errorf("event number %d, want %d", e.Pos.Seq, next)
				}
				next++
				return nil
			})
			if err != nil || next < 10 {
				t.Errorf("%d events are replayed, %v", next-1, err)
			}
		})
	}
}
