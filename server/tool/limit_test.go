package tool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/message"
	"agentd/server/tool"
)

func limited(t *testing.T, concurrent, perMinute int) *tool.Set {
	s := spec("t")
	s.Limit = tool.NewLimit(concurrent, perMinute)
	return set(t, tool.Func(s, func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{}, nil }))
}

// A gate follows the calls that wait in a set's limit. Its lists belong to whoever waits in the bubble.
type gate struct {
	t       *testing.T
	set     *tool.Set
	began   []string // in order
	ends    map[string]func()
	refused map[string]message.ErrorKind
	change  chan func()
}

func (g *gate) call(ctx context.Context, payer, id string) {
	g.t.Helper()
	go func() {
		release, refusal := g.set.Admit(ctx, "t", tool.Call{ID: id, Payer: payer}, nil)
		g.change <- func() {
			if refusal != nil {
				g.refused[id] = refusal.Kind
				return
			}
			g.began, g.ends[id] = append(g.began, id), release
		}
	}()
	g.settle()
}

func (g *gate) end(id string) {
	g.t.Helper()
	if g.ends[id] == nil {
		g.t.Fatalf("the call %s has not begun; %q have", id, g.began)
	}
	g.ends[id]()
	delete(g.ends, id)
	g.settle()
}

func (g *gate) settle() {
	synctest.Wait()
	for {
		select {
		case f := <-g.change:
			f()
			synctest.Wait()
		default:
			return
		}
	}
}

func (g *gate) want(began string) {
	g.t.Helper()
	if got := strings.Join(g.began, " "); got != began {
		g.t.Errorf("began %q, want %q", got, began)
	}
}

func gateOf(t *testing.T, s *tool.Set) *gate {
	return &gate{t: t, set: s, ends: map[string]func(){}, refused: map[string]message.ErrorKind{}, change: make(chan func())}
}

func TestLimitOfCallsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gateOf(t, limited(t, 2, 0))
		for _, id := range []string{"a1", "a2", "a3", "a4", "b1", "b2"} {
			g.call(t.Context(), id[:1], id)
		}
		g.want("a1 a2")
		ctx, cancel := context.WithCancel(t.Context())
		g.call(ctx, "b", "b3")
		cancel()
		g.settle()
		if g.refused["b3"] != message.AbortedCall {
			t.Errorf("a call that was aborted while it waited = %q, want %q", g.refused["b3"], message.AbortedCall)
		}
		g.end("a1") // b has nothing running, a has
		g.want("a1 a2 b1")
		g.end("a2")
		g.want("a1 a2 b1 a3")
		g.end("b1")
		g.want("a1 a2 b1 a3 b2")
		g.end("b2")
		g.want("a1 a2 b1 a3 b2 a4")
		g.end("a3")
		g.end("a4")
		if len(g.ends) != 0 {
			t.Errorf("%d calls run", len(g.ends))
		}
	})
}

// One that has begun longest ago is next, so that payers take turns where only one call runs at once.
func TestPayersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gateOf(t, limited(t, 1, 0))
		for _, id := range []string{"a1", "a2", "a3", "b1", "b2", "c1"} {
			g.call(t.Context(), id[:1], id)
		}
		for _, id := range []string{"a1", "b1", "c1", "a2", "b2", "a3"} {
			g.end(id)
		}
		g.want("a1 b1 c1 a2 b2 a3")
	})
}

func TestLimitOfCallsInAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gateOf(t, limited(t, 0, 3))
		for i := range 8 {
			g.call(t.Context(), "a", fmt.Sprint(i))
			time.Sleep(10 * time.Second)
			g.settle()
		}
		// They begin at 0, 10 and 20 s; 60, 70 and 80; 120 and 130.
		g.want("0 1 2 3 4 5") // after 80 s
		time.Sleep(39 * time.Second)
		g.settle()
		g.want("0 1 2 3 4 5")
		time.Sleep(time.Second)
		g.settle()
		g.want("0 1 2 3 4 5 6")
		time.Sleep(10 * time.Second)
		g.settle()
		g.want("0 1 2 3 4 5 6 7")
	})
}

func TestCallsThatWaitAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := limited(t, 1, 0)
		release, _ := s.Admit(ctx, "t", tool.Call{Payer: "a"}, nil)
		kinds := make(chan message.ErrorKind, 10_000)
		wait := func(payer string, n int) {
			for range n {
				go func() {
					if _, refusal := s.Admit(ctx, "t", tool.Call{Payer: payer}, nil); refusal != nil {
						kinds <- refusal.Kind
					}
				}()
			}
			synctest.Wait()
		}
		wait("a", 3072)
		wait("a", 1) // the rest is for others
		if len(kinds) != 1 {
			t.Fatalf("%d calls were refused of a payer that has its share, want 1", len(kinds))
		}
		wait("b", 1024)
		if len(kinds) != 1 {
			t.Fatalf("%d more calls were refused before the queue was full", len(kinds)-1)
		}
		wait("c", 1)
		if len(kinds) != 2 || <-kinds != message.RateLimited || <-kinds != message.RateLimited {
			t.Errorf("%d calls were refused when the queue was full, want 2 as %s", len(kinds), message.RateLimited)
		}
		cancel()
		synctest.Wait()
		release()
		if len(kinds) != 4096 {
			t.Errorf("%d calls were aborted while they waited, want 4096", len(kinds))
		}
		if release, refusal := s.Admit(t.Context(), "t", tool.Call{Payer: "c"}, nil); refusal != nil {
			t.Errorf("Admit after all have ended = %+v", refusal)
		} else {
			release()
		}
	})
}

// TestWaitingIsAnnounced: whoever has to wait is told before, and can end it.
func TestWaitingIsAnnounced(t *testing.T) {
	s := limited(t, 1, 0)
	waits := 0
	wait := func() error { waits++; return errors.New("no") }
	release, refusal := s.Admit(t.Context(), "t", tool.Call{}, wait)
	if refusal != nil || waits != 0 {
		t.Errorf("Admit with a free place = %+v, with %d waits", refusal, waits)
	}
	if _, refusal := s.Admit(t.Context(), "t", tool.Call{}, wait); refusal == nil || refusal.Kind != message.AbortedCall || waits != 1 {
		t.Errorf("Admit without a free place = %+v, with %d waits, want aborted and 1", refusal, waits)
	}
	release()
	if _, refusal := s.Admit(t.Context(), "other", tool.Call{}, wait); refusal != nil {
		t.Errorf("Admit of a tool that is not there = %+v, want Execute to say it", refusal)
	}
}

func TestWholeResults(t *testing.T) {
	long := spec("long")
	long.MaxResultTokens = 1
	cut := spec("cut")
	s := set(t, tool.Func(long, func(context.Context, tool.Call) (tool.Result, error) { return tool.JSON(strings.Repeat("x", 100)) }),
		tool.Func(cut, func(context.Context, tool.Call) (tool.Result, error) {
			res, err := tool.JSON("part")
			res.Truncated = true
			return res, err
		}))
	w := s.Whole()
	if got, whole := s.Execute(t.Context(), "long", tool.Call{}), w.Execute(t.Context(), "long", tool.Call{}); len(got.Outcome.Output) == 102 || len(whole.Outcome.Output) != 102 {
		t.Errorf("a result of 100 characters: %d in the set, %d in a whole one", len(got.Outcome.Output), len(whole.Outcome.Output))
	}
	if got := w.Execute(t.Context(), "cut", tool.Call{}); got.Outcome.Kind != message.InvalidOutput || got.Unknown {
		t.Errorf("a result that was cut = %+v, want %s", got.Outcome, message.InvalidOutput)
	}
	if spec, ok := w.Spec("long"); !ok || spec.MaxResultTokens != -1 || spec.Timeout == 0 {
		t.Errorf("Spec(long) = %+v", spec)
	}
	if got, want := len(w.Specs()), 2; got != want || !slices.EqualFunc(w.Specs(), s.Specs(), func(a, b tool.Spec) bool { return a.Name == b.Name }) {
		t.Errorf("a whole set has %d tools, want %d in the same order", got, want)
	}
}
