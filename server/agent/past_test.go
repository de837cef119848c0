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

// BenchmarkStartsBesideALongSession measures the starts of sixteen others, in turns alone, while one more client starts runs
// without a session, and while that client works in a session of 10 000 runs. Any client takes a share of the machine, so what
// the others lose by the long session is the difference between the last two.
func BenchmarkStartsBesideALongSession(b *testing.B) { // G3
	r := newRig(b, func(*rig) []agent.Registration {
		l := llm(b, `{"turns":[{"text":"ok"}]}`)
		l.HistoryTokens = 8000
		return []agent.Registration{{ID: "a", LLM: l}}
	})
	longSession(b, r, "long", 10_000)
	run := func(session string) bool {
		h, err := r.engine.Start(b.Context(), run.StartRequest{Owner: "a", SessionID: session, MayJoin: true, Input: json.RawMessage(`"x"`)})
		if err == nil {
			_, _, _, err = h.Handle.Wait(b.Context())
		}
		if err != nil {
			b.Error(err)
		}
		return err == nil
	}
	const starts = 640 // a turn
	turn := func(one bool, session string) time.Duration {
		var stop atomic.Bool
		var more, others sync.WaitGroup
		if one {
			more.Go(func() {
				for !stop.Load() && run(session) {
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
		more.Wait()
		return took
	}
	turn(true, "long")
	var alone, short, long time.Duration
	b.ResetTimer()
	for range b.N {
		alone += turn(false, "")
		short += turn(true, "")
		long += turn(true, "long")
	}
	n := float64(b.N * starts)
	b.ReportMetric(n/alone.Seconds(), "alone/s")
	b.ReportMetric(n/short.Seconds(), "beside-one/s")
	b.ReportMetric(n/long.Seconds(), "beside-long/s")
	b.ReportMetric(100*(1-short.Seconds()/long.Seconds()), "lost_%")
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

// What is kept of a session is what is stored: runs with windows of different sizes, some of which fail, show what is read from
// the rows.
func TestKeptPastIsTheStoredOne(t *testing.T) {
	r := newRig(t, func(*rig) []agent.Registration {
		small, large := llm(t, `{"turns":[{"text":"ok"}]}`), llm(t, `{"turns":[{"text":"ok"}]}`)
		small.HistoryTokens, large.HistoryTokens = 60, 1<<20
		broken := llm(t, `{"turns":[{"error":{"kind":"unauthorized","message":"no"}}]}`)
		broken.HistoryTokens = 60
		return []agent.Registration{{ID: "small", LLM: small}, {ID: "large", LLM: large}, {ID: "broken", LLM: broken}}
	})
	for n := range 60 {
		owner := []string{"small", "small", "small", "large", "small", "small", "broken"}[n%7]
		h := r.start(run.StartRequest{Owner: owner, SessionID: "s", MayJoin: true, Input: json.RawMessage(fmt.Sprintf(`"question %d"`, n))})
		res, err := h.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stored, err := r.engine.Result(t.Context(), h.ID) // read from the rows
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprint(res.State.Messages), fmt.Sprint(stored.State.Messages); got != want {
			t.Fatalf("run %d of %s has the messages\n%s\nwant those that are stored\n%s", n, owner, got, want)
		}
	}
}

// BenchmarkRunInASession measures the CPU of a run whose model takes no time: without a session, in sessions of up to ten runs,
// and in one of 10 000.
func BenchmarkRunInASession(b *testing.B) { // G2, G3
	r := newRig(b, func(*rig) []agent.Registration {
		l := llm(b, `{"turns":[{"text":"unused"}]}`)
		l.HistoryTokens = 8000
		l.Models[0].Provider = &always{text: "ok"}
		return []agent.Registration{{ID: "a", LLM: l}}
	})
	longSession(b, r, "long", 10_000)
	made := 0
	for _, kind := range []string{"none", "short", "long"} {
		b.Run("session="+kind, func(b *testing.B) {
			spent := cpu(b)
			for range b.N {
				session := kind
				switch made++; kind {
				case "none":
					session = ""
				case "short":
					session = fmt.Sprint("short-", made/10)
				}
				h, err := r.engine.Start(b.Context(), run.StartRequest{Owner: "a", SessionID: session, MayJoin: true, Input: json.RawMessage(`"x"`)})
				if err == nil {
					_, _, _, err = h.Handle.Wait(b.Context())
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpu(b)-spent).Microseconds())/float64(b.N), "cpu-µs")
		})
	}
}
