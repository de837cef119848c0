package takeover_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/server/takeover"
)

// TestImportOfAnything imports states that were changed at random: each is refused with a reason, or shown as it was
// taken over, also by what is on disk.
func TestImportOfAnything(t *testing.T) {
	register, _ := strangers(t)
	r := newRig(t, register)
	var docs []any
	for _, version := range []string{"1.0", "1.1", "1.2", "1.9-future"} {
		b, err := os.ReadFile("../runstate/testdata/run-state-" + version + ".json")
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.ReplaceAll(b, []byte("2026-03-10T10:02:12.000Z"), []byte("2999-03-10T10:02:12.000Z"))
		var doc any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		docs = append(docs, doc)
	}
	m := &mutator{Rand: rand.New(rand.NewPCG(1, 2))}
	taken := 0
	for i := range anything {
		text := encode(t, m.mutate(docs[i%len(docs)], i%7))
		st, err := runstate.Read([]byte(text))
		if err != nil || slices.ContainsFunc(st.PendingApprovals, func(a journal.Approval) bool { return a.ExpiresAt != "" && a.ExpiresAt < "2998" }) {
			continue // it would go on at once
		}
		made, err := takeover.Import(t.Context(), r.engine, st, takeover.Options{SessionID: "s"})
		if err != nil {
			if !fault.Is(err, fault.RunStateUnfit) {
				t.Fatalf("Import(%s) = %v", text, err)
			}
			continue
		}
		taken++
		if got, want := encode(t, r.state(made.RunID)), encode(t, st); got != want {
			t.Fatalf("Import(%s) shows\n     %s\nwant %s", text, got, want)
		}
		if taken%often == 0 && len(st.PendingApprovals) > 0 && (st.Status == "awaiting_approval" || st.Status == "aborted") {
			goOn(t, r, text, st)
		}
		if err := r.engine.EraseSession(t.Context(), "s", nil); err != nil {
			t.Fatal(err)
		}
	}
	if taken < anything/20 {
		t.Errorf("%d of %d were taken over, which is too few to tell anything", taken, anything)
	}
}

const (
	anything = 1000 // how many states
	often    = 10   // one of how many goes on
)

// goOn grants all that a run waits for. It ends, and what was said before is still there.
func goOn(t *testing.T, r *rig, text string, st *runstate.State) {
	t.Helper()
	got := st
	for i := range 3 {
		var words []run.Decision
		for _, a := range got.PendingApprovals {
			if a.ApproversNeeded > 3 {
				return // there are not so many people here
			}
			words = append(words, run.Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: true})
		}
		if words == nil {
			break
		}
		h, unmatched, err := r.engine.Resume(t.Context(), st.ID, words, fmt.Sprint(i), nil)
		if err != nil || len(unmatched) > 0 {
			t.Fatalf("Resume of %s = %v, %v", text, unmatched, err)
		}
		if h != nil {
			r.wait(h)
		}
		got = r.state(st.ID)
	}
	if got.Status != "completed" && got.Status != "failed" {
		t.Fatalf("%s became %s", text, got.Status)
	}
	r.events(st.ID)
	said := 0
	for _, m := range got.Messages {
		if said < len(st.Messages) && sameMessage(t, m, st.Messages[said]) {
			said++
		}
	}
	if said < len(st.Messages) {
		t.Fatalf("of %s, message %d is gone:\n%s", text, said, encode(t, got.Messages))
	}
}

func sameMessage(t *testing.T, a, b any) bool { return encode(t, a) == encode(t, b) }

// A mutator changes documents at random.
type mutator struct {
	*rand.Rand
	pool []any // values that were seen
}

// mutate returns a copy of a document with about n changes.
func (m *mutator) mutate(doc any, n int) any {
	size := m.count(doc)
	return m.walk(doc, func() bool { return m.IntN(size) < n })
}

func (m *mutator) count(v any) int {
	n := 1
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n += m.count(e)
		}
	case []any:
		for _, e := range v {
			n += m.count(e)
		}
	}
	return n
}

func (m *mutator) walk(v any, hit func() bool) any {
	if m.pool = append(m.pool, v); len(m.pool) > 500 {
		m.pool = m.pool[100:]
	}
	if hit() && m.IntN(2) == 0 {
		return m.pool[m.IntN(len(m.pool))]
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			if !hit() {
				out[k] = m.walk(v[k], hit)
			} else if m.IntN(2) == 0 {
				out[k+"x"] = v[k]
			}
		}
		return out
	case []any:
		var out []any
		for _, e := range v {
			if hit() {
				if m.IntN(2) == 0 {
					continue
				}
				out = append(out, e)
			}
			out = append(out, m.walk(e, hit))
		}
		if hit() {
			m.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		}
		if out == nil {
			out = []any{}
		}
		return out
	case string:
		if hit() {
			return []string{"", "completed", "failed", "aborted", "awaiting_approval", "tool", "o2", "s2", "2026-01-01T00:00:00Z"}[m.IntN(9)]
		}
	}
	return v
}
