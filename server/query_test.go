package server_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"agentd/server/fault"
)

// No route passes over a query parameter that it does not have, or takes one of two.
func TestStrayQueryParametersAreRefused(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	params := 0
	for _, rt := range table() {
		path, _ := s.path(rt)
		known := s.contract.operations[rt.Pattern("")].queries
		want := func(query, message string, at string) {
			t.Helper()
			ans := s.ask(rt.Method, path+"?"+query, s.admin)
			var e struct {
				Message string
				Issues  []fault.Issue
			}
			json.Unmarshal([]byte(ans.body), &e) //nolint:errcheck // then there are none
			ok := slices.ContainsFunc(e.Issues, func(is fault.Issue) bool {
				return strings.Contains(is.Message, message) && len(is.Path) == 1 && is.Path[0] == at
			})
			if ans.StatusCode != 400 || ans.code() != "config-invalid" || !ok || !strings.HasPrefix(e.Message, "The request") {
				t.Errorf("%s %s?%s = %d %s, want 400 config-invalid at %q: %s", rt.Method, path, query, ans.StatusCode, ans.body, at, message)
			}
		}
		if slices.ContainsFunc(rt.Errors, func(k *fault.Kind) bool { return k == fault.RunStateMalformed || k == fault.RunNotSuspended }) {
			continue // what the run is comes before what is sent
		}
		want("nonsense=1", "query parameter", "nonsense")
		want("nonsense=1&%24x", "query parameter", "$x")
		for _, name := range known {
			params++
			want(name+"s=1", fmt.Sprintf("did you mean %q?", name), name+"s")
			if name != "ticket" { // which is used up before
				want(name+"=1&"+name+"=1", "twice", name)
			}
		}
	}
	if params < 10 {
		t.Errorf("the table has %d query parameters", params)
	}
	if ans := s.do("GET", "/v1/agents?%zz", s.admin, ""); ans.StatusCode != 400 || ans.code() != "config-invalid" {
		t.Errorf("a malformed query = %d %s, want 400", ans.StatusCode, ans.body)
	}
	many := "a0=1"
	for i := range 1000 {
		many += fmt.Sprintf("&a%d=1", i)
	}
	if ans := s.do("GET", "/v1/agents?"+many, s.admin, ""); ans.StatusCode != 400 || len(ans.body) > 4<<10 {
		t.Errorf("1000 stray parameters = %d with %d bytes, want 400 with a few", ans.StatusCode, len(ans.body))
	}
}

// A cursor is what the server has made, and no other word.
func TestGarbageIsNoCursor(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	s.do("POST", "/v1/agents/echo/run", s.admin, `{}`)
	var page struct{ NextCursor string }
	ans := s.do("GET", "/v1/runs?limit=1", s.admin, "")
	if json.Unmarshal([]byte(ans.body), &page); page.NextCursor == "" {
		t.Fatalf("GET /runs?limit=1 = %d %s, want a cursor", ans.StatusCode, ans.body)
	}
	if ans := s.do("GET", "/v1/runs?cursor="+page.NextCursor, s.admin, ""); ans.StatusCode != 200 || !strings.Contains(ans.body, s.run) {
		t.Errorf("GET /runs?cursor=%s = %d %s, want the run before", page.NextCursor, ans.StatusCode, ans.body)
	}
	for _, cursor := range []string{"", "garbage", "1", "2", "zz", "0", "-1", "1-1", page.NextCursor + "0", "0" + page.NextCursor, strings.ToUpper(page.NextCursor), s.run, "%00"} {
		if ans := s.do("GET", "/v1/runs?cursor="+cursor, s.admin, ""); ans.StatusCode != 400 || ans.code() != "config-invalid" {
			t.Errorf("GET /runs?cursor=%s = %d %.200s, want 400 config-invalid", cursor, ans.StatusCode, ans.body)
		}
	}
}

// HEAD is GET without a body, on every route (RFC 9110, section 9.3.2).
func TestHeadIsGetWithoutABody(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	for _, rt := range table() {
		if rt.Method != http.MethodGet {
			continue
		}
		path, _ := s.path(rt)
		for _, token := range []string{s.admin, ""} {
			x := s.send("GET", path, token, "")
			get := x.response(t)
			x.close()
			head := s.do("HEAD", path, token, "")
			if head.StatusCode != get.StatusCode || head.body != "" {
				t.Errorf("HEAD %s = %d %q, want %d as for GET, and no body", path, head.StatusCode, head.body, get.StatusCode)
			}
			for name := range get.Header {
				switch {
				case name == "Date", strings.HasPrefix(name, "X-Ratelimit"), name == "X-Request-Id", name == "Content-Length" && strings.HasSuffix(path, "/metrics"),
					strings.HasSuffix(path, "/health"), strings.HasPrefix(path, "/v1/audit"): // what they tell changes by the moment
				case !slices.Equal(head.Header[name], get.Header[name]):
					t.Errorf("HEAD %s has %s %q, GET has %q", path, name, head.Header[name], get.Header[name])
				}
			}
		}
	}
}

// What is asked of a WebSocket's address by other means than an upgrade is answered as RFC 9110 wants it.
func TestUpgradeFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"auth": {"kind": "none"}}`, nil)
	const rest = "Host: localhost\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: svc.protocol.v1\r\n"
	for _, tc := range []struct {
		name, head, want string
	}{
		{"a list with a version", "GET /v1/ws HTTP/1.1\r\nUpgrade: websocket, TLS/1.0\r\nConnection: Upgrade\r\n", "101"},
		{"the other first", "GET /v1/ws HTTP/1.1\r\nUpgrade: TLS/1.0,WebSocket\r\nConnection: keep-alive, uPGRADE\r\n", "101"},
		{"several lines", "GET /v1/ws HTTP/1.1\r\nUpgrade: TLS/1.0\r\nUpgrade: websocket\r\nConnection: keep-alive\r\nConnection: Upgrade\r\n", "101"},
		{"another protocol", "GET /v1/ws HTTP/1.1\r\nUpgrade: TLS/1.0\r\nConnection: Upgrade\r\n", "426"},
		{"HTTP/1.0", "GET /v1/ws HTTP/1.0\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", "426"},
		{"HEAD", "HEAD /v1/ws HTTP/1.1\r\nConnection: close\r\n", "426"},
		{"HEAD that asks for it", "HEAD /v1/ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", "426"},
		{"POST", "POST /v1/ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n", "405"},
		{"an event stream", "GET /v1/sessions/s1/events HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", "200"},
	} {
		conn := r.connect()
		fmt.Fprint(conn, tc.head+rest+"\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: strings.Fields(tc.head)[0]})
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		} else if got := fmt.Sprint(resp.StatusCode); got != tc.want || got == "426" && resp.Header.Get("Upgrade") != "websocket" {
			t.Errorf("%s = %s %v, want %s", tc.name, got, resp.Header, tc.want)
		}
		conn.Close()
	}
}
