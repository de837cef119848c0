package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// keyedClient sends requests with keys until they are answered, whatever happens to the server meanwhile.
type keyedClient struct {
	http *http.Client

	mu      sync.Mutex                 // guards the fields below
	made    map[string]map[string]bool // by key: the ids that its answers named
	pending map[string]string          // by key: the path
	replays int
}

const keyedBody = `{"userId": "u", "agentId": "a"}`

// send sends one request and notes what it was answered.
func (c *keyedClient) send(t *testing.T, url, key, path string) {
	body := `{"input": "go"}`
	if path == "/sessions" {
		body = keyedBody
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", url+path, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := c.http.Do(req)
	if err != nil {
		return // the server is gone, and what became of the request is unknown
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	var told struct {
		RunID, Error string
		Session      struct{ ID string }
	}
	if err != nil || json.Unmarshal(b, &told) != nil {
		return
	}
	id := told.RunID + told.Session.ID
	if id == "" {
		if told.Error != "idempotency-in-flight" {
			t.Errorf("POST %s with %s = %d %s", path, key, res.StatusCode, b)
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[key] == nil {
		c.made[key] = map[string]bool{}
	}
	if c.made[key][id] = true; told.Error != "server-draining" {
		delete(c.pending, key)
	}
	if res.Header.Get("Idempotency-Replayed") != "" {
		c.replays++
	}
}

// retry sends all that was not answered again, several at once, and reports whether all is answered now.
func (c *keyedClient) retry(t *testing.T, url string) bool {
	c.mu.Lock()
	again := maps.Clone(c.pending)
	c.mu.Unlock()
	var all sync.WaitGroup
	for key, path := range again {
		for range 2 {
			all.Go(func() { c.send(t, url, key, path) })
		}
	}
	all.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) == 0
}

// TestKillWithKeys kills the server at random moments while requests with keys are under way, several with each key at
// once, and sends those that were not answered again. Each key must have made one run or one session, never two.
func TestKillWithKeys(t *testing.T) {
	t.Parallel()
	dir := newKillSite(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	c := &keyedClient{http: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{}}, made: map[string]map[string]bool{}, pending: map[string]string{}}
	defer c.http.CloseIdleConnections()
	paths := []string{"/agents/a/run", "/agents/a/stream", "/sessions"}
	keys := 0
	rounds := often(20, 5)
	for range rounds {
		s := serve(t, dir)
		stop := make(chan struct{})
		var clients sync.WaitGroup
		clients.Go(func() { c.retry(t, s.url) })
		clients.Go(func() {
			for {
				keys++
				key, path := fmt.Sprintf("kill-key-%d", keys), paths[keys%len(paths)]
				c.mu.Lock()
				c.pending[key] = path
				c.mu.Unlock()
				for range 2 {
					clients.Go(func() { c.send(t, s.url, key, path) })
				}
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
		<-time.After(time.Duration(20+random.IntN(200)) * time.Millisecond)
		s.signal(syscall.SIGKILL)
		s.wait()
		close(stop)
		clients.Wait()
	}
	s := serve(t, dir)
	eventually(t, "an answer for every key", func() bool { return c.retry(t, s.url) })
	runs, sessions := 0, 0
	for key, ids := range c.made {
		if len(ids) != 1 {
			t.Errorf("the answers to %s name %v, want one", key, ids)
		}
		for id := range ids {
			if strings.HasPrefix(id, "sess-") {
				sessions++
			} else {
				runs++
			}
		}
	}
	var list struct {
		Runs     []any
		Sessions []any
	}
	s.call("GET", "/runs?agentId=a&limit=1000", "", &list)
	s.call("GET", "/sessions", "", &list)
	t.Logf("%d kills, %d keys, %d replays, %d runs, %d sessions", rounds, keys, c.replays, len(list.Runs), len(list.Sessions))
	if len(c.made) != keys || len(list.Runs) != runs || len(list.Sessions) != sessions {
		t.Errorf("%d keys made %d runs and %d sessions by their answers, but there are %d and %d", keys, runs, sessions, len(list.Runs), len(list.Sessions))
	}
	if runs > 1000 || sessions > 1000 || c.replays == 0 {
		t.Errorf("%d runs, %d sessions and %d replays tell nothing", runs, sessions, c.replays)
	}
	made := map[string]int{}
	for line := range strings.Lines(read(t, filepath.Join(dir, "effects"))) {
		if made[line]++; made[line] > 1 {
			t.Errorf("the call %s was made %d times", strings.TrimSpace(line), made[line])
		}
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
}
