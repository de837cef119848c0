package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/message"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// ended executes a workflow and waits for the end of its run.
func (r *rig) ended(id, thread, input string) workflow.Outcome {
	r.tb.Helper()
	return r.ends(r.run(id, thread, input).RunID)
}

// ends waits for the end of a run.
func (r *rig) ends(runID string) workflow.Outcome {
	r.tb.Helper()
	for end := time.Now().Add(time.Hour); ; time.Sleep(5 * time.Millisecond) {
		out, err := r.Outcome(context.Background(), runID)
		if err != nil {
			r.tb.Fatal(err)
		}
		if out.Status.Terminal() || time.Now().After(end) {
			return out
		}
	}
}

// child is the run that a thread waits for.
func (r *rig) child(id, thread string) string {
	r.tb.Helper()
	st, err := r.State(context.Background(), id, thread)
	if err != nil {
		r.tb.Fatal(err)
	}
	for _, p := range st.PendingPauses {
		if p.ChildRun != "" {
			return p.ChildRun
		}
	}
	r.tb.Fatalf("the thread waits for no run: %+v", st.PendingPauses)
	return ""
}

// retry begins another run of a thread and waits until it has ended or is parked.
func (r *rig) retry(id, thread string) workflow.Outcome {
	r.tb.Helper()
	h, err := r.Retry(context.Background(), workflow.RetryRequest{WorkflowID: id, ThreadID: thread, By: "token:t"})
	if err != nil {
		r.tb.Fatalf("Retry(%s) = %v", thread, err)
	}
	return r.wait(h.RunID)
}

func failure(out workflow.Outcome) string {
	if out.Error == nil {
		return string(out.Status)
	}
	return out.Error.Code
}

// TestAttempts counts the attempts of a node, by what its tool answers and what its retry says.
func TestAttempts(t *testing.T) {
	known := &tool.Error{Message: "no", NotBegun: true}
	for _, test := range []struct {
		name, retry string
		spec        tool.Spec
		err         error
		calls, keys int
		code        string
	}{
		{"none", ``, tool.Spec{}, known, 1, 1, "node-execution-failed"},
		{"all", `"retry":{"maxAttempts":4,"backoffMs":100}`, tool.Spec{}, known, 4, 4, "node-execution-failed"},
		{"on another code", `"retry":{"maxAttempts":4,"backoffMs":1,"on":["node-timeout"]}`, tool.Spec{}, known, 1, 1, "node-execution-failed"},
		{"on its code", `"retry":{"maxAttempts":3,"backoffMs":1,"on":["node-execution-failed"]}`, tool.Spec{}, known, 3, 3, "node-execution-failed"},
		{"invalid input", `"retry":{"maxAttempts":4,"backoffMs":1}`, tool.Spec{}, &tool.Error{Kind: message.InvalidInput, Message: "no", NotBegun: true}, 1, 1, "invalid-input"},
		{"unknown outcome", `"retry":{"maxAttempts":4,"backoffMs":1}`, tool.Spec{OnUnknownOutcome: tool.ReportError}, &tool.Error{Message: "cut", Unknown: true}, 1, 1, "outcome-unknown"},
		{"time-out", `"timeoutMs":50,"retry":{"maxAttempts":3,"backoffMs":1}`, tool.Spec{SideEffect: tool.Pure}, nil, 3, 3, "node-timeout"},
		{"time-out, idempotent", `"timeoutMs":50,"retry":{"maxAttempts":3,"backoffMs":1}`, tool.Spec{Idempotent: true}, nil, 3, 1, "node-timeout"},
		{"known, idempotent", `"retry":{"maxAttempts":3,"backoffMs":1}`, tool.Spec{Idempotent: true}, known, 3, 3, "node-execution-failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &counter{}
				test.spec.Name = "x"
				if test.retry != "" {
					test.retry += ","
				}
				count := c.tool("x", test.spec)
				r := newRig(t, map[string]string{"w": `{"start":"n","nodes":{"n":{"kind":"tool","tool":"x",` + test.retry + `"next":"end"}}}`},
					tool.Func(test.spec, func(ctx context.Context, call tool.Call) (tool.Result, error) {
						if res, err := count.Execute(ctx, call); err != nil {
							return res, err
						}
						if test.err == nil {
							<-ctx.Done()
							return tool.Result{}, ctx.Err()
						}
						return tool.Result{}, test.err
					}))
				if out := r.ended("w", "t", `{}`); failure(out) != test.code || c.all != test.calls || len(c.calls) != test.keys {
					t.Errorf("%s after %d calls under %d keys, want %s, %d, %d", failure(out), c.all, len(c.calls), test.code, test.calls, test.keys)
				}
			})
		})
	}
}

