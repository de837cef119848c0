package cli_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentd/server/webhook"
)

var (
	notifyKills = often(20, 4)     // how often TestKillNotifications kills the server
	notifyRuns  = often(5000, 400) // runs, of which each is reported to two receivers
)

// A mailbox is a receiver of notifications.
type mailbox struct {
	*httptest.Server
	mode atomic.Int32 // see the constants

	mu        sync.Mutex
	ids       map[string]int64 // sequences of what it has accepted or refused, by webhook-id
	sequences map[int64]string // and the reverse
	accepted  map[string]int   // by the id of the run
	slowest   time.Duration    // from the commit of a notification to its first arrival, while the mailbox is told to measure
	measure   bool
}

const (
	accepts = iota
	fails
	stalls
	cuts
	modes
)

func newMailbox(t *testing.T, secret string) *mailbox {
	m := &mailbox{ids: map[string]int64{}, sequences: map[int64]string{}, accepted: map[string]int{}}
	verifier, err := webhook.New(webhook.Scheme{Name: webhook.Standard}, []byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil { // the server was killed
			return
		}
		var body struct {
			Sequence  int64
			Timestamp time.Time
			Data      struct{ RunID string }
		}
		id, err := verifier.Verify(r.Header, text)
		if err == nil {
			err = json.Unmarshal(text, &body)
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			return
		}
		mode := m.mode.Load()
		m.mu.Lock()
		if s, known := m.ids[id]; known && s != body.Sequence || !known && m.sequences[body.Sequence] != "" {
			t.Errorf("%s has sequence %d, and before %d; that was of %q", id, body.Sequence, s, m.sequences[body.Sequence])
		} else if late := time.Since(body.Timestamp); !known && m.measure && late > m.slowest {
			m.slowest = late
		}
		m.ids[id], m.sequences[body.Sequence] = body.Sequence, id
		if mode == accepts {
			m.accepted[body.Data.RunID]++
		}
		m.mu.Unlock()
		switch mode {
		case fails:
			w.WriteHeader(http.StatusServiceUnavailable)
		case stalls:
			<-r.Context().Done()
		case cuts:
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(m.CloseClientConnections)
	return m
}

// TestKillNotifications kills the server at random moments while it reports the ends of runs to a receiver that works and to one that
// fails, stalls, cuts connections and returns. Then each run has reached both, under one webhook-id and sequences without a gap. The
// second receiver does not slow the first.
func TestKillNotifications(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	good, bad := newMailbox(t, secret), newMailbox(t, secret)
	write(t, filepath.Join(dir, "key"), secret)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"text": "written"}]}`)
	write(t, filepath.Join(dir, "agentd.json"), fmt.Sprintf(`{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
		"providers": {"p": {"kind": "scripted", "script": "script.json"}}, "agents": {"writer": {"kind": "llm", "provider": "p", "model": "m"}},
		"notify": [{"on": ["run.completed"], "url": "%s/", "secretRefs": ["file:key"]}, {"on": ["run.completed"], "url": "%s/", "secretRefs": ["file:key"]}]}`, good.URL, bad.URL))
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	client := &http.Client{Timeout: 10 * time.Second}

	s := serve(t, dir)
	perRound := notifyRuns / (notifyKills + 1)
	for round := range notifyKills + 1 {
		bad.mode.Store(int32(round % modes))
		var starters sync.WaitGroup
		for range 4 {
			starters.Go(func() {
				for range perRound / 4 {
					res, err := client.Post(s.url+"/agents/writer/run", "application/json", strings.NewReader(`{"input": "write"}`))
					if err != nil {
						return // it was killed
					}
					res.Body.Close()
				}
			})
		}
		if round < notifyKills {
			time.Sleep(time.Duration(random.Int64N(int64(time.Duration(perRound) * 4 * time.Millisecond))))
			s.process.signal(syscall.SIGKILL)
			s.process.wait()
		}
		starters.Wait()
		if round < notifyKills {
			s = serve(t, dir)
		}
	}
	s.rest()

	// One receiver stalls; the other one gets what happens now at once.
	bad.mode.Store(stalls)
	eventually(t, "the deliveries to the receiver that works", func() bool {
		time.Sleep(time.Second / 4)
		runs := pages[struct{ RunID string }](t, s.url+"/runs", "runs")
		good.mu.Lock() // not before: the receiver waits for it, too
		defer good.mu.Unlock()
		return len(good.accepted) == len(runs)
	})
	good.mu.Lock()
	good.measure = true
	good.mu.Unlock()
	for range 100 {
		s.request("POST", "/agents/writer/run", `{"input": "write"}`).Body.Close()
	}
	bad.mode.Store(accepts)
	eventually(t, "the deliveries to both receivers", func() bool {
		res := s.request("GET", "/notifications?state=waiting&limit=1000", "")
		defer res.Body.Close()
		var list struct{ Notifications []struct{ ID string } }
		if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
			t.Fatal(err)
		}
		if len(list.Notifications) == 0 {
			return true
		}
		var ids []string
		for _, v := range list.Notifications {
			ids = append(ids, v.ID)
		}
		body, _ := json.Marshal(map[string]any{"ids": ids})
		s.request("POST", "/notifications/retry", string(body)).Body.Close() // delivered meanwhile: another look follows
		time.Sleep(time.Second)
		return false
	})

	runs := pages[struct{ RunID, Status string }](t, s.url+"/runs", "runs")
	for name, m := range map[string]*mailbox{"the receiver that works": good, "the receiver that fails": bad} {
		m.mu.Lock()
		repeated := 0
		for _, r := range runs {
			if n := m.accepted[r.RunID]; r.Status == "completed" && n == 0 {
				t.Errorf("%s has not got the run %s", name, r.RunID)
			} else if r.Status != "completed" && n > 0 {
				t.Errorf("%s has got the run %s, which is %s", name, r.RunID, r.Status)
			} else if n > 1 {
				repeated++
			}
		}
		for n := range int64(len(m.sequences)) {
			if m.sequences[n+1] == "" {
				t.Errorf("%s has not got sequence %d", name, n+1)
			}
		}
		if len(m.accepted) != len(m.ids) {
			t.Errorf("%s has got %d runs under %d ids", name, len(m.accepted), len(m.ids))
		}
		t.Logf("%d kills: %s has got %d of %d runs, %d of them more than once", notifyKills, name, len(m.accepted), len(runs), repeated)
		m.mu.Unlock()
	}
	t.Logf("beside a receiver that stalls, a notification arrived after %s at most", good.slowest)
	if good.slowest > 5*time.Second { // a stalled attempt takes 10
		t.Errorf("beside a receiver that stalls, a notification arrived after %s", good.slowest)
	}
}
