package agent_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/hub"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
	"agentd/store/storetest"
)

// limitedPay is an agent that calls a tool with effects, of which one call at a time is made. The tool waits until it may end.
func limitedPay(t *testing.T, gated bool) (func(*rig) []agent.Registration, *counter, chan bool) {
	leave := make(chan bool)
	pay := &counter{spec: tool.Spec{Name: "pay", Description: "d", Timeout: 24 * time.Hour, Limit: tool.NewLimit(1, 0)}}
	pay.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		select {
		case <-leave:
			return tool.JSON("paid")
		case <-ctx.Done():
			return tool.Result{}, ctx.Err()
		}
	}
	return func(*rig) []agent.Registration {
		a := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"pay","args":{}}]},{"text":"ok"}]}`, pay)
		if gated {
			a.Policy.Tools = map[string]agent.Gate{"pay": {Always: true}}
		}
		return []agent.Registration{{ID: "a", LLM: a}}
	}, pay, leave
}

// phases are those of the calls of a run as they are on disk.
func (r *rig) phases(runID string) (list []string) {
	r.t.Helper()
	row, err := r.engine.Find(r.t.Context(), runID)
	if err == nil {
		err = r.db.Runs().View(r.t.Context(), func(tx *store.Tx) error {
			calls, err := r.db.Runs().Calls(tx, row.N)
			for _, c := range calls {
				list = append(list, string(c.Phase))
			}
			return err
		})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// TestCallThatWaitsForItsLimit: until a call may begin, a crash leaves no doubt about it.
func TestCallThatWaitsForItsLimit(t *testing.T) {
	for _, gated := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			make, pay, leave := limitedPay(t, gated)
			r := newRig(t, make)
			begin := func() string {
				h := r.start(run.StartRequest{Owner: "a"})
				if gated {
					waits := r.wait(h)
					_, _, _ = r.engine.Resume(t.Context(), h.ID, []run.Decision{{ToolCallID: waits.State.PendingApprovals[0].ToolCallID, Granted: true}}, "", nil)
				}
				synctest.Wait()
				return h.ID
			}
			one, two := begin(), begin()
			if got := strings.Join(append(r.phases(one), r.phases(two)...), " "); got != "dispatching queued" || pay.count() != 1 {
				t.Fatalf("the calls are %s with %d begun, want the second to wait", got, pay.count())
			}
			r.crash()
			synctest.Wait()
			first := r.settled(one)
			if p := first.PendingApprovals; first.Status != store.Awaiting || len(p) != 1 || p[0].Reason != "outcome-unknown" {
				t.Fatalf("after a crash the call that had begun waits as %+v", p)
			}
			again := run.Decision{ToolCallID: first.PendingApprovals[0].ToolCallID, Granted: true, Again: true}
			if _, _, err := r.engine.Resume(t.Context(), one, []run.Decision{again}, "", nil); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := strings.Join(append(r.phases(one), r.phases(two)...), " "); got != "queued dispatching" {
				t.Fatalf("the calls are %s, want the repeated one to wait", got)
			}
			for range 2 {
				leave <- true
				synctest.Wait()
			}
			for _, id := range []string{one, two} {
				if s := r.settled(id); s.Status != store.Completed {
					t.Errorf("the run %s is %s", id, s.Status)
				}
			}
			if pay.count() != 3 { // that of the first is made again
				t.Errorf("%d calls were begun, want 3", pay.count())
			}
		})
	}
}

// TestAbortOfACallThatWaitsForItsLimit: it is settled as not begun, and nobody is asked.
func TestAbortOfACallThatWaitsForItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		make, pay, leave := limitedPay(t, false)
		r := newRig(t, make)
		r.start(run.StartRequest{Owner: "a"})
		synctest.Wait()
		second := r.start(run.StartRequest{Owner: "a"})
		synctest.Wait()
		time.Sleep(time.Hour) // however long it takes
		if status, err := r.engine.Abort(t.Context(), second.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
			t.Errorf("Abort = %s, %v", status, err)
		}
		r.wait(second)
		if s := r.settled(second.ID); !strings.Contains(encode(t, s), "aborted before it began") || pay.count() != 1 {
			t.Errorf("with %d calls, the run is %s", pay.count(), encode(t, s))
		}
		third := r.start(run.StartRequest{Owner: "a"})
		for range 2 {
			leave <- true
			synctest.Wait()
		}
		if res := r.wait(third); res.Status != store.Completed {
			t.Errorf("the next run is %s, want the place of the aborted one to be free", res.Status)
		}
	})
}

// TestDrainWaitsForOthers: what others have given up is waited for, too.
func TestDrainWaitsForOthers(t *testing.T) {
	waited := 0
	db := storetest.Open(t)
	e := agent.New(&agent.Registry{}, run.Options{Runs: db.Runs(), Sessions: db.Sessions(), Hub: hub.New(hub.Options{}), Wait: func(context.Context) { waited++ }})
	if err := e.Drain(t.Context()); err != nil || waited != 1 {
		t.Errorf("Drain = %v, with %d waits of others, want 1", err, waited)
	}
}
