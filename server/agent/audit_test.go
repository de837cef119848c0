package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentd/server/fault"
	"agentd/server/run"
	"agentd/store"
)

// book is an audit chain of a test.
type book struct {
	mu    sync.Mutex
	lines []string
	down  int // so many attempts fail
	look  func(run.Happening)
}

func (b *book) write(list []run.Happening) (func(*store.Tx) error, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down > 0 {
		b.down--
		return nil, fault.New(fault.AuditUnavailable, "the chain is down")
	}
	return func(*store.Tx) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, h := range list {
			line := strings.TrimPrefix(h.Event, "tool.") + " " + h.ToolName
			if h.By != "" {
				line += " by " + h.By
			}
			b.lines = append(b.lines, line)
			if b.look != nil {
				b.look(h)
			}
		}
		return nil
	}, nil
}

func (b *book) read() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

func (b *book) fail(times int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = times
}

// What must be recorded is recorded in the transaction that makes it count: at that moment neither has the effect happened
// nor do readers of the store know of it.
func TestRecordedWithItsEffect(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{}}`)
	var b book
	r := newAuditedRig(t, make, b.write)
	var seen []string
	b.look = func(h run.Happening) {
		s, err := r.engine.Snapshot(context.Background(), h.RunID)
		seen = append(seen, fmt.Sprint(strings.TrimPrefix(h.Event, "tool."), " ", s.Status, " ", len(s.PendingApprovals), " ", count["a"].count(), " ", err))
	}
	res, _ := r.run("a", "go")
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
	if res.Status != store.Completed {
		t.Fatalf("the run is %s, want it completed", res.Status)
	}
	want := []string{"execute.start a", "approval.requested a", "approval.granted a by tester", "execute.start a", "execute.end a"}
	if got := b.read(); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
	want = []string{"execute.start running 0 0 <nil>", "approval.requested running 0 0 <nil>", "approval.granted awaiting_approval 1 0 <nil>", "execute.start awaiting_approval 1 0 <nil>",
		"execute.end running 0 1 <nil>"}
	if !slices.Equal(seen, want) {
		t.Errorf("as it was recorded, status, approvals and executions were\n%q, want\n%q", seen, want)
	}
}

// A decision that cannot be recorded is not made, and can be made once the chain is back.
func TestDecisionThatIsNotRecorded(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{}}`)
	var b book
	r := newAuditedRig(t, make, b.write)
	res, _ := r.run("a", "go")
	id, grant := res.State.ID, []run.Decision{{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true}}
	b.fail(1)
	if _, _, err := r.engine.Resume(t.Context(), id, grant, "tester", nil); !fault.Is(err, fault.AuditUnavailable) {
		t.Errorf("Resume without the chain = %v, want audit-unavailable", err)
	}
	if s := r.settled(id); s.Status != store.Awaiting || count["a"].count() != 0 {
		t.Errorf("after it the run is %s with %d executions, want it to wait", s.Status, count["a"].count())
	}
	if res := resume(t, r, id, grant...); res.Status != store.Completed || count["a"].count() != 1 {
		t.Errorf("with the chain back: %s with %d executions, want it completed with one", res.Status, count["a"].count())
	}
}

// A decision whose transaction fails is not recorded.
func TestDecisionThatIsNotMade(t *testing.T) {
	make, _ := gatedAgent(t, `{"name":"a","args":{}}`)
	var b book
	r := newAuditedRig(t, make, b.write)
	res, _ := r.run("a", "go")
	refused := errors.New("not with this")
	grant := []run.Decision{{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true}}
	if _, _, err := r.engine.Resume(t.Context(), res.State.ID, grant, "tester", func(*store.Tx, []run.Verdict, []run.Decision) error { return refused }); !errors.Is(err, refused) {
		t.Fatalf("ResumeAlso = %v, want the error of also", err)
	}
	want := []string{"execute.start a", "approval.requested a"}
	if got := b.read(); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

// A run that moves stands still while the chain is down, and goes on after it.
func TestRunWaitsForTheChain(t *testing.T) {
	list, byName := tools("a")
	var b book
	r := newAuditedRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"a","args":{}}]},{"text":"end"}]}`, list...)), b.write)
	b.fail(2)
	res, _ := r.run("a", "go")
	if res.Status != store.Completed || byName["a"].count() != 1 {
		t.Errorf("the run is %s with %d executions, want it completed with one", res.Status, byName["a"].count())
	}
	if got, want := b.read(), []string{"execute.start a", "execute.end a"}; !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}
