package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// foreignPage is a page of another origin in a browser that keeps to the Fetch standard and RFC 6265bis, as far as they concern it.
type foreignPage struct {
	*rig
	origin  string
	cookies map[string]string
}

// fetch does what fetch(path, {method, headers, body, credentials}) does: what the page sees of the answer, or why it fails.
func (p *foreignPage) fetch(t *testing.T, method, path string, credentials bool, header map[string]string, body string) (status int, seen http.Header, text, failure string) {
	t.Helper()
	simple := method == "GET" || method == "HEAD" || method == "POST"
	var unsafe []string
	for name, value := range header {
		if !strings.EqualFold(name, "Accept") && !(strings.EqualFold(name, "Content-Type") && value == "text/plain") {
			unsafe = append(unsafe, strings.ToLower(name))
		}
	}
	allowed := func(h http.Header) string {
		if got := h.Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != p.origin && (got[0] != "*" || credentials) {
			return fmt.Sprintf("Access-Control-Allow-Origin is %q", got)
		}
		if credentials && h.Get("Access-Control-Allow-Credentials") != "true" {
			return "credentials are not allowed"
		}
		return ""
	}
	list := func(h http.Header, name string) (names []string) {
		for one := range strings.SplitSeq(h.Get(name), ",") {
			names = append(names, strings.ToLower(strings.TrimSpace(one)))
		}
		return names
	}
	if !simple || len(unsafe) > 0 {
		slices.Sort(unsafe)
		ans := p.do("OPTIONS", path, "", "", "Origin: "+p.origin, "Sec-Fetch-Site: cross-site", "Access-Control-Request-Method: "+method,
			"Access-Control-Request-Headers: "+strings.Join(unsafe, ","))
		if ans.StatusCode != http.StatusNoContent {
			return 0, nil, "", fmt.Sprintf("the preflight is %d %s", ans.StatusCode, ans.body)
		}
		if problem := allowed(ans.Header); problem != "" {
			return 0, nil, "", "the preflight: " + problem
		}
		if !simple && !slices.Contains(list(ans.Header, "Access-Control-Allow-Methods"), strings.ToLower(method)) {
			return 0, nil, "", "the method is not allowed"
		}
		for _, name := range unsafe {
			if !slices.Contains(list(ans.Header, "Access-Control-Allow-Headers"), name) {
				return 0, nil, "", "the header " + name + " is not allowed"
			}
		}
	}
	headers := []string{"Origin: " + p.origin, "Sec-Fetch-Site: cross-site"}
	for name, value := range header {
		headers = append(headers, name+": "+value)
	}
	if credentials {
		for name, value := range p.cookies {
			headers = append(headers, "Cookie: "+name+"="+value)
		}
	}
	ans := p.do(method, path, "", body, headers...)
	if credentials {
		for _, c := range ans.Cookies() {
			if c.SameSite == http.SameSiteNoneMode && c.Secure { // any other is not kept for a page of another site
				p.cookies[c.Name] = c.Value
			}
		}
	}
	if problem := allowed(ans.Header); problem != "" {
		return 0, nil, "", problem
	}
	seen = http.Header{}
	exposed := append(list(ans.Header, "Access-Control-Expose-Headers"), "content-type", "content-length", "cache-control")
	for name, values := range ans.Header {
		if slices.Contains(exposed, strings.ToLower(name)) {
			seen[name] = values
		}
	}
	return ans.StatusCode, seen, ans.body, ""
}

