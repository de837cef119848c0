package gate_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/fuzztest"
	"agentd/server/gate"
)

// FuzzRequest sends requests through a gate without tokens. Whatever their headers, the answer is well-formed, no page of
// another origin may read or change anything, and no name but the server's own is answered to.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/v1/agents", "localhost", "http://localhost", "svc_csrf=a", "a", "https://b.example", "id-1", "10.0.0.1:80")
	f.Add("POST", "/v1/agents", "127.0.0.1:80", "http://127.0.0.1:80", "x=\"; svc_csrf=b; svc_csrf=a", "b", "", "\x00", "[::1]:1")
	f.Add("POST", "/v1/agents", "[::1]:80", "null", "svc_csrf=", "", "null", strings.Repeat("x", 129), "")
	f.Add("DELETE", "/v1/../v1//agents/", "evil.example", "http://evil.example", "=;;==", "", "*", "é", "pipe")
	f.Add("OPTIONS", "*", "LOCALHOST.", "HTTP://a.example:443", "", "", "https://a.example", "", "fe80::1%eth0")
	f.Add("PUT", "/v1/agents", "a.example@localhost", "://", "", "", "http://[::1", "", "[fe80::1%a]:2")
	o := gate.Options{BasePath: "/v1", Limiter: gate.NewLimiter(time.Hour, 1<<30),
		CORS:    gate.CORS{AllowOrigins: []string{"https://a.example"}, AllowCredentials: true},
		CSRF:    gate.CSRF{Enabled: true, CookieName: "svc_csrf", HeaderName: "X-CSRF-Token", SafeMethods: []string{"GET", "HEAD", "OPTIONS"}},
		Origins: gate.Origins{Bound: "0.0.0.0", AllowHosts: []string{"agents.example"}, AllowOrigins: []string{"https://a.example"}}}
	g := gate.New(o)
	handle(g, "/v1/agents", func(w http.ResponseWriter, _ *http.Request) { gate.JSON(w, 200, "in") })
	handler := g
	f.Fuzz(func(t *testing.T, method, path, host, origin, cookie, csrf, asks, id, remote string) {
		r := &http.Request{Method: method, URL: &url.URL{Path: path}, Host: host, RemoteAddr: remote, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"Origin": {origin}, "Cookie": {cookie}, "X-Csrf-Token": {csrf}, "Access-Control-Request-Method": {asks}, "X-Request-Id": {id}}}
		r = r.WithContext(t.Context())
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)

		if got := w.Header().Get("X-Request-Id"); len(got) == 0 || len(got) > 128 || strings.ContainsFunc(got, func(c rune) bool { return c <= ' ' || c > '~' }) {
			t.Errorf("X-Request-Id %q is answered with %q", id, got)
		}
		if got := w.Header().Get("Access-Control-Allow-Origin"); got != "" && got != "https://a.example" {
			t.Errorf("the origin %q may read: %q", origin, got)
		}
		if len(w.Body.Bytes()) > 0 && !json.Valid(w.Body.Bytes()) {
			t.Errorf("the answer is %q", w.Body)
		}
		if w.Code >= 500 {
			t.Errorf("the answer is %d %s", w.Code, w.Body)
		}
		if w.Body.String() != "\"in\"\n" {
			return
		}
		if name := hostName(host); name != "agents.example" && name != "0.0.0.0" && name != "localhost" {
			if ip, err := netip.ParseAddr(name); err != nil || !ip.IsLoopback() {
				t.Errorf("the host %q is answered to", host)
			}
		}
		from, err := url.Parse(origin)
		if own := err == nil && from.Host != "" && strings.EqualFold(from.Host, host); origin != "" && origin != "https://a.example" && !own {
			t.Errorf("the origin %q is let in at %q", origin, host)
		}
		browser := origin != "" || cookie != ""
		if browser && !slices.Contains(o.CSRF.SafeMethods, method) && (csrf == "" || !strings.Contains(cookie, csrf)) {
			t.Errorf("%s with the cookies %q and the header %q is let in", method, cookie, csrf)
		}
	})
}

// hostName is the name in a Host header, as net/url reads it.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

// FuzzClientIP takes the address of a client from headers that it wrote most of. The last hop counts, or the connection.
func FuzzClientIP(f *testing.F) {
	f.Add("10.0.0.1", "10.0.0.2:80", true)
	f.Add("1.1.1.1, 2.2.2.2 ,\t3.3.3.3 ", "[::1]:80", true)
	f.Add("::ffff:10.0.0.1", "", true)
	f.Add("10.0.0.1:80,", "127.0.0.1:1", true)
	f.Add("unknown, _hidden, \"[2001:db8::1]\"", "pipe", true)
	f.Add("fe80::1%eth0", "[fe80::1%25eth0]:1", false)
	f.Fuzz(func(t *testing.T, forwarded, remote string, trusted bool) {
		g := gate.New(gate.Options{BasePath: "/v1", TrustProxy: trusted})
		var got netip.Addr
		handle(g, "/v1/agents", func(_ http.ResponseWriter, r *http.Request) { got = gate.Of(r).IP })
		r := request("GET", "X-Forwarded-For", forwarded)
		r.Host, r.RemoteAddr = "localhost", remote
		g.ServeHTTP(httptest.NewRecorder(), r)

		want := netip.Addr{}
		if ap, err := netip.ParseAddrPort(remote); err == nil {
			want = ap.Addr().Unmap()
		}
		last := strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:])
		if ip, err := netip.ParseAddr(last); err == nil && trusted {
			want = ip.Unmap()
		}
		if got != want {
			t.Errorf("the client behind %q at %q is %v, want %v", forwarded, remote, got, want)
		}
	})
}

// FuzzBearer reads Authorization headers.
func FuzzBearer(f *testing.F) {
	for _, s := range []string{"Bearer x", "bearer  svc_live_v1_x ", "BEARER\tx", "Basic x", "Bearer", "Bearer ", " Bearer x y", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		fuzztest.Check(t, len(header), func() { gate.Bearer(&http.Request{Header: http.Header{"Authorization": {header}}}) })
		token, ok := gate.Bearer(&http.Request{Header: http.Header{"Authorization": {header}}})
		if ok && (token == "" || strings.TrimSpace(token) != token || !strings.Contains(header, token) ||
			!strings.HasPrefix(strings.ToLower(strings.TrimSpace(header)), "bearer ")) {
			t.Errorf("Bearer(%q) = %q", header, token)
		}
	})
}
