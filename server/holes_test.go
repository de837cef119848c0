package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"agentd/ws"
)

// flood is a run of an agent that sends 3000 deltas and waits, sends 5 more and a durable event and waits, and sends 2 more
// and its result. The ring of its server holds far fewer.
type flood struct {
	*rig
	run  string
	more chan struct{}
}

func newFlood(t *testing.T) *flood {
	t.Helper()
	f := &flood{more: make(chan struct{})}
	delta := func(w http.ResponseWriter, n int) {
		for range n {
			fmt.Fprint(w, "data: {\"type\":\"text.delta\",\"delta\":\"x\"}\n\n")
		}
		http.NewResponseController(w).Flush() //nolint:errcheck // the server notices
	}
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the context only ends once the body has been read
		w.Header().Set("Content-Type", "text/event-stream")
		delta(w, 3000)
		for range 2 {
			select {
			case <-f.more:
			case <-r.Context().Done():
				return
			}
			delta(w, 5)
			fmt.Fprint(w, "data: {\"type\":\"note.mark\"}\n\n")
			delta(w, 0)
		}
		delta(w, 2)
		fmt.Fprint(w, "data: {\"type\":\"result\",\"output\":\"done\"}\n\n")
	}))
	t.Cleanup(agent.Close)
	f.rig = newRig(t, fmt.Sprintf(`{"auth": {"kind": "none"}, "server": {"stream": {"replayBuffer": {"maxEvents": 100}, "perConnectionQueueLimit": 5000}},
		"agents": {"far": {"kind": "http", "stream": "sse", "url": %q}}}`, agent.URL), nil)
	ans := f.do("POST", "/v1/agents/far/stream", "", `{"input": "go", "sessionId": "s1"}`)
	var err error
	if f.run, err = find(ans.body, ".runId"); err != nil {
		t.Fatalf("POST stream = %d %s: %v", ans.StatusCode, ans.body, err)
	}
	return f
}

// view is what a client was shown.
type view struct {
	deltas, durable, dropped, markers int
	ids                               []string // of the events, in order
}

// take counts a frame and returns what it is: the type of an event, the status of a lifecycle frame, or the kind.
func (v *view) take(t *testing.T, text string) string {
	t.Helper()
	var f struct {
		Kind, Type, EventID, Status string
		DroppedCount                int
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		t.Fatalf("frame %q: %v", text, err)
	}
	switch {
	case f.Kind == "replay-marker":
		v.dropped += f.DroppedCount
		v.markers++
	case f.Kind == "lifecycle":
		return f.Status
	case f.Type == "text.delta":
		v.deltas++
	case f.Kind == "event":
		v.durable++
	}
	if f.EventID != "" && f.Kind == "event" {
		v.ids = append(v.ids, f.EventID)
		return f.Type
	}
	return f.Kind
}

// watch reads an event stream until it was shown what is wanted, or the stream ends.
func (f *flood) watch(t *testing.T, path, cursor string, enough func(v *view, latest string) bool) *view {
	t.Helper()
	x := f.send("GET", path, "", "", "Last-Event-ID: "+cursor)
	defer x.close()
	if !x.isStream(t) {
		t.Fatalf("GET %s = %d %s", path, x.resp.StatusCode, x.whole(t).body)
	}
	r := bufio.NewReader(x.resp.Body)
	for v := new(view); ; {
		fr, err := readFrame(r)
		if err != nil {
			t.Fatalf("GET %s after %q: %v; it has shown %d deltas, %d missing", path, cursor, err, v.deltas, v.dropped)
		}
		if fr.over {
			return v
		}
		if fr.data != "" && enough(v, v.take(t, fr.data)) {
			return v
		}
	}
}

// socket is watch over WebSocket.
func (f *flood) socket(t *testing.T, subject, cursor string, enough func(v *view, latest string) bool) *view {
	t.Helper()
	conn, err := f.dial(nil, subprotocol)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	params := map[string]string{"subject": subject}
	if cursor != "" {
		params["sinceEventId"] = cursor
	}
	p, _ := json.Marshal(params)
	for _, request := range []string{`"id":1,"method":"initialize","params":{"clientInfo":{"name":"t","version":"1"}}`,
		`"id":2,"method":"subscription.subscribe","params":` + string(p)} {
		if err := conn.Write(t.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0",`+request+`}`)); err != nil {
			t.Fatal(err)
		}
	}
	for v := new(view); ; {
		_, text, err := conn.Read(t.Context())
		if err != nil {
			t.Fatalf("subscribe %s after %q: %v; it has shown %d deltas, %d missing", subject, cursor, err, v.deltas, v.dropped)
		}
		if enough(v, v.take(t, string(text))) {
			return v
		}
	}
}