// A page on another host uses a server without tokens, if its origin is listed by name.
func TestPageOfAnAllowedOriginUsesAServerWithoutTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"auth": {"kind": "none"}, "server": {"cors": {"allowOrigins": ["https://app.example"]}, "rateLimit": {"enabled": true}}}`, nil)
	p := &foreignPage{rig: r, origin: "https://app.example", cookies: map[string]string{}}
	const run = "/v1/agents/echo/run"
	call := map[string]string{"Content-Type": "application/json"}
	if status, _, text, failure := p.fetch(t, "POST", run, true, call, `{"input": 1}`); status != 403 || !strings.Contains(text, "csrf-denied") {
		t.Errorf("a POST before anything = %d %s %s, want 403 csrf-denied", status, text, failure)
	}
	status, seen, _, failure := p.fetch(t, "GET", "/v1/agents", true, nil, "")
	token := seen.Get("X-CSRF-Token")
	if status != 200 || token == "" || p.cookies["svc_csrf"] != token {
		t.Fatalf("GET /agents = %d %v %s; the page sees the token %q and has the cookie %q, want the same", status, seen, failure, token, p.cookies["svc_csrf"])
	}
	for _, name := range []string{"X-Request-Id", "X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"} {
		if seen.Get(name) == "" {
			t.Errorf("the page does not see %s: %v", name, seen)
		}
	}
	// A page that is opened later knows the token as well, from the cookie that the browser has.
	if _, seen, _, _ := p.fetch(t, "GET", "/v1/runs", true, nil, ""); seen.Get("X-CSRF-Token") != token {
		t.Errorf("a later GET shows the token %q, want %q again", seen.Get("X-CSRF-Token"), token)
	}
	call["X-CSRF-Token"] = token
	status, _, text, failure := p.fetch(t, "POST", run, true, call, `{"input": 1, "sessionId": "s1"}`)
	if status != 200 {
		t.Fatalf("POST with the pair = %d %s %s, want 200", status, text, failure)
	}
	if status, _, text, failure := p.fetch(t, "DELETE", "/v1/sessions/s1", true, call, ""); status != 204 {
		t.Errorf("DELETE with the pair = %d %s %s, want 204", status, text, failure)
	}
	call["X-CSRF-Token"] = token + "x"
	if status, _, text, _ := p.fetch(t, "POST", run, true, call, `{"input": 1}`); status != 403 || !strings.Contains(text, "csrf-denied") {
		t.Errorf("POST with a wrong pair = %d %s, want 403 csrf-denied", status, text)
	}
	call["X-CSRF-Token"] = token
	if status, _, text, _ := p.fetch(t, "POST", run, false, call, `{"input": 1}`); status != 403 || !strings.Contains(text, "csrf-denied") {
		t.Errorf("POST with the header and no cookie = %d %s, want 403 csrf-denied", status, text)
	}
	// A page of another origin sees nothing and is given nothing.
	evil := &foreignPage{rig: r, origin: "https://evil.example", cookies: map[string]string{}}
	if _, _, _, failure := evil.fetch(t, "GET", "/v1/agents", true, nil, ""); failure == "" || len(evil.cookies) > 0 {
		t.Errorf("a page of another origin sees the answer, or has the cookies %v", evil.cookies)
	}
	// The server's own pages keep a cookie that no other site can make a browser send.
	if ans := r.do("GET", "/v1/agents", "", "", "Sec-Fetch-Site: same-origin"); !strings.Contains(ans.Header.Get("Set-Cookie"), "SameSite=Strict") || ans.Header.Get("X-CSRF-Token") != "" {
		t.Errorf("a page of the server's own gets %q and the token %q", ans.Header.Get("Set-Cookie"), ans.Header.Get("X-CSRF-Token"))
	}
}

// Where every origin may read, none may write: nobody gets credentials that way.
func TestPagesOfAnyOriginOnlyRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"auth": {"kind": "none"}, "server": {"cors": {"allowOrigins": ["*"]}}}`, nil)
	p := &foreignPage{rig: r, origin: "https://any.example", cookies: map[string]string{}}
	status, seen, _, failure := p.fetch(t, "GET", "/v1/agents", false, nil, "")
	if status != 200 {
		t.Errorf("GET = %d %s, want 200", status, failure)
	}
	if _, _, _, failure := p.fetch(t, "GET", "/v1/agents", true, nil, ""); failure == "" {
		t.Error("GET with credentials is shown to the page")
	}
	call := map[string]string{"X-CSRF-Token": seen.Get("X-CSRF-Token")}
	if status, _, text, _ := p.fetch(t, "POST", "/v1/agents/echo/run", false, call, `{}`); status != 403 {
		t.Errorf("POST = %d %s, want 403", status, text)
	}
}

