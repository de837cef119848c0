package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"agentd/ws"
)

// TestBrowser lets pages in Chromium use a server, and abuse it. The pages and what they can do are in testdata/browser.
//
// Other tests of the package do not run meanwhile: a browser is much for a small machine.
func TestBrowser(t *testing.T) {
	b := startChromium(t)
	t.Run("WebSocket", func(t *testing.T) {
		t.Parallel()
		browserWebSocket(t, b)
	})
	t.Run("EventSource", func(t *testing.T) {
		t.Parallel()
		browserEventSource(t, b)
	})
	t.Run("perimeter", func(t *testing.T) {
		t.Parallel()
		browserPerimeter(t, b)
	})
	t.Run("rebinding", func(t *testing.T) {
		t.Parallel()
		browserRebinding(t, b)
	})
}

// site is where pages come from. The agent of its servers is there too.
type site struct {
	*httptest.Server
	mux  *http.ServeMux
	more chan struct{} // lets the agent go on
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{mux: http.NewServeMux(), more: make(chan struct{})}
	s.mux.Handle("/", http.FileServerFS(os.DirFS("../testdata/browser")))
	s.mux.HandleFunc("POST /agent", s.agent)
	s.mux.HandleFunc("POST /more", func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.more <- struct{}{}:
		case <-r.Context().Done():
		}
	})
	s.Server = httptest.NewServer(s.mux)
	t.Cleanup(s.Close)
	return s
}

// at is the site's address under a name that means this machine to the browser.
func (s *site) at(name string) string {
	u, _ := url.Parse(s.URL)
	return "http://" + name + ":" + u.Port()
}

// proxy makes the site pass requests for a pattern on to a server.
func (s *site) proxy(pattern, to string, rewrite func(*httputil.ProxyRequest)) {
	target, _ := url.Parse(to)
	s.mux.Handle(pattern, &httputil.ReverseProxy{ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		rewrite(r)
	}})
}

// agent streams a run of durable and transient events. Every fortieth, but for the last, waits for somebody who has seen
// it.
func (s *site) agent(w http.ResponseWriter, r *http.Request) {
	const events = 120
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 1; n <= events; n++ {
		switch {
		case n%40 == 0 && n < events:
			fmt.Fprintf(w, "data: {\"type\":\"note.gate\",\"n\":%d}\n\n", n)
			http.NewResponseController(w).Flush() //nolint:errcheck // the server notices
			select {
			case <-s.more:
			case <-r.Context().Done():
				return
			}
		case n%5 == 0:
			fmt.Fprintf(w, "data: {\"type\":\"note.mark\",\"n\":%d}\n\n", n)
		default:
			fmt.Fprintf(w, "data: {\"type\":\"text.delta\",\"delta\":\"%d ☂ \"}\n\n", n)
		}
	}
	fmt.Fprint(w, "data: {\"type\":\"result\",\"output\":\"done\"}\n\n")
}

// told is an event as a client got it.
type told struct {
	EventID, Subject, Type string
	Payload                json.RawMessage
}

func (e told) String() string { return fmt.Sprintf("%s %s %s", e.EventID, e.Subject, e.Payload) }

