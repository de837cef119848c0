package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/server/event"
	"agentd/server/sse"
	"agentd/ws"
	"agentd/ws/wstest"
)

var streamKills = often(10, 4) // how often TestKillWhileClientsWatch kills the server, and half as often stops it

const watchConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"},
	"server": {"rateLimit": {"enabled": false}, "shutdown": {"drainTimeoutMs": 200}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {"look": {"kind": "exec", "description": "looks", "command": ["sh", "-c", "sleep 0.03; echo seen"], "sideEffect": "read-only"}},
	"agents": {"a": {"kind": "llm", "provider": "p", "model": "m", "tools": ["look"]}}
}`

const watchScript = `{"turns": [
	{"when": {"step": 0}, "text": "The first look around.", "chunkSize": 2, "chunkDelayMs": 5, "toolCalls": [{"name": "look", "args": {}}, {"name": "look", "args": {}}]},
	{"when": {"step": 1}, "toolCalls": [{"name": "look", "args": {}}]},
	{"when": {"step": 2}, "text": "Another one.", "chunkSize": 1, "chunkDelayMs": 3, "toolCalls": [{"name": "look", "args": {}}]},
	{"when": {"step": 3}, "text": "And another.", "chunkSize": 1, "chunkDelayMs": 3, "toolCalls": [{"name": "look", "args": {}}]},
	{"text": "That was all that there was to be seen.", "chunkSize": 1, "chunkDelayMs": 5}]}`

// TestKillWhileClientsWatch kills the server at random moments while 20 clients watch runs and a session, and each goes on
// behind its last event. In the end each has every durable event exactly once and in order, and no other one twice. Then
// the same with a server that is asked to stop: it tells its clients so.
func TestKillWhileClientsWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), watchConfig)
	write(t, filepath.Join(dir, "script.json"), watchScript)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)

	var runs, ofSession []string // those that were acknowledged
	var clients []*watcher
	for i := range 20 {
		c := &watcher{t: t, name: fmt.Sprint("socket ", i)}
		if i%2 == 1 {
			c.name, c.sse = fmt.Sprint("stream ", i), true
		}
		if !c.sse || i < 6 { // three streams of ten
			c.watch("session:s/events", "/sessions/s/events")
		}
		clients = append(clients, c)
	}
	round := func(how syscall.Signal) {
		s := serve(t, dir)
		for i := range 3 {
			body := `{"sessionId":"s","onBusy":"queue"}`
			if i > 0 {
				body = "{}"
			}
			id := s.begin("a", body)
			runs = append(runs, id)
			if i == 0 {
				ofSession = append(ofSession, id)
			}
			for n, c := range clients {
				switch subject := "agent:a/runs/" + id + "/events"; {
				case c.sse && (len(c.all) == 0 || c.all[len(c.all)-1].ended):
					c.watch(subject, "/runs/"+id+"/events")
				case !c.sse && i == 0 && n%4 == 0:
					c.watch("session:s/runs/"+id+"/events", "")
				case !c.sse && (n+i)%3 == 0:
					c.watch(subject, "")
				}
			}
		}
		var watching sync.WaitGroup
		for _, c := range clients {
			watching.Go(func() { c.connect(t.Context(), s.url, how, nil) })
		}
		<-time.After(time.Duration(random.IntN(400)) * time.Millisecond)
		s.signal(how)
		ended := s.wait()
		watching.Wait()
		if how == syscall.SIGTERM {
			ended.want(t, 0, "", "")
		}
	}
	for range streamKills {
		round(syscall.SIGKILL)
	}
	for range (streamKills + 1) / 2 {
		round(syscall.SIGTERM)
	}

	s := serve(t, dir)
	numbers := map[string]int{} // of durable events, by run
	limit, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	for _, id := range runs {
		truth := &watcher{t: t, name: "late", sse: true}
		truth.watch("agent:a/runs/"+id+"/events", "/runs/"+id+"/events")
		truth.connect(limit, s.url, 0, nil)
		numbers[id] = truth.all[0].next[id]
	}
	var watching sync.WaitGroup
	for _, c := range clients {
		watching.Go(func() { c.connect(limit, s.url, 0, ofSession) })
	}
	watching.Wait()
	total, resumed := 0, 0
	for _, c := range clients {
		for _, w := range c.all {
			want := ofSession
			if strings.Contains(w.subject, "/runs/") {
				want = []string{w.run}
			}
			if !slices.Equal(w.order, want) {
				t.Errorf("%s: %s tells of the runs %v, want %v", c.name, w.subject, w.order, want)
			}
			for id, n := range w.next {
				if n != numbers[id] {
					t.Errorf("%s: %s has %d durable events of run %s, want %d", c.name, w.subject, n, id, numbers[id])
				}
			}
			total, resumed = total+len(w.seen), resumed+w.resumed
		}
	}
	t.Logf("%d runs, %d events to %d clients, %d subscriptions resumed within a run", len(runs), total, len(clients), resumed)
	if resumed < streamKills {
		t.Errorf("%d subscriptions were resumed: too few to tell anything", resumed)
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
}

// A watcher is a client. Over WebSocket it watches several subjects, as a stream the last of them.
type watcher struct {
	t      *testing.T
	name   string
	sse    bool
	header http.Header // goes with each request
	all    []*watched
}

// A watched is what a client has seen of one subject, over all its connections.
type watched struct {
	subject, path string
	run           string // the only one, unless it is of a session

	cursor  string
	seen    map[string]bool // ids
	next    map[string]int  // how many durable events have come, by run
	order   []string        // the runs, as they began
	over    []string        // the runs that have ended
	ended   bool            // its lifecycle frame has come
	stopped bool            // the server has told that it stops
	resumed int
}

func (c *watcher) watch(subject, path string) {
	w := &watched{subject: subject, path: path, seen: map[string]bool{}, next: map[string]int{}}
	if s, err := event.ParseSubject(subject); err == nil {
		w.run = s.Run
	}
	c.all = append(c.all, w)
}

// A told is a frame, as far as it matters here.
type told struct {
	V, Kind, SubscriptionID, EventID, Subject, Type, Status, Reason string

	ID      json.RawMessage
	Payload struct{ Type string }
	Result  *struct{ SubscriptionID, Subject string }
}

// take heeds a frame about the subject.
func (c *watcher) take(w *watched, f *told) {
	fail := func(format string, args ...any) {
		c.t.Errorf("%s: %s: %s", c.name, w.subject, fmt.Sprintf(format, args...))
	}
	switch {
	case f.V != "1" || w.ended || w.stopped:
		fail("unexpected frame %+v", f)
	case f.Kind == "lifecycle" && f.Reason == "server-shutdown":
		w.stopped = f.Status == "paused"
	case f.Kind == "lifecycle":
		if w.ended = true; f.Status != "completed" && f.Status != "failed" || !slices.Contains(w.over, w.run) {
			fail("lifecycle %s after %s", f.Status, w.cursor)
		}
	case f.Kind == "replay-marker": // deltas of a process that is gone
	case f.Kind != "event":
		fail("unexpected frame %+v", f)
	default:
		at, ok := event.ParseCursor(f.EventID)
		switch {
		case !ok || f.Subject != w.subject || f.Type != f.Payload.Type || w.run != "" && at.Run != w.run:
			fail("unexpected event %+v", f)
		case w.seen[f.EventID]:
			fail("event %s comes twice", f.EventID)
		case slices.Contains(w.over, at.Run):
			fail("event %s comes after the end of its run", f.EventID)
		case at.Sub > 0 && at.Seq != w.next[at.Run], at.Sub == 0 && at.Seq != w.next[at.Run]+1:
			fail("event %s comes after %s, number %d of its run", f.EventID, w.cursor, w.next[at.Run])
		}
		if !slices.Contains(w.order, at.Run) {
			if len(w.order) != len(w.over) {
				fail("event %s begins a run before the one before has ended", f.EventID)
			}
			w.order = append(w.order, at.Run)
		}
		if at.Sub == 0 {
			w.next[at.Run] = at.Seq
		}
		w.cursor, w.seen[f.EventID] = f.EventID, true
		if f.Type == event.AgentEnd {
			w.over = append(w.over, at.Run)
		}
	}
}

// done reports whether nothing more is to come, when the session has these runs.
func (w *watched) done(ofSession []string) bool {
	return w.ended || w.run == "" && len(w.over) == len(ofSession)
}

// connect watches until the server goes, by the signal how; or, when that is 0, until there is nothing more to come.
func (c *watcher) connect(ctx context.Context, url string, how syscall.Signal, ofSession []string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var live []*watched
	for _, w := range c.all {
		if !w.ended && (how != 0 || !w.done(ofSession)) {
			w.stopped = false
			live = append(live, w)
		}
	}
	if len(live) == 0 {
		return
	}
	var err error
	done := func() bool {
		return how == 0 && !slices.ContainsFunc(live, func(w *watched) bool { return !w.done(ofSession) })
	}
	begun := live[:0:0] // those that the server has answered for
	if c.sse {
		begun, err = c.stream(ctx, url, live[len(live)-1], done)
	} else {
		begun, err = c.socket(ctx, url, live, done)
	}
	for _, w := range begun {
		if n := len(w.order); n > 0 && len(w.over) < n {
			w.resumed++
		}
		if how == syscall.SIGTERM && !w.stopped && !w.ended {
			c.t.Errorf("%s: %s was not told that the server stops: %v", c.name, w.subject, err)
		}
	}
	if how == syscall.SIGTERM && !c.sse && len(begun) > 0 && ws.CodeOf(err) != 4007 {
		c.t.Errorf("%s: the connection ended with %v, want 4007", c.name, err)
	}
	if how == 0 && err != nil {
		for _, w := range live {
			c.t.Errorf("%s: %s has come to %s (%d runs, %d over, ended %v): %v", c.name, w.subject, w.cursor, len(w.order), len(w.over), w.ended, err)
		}
	}
}

// socket speaks svc.protocol.v1.
func (c *watcher) socket(ctx context.Context, url string, live []*watched, done func() bool) (begun []*watched, err error) {
	conn, err := wstest.Dial(ctx, "ws"+strings.TrimPrefix(url, "http")+"/ws", &wstest.DialOptions{Protocols: []string{"svc.protocol.v1"}, Header: c.header})
	if err != nil {
		return nil, err
	}
	defer conn.CloseNow()
	requests := []string{`"method":"initialize","params":{"clientInfo":{"name":"test","version":"1"}}`}
	for _, w := range live {
		since := ""
		if w.cursor != "" {
			since = fmt.Sprintf(`,"sinceEventId":%q`, w.cursor)
		}
		requests = append(requests, fmt.Sprintf(`"method":"subscription.subscribe","params":{"subject":%q%s}`, w.subject, since))
	}
	for i, r := range requests {
		if err := conn.Write(ctx, ws.Text, fmt.Appendf(nil, `{"v":"1","jsonrpc":"2.0","id":%d,%s}`, i, r)); err != nil {
			return nil, err
		}
	}
	by := map[string]*watched{}
	for !done() {
		_, b, err := conn.Read(ctx)
		if err != nil {
			return begun, err
		}
		var f told
		if err := json.Unmarshal(b, &f); err != nil {
			c.t.Errorf("%s: frame %s: %v", c.name, b, err)
		}
		switch w := by[f.SubscriptionID]; {
		case w != nil && f.Kind == "subscribed":
		case w != nil:
			c.take(w, &f)
		case f.Kind == "lifecycle" && f.Reason == "server-shutdown": // of a subscription that came too late
		case f.Result == nil:
			c.t.Errorf("%s: unexpected frame %s", c.name, b)
		case string(f.ID) != "0":
			var i int
			if err := json.Unmarshal(f.ID, &i); err != nil || live[i-1].subject != f.Result.Subject {
				c.t.Errorf("%s: answer %s is of no request", c.name, b)
				continue
			}
			by[f.Result.SubscriptionID] = live[i-1]
			begun = append(begun, live[i-1])
		}
	}
	return begun, nil
}

// stream reads Server-Sent Events.
func (c *watcher) stream(ctx context.Context, url string, w *watched, done func() bool) (begun []*watched, err error) {
	req, err := http.NewRequestWithContext(ctx, "GET", url+w.path, nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, c.header)
	if w.cursor != "" {
		req.Header.Set("Last-Event-ID", w.cursor)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNoContent && slices.Contains(w.over, w.run) { // it has had everything
		w.ended = true
		return []*watched{w}, nil
	}
	if res.StatusCode != http.StatusOK {
		return nil, errors.New(res.Status)
	}
	events := sse.NewReader(res.Body, 16<<20)
	for !done() {
		ev, err := events.Next()
		if err != nil {
			return []*watched{w}, err
		}
		var f told
		if err := json.Unmarshal(ev.Data, &f); err != nil || ev.ID != f.EventID || f.Kind == "event" && ev.Type != f.Type {
			c.t.Errorf("%s: event %q %q with frame %s: %v", c.name, ev.Type, ev.ID, ev.Data, err)
		}
		c.take(w, &f)
	}
	return []*watched{w}, nil
}