// Whoever subscribes is told exactly how many of the transient events that it was not shown are gone, wherever in a step it
// begins.
func TestEveryHoleIsAnnounced(t *testing.T) {
	t.Parallel()
	f := newFlood(t)
	run, session := "/v1/runs/"+f.run+"/events", "/v1/sessions/s1/events"
	subject := "agent:far/runs/" + f.run + "/events"
	all := func(n int) func(v *view, _ string) bool {
		return func(v *view, _ string) bool { return v.deltas+v.dropped >= n }
	}
	until := func(types ...string) func(*view, string) bool {
		return func(_ *view, latest string) bool {
			for _, typ := range types {
				if latest == typ {
					return true
				}
			}
			return false
		}
	}
	first := f.watch(t, run, "", all(3000)) // it may have come late, too
	if first.deltas+first.dropped != 3000 {
		t.Fatalf("the first client was shown %d deltas and misses %d, want 3000", first.deltas, first.dropped)
	}
	check := func(name string, v *view, total int) {
		t.Helper()
		if v.deltas+v.dropped != total || v.dropped == 0 || v.markers != 1 {
			t.Errorf("%s: %d deltas and %d missing in %d markers, want %d and one marker", name, v.deltas, v.dropped, v.markers, total)
		}
	}
	// Within the step.
	check("late on the run", f.watch(t, run, "", until("replay-marker")), 3000)
	check("late on the session", f.watch(t, session, "", until("replay-marker")), 3000)
	check("late over WebSocket", f.socket(t, subject, "", until("replay-marker")), 3000)
	tenth := fmt.Sprintf("evt-r-%s-1.a", f.run) // the tenth delta after the first event
	check("back after ten deltas", f.watch(t, run, tenth, until("replay-marker")), 2990)

	// Across steps.
	f.more <- struct{}{}
	f.watch(t, run, "", until("note.mark"))
	check("back after ten deltas and a step", f.socket(t, subject, tenth, until("replay-marker")), 2995)
	f.more <- struct{}{}
	whole := f.watch(t, run, "", until("completed", "failed"))
	const deltas = 3012
	check("late on the run that has ended", whole, deltas)
	mark := fmt.Sprintf("evt-r-%s-2", f.run)
	if v := f.watch(t, run, mark, until("completed")); v.deltas != 7 || v.markers != 0 {
		t.Errorf("back after the first mark: %d deltas and %d markers, want the 7 and none", v.deltas, v.markers)
	}

	// What is stored knows it, too.
	f.stop()
	f.start()
	check("after a restart", f.watch(t, run, "", until("completed")), deltas)
	check("on the session after a restart", f.watch(t, session, "", until("replay-marker")), deltas)
	check("back after ten deltas and a restart", f.watch(t, run, tenth, until("completed")), deltas-10)
	if v := f.watch(t, run, fmt.Sprintf("evt-r-%s-1.%s", f.run, "2bd"), until("completed")); v.dropped != 11 { // 2bd is 3001
		t.Errorf("back after 3001 deltas: %d missing, want 11", v.dropped)
	}
}

// The connection of an event stream ends with it, and says so: a client that keeps connections for its next requests does
// not send one into a connection that is about to be closed.
func TestStreamsSpoilNoPooledConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"auth": {"kind": "none"}}`, nil)
	run, err := find(r.do("POST", "/v1/agents/echo/run", "", `{"sessionId": "kept"}`).body, ".runId")
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1, MaxConnsPerHost: 1}, Timeout: patience}
	defer client.CloseIdleConnections()
	for i := range 20 {
		session := fmt.Sprint("s", i)
		r.do("POST", "/v1/agents/echo/run", "", fmt.Sprintf(`{"sessionId": %q}`, session))
		for _, path := range []string{"/v1/sessions/" + session + "/events", "/v1/runs/" + run + "/events"} {
			resp, err := client.Get(r.url + path)
			if err != nil {
				t.Fatalf("GET %s: %v", path, err)
			}
			if !resp.Close {
				t.Errorf("GET %s does not say that its connection closes: %v", path, resp.Header)
			}
			// The session's stream ends when the session is erased; the run's has ended.
			r.do("DELETE", "/v1/sessions/"+session, "", "")
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Errorf("GET %s ends with %v", path, err)
			}
			resp.Body.Close()
			next, err := client.Post(r.url+"/v1/agents/echo/run", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Errorf("the request after GET %s: %v", path, err)
				continue
			}
			io.Copy(io.Discard, next.Body) //nolint:errcheck // so that its connection is used again
			next.Body.Close()
		}
	}
}
