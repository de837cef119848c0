package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/id"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// longSession makes a session of so many runs, a question and an answer each.
func longSession(t testing.TB, r *rig, session string, runs int) {
	t.Helper()
	body := func(role message.Role, text string) json.RawMessage {
		b, _ := message.Encode(message.Message{Role: role, Content: message.Text(text)})
		return b
	}
	for done := 0; done < runs; {
		err := r.db.Runs().Update(t.Context(), func(tx *store.Tx) error {
			if done == 0 {
				if err := r.db.Sessions().Insert(tx, store.Session{ID: session, User: "anonymous", Agent: "a", Created: tx.Now()}); err != nil {
					return err
				}
			}
			for range min(500, runs-done) {
				_, err := r.db.Runs().Apply(tx, &store.Change{
					Run: store.Run{ID: id.New(), Kind: "agent", Owner: "a", Current: "a", Session: session, Status: store.Completed, Messages: 2, InputForm: "text",
						Usage: json.RawMessage(`{}`), Models: json.RawMessage(`{}`), Created: 1, Started: 1, Finished: 1},
					Messages: []store.Message{{Index: 0, Role: "user", Tokens: 6, At: 1, Body: body(message.User, "a question")},
						{Index: 1, Role: "assistant", Tokens: 6, At: 1, Body: body(message.Assistant, "an answer")}}})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		done += 500
	}
}

// BenchmarkStartsBesideALongSession measures the starts of sixteen others, in turns alone and while one client works in a
// session of 10 000 runs, and what they lose by it.
func BenchmarkStartsBesideALongSession(b *testing.B) {
	r := newRig(b, func(*rig) []agent.Registration {
		l := llm(b, `{"turns":[{"text":"ok"}]}`)
		l.HistoryTokens = 8000
		return []agent.Registration{{ID: "a", LLM: l}}
	})
	longSession(b, r, "long", 10_000)
	run := func(session string) {
		h, err := r.engine.Start(b.Context(), run.StartRequest{Owner: "a", SessionID: session, Input: json.RawMessage(`"x"`)})
		if err == nil {
			_, err = h.Wait(b.Context())
		}
		if err != nil {
			b.Error(err)
		}
	}
	const starts = 320 // a turn
	turn := func(beside bool) time.Duration {
		var stop atomic.Bool
		var one, others sync.WaitGroup
		if beside {
			one.Go(func() {
				for !stop.Load() {
					run("long")
				}
			})
		}
		began := time.Now()
		for range 16 {
			others.Go(func() {
				for range starts / 16 {
					run("")
				}
			})
		}
		others.Wait()
		took := time.Since(began)
		stop.Store(true)
		one.Wait()
		return took
	}
	turn(false)
	var alone, beside time.Duration
	b.ResetTimer()
	for range b.N {
		alone += turn(false)
		beside += turn(true)
	}
	n := float64(b.N * starts)
	b.ReportMetric(n/alone.Seconds(), "alone/s")
	b.ReportMetric(n/beside.Seconds(), "beside/s")
	b.ReportMetric(100*(1-alone.Seconds()/beside.Seconds()), "lost_%")
}

// Clients that start runs in one session at once see each other's: the history of each run is all that came before it.
func TestHistoryIsWhatCameBefore(t *testing.T) {
	r := newRig(t, func(*rig) []agent.Registration {
		l := llm(t, `{"turns":[{"text":"ok"}]}`)
		l.HistoryTokens = 1 << 20
		return []agent.Registration{{ID: "a", LLM: l}}
	})
	var mu sync.Mutex // guards results
	var results []agent.RunResult
	var clients sync.WaitGroup
	for n := range 8 {
		clients.Go(func() {
			for range 10 {
				h, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "a", SessionID: "s", Queue: n%2 == 0, Input: json.RawMessage(`"x"`)})
				if err != nil {
					continue // the session is busy
				}
				res, err := h.Wait(t.Context())
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				results = append(results, res)
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	sizes := map[int]bool{}
	for _, res := range results {
		n := len(res.State.Messages)
		if n%2 != 0 || sizes[n] || n > 2*len(results) {
			t.Errorf("a run has %d messages with its history, want two more than the run before it", n)
		}
		sizes[n] = true
	}
	if len(results) < 40 {
		t.Errorf("%d runs", len(results))
	}
	if last := fmt.Sprint(results[len(results)-1].Status); !strings.Contains(last, "completed") {
		t.Error(last)
	}
}