// browserRun starts a run of the site's agent. The function want returns its events once it has ended, as a client got
// them that was never cut off.
func browserRun(t *testing.T, r *rig) (runID, subject string, want func() []string) {
	t.Helper()
	ans := r.do("POST", "/v1/agents/far/stream", r.admin, `{"input": "go"}`)
	runID, err := find(ans.body, ".runId")
	if err != nil {
		t.Fatalf("POST /v1/agents/far/stream = %d %s: %v", ans.StatusCode, ans.body, err)
	}
	subject = "agent:far/runs/" + runID + "/events"
	var header http.Header
	if r.admin != "" {
		header = bearer(r.admin)
	}
	conn, err := r.dial(header, "svc.protocol.v1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.CloseNow)
	for _, request := range []string{
		`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"test","version":"1"}}}`,
		fmt.Sprintf(`{"v":"1","jsonrpc":"2.0","id":2,"method":"subscription.subscribe","params":{"subject":%q}}`, subject),
	} {
		if err := conn.Write(t.Context(), ws.Text, []byte(request)); err != nil {
			t.Fatal(err)
		}
	}
	return runID, subject, func() (events []string) {
		t.Helper()
		for {
			_, text, err := conn.Read(t.Context())
			if err != nil {
				t.Fatalf("after %d events: %v", len(events), err)
			}
			var f struct {
				Kind string
				told
			}
			if err := json.Unmarshal(text, &f); err != nil {
				t.Fatal(err)
			}
			switch f.Kind {
			case "event":
				events = append(events, f.told.String())
			case "lifecycle":
				return events
			}
		}
	}
}

// checkTold compares frames that a page got with the events of the run.
func checkTold(t *testing.T, frames, want []string) {
	t.Helper()
	var got []string
	for _, text := range frames {
		var e told
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, e.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the page got %d events:\n%s\nwant %d:\n%s", len(got), strings.Join(got, "\n"), len(want), strings.Join(want, "\n"))
	}
	if len(want) < 120 {
		t.Errorf("the run had %d events, want its start and end, and 120 between", len(want))
	}
}

// A page on another origin follows a run by tickets, and is cut off in the middle of frames again and again.
func browserWebSocket(t *testing.T, b *chromium) {
	s := newSite(t)
	r := newRig(t, fmt.Sprintf(`{"agents": {"far": {"kind": "http", "stream": "sse", "url": "%s/agent"}}}`, s.URL), nil)
	s.proxy("POST /ticket", r.url, func(p *httputil.ProxyRequest) {
		p.Out.URL.Path = "/v1/session/ws-ticket"
		p.Out.Header.Set("Authorization", "Bearer "+r.admin)
	})
	// A connection costs about 1 KiB before its first event, and an event 200 bytes.
	const cuts = 12
	c := newCutter(t, strings.TrimPrefix(r.url, "http://"), func(n int) int64 {
		if n >= cuts {
			return 0
		}
		return int64(2500 + 97*n)
	})
	address := "ws://" + c.address + "/v1/ws"
	_, subject, want := browserRun(t, r)
	p := b.open(t, s.at("app.example"))
	var got struct{ Frames, Closes []string }
	p.call(&got, "overWebSocket", address, subject)
	checkTold(t, got.Frames, want())
	if want := append(slices.Repeat([]string{"1006 false"}, cuts), "1000 true"); !slices.Equal(got.Closes, want) {
		t.Errorf("the connections ended with %q, want %q", got.Closes, want)
	}

	for _, tc := range []struct {
		name      string
		protocols []string
		want      ended
	}{
		{"a wrong ticket", []string{"svc.protocol.v1", "ticket.x"}, ended{true, 4002, "auth.invalid", true}},
		{"no ticket", []string{"svc.protocol.v1"}, ended{true, 4001, "auth.required", true}},
		{"no subprotocol", []string{}, ended{true, 4008, "protocol.violation", true}},
		// The server chooses none of those offered, which a browser does not put up with.
		{"another subprotocol", []string{"svc.protocol.v2"}, ended{false, 1006, "", false}},
	} {
		var got ended
		p.call(&got, "upgrade", "ws"+strings.TrimPrefix(r.url, "http")+"/v1/ws", tc.protocols, true)
		if got != tc.want {
			t.Errorf("a WebSocket with %s is %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// ended is how a WebSocket ended for a page.
type ended struct {
	Opened   bool
	Code     int
	Reason   string
	WasClean bool
}

// A page follows a run through a reverse proxy that does not know of streams, and is cut off twice.
func browserEventSource(t *testing.T, b *chromium) {
	s := newSite(t)
	r := newRig(t, fmt.Sprintf(`{"auth": {"kind": "none"}, "agents": {"far": {"kind": "http", "stream": "sse", "url": "%s/agent"}}}`, s.URL), nil)
	const cuts = 2 // each costs the three seconds that browsers wait
	c := newCutter(t, strings.TrimPrefix(r.url, "http://"), func(n int) int64 {
		if n >= cuts {
			return 0
		}
		return 9001
	})
	s.proxy("/v1/", "http://"+c.address, func(p *httputil.ProxyRequest) { p.Out.Host = p.In.Host })
	runID, _, want := browserRun(t, r)
	path := "/v1/runs/" + runID + "/events"
	p := b.open(t, s.URL)
	var got struct {
		Frames []string
		Cuts   int
	}
	types := []string{"agent.start", "text.delta", "note.mark", "note.gate", "text.complete", "agent.end"}
	p.call(&got, "overEventSource", path, types)
	checkTold(t, got.Frames, want())
	if got.Cuts != cuts {
		t.Errorf("the page was cut off %d times, want %d", got.Cuts, cuts)
	}

	resp, err := http.Get(s.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for name, want := range map[string]string{"X-Accel-Buffering": "no", "Cache-Control": "no-cache, no-transform", "Content-Type": "text/event-stream; charset=utf-8"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("through the proxy %s is %q, want %q", name, got, want)
		}
	}
}

const openConfig = `{"auth": {"kind": "none"}, "metrics": {"enabled": true}, "server": {"cors": {"allowOrigins": [%q]}}}`

// A page of another origin can make a browser send what it likes to a server that lets everybody in.
func browserPerimeter(t *testing.T, b *chromium) {
	s := newSite(t)
	r := newRig(t, fmt.Sprintf(openConfig, s.at("friend.example")), nil)
	p := b.open(t, s.at("hostile.example"))
	run := r.url + "/v1/agents/echo/run"
	socket := "ws" + strings.TrimPrefix(r.url, "http") + "/v1/ws"
	plain := map[string]string{"Content-Type": "text/plain"}
	for _, tc := range []struct {
		name    string
		address string
		options map[string]any
		want    string
	}{
		{"a simple POST", run, map[string]any{"method": "POST", "headers": plain, "body": "{}"}, "TypeError"},
		{"a POST whose answer nobody reads", run, map[string]any{"method": "POST", "mode": "no-cors", "body": "{}"}, "opaque 0"},
		{"a POST with the origin null", run, map[string]any{"method": "POST", "mode": "no-cors", "referrerPolicy": "no-referrer", "body": "{}"}, "opaque 0"},
		{"a POST with a preflight", run, map[string]any{"method": "POST", "headers": map[string]string{"Content-Type": "application/json"}, "body": "{}"}, "TypeError"},
		{"a GET", r.url + "/v1/agents", map[string]any{}, "TypeError"},
		{"a GET whose answer nobody reads", r.url + "/v1/agents", map[string]any{"mode": "no-cors"}, "opaque 0"},
	} {
		var got string
		if p.call(&got, "request", tc.address, tc.options); got != tc.want {
			t.Errorf("%s = %q for the page, want %q", tc.name, got, tc.want)
		}
	}
	p.call(nil, "submit", run, false)
	p.call(nil, "submit", run, true)
	for _, protocols := range [][]string{{"svc.protocol.v1"}, {"svc.protocol.v1", "ticket.x"}, {}} {
		var got ended
		if p.call(&got, "upgrade", socket, protocols, true); got != (ended{Code: 1006}) {
			t.Errorf("a WebSocket with %q = %+v, want one that never opens", protocols, got)
		}
	}
	var events string
	if p.call(&events, "listen", r.url+"/v1/sessions/s1/events"); events != "refused" {
		t.Errorf("an EventSource = %q, want refused", events)
	}
	checkCounts(t, r, map[string]string{
		`method="POST",route="/v1/agents/{id}/run",status="403"`:     "5",
		`method="GET",route="/v1/ws",status="403"`:                   "3",
		`method="GET",route="/v1/sessions/{id}/events",status="403"`: "1",
	})
	if ans := r.do("GET", "/v1/runs", "", ""); ans.StatusCode != http.StatusOK || !strings.HasPrefix(ans.body, `{"runs":[]`) {
		t.Errorf("GET /v1/runs = %d %s, want no runs", ans.StatusCode, ans.body)
	}

	if ans := r.do("POST", "/v1/agents/echo/run", "", "{}", "Content-Type: text/plain"); ans.StatusCode != http.StatusOK {
		t.Errorf("POST of a client that is no browser = %d %s, want 200", ans.StatusCode, ans.body)
	}
	friend := b.open(t, s.at("friend.example"))
	var got ended
	if friend.call(&got, "upgrade", socket, []string{"svc.protocol.v1"}, false); got != (ended{true, 1000, "", true}) {
		t.Errorf("a WebSocket of an allowed origin = %+v, want one that opens and closes with 1000", got)
	}
}

// A page whose name has come to mean this machine is of the server's own origin, as far as the browser knows.
func browserRebinding(t *testing.T, b *chromium) {
	r := newRig(t, fmt.Sprintf(openConfig, "http://friend.example"), nil)
	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	evil := "evil.example:" + u.Port()
	p := b.open(t, "http://"+evil+"/v1/agents")
	var status int
	if p.call(&status, `(() => performance.getEntriesByType("navigation")[0].responseStatus)`); status != http.StatusForbidden {
		t.Errorf("GET http://%s/v1/agents = %d, want 403", evil, status)
	}
	functions, err := os.ReadFile("../testdata/browser/page.js")
	if err != nil {
		t.Fatal(err)
	}
	p.call(nil, `(text => { (0, eval)(text) })`, string(functions))
	for _, tc := range []struct{ method, path string }{{"GET", "/v1/agents"}, {"POST", "/v1/agents/echo/run"}, {"GET", "/v1/runs"}, {"DELETE", "/v1/sessions/s1"}} {
		var got string
		p.call(&got, "request", tc.path, map[string]any{"method": tc.method})
		if !strings.HasPrefix(got, `basic 403 {"error":"origin-denied"`) {
			t.Errorf("%s %s of a rebound name = %q, want 403 origin-denied", tc.method, tc.path, got)
		}
	}
	var got ended
	if p.call(&got, "upgrade", "ws://"+evil+"/v1/ws", []string{"svc.protocol.v1"}, true); got != (ended{Code: 1006}) {
		t.Errorf("a WebSocket of a rebound name = %+v, want one that never opens", got)
	}
	if ans := r.do("GET", "/v1/runs", "", ""); ans.StatusCode != http.StatusOK || !strings.HasPrefix(ans.body, `{"runs":[]`) {
		t.Errorf("GET /v1/runs = %d %s, want no runs", ans.StatusCode, ans.body)
	}
}

// checkCounts looks up how many requests the server has answered in which way.
func checkCounts(t *testing.T, r *rig, want map[string]string) {
	t.Helper()
	text := r.do("GET", "/v1/metrics", "", "").body
	for labels, n := range want {
		if line := "svc_http_requests_total{" + labels + "} " + n + "\n"; !strings.Contains(text, line) {
			t.Errorf("the metrics lack %q:\n%s", line, text)
		}
	}
}
