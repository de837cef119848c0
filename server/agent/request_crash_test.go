package agent_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"agentd/server/agent"
	"agentd/server/run"
	"agentd/store"
)

// TestInterruptedAsker stops the engine while the last turn but one runs, as a crash at that point would, and recovers.
func TestInterruptedAsker(t *testing.T) {
	const unknown = `c pay {"to":"c<"} outcome-unknown`
	for _, tc := range []struct {
		name    string
		turns   []turn
		decide  []run.Decision // before the stop; nil: none
		waits   string         // after the restart
		decide2 []run.Decision // then
		told    string         // to the last turn
	}{
		{"a grant is repeated by a person's word alone", []turn{asks("1", "c"), stuck(nil), answers("x")}, []run.Decision{grant("c")},
			unknown, []run.Decision{again("c")}, "from 1 c=true"},
		{"a grant that a person takes back", []turn{asks("1", "c"), stuck(nil), answers("x")}, []run.Decision{grant("c")},
			unknown, []run.Decision{deny("c", "I have looked")}, "from 1 c=false (The outcome of this call is unknown: " +
				"the server stopped during it. Its effect may have happened. A person decided not to repeat it: I have looked)"},
		{"without a checkpoint", []turn{asks("", "c"), stuck(nil), answers("x")}, []run.Decision{grant("c")},
			unknown, []run.Decision{again("c")}, "from  c=true"},
		{"denials are told again", []turn{asks("", "c"), stuck(nil), answers("x")}, []run.Decision{deny("c", "no")},
			"", nil, "from  c=false (no)"},
		{"the denial of two", []turn{asks("1", "c", "d"), stuck(nil), answers("x")}, []run.Decision{grant("c"), deny("d", "no")},
			unknown, []run.Decision{again("c")}, "from 1 c=true d=false (no)"},
		{"a checkpoint settles", []turn{asks("1", "c"), stuck(asks("2")), answers("x")}, []run.Decision{grant("c")},
			"", nil, "from 2"},
		{"an unsettled request does not", []turn{asks("1", "c"), stuck(asks("", "d")), answers("x")}, []run.Decision{grant("c")},
			unknown, []run.Decision{again("c")}, "from 1 c=true"},
		{"a checkpoint keeps the requests before it", []turn{stuck(func(ctx context.Context, out agent.Sink) (agent.Result, error) {
			asks("", "c")(ctx, out)
			return asks("1", "lost")(ctx, out)
		}), answers("x")}, nil, `c pay {"to":"c<"} why c`, []run.Decision{grant("c")}, "from 1 c=true"},
		{"requests after the last checkpoint are made again", []turn{stuck(asks("1", "c")), asks("", "c"), answers("x")}, nil,
			`c pay {"to":"c<"} why c`, []run.Decision{grant("c")}, "from 1 c=true"},
	} {
		t.Run(tc.name, bubble(func(t *testing.T) {
			r, a := newAsker(t, tc.turns...)
			h := r.start(run.StartRequest{Owner: "a"})
			calls := 1
			if tc.decide != nil {
				r.settled(h.ID)
				if _, _, err := r.engine.Resume(t.Context(), h.ID, tc.decide, "tester", nil); err != nil {
					t.Fatal(err)
				}
				calls++
			}
			waitFor(t, func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.told) == calls })
			if n := r.restart(); n != 1 {
				t.Fatalf("the restart took up %d runs, want 1", n)
			}
			s := r.settled(h.ID)
			if got := waitingFor(s.PendingApprovals); got != tc.waits {
				t.Fatalf("after the restart the run is %s and waits for %q, want %q; told %q", s.Status, got, tc.waits, a.told)
			}
			r.checkNumbers(h.ID)
			if tc.decide2 != nil {
				r.restart() // it goes on waiting
				resume(t, r, h.ID, tc.decide2...)
				s = r.settled(h.ID)
			}
			if s.Status != store.Completed || a.last() != tc.told {
				t.Errorf("in the end the run is %s %+v, told %q, want %q last", s.Status, s.Error, a.told, tc.told)
			}
			if n := r.restart(); n != 0 {
				t.Errorf("a last restart took up %d runs", n)
			}
		}))
	}
}