// With tokens, a page of an allowed origin reads what the server says beside the body.
func TestPageWithATokenReadsHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"server": {"cors": {"allowOrigins": ["https://app.example"]}}}`, nil)
	p := &foreignPage{rig: r, origin: "https://app.example"}
	header := map[string]string{"Authorization": "Bearer " + r.admin, "Idempotency-Key": "key-12345", "Content-Type": "application/json"}
	for i, want := range []string{"", "true"} {
		status, seen, text, failure := p.fetch(t, "POST", "/v1/agents/stream/stream", false, header, `{}`)
		if status != 202 || seen.Get("Idempotency-Replayed") != want {
			t.Errorf("POST %d = %d %s %s with Idempotency-Replayed %q, want %q", i, status, text, failure, seen.Get("Idempotency-Replayed"), want)
		}
	}
	if status, seen, _, _ := p.fetch(t, "GET", "/v1/agents", false, nil, ""); status != 401 || seen.Get("Www-Authenticate") != "Bearer" {
		t.Errorf("GET without a token = %d %v, want 401 with WWW-Authenticate", status, seen)
	}
	if _, seen, _, _ := p.fetch(t, "POST", "/v1/agents", false, header, ""); seen.Get("Allow") == "" {
		t.Errorf("a wrong method shows %v, want Allow", seen)
	}
}

// A browser's EventSource authenticates with a ticket, which counts once and for what its token may read.
func TestEventSourceTakesATicket(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"audit": {"enabled": true, "passphraseRef": "file:pepper"}, "server": {"cors": {"allowOrigins": ["https://app.example"]}}}`, nil)
	run, err := find(r.do("POST", "/v1/agents/echo/run", r.admin, `{"sessionId": "s1"}`).body, ".runId")
	if err != nil {
		t.Fatal(err)
	}
	ticket := func(token string) string {
		t.Helper()
		var got struct{ Ticket string }
		ans := r.do("POST", "/v1/session/ws-ticket", token, "")
		if json.Unmarshal([]byte(ans.body), &got); got.Ticket == "" {
			t.Fatalf("POST ws-ticket = %d %s", ans.StatusCode, ans.body)
		}
		return got.Ticket
	}
	_, reader := r.mint(0, "agents:read:echo")
	_, other := r.mint(0, "agents:read:hold")
	open := func(path, ticket, token string) (int, string) {
		t.Helper()
		x := r.send("GET", path+"?ticket="+ticket, token, "", "Origin: https://app.example", "Accept: text/event-stream")
		defer x.close()
		if x.isStream(t) {
			return x.resp.StatusCode, x.resp.Header.Get("Access-Control-Allow-Origin")
		}
		ans := x.whole(t)
		return ans.StatusCode, ans.code()
	}
	var spent []string
	for _, tc := range []struct {
		path, token, bearer string
		status              int
		code                string
	}{
		{"/v1/runs/" + run + "/events", r.admin, "", 200, "https://app.example"},
		{"/v1/runs/" + run + "/events", reader, "", 200, "https://app.example"},
		{"/v1/runs/" + run + "/events", other, "", 403, "scope-denied"},
		{"/v1/runs/" + run + "/events", other, r.admin, 403, "scope-denied"}, // the ticket says who it is
		{"/v1/sessions/s1/events", r.admin, "", 200, "https://app.example"},
		{"/v1/sessions/s1/events", reader, "", 403, "scope-denied"},
	} {
		tk := ticket(tc.token)
		spent = append(spent, tk)
		if status, code := open(tc.path, tk, tc.bearer); status != tc.status || code != tc.code {
			t.Errorf("GET %s with a ticket = %d %s, want %d %s", tc.path, status, code, tc.status, tc.code)
		}
		if status, code := open(tc.path, tk, r.admin); status != 401 || code != "auth-invalid" {
			t.Errorf("GET %s with the ticket again = %d %s, want 401 auth-invalid", tc.path, status, code)
		}
	}
	// It is good for nothing else.
	tk := ticket(r.admin)
	spent = append(spent, tk)
	if ans := r.do("GET", "/v1/runs?ticket="+tk, "", ""); ans.StatusCode != 401 {
		t.Errorf("GET /runs with a ticket = %d %s, want 401", ans.StatusCode, ans.body)
	}
	if ans := r.do("GET", "/v1/runs?ticket="+tk, r.admin, ""); ans.StatusCode != 400 || strings.Contains(ans.body, tk) {
		t.Errorf("GET /runs with a ticket and a token = %d %s, want 400 without the ticket", ans.StatusCode, ans.body)
	}
	if status, _ := open("/v1/runs/"+run+"/events", tk, ""); status != 200 {
		t.Errorf("a ticket that was refused elsewhere = %d, want it still good", status)
	}
	// A ticket dies with its token.
	id, doomed := r.mint(0, "agents:read")
	tk = ticket(doomed)
	r.do("DELETE", "/v1/tokens/"+id, r.admin, "")
	if status, code := open("/v1/runs/"+run+"/events", tk, ""); status != 401 {
		t.Errorf("the ticket of a revoked token = %d %s, want 401", status, code)
	}
	// Nothing remembers one.
	chain := r.do("GET", "/v1/audit?limit=1000", r.admin, "").body
	for _, tk := range append(spent, tk) {
		if strings.Contains(chain, tk) {
			t.Errorf("the audit chain has the ticket %s", tk)
		}
	}
	if !strings.Contains(chain, `"ticket"`) {
		t.Error("the audit chain does not say that tickets let somebody in")
	}
	// A page that opens another EventSource names the last event that it has had, since it can set no header.
	x := r.send("GET", "/v1/runs/"+run+"/events?lastEventId=evt-r-"+run+"-2&ticket="+ticket(reader), "", "")
	defer x.close()
	if status := x.response(t).StatusCode; status != http.StatusNoContent {
		t.Errorf("GET events after the last = %d, want 204", status)
	}
}
