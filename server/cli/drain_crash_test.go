package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/ws"
	"agentd/ws/wstest"
)

var drains = often(20, 4) // how often TestStopUnderLoad stops the server

const drainConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"},
	"server": {"rateLimit": {"enabled": false}, "shutdown": {"drainTimeoutMs": 300}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {"look": {"kind": "exec", "description": "looks", "command": ["sh", "-c", "sleep 0.02; echo seen"], "sideEffect": "read-only"}},
	"agents": {
		"short": {"kind": "llm", "provider": "p", "model": "short"},
		"long": {"kind": "llm", "provider": "p", "model": "long", "tools": ["look"]}
	}
}`

const drainScript = `{"turns": [
	{"when": {"model": "long", "step": 0}, "text": "A look around.", "chunkSize": 2, "chunkDelayMs": 20, "toolCalls": [{"name": "look", "args": {}}]},
	{"when": {"model": "long", "step": 1}, "text": "And another one.", "chunkSize": 2, "chunkDelayMs": 40, "toolCalls": [{"name": "look", "args": {}}]},
	{"text": "That was all.", "delayMs": 10}]}`

// A crowd is clients of one server that is about to stop.
type crowd struct {
	t    *testing.T
	url  string
	how  syscall.Signal // SIGKILL: nothing is said to anybody
	http *http.Client
	over chan struct{}

	mu       sync.Mutex // guards the fields below
	runs     []string   // that were acknowledged
	refused  int        // with server-draining
	upgraded int
	streamed int
}

// TestStopUnderLoad stops the server at a random moment while 20 clients start runs and 20 watch, and starts it again,
// over and over. It ends in time with exit code 0, tells everybody who watches, and keeps every run that it took. Every
// fourth time it is killed while it stops: it keeps them all the same.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), drainConfig)
	write(t, filepath.Join(dir, "script.json"), drainScript)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	var runs []string
	total := crowd{}
	slowest := time.Duration(0)
	for i := range drains {
		s := serve(t, dir)
		c := &crowd{t: t, url: s.url, how: syscall.SIGTERM, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 40}}, over: make(chan struct{})}
		if i%4 == 3 {
			c.how = syscall.SIGKILL
		}
		var clients sync.WaitGroup
		for n := range 20 {
			clients.Go(func() { c.start([]string{"short", "long"}[n%2], n%3 == 0) })
			if n%2 == 0 {
				clients.Go(c.watchSocket)
			} else {
				clients.Go(c.watchStream)
			}
		}
		<-time.After(time.Duration(random.IntN(500)) * time.Millisecond)
		s.signal(syscall.SIGTERM)
		begun := time.Now()
		if c.how == syscall.SIGKILL {
			<-time.After(time.Duration(random.IntN(250)) * time.Millisecond)
			s.signal(syscall.SIGKILL)
			s.wait()
		} else {
			s.wait().want(t, 0, "", "")
			took := time.Since(begun)
			if slowest = max(slowest, took); took > 300*time.Millisecond+time.Second+3*time.Second { // the last for machines that are busy
				t.Errorf("the server ended %v after SIGTERM, want it within its 300 ms and a second", took)
			}
		}
		close(c.over)
		clients.Wait()
		c.http.CloseIdleConnections()
		runs = append(runs, c.runs...)
		total.refused, total.upgraded, total.streamed = total.refused+c.refused, total.upgraded+c.upgraded, total.streamed+c.streamed
	}
	s := serve(t, dir)
	for _, id := range runs {
		eventually(t, "the end of run "+id, func() bool { return s.status(id) == "completed" })
	}
	t.Logf("%d stops, the slowest took %v; %d runs were acknowledged, %d refused; %d sockets and %d streams", drains, slowest, len(runs),
		total.refused, total.upgraded, total.streamed)
	if len(runs) < 5*drains || total.upgraded < drains || total.streamed < drains {
		t.Error("that is too little to tell anything")
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
}

// start starts runs until the server is gone, and waits for their ends if it should.
func (c *crowd) start(agent string, waits bool) {
	path := "/stream"
	if waits {
		path = "/run"
	}
	for {
		select {
		case <-c.over:
			return
		default:
		}
		res, err := c.http.Post(c.url+"/agents/"+agent+path, "application/json", strings.NewReader(`{"input":"go"}`))
		if err != nil {
			return // nobody knows whether there is a run
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		var answer struct{ RunID, Error string }
		json.Unmarshal(body, &answer) //nolint:errcheck // then it is empty
		switch {
		case err != nil:
			return
		case res.StatusCode < 300 && answer.RunID != "":
			c.note(func() { c.runs = append(c.runs, answer.RunID) })
		case res.StatusCode == 503 && answer.Error == "server-draining" && res.Header.Get("Retry-After") != "":
			c.note(func() {
				if c.refused++; answer.RunID != "" { // it was taken, and goes on
					c.runs = append(c.runs, answer.RunID)
				}
			})
			<-time.After(5 * time.Millisecond)
		default:
			c.t.Errorf("POST %s%s = %d %s, want it taken or server-draining", agent, path, res.StatusCode, body)
		}
	}
}

func (c *crowd) note(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
}

// latest is a run to watch.
func (c *crowd) latest() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.runs) == 0 {
		return "none"
	}
	return c.runs[len(c.runs)-1]
}

// watchSocket holds a WebSocket until the server ends it, and opens another if that was for no reason of the server's.
func (c *crowd) watchSocket() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := wstest.Dial(ctx, "ws"+strings.TrimPrefix(c.url, "http")+"/ws", &wstest.DialOptions{Protocols: []string{"svc.protocol.v1"}})
	if err != nil {
		if refused, ok := errors.AsType[*wstest.DialError](err); ok && refused.Status != 0 && refused.Status != 503 {
			c.t.Errorf("the upgrade is refused with %d, want 503 if at all", refused.Status)
		}
		return
	}
	defer conn.CloseNow()
	c.note(func() { c.upgraded++ })
	for i, call := range []string{`"method":"initialize","params":{"clientInfo":{"name":"test","version":"1"}}`,
		fmt.Sprintf(`"method":"subscription.subscribe","params":{"subject":"agent:long/runs/%s/events"}`, c.latest())} {
		conn.Write(ctx, ws.Text, fmt.Appendf(nil, `{"v":"1","jsonrpc":"2.0","id":%d,%s}`, i, call)) //nolint:errcheck // reading tells
	}
	for err = nil; err == nil; {
		_, _, err = conn.Read(ctx)
	}
	if c.how == syscall.SIGTERM && ws.CodeOf(err) != 4007 {
		c.t.Errorf("a socket ends with %v, want 4007", err)
	}
}

// watchStream reads event streams until the server is gone. Each has its end.
func (c *crowd) watchStream() {
	for {
		path := "/sessions/s/events"
		if id := c.latest(); id != "none" {
			path = "/runs/" + id + "/events"
		}
		res, err := c.http.Get(c.url + path)
		if err != nil {
			return
		}
		body, err := io.ReadAll(res.Body) // an error unless the last chunk has come
		res.Body.Close()
		if res.StatusCode == 503 {
			return
		}
		c.note(func() { c.streamed++ })
		if c.how == syscall.SIGTERM && (err != nil || res.StatusCode != 200 || !strings.Contains(string(body), "event: lifecycle\n")) {
			c.t.Errorf("GET %s = %d, ends with %v and %.200q; want a stream with an end", path, res.StatusCode, err, body[max(0, len(body)-200):])
		}
		select {
		case <-c.over:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
