package workflow_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// TestKeptAnswers keeps as many answers as it may over a restart, and gives them out in their order.
func TestKeptAnswers(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"maxSteps":1000,"state":{"log":{"merge":"append"}},"output":"${ state.log }","start":"first","nodes":{
		"first":{"kind":"await","name":"first","next":"each"},"each":{"kind":"await","name":"each","save":"log","next":"more"},
		"more":{"kind":"branch","cases":[{"if":"size(state.log) < 100","next":"each"}],"else":"end"}}}`})
	out := r.run("w", "t", `{}`)
	want := "["
	for n := range 100 {
		h, err := r.Resume(t.Context(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", Name: "each", Value: []byte(fmt.Sprint(n)), By: "token:t"})
		if err != nil || !h.Kept {
			t.Fatalf("answer %d: %+v, %v, want it kept", n, h, err)
		}
		want += fmt.Sprint(n, ",")
	}
	if err := r.resume("w", "t", "each", "0"); code(err) != "pause-answers-full" {
		t.Errorf("answer 101 = %v", err)
	}
	r.restart()
	if err := r.resume("w", "t", "each", "0"); code(err) != "pause-answers-full" {
		t.Errorf("answer 101 after a restart = %v", err)
	}
	if err := r.resume("w", "t", "first", "0"); err != nil {
		t.Fatal(err)
	}
	r.want(r.until(out.RunID, store.Completed), store.Completed, want[:len(want)-1]+"]")
}

// TestVersions changes a workflow under threads that wait at one of its nodes.
func TestVersions(t *testing.T) {
	flow := func(version, node string) string {
		return `{"version":"` + version + `","start":"` + node + `","output":"` + version + `","nodes":{"` + node + `":{"kind":"await","name":"x","next":"end"}}}`
	}
	for _, test := range []struct{ name, before, after, plain, allowed, output string }{
		{"same", flow("1", "a"), flow("1", "a"), "", "", `"1"`},
		{"no pin before", flow("", "a"), flow("2", "b"), "", "workflow-divergence", `""`},
		{"no pin after", flow("1", "a"), flow("", "a"), "", "", `"1"`},
		{"another pin", flow("1", "a"), flow("2", "a"), "workflow-version-mismatch", "", `"2"`},
		{"the node is gone", flow("1", "a"), flow("2", "b"), "workflow-version-mismatch", "workflow-divergence", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, map[string]string{"w": test.before})
			plain, allowed := r.run("w", "plain", `{}`), r.run("w", "allowed", `{}`)
			r.declared["w"] = test.after
			r.restart()
			if err := r.resume("w", "plain", "x", "1"); code(err) != test.plain {
				t.Fatalf("Resume = %v, want %s", err, test.plain)
			}
			if test.plain == "" {
				r.want(r.until(plain.RunID, store.Completed), store.Completed, test.output)
			}
			_, err := r.Resume(t.Context(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "allowed", Name: "x", AllowVersionMismatch: true, By: "token:t"})
			if code(err) != test.allowed {
				t.Fatalf("Resume with allowVersionMismatch = %v, want %s", err, test.allowed)
			}
			if test.allowed != "" {
				if st, err := r.State(t.Context(), "w", "allowed"); err != nil || st.Status != store.Suspended {
					t.Errorf("after that, the thread is %+v, %v; want it as it was", st, err)
				}
			} else if out := r.until(allowed.RunID, store.Completed); test.plain != "" {
				r.want(out, store.Completed, test.output)
			}
		})
	}
}

// TestBlocked: a thread whose time comes under another version stays parked until it is resumed.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		flow := `{"version":"%d","start":"a","output":"%d","nodes":{"a":{"kind":"sleep","forMs":1000,"next":"end"}}}`
		r := newRig(t, map[string]string{"w": fmt.Sprintf(flow, 1, 1)})
		out := r.run("w", "t", `{}`)
		r.declared["w"] = fmt.Sprintf(flow, 2, 2)
		r.restart()
		time.Sleep(time.Minute)
		st, err := r.State(t.Context(), "w", "t")
		if err != nil || st.Status != store.Suspended || st.Blocked != "workflow-version-mismatch" {
			t.Fatalf("the thread is %s, blocked %q, %v", st.Status, st.Blocked, err)
		}
		if list, _, err := r.Threads(t.Context(), workflow.ThreadFilter{Workflow: "w", Blocked: true}); err != nil || len(list) != 1 {
			t.Errorf("blocked threads: %+v, %v", list, err)
		}
		if _, _, err := r.Tick(t.Context(), "w", "t"); code(err) != "workflow-version-mismatch" {
			t.Errorf("Tick = %v", err)
		}
		if _, err := r.Resume(t.Context(), workflow.ResumeRequest{WorkflowID: "w", ThreadID: "t", AllowVersionMismatch: true, By: "token:t"}); err != nil {
			t.Fatal(err)
		}
		r.want(r.until(out.RunID, store.Completed), store.Completed, `"2"`)
	})
}

// TestUnknownOutcome gives each answer to the question what became of a call.
func TestUnknownOutcome(t *testing.T) {
	for _, test := range []struct {
		name     string
		decision run.Decision
		refused  string
		want     string // status or code, and output
		calls    int
	}{
		{"a plain grant", run.Decision{Granted: true}, "outcome-unknown", "", 1},
		{"again", run.Decision{Granted: true, Again: true}, "", `completed "paid"`, 2},
		{"denied", run.Decision{}, "", `outcome-unknown `, 1},
		{"denied with its result", run.Decision{Result: []byte(`"known"`)}, "", `completed "known"`, 1},
		{"a result with a grant", run.Decision{Granted: true, Again: true, Result: []byte(`1`)}, "edit-refused", "", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &counter{do: func(_ tool.Call, n int) (tool.Result, error) {
				if n == 1 {
					return tool.Result{}, &tool.Error{Message: "The line was cut.", Unknown: true}
				}
				return tool.JSON("paid")
			}}
			r := newRig(t, map[string]string{"w": `{"state":{"a":{}},"start":"n","output":"${ state.a }","nodes":{"n":{"kind":"tool","tool":"pay","save":"a","retry":{"maxAttempts":5,"backoffMs":1},"next":"end"}}}`}, c.tool("pay", tool.Spec{}))
			out := r.run("w", "t", `{}`)
			if len(out.PendingApprovals) != 1 || out.PendingApprovals[0].Reason != "outcome-unknown" {
				t.Fatalf("%s, approvals %+v; want one for the outcome", out.Status, out.PendingApprovals)
			}
			test.decision.ToolCallID = out.PendingApprovals[0].ToolCallID
			_, _, err := r.kernel.Resume(t.Context(), out.RunID, []run.Decision{test.decision}, "token:p", nil)
			if code(err) != test.refused {
				t.Fatalf("the decision = %v, want %q", err, test.refused)
			}
			if test.refused != "" {
				r.until(out.RunID, store.Awaiting)
			} else if out = r.ends(out.RunID); failure(out)+" "+string(out.Output) != test.want {
				t.Errorf("%s %s, want %s", failure(out), out.Output, test.want)
			}
			if c.all != test.calls {
				t.Errorf("%d calls, want %d", c.all, test.calls)
			}
		})
	}
}

// TestWaitsOfAMap: elements that wait count against the concurrency, and have a name each; an abort says so.
func TestWaitsOfAMap(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"maxStateBytes":4096,"state":{"a":{}},"start":"m","nodes":{"m":{"kind":"map","over":"${ [0,1,2,3] }","concurrency":2,"save":"a","do":{"kind":"await","name":"ok"},"next":"end"}}}`})
	out := r.run("w", "t", `{}`)
	for _, want := range []string{"ok[0] ok[1]", "ok[1] ok[2]", "ok[1] ok[3]"} {
		st, err := r.State(t.Context(), "w", "t")
		if err != nil || len(st.PendingPauses) != 2 {
			t.Fatalf("waits %+v, %v; want %s", st.PendingPauses, err, want)
		}
		first, second := st.PendingPauses[0].Name, st.PendingPauses[1].Name
		if first+" "+second != want {
			t.Fatalf("waits %s %s, want %s", first, second, want)
		}
		if first == "ok[1]" {
			first = second
		}
		if err := r.resume("w", "t", first, `"`+first+`"`); err != nil {
			t.Fatal(err)
		}
		r.until(out.RunID, store.Suspended)
	}
	if err := r.resume("w", "t", "ok[4]", "1"); code(err) != "pause-not-found" && code(err) != "concurrent-resume-rejected" {
		t.Errorf("an answer to an element that does not exist = %v", err)
	}
	if _, err := r.kernel.Abort(t.Context(), out.RunID, run.AbortOptions{}); err != nil {
		t.Fatal(err)
	}
	if out = r.until(out.RunID, store.Aborted); failure(out) != "run-aborted" {
		t.Errorf("the aborted run has the code %s", failure(out))
	}
	again := r.retry("w", "t")
	if len(again.PendingPauses) != 1 || again.PendingPauses[0].Name != "ok[1]" {
		t.Fatalf("after a retry %+v waits, want ok[1]", again.PendingPauses)
	}
	if err := r.resume("w", "t", "", `true`); err != nil {
		t.Fatal(err)
	}
	r.want(r.ends(again.RunID), store.Completed, `{"a":["ok[0]",true,"ok[2]","ok[3]"]}`)
}

// TestAnswersAreState: answers that are kept count against maxStateBytes.
func TestAnswersAreState(t *testing.T) {
	r := newRig(t, map[string]string{"w": `{"maxStateBytes":4096,"start":"a","nodes":{"a":{"kind":"await","name":"x","next":"b"},"b":{"kind":"await","name":"y","next":"end"}}}`})
	r.run("w", "t", `{}`)
	for i, want := range []string{"", "state-too-large"} {
		if err := r.resume("w", "t", "y", fmt.Sprintf("%q", fmt.Sprintf("%03000d", i))); code(err) != want {
			t.Errorf("answer %d = %v, want %q", i, err, want)
		}
	}
}