// TestUnknownTwice: a grant of several that is repeated after a crash, and interrupted again.
func TestUnknownTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a := newAsker(t, asks("1", "c", "d"), stuck(nil), stuck(nil), answers("x"))
		res, _ := r.run("a", "")
		id := res.State.ID
		for n := range 2 {
			for _, c := range []string{"c", "d"} { // one by one, so the first is undelivered while the other waits
				if _, _, err := r.engine.Resume(t.Context(), id, []run.Decision{again(c)}, "tester", nil); err != nil {
					t.Fatal(err)
				}
				if c == "c" {
					if s := r.settled(id); len(s.PendingApprovals) != 1 {
						t.Fatalf("after one grant, the run waits for %s", waitingFor(s.PendingApprovals))
					}
					r.restart()
				}
			}
			waitFor(t, func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.told) == n+2 })
			r.restart()
			if s := r.settled(id); s.Status != store.Awaiting || waitingFor(s.PendingApprovals) != `c pay {"to":"c<"} outcome-unknown, d pay {"to":"d<"} outcome-unknown` {
				t.Fatalf("after %d interruptions: %s, %s", n+1, s.Status, waitingFor(s.PendingApprovals))
			}
		}
		res = resume(t, r, id, deny("d", "enough"), again("c"))
		if res.Status != store.Completed || !strings.HasPrefix(a.last(), "from 1 c=true d=false (The outcome of this call is unknown") {
			t.Errorf("in the end: %s %+v, told %q", res.Status, res.Error, a.last())
		}
	})
}

// TestCrashAtEveryStepOfARequest is the fault table of a run whose agent asks: see TestCrashAtEveryStep. The effects
// are those of grants.
func TestCrashAtEveryStepOfARequest(t *testing.T) {
	register := func(counts map[string]int, snap func(string)) func(*rig) []agent.Registration {
		effect := func(name string) {
			snap("before the effect of " + name)
			counts[name]++
			snap("after the effect of " + name)
		}
		step := func(ctx context.Context, from agent.Resumption, out agent.Sink) (agent.Result, error) {
			at := string(from.State)
			snap("at the beginning, from " + at)
			granted := map[string]bool{}
			for _, d := range from.Approvals {
				granted[d.ToolCallID] = d.Granted
			}
			switch at {
			case "": // it asks, and goes on from a checkpoint that knows of that
				err := out.RequestApproval(wants("once"))
				snap("after the request of once")
				if err == nil {
					err = out.Checkpoint(json.RawMessage("1"))
				}
				snap("after the checkpoint 1")
				return agent.Result{}, err
			case "1":
				if granted["once"] {
					effect("once")
				}
				err := out.Checkpoint(json.RawMessage("2"))
				snap("after the checkpoint 2")
				if err == nil {
					err = out.RequestApproval(wants("ask"))
				}
				return agent.Result{}, err
			}
			if _, decided := granted["ask"]; !decided {
				return agent.Result{}, out.RequestApproval(wants("ask"))
			}
			if granted["ask"] {
				effect("ask")
			}
			return agent.Result{Output: "the end"}, nil
		}
		a := resumeAgent{streamAgent{goAgent{id: "a", stream: func(ctx context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
			if err := out.Checkpoint(json.RawMessage(`""`)); err != nil { // so that it can go on from the very beginning
				return agent.Result{}, err
			}
			return step(ctx, agent.Resumption{}, out)
		}}}, func(ctx context.Context, _ agent.Input, from agent.Resumption, out agent.Sink) (agent.Result, error) {
			if string(from.State) == `""` {
				from.State = nil
			}
			return step(ctx, from, out)
		}}
		return func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", Agent: a}} }
	}
	var images []image
	counts := map[string]int{}
	var r *rig
	snap := func(name string) { images = append(images, takeImage(t, r, name, counts)) }
	r = newRig(t, register(counts, snap))
	res, _ := r.run("a", "go")
	id := res.State.ID
	snap("parked")
	res = resume(t, r, id, grant("once"))
	snap("parked again")
	res = resume(t, r, id, grant("ask"))
	snap("completed")
	if res.Status != store.Completed || counts["once"] != 1 || counts["ask"] != 1 || len(images) != 13 {
		t.Fatalf("the run is %s %+v with effects %v and %d images", res.Status, res.Error, counts, len(images))
	}
	for _, im := range images {
		t.Run(im.name, func(t *testing.T) {
			recoverImage(t, im, id, register(im.counts, func(string) {}), "the end")
		})
	}
}
