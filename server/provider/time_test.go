package provider_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/provider"
)

// untilGone keeps an answer open until the client leaves.
func untilGone(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func TestTimeouts(t *testing.T) {
	chunk := "data: " + say("he") + "\n\n"
	for _, tc := range []struct {
		name   string
		reply  reply
		want   string // message; "" = success
		takes  time.Duration
		deltas int
	}{
		{"no headers", reply{then: untilGone, status: -1}, "local did not answer within 40s", 40 * time.Second, 0},
		{"no chunk", reply{then: untilGone}, "local sent nothing for 20s", 20 * time.Second, 0},
		{"no second chunk", reply{body: chunk, then: untilGone}, "local sent nothing for 20s", 20 * time.Second, 1},
		{"a refusal that never ends", reply{status: 500, body: "oh", then: untilGone}, "local answered 500: oh", 20 * time.Second, 0},
		{"slow but alive", reply{body: chunk, then: func(w http.ResponseWriter, r *http.Request) {
			for range 5 {
				wait(r.Context(), 19*time.Second)
				io.WriteString(w, ": ping\n\n")
				w.(http.Flusher).Flush()
			}
			io.WriteString(w, sse(say("llo", "stop")))
		}}, "", 95 * time.Second, 2},
		{"no end after the finish", reply{body: "data: " + say("he", "stop") + "\n\n", then: untilGone}, "", 5 * time.Second, 1},
		{"no end after [DONE]", reply{body: sse(say("he", "stop")), then: untilGone}, "", 100 * time.Millisecond, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := http.Handler(&server{t: t, replies: []reply{tc.reply}})
				if tc.reply.status < 0 {
					h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						_, _ = io.Copy(io.Discard, r.Body)
						untilGone(w, r)
					})
				}
				p := mustOpenAI(t, provider.OpenAIOptions{Timeout: 40 * time.Second, IdleTimeout: 20 * time.Second, Transport: serve(t, newPipes(), h)})
				start, deltas := time.Now(), 0
				_, err := p.Stream(t.Context(), hello(), func(provider.Delta) { deltas++ })
				if took := time.Since(start); took != tc.takes {
					t.Errorf("Stream() took %v, want %v", took, tc.takes)
				}
				if deltas != tc.deltas {
					t.Errorf("Stream() gave %d deltas, want %d", deltas, tc.deltas)
				}
				if tc.want == "" && err != nil || tc.want != "" && asError(t, err).Message != tc.want {
					t.Errorf("Stream() = %v, want %q", err, tc.want)
				}
			})
		})
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func TestSlowSinkCountsAgainstNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := newServer(t, none, reply{body: sse(say("a"), say("b"), say("c", "stop"))})
		res, err := p.Stream(t.Context(), hello(), func(provider.Delta) { wait(t.Context(), time.Hour) })
		if err != nil || res.Text != "abc" {
			t.Errorf("Stream() = %+v, %v, want abc", res, err)
		}
	})
}

func TestConnectionIsUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ok := reply{body: sse(say("a", "stop"))}
		s, p := newServer(t, nil, ok, ok, ok)
		for range 3 {
			if _, err := p.Stream(t.Context(), hello(), ignore); err != nil {
				t.Fatalf("Stream() = %v", err)
			}
			synctest.Wait()
		}
		if got := s.network.dials.Load(); got != 1 {
			t.Errorf("three calls made %d connections, want 1", got)
		}
	})
}

func TestCancellation(t *testing.T) {
	stop := errors.New("the user left")
	for _, tc := range []struct {
		name  string
		reply reply
	}{
		{"during the answer", reply{body: "data: " + say("he") + "\n\n", then: untilGone}},
		{"before the answer", reply{then: untilGone}},
		{"during the wait for another try", reply{status: 429, header: map[string]string{"Retry-After": "20"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, p := newServer(t, nil, tc.reply)
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(3*time.Second, func() { cancel(stop) })
				start := time.Now()
				res, err := p.Stream(ctx, hello(), ignore)
				if took := time.Since(start); err != stop || res != nil || took != 3*time.Second {
					t.Errorf("Stream() = %v, %v after %v, want the cause after 3s", res, err, took)
				}
			})
		})
	}
	t.Run("in the middle of what has come", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		deltas := 0
		p := mustOpenAI(t, provider.OpenAIOptions{Transport: answering(strings.NewReader(sse(say("a"), say("b"), say("c", "stop"))))})
		_, err := p.Stream(ctx, hello(), func(provider.Delta) { deltas++; cancel(stop) })
		if err != stop || deltas != 1 {
			t.Errorf("Stream() = %v after %d deltas, want the cause after 1", err, deltas)
		}
	})
}