// TestBackoffSurvives waits for the next attempt over a restart, and counts those before it.
func TestBackoffSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{do: func(tool.Call, int) (tool.Result, error) {
			return tool.Result{}, &tool.Error{Message: "no", NotBegun: true}
		}}
		r := newRig(t, map[string]string{"w": `{"start":"n","nodes":{"n":{"kind":"tool","tool":"x","retry":{"maxAttempts":3,"backoffMs":60000},"next":"end"}}}`}, c.tool("x", tool.Spec{}))
		h, err := r.Execute(t.Context(), workflow.ExecuteRequest{WorkflowID: "w"})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		for range 5 {
			time.Sleep(10 * time.Millisecond)
			r.restart()
		}
		for out, err := r.Outcome(t.Context(), h.RunID); !out.Status.Terminal(); out, err = r.Outcome(t.Context(), h.RunID) {
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if took := time.Since(begun); c.all != 3 || took > 181*time.Second {
			t.Errorf("%d attempts in %v, want 3 in 180 s at most", c.all, took)
		}
	})
}

// TestTimeOfANode ends each kind of node when its time is over. That is no attempt to repeat: the time is that of the node.
func TestTimeOfANode(t *testing.T) {
	for name, node := range map[string]string{
		"await":    `{"kind":"await","name":"x","timeoutMs":1000,"next":"end"}`,
		"approval": `{"kind":"approval","name":"x","timeoutMs":1000,"next":"end"}`,
		"sleep":    `{"kind":"sleep","forMs":9000,"timeoutMs":1000,"next":"end"}`,
		"workflow": `{"kind":"workflow","workflow":"inner","timeoutMs":1000,"retry":{"maxAttempts":3,"backoffMs":1},"next":"end"}`,
		"back-off": `{"kind":"workflow","workflow":"fails","timeoutMs":1000,"retry":{"maxAttempts":1000,"backoffMs":100,"maxBackoffMs":100},"next":"end"}`,
		"map":      `{"kind":"map","over":"${ [1] }","timeoutMs":1000,"do":{"kind":"await","name":"x"},"next":"end"}`,
		"element":  `{"kind":"map","over":"${ [1] }","do":{"kind":"await","name":"x","timeoutMs":1000},"next":"end"}`,
		"parallel": `{"kind":"parallel","branches":["x","y"],"timeoutMs":1000,"next":"end"},"x":{"kind":"await","name":"x","next":"end"},"y":{"kind":"sleep","forMs":9000,"next":"end"}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, map[string]string{"w": `{"start":"n","nodes":{"n":` + node + `}}`,
					"inner": `{"start":"a","nodes":{"a":{"kind":"await","name":"x","next":"end"}}}`,
					"fails": `{"start":"a","nodes":{"a":{"kind":"fail","code":"no","message":"No."}}}`})
				begun := time.Now()
				out := r.ended("w", "t", `{}`)
				if took := time.Since(begun); failure(out) != "node-timeout" || took < time.Second || took > 1100*time.Millisecond {
					t.Errorf("%s after %v, want node-timeout after 1 s", failure(out), took)
				}
			})
		})
	}
}

// TestHandlers shows which handler takes a failure, and what a retry of the thread does after one that none took.
func TestHandlers(t *testing.T) {
	bad := &counter{do: func(tool.Call, int) (tool.Result, error) {
		return tool.Result{}, &tool.Error{Message: "no", NotBegun: true}
	}}
	fails := `{"kind":"tool","tool":"bad","next":"end"}`
	for _, test := range []struct{ name, flow, want, retry string }{ // what a retry of the thread gives
		{"on takes only its codes", `"n":{"kind":"tool","tool":"bad","onError":{"next":"end","on":["node-timeout"]},"next":"end"}`, "node-execution-failed", "node-execution-failed"},
		{"on takes its code", `"n":{"kind":"tool","tool":"bad","onError":{"next":"end","on":["node-execution-failed"]},"next":"end"}`, "completed", "workflow-not-retryable"},
		{"the inner parallel first", `"n":{"kind":"parallel","branches":["p","q"],"onError":{"next":"no"},"next":"end"},"p":{"kind":"parallel","branches":["x","y"],"onError":{"next":"end"},"next":"end"},
			"q":{"kind":"sleep","forMs":1,"next":"end"},"x":` + fails + `,"y":{"kind":"sleep","forMs":1,"next":"end"},"no":{"kind":"fail","code":"outer","message":"x"}`, "completed", "workflow-not-retryable"},
		{"fail in a parallel", `"n":{"kind":"parallel","branches":["x","y"],"next":"end"},"x":{"kind":"fail","code":"refused","message":"x"},"y":{"kind":"await","name":"y","next":"end"}`, "refused", "refused"},
		{"fail outside", `"n":{"kind":"fail","code":"refused","message":"x"}`, "refused", "workflow-not-retryable"},
		{"the workflow's, once", `"n":` + fails + `,"h":` + fails + `},"onError":{"next":"h"`, "node-execution-failed", "node-execution-failed"},
		{"not for fail", `"n":{"kind":"fail","code":"refused","message":"x"},"h":{"kind":"sleep","forMs":1,"next":"n"}},"onError":{"next":"h"`, "refused", "workflow-not-retryable"},
		{"a handler that cannot save", `"n":{"kind":"tool","tool":"bad","onError":{"next":"end","save":"sum"},"next":"end"}`, "reducer-failed", "workflow-not-retryable"},
		{"a value that does not merge", `"n":{"kind":"set","values":{"sum":"text"},"next":"end"}`, "reducer-failed", "reducer-failed"},
		{"a map that does not merge", `"n":{"kind":"map","over":"${ [1,2] }","do":{"kind":"sleep","forMs":0},"save":"sum","next":"end"}`, "reducer-failed", "reducer-failed"},
		{"denied", `"n":{"kind":"approval","name":"a","terms":{"expiresMs":1000},"next":"end"}`, "approval-denied", "awaiting_approval"},
		{"denied elsewhere", `"n":{"kind":"approval","name":"a","terms":{"expiresMs":1000},"denied":"d","next":"end"},"d":{"kind":"fail","code":"expired","message":"x"}`, "expired", "workflow-not-retryable"},
		{"late", `"n":{"kind":"await","name":"a","timeoutMs":1000,"late":"d","next":"end"},"d":{"kind":"fail","code":"expired","message":"x"}`, "expired", "workflow-not-retryable"},
		{"too many elements", `"n":{"kind":"map","over":"${ input.list }","do":{"kind":"sleep","forMs":0},"next":"end"}`, "expression-failed", "expression-failed"},
		{"no list", `"n":{"kind":"map","over":"${ state.sum }","do":{"kind":"sleep","forMs":0},"next":"end"}`, "expression-failed", "expression-failed"},
		{"nothing for a list", `"n":{"kind":"map","over":"${ null }","do":{"kind":"sleep","forMs":0},"next":"end"}`, "expression-failed", "expression-failed"},
		{"for ever", `"n":{"kind":"sleep","forMs":"${ 9223372036854775807 }","next":"end"}`, "expression-failed", "expression-failed"},
		{"for ever and ever", `"n":{"kind":"sleep","forMs":"${ 1e300 }","next":"end"}`, "expression-failed", "expression-failed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, map[string]string{"w": `{"state":{"sum":{"merge":"sum"}},"start":"n","nodes":{` + test.flow + `}}`}, bad.tool("bad", tool.Spec{}))
				input := `{"list":[` + strings.Repeat("0,", 10_000) + `0]}`
				out := r.ended("w", "t", input)
				if failure(out) != test.want {
					t.Fatalf("%s, want %s", failure(out), test.want)
				}
				again := ""
				h, err := r.Retry(t.Context(), workflow.RetryRequest{WorkflowID: "w", ThreadID: "t", By: "token:t"})
				if err != nil {
					again = code(err)
				} else {
					again = failure(r.wait(h.RunID))
				}
				if again != test.retry {
					t.Errorf("Retry = %s, want %s", again, test.retry)
				}
			})
		})
	}
}

// TestLeft fails one branch beside others of each kind: what runs is kept, what waits is withdrawn, and a retry of the thread
// makes only what has no result.
func TestLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := true
		var mu sync.Mutex
		var made []string
		work := tool.Func(tool.Spec{Name: "work"}, func(ctx context.Context, call tool.Call) (tool.Result, error) {
			var args struct{ What string }
			if err := json.Unmarshal(call.Args, &args); err != nil {
				return tool.Result{}, err
			}
			mu.Lock()
			made = append(made, args.What)
			mu.Unlock()
			time.Sleep(time.Second)
			return tool.JSON(args.What)
		})
		bad := &counter{do: func(tool.Call, int) (tool.Result, error) {
			if fails {
				return tool.Result{}, &tool.Error{Message: "no", NotBegun: true}
			}
			return tool.JSON(1)
		}}
		r := newRig(t, map[string]string{
			"inner": `{"start":"a","nodes":{"a":{"kind":"await","name":"in","next":"end"}}}`,
			"w": `{"state":{"log":{"merge":"append"},"each":{}},"start":"p","nodes":{"p":{"kind":"parallel","branches":["bad","work","wait","ask","child","each"],"next":"end"},
				"bad":{"kind":"sleep","forMs":500,"next":"bad2"},"bad2":{"kind":"tool","tool":"bad","next":"end"},
				"work":{"kind":"tool","tool":"work","args":{"what":"work"},"save":"log","next":"after"},
				"after":{"kind":"tool","tool":"work","args":{"what":"after"},"save":"log","next":"end"},
				"wait":{"kind":"await","name":"wait","next":"end"},"ask":{"kind":"approval","name":"ask","next":"end"},
				"child":{"kind":"workflow","workflow":"inner","next":"end"},
				"each":{"kind":"map","over":"${ ['e0','e1','e2'] }","concurrency":1,"save":"each","do":{"kind":"tool","tool":"work","args":{"what":"${ item }"}},"next":"end"}}}`},
			work, bad.tool("bad", tool.Spec{}))
		h, err := r.Execute(t.Context(), workflow.ExecuteRequest{WorkflowID: "w", ThreadID: "t"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		child := r.child("w", "t")
		out := r.until(h.RunID, store.Failed)
		slices.Sort(made)
		if failure(out) != "node-execution-failed" || !slices.Equal(made, []string{"e0", "work"}) {
			t.Fatalf("%s after the calls %v; want node-execution-failed after e0 and work", failure(out), made)
		}
		if st, err := r.State(t.Context(), "w", "t"); err != nil || string(st.State["log"]) != `["work"]` || len(st.PendingPauses) != 0 || len(st.PendingApprovals) != 0 {
			t.Errorf("state %s, pauses %v, %v; want the call that was under way, and no waits", st.State["log"], st.PendingPauses, err)
		}
		was, err := r.Outcome(t.Context(), child)
		if err != nil || was.Status != store.Aborted {
			t.Fatalf("the child is %s, %v; want it aborted", was.Status, err)
		}
		fails, made = false, nil
		out = r.retry("w", "t")
		out = r.until(out.RunID, store.Awaiting)
		if n := len(out.PendingPauses); n != 3 {
			t.Errorf("%d waits after the retry, want 3: %+v", n, out.PendingPauses)
		}
		slices.Sort(made)
		if !slices.Equal(made, []string{"after", "e1", "e2"}) {
			t.Errorf("the retry made the calls %v, want after, e1, e2", made)
		}
		if is, err := r.Outcome(t.Context(), r.child("w", "t")); err != nil || is.Status != store.Suspended || is.ThreadID != was.ThreadID || is.RunID == child {
			t.Errorf("the child is %+v, %v; want another run of its thread, which waits", is, err)
		}
	})
}

// TestStepsBetweenWaits bounds the steps of a branch since its last wait, not those of a thread.
func TestStepsBetweenWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for most, want := range map[int]string{6: "completed", 5: "max-steps-exceeded"} {
			r := newRig(t, map[string]string{"w": fmt.Sprintf(`{"maxSteps":%d,"state":{"n":{"merge":"sum"}},"start":"a","output":"${ state.n }","nodes":{"a":{"kind":"set","values":{"n":1},"next":"b"},
				"b":{"kind":"branch","cases":[{"if":"state.n %% 2 == 1","next":"a"}],"else":"nap"},"nap":{"kind":"sleep","forMs":10,"next":"more"},
				"more":{"kind":"branch","cases":[{"if":"state.n < 40","next":"a"}],"else":"end"}}}`, most)})
			if out := r.ended("w", "t", `{}`); failure(out) != want {
				t.Errorf("maxSteps %d: %s, want %s", most, failure(out), want)
			}
		}
	})
}
