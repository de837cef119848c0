package server_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/rest"
	"agentd/server/workflow"
)

// sweepConfig has every route there is, with every kind of access. Nobody is locked out, since most attempts are to
// fail.
const sweepConfig = `{"metrics": {"requireAuth": true}, "auth": {"perIpFailureThreshold": 1000000}, "audit": {"enabled": true, "passphraseRef": "file:pepper"},
	"workflows": {"flow": {"start": "wait", "nodes": {"wait": {"kind": "await", "name": "go", "next": "end"}}}},
	"triggers": {"t1": {"kind": "event", "event": "done", "workflow": "flow"}},
	"hooks": {"push": {"event": "push", "verify": {"scheme": "github", "secretRefs": ["file:pepper"]}}}}`

// table is the route table of a server with that configuration.
func table() []rest.Route { return api(true).Routes }

// api has every route. The endpoints are not called, so they need nothing to work with.
func api(metricsScoped bool) *rest.API {
	runs := &rest.Runs{SSE: true, Base: "/v1"}
	api := &rest.API{Base: "/v1", Keys: new(gate.Keys)}
	api.Add(&rest.Agents{Registry: &agent.Registry{}, Runs: runs}, &rest.Workflows{Workflows: workflow.New(), Runs: runs}, runs, &rest.Approvals{Runs: runs}, &rest.Sessions{Runs: runs, Events: "/sessions"}, &rest.Notifications{}, &rest.Spans{}, &rest.Triggers{}, &rest.Hooks{},
		&rest.Realtime{Path: "/ws"}, &rest.Tokens{}, &rest.Audit{}, &rest.Retention{}, &rest.System{Metrics: metrics.New(""), MetricsPath: "/metrics", MetricsScoped: metricsScoped})
	return api
}

// need is what a row's access asks for.
type need struct {
	public, any bool
	upgrade     bool   // who calls is found out after a handshake
	signed      bool   // a signature says who calls
	scope       string // resource:action, or with the target that every request needs
	ofID        bool   // the scope needs the id of what the request is about
	some        bool   // the scope may have any target
	flagged     string // the scope that is needed instead when the body has the flag
	flag        string
}

func needOf(rt rest.Route) need {
	switch text := string(rt.Access); {
	case text == "none":
		return need{public: true}
	case text == "a token or a ticket, in the handshake":
		return need{upgrade: true}
	case text == "a signature over the body":
		return need{signed: true}
	case text == "any token":
		return need{any: true}
	case strings.Contains(text, " with "):
		scope, other, _ := strings.Cut(text, "; ")
		flagged, flag, _ := strings.Cut(other, " with ")
		return need{scope: scope, flagged: flagged, flag: strings.TrimSuffix(flag, ": true")}
	case strings.Contains(text, " or "):
		scope, _, _ := strings.Cut(text, " or ")
		return need{scope: scope, some: true}
	case strings.Contains(text, ":{"):
		scope, _, _ := strings.Cut(text, ":{")
		return need{scope: scope, ofID: true}
	default:
		return need{scope: text}
	}
}

// sweep is a server with a run that has ended, and tokens by their scopes.
type sweep struct {
	*rig
	run    string
	tokens map[string]string
	names  int
	gone   int // triggers of keyedConfig that were deleted
}

func newSweep(t *testing.T) *sweep { return newSweepOn(t, newRig(t, sweepConfig, nil)) }

func newSweepOn(t *testing.T, r *rig) *sweep {
	s := &sweep{rig: r, tokens: map[string]string{}}
	ans := s.do("POST", "/v1/agents/echo/run", s.admin, `{"sessionId": "s1"}`)
	run, err := find(ans.body, ".runId")
	if err != nil {
		t.Fatal(err)
	}
	s.run = run
	return s
}

// fresh is a name that was not used before.
func (s *sweep) fresh(name string) string {
	s.names++
	return fmt.Sprint(name, "-", s.names)
}

func (s *sweep) token(scope string) string {
	s.t.Helper()
	if s.tokens[scope] == "" {
		_, s.tokens[scope] = s.mint(0, scope)
	}
	return s.tokens[scope]
}

// path is the row's path with ids of what there is, and the id that its scope needs.
func (s *sweep) path(rt rest.Route) (path, id string) {
	resource := strings.Split(rt.Path, "/")[1]
	id = map[string]string{"agents": "echo", "runs": "echo", "sessions": "s1", "tokens": "none", "workflows": "flow", "triggers": "t1", "events": "push", "hooks": "push"}[resource]
	path = strings.NewReplacer("{threadId}", "t1", "{id}", id, "{name}", id, "{runId}", s.run).Replace("/v1" + rt.Path)
	if strings.Contains(path, "{") {
		s.t.Fatalf("%s: no id is known for this path", rt.Path)
	}
	return path, id
}

// ask sends a request and reads the answer, of an event stream the headers only.
func (s *sweep) ask(method, path, token string) answer {
	s.t.Helper()
	x := s.send(method, path, token, "")
	defer x.close()
	if x.isStream(s.t) {
		return answer{Response: x.response(s.t)}
	}
	return x.whole(s.t)
}

// spent makes n tokens that were revoked and n that have expired. A route gets one of its own each, since a token that is
// sent again and again is locked out.
func (s *sweep) spent(n int) (revoked, expired []string) {
	s.t.Helper()
	for range n {
		id, raw := s.mint(0, "admin:*")
		if ans := s.do("DELETE", "/v1/tokens/"+id, s.admin, ""); ans.StatusCode != http.StatusNoContent {
			s.t.Fatalf("DELETE token = %d %s", ans.StatusCode, ans.body)
		}
		revoked = append(revoked, raw)
	}
	return revoked, s.expired(n, "admin:*")
}

func TestEveryRouteIsGuarded(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	rows := table()
	revoked, expired := s.spent(len(rows))
	unknown, err := auth.Mint("svc", "live")
	if err != nil {
		t.Fatal(err)
	}
	for i, rt := range rows {
		n := needOf(rt)
		path, id := s.path(rt)
		want := func(what, token string, status int, code string) {
			t.Helper()
			ans := s.ask(rt.Method, path, token)
			if challenge := ans.Header.Get("WWW-Authenticate"); ans.StatusCode != status || ans.code() != code || (challenge == "Bearer") != (status == 401 && !n.signed) {
				t.Errorf("%s %s with %s = %d %s, challenge %q; want %d %s", rt.Method, path, what, ans.StatusCode, ans.body, challenge, status, code)
			}
		}
		passes := func(what, token string) {
			t.Helper()
			if ans := s.ask(rt.Method, path, token); ans.StatusCode == 401 || ans.StatusCode == 403 || ans.StatusCode >= 500 && ans.StatusCode != http.StatusNotImplemented {
				t.Errorf("%s %s with %s = %d %s, want it let in", rt.Method, path, what, ans.StatusCode, ans.body)
			}
		}
		if n.upgrade { // see TestUpgradeIsGuarded
			want("no handshake", "", 426, "upgrade-required")
			continue
		}
		if n.signed {
			want("no signature", "", 401, "signature-missing")
			want("a token", s.admin, 401, "signature-missing")
			continue
		}
		if n.public {
			passes("no token", "")
			passes("a malformed token", "garbage")
			passes("a revoked token", revoked[i])
			continue
		}
		want("no token", "", 401, "auth-required")
		want("a malformed token", "garbage", 401, "auth-invalid")
		want("a token with a typing mistake", s.admin[:len(s.admin)-1]+"-", 401, "auth-invalid")
		want("an unknown token", string(unknown), 401, "auth-invalid")
		want("a revoked token", revoked[i], 401, "auth-revoked")
		want("an expired token", expired[i], 401, "auth-expired")
		passes("everything", s.admin)
		if n.any {
			passes("an unrelated scope", s.token("skills:install"))
			continue
		}
		resource, action, _ := strings.Cut(n.scope, ":")
		want("an unrelated scope", s.token("skills:install"), 403, "scope-denied")
		want("another action", s.token(resource+":other"), 403, "scope-denied")
		want("the same action on something else", s.token("skills:"+action), 403, "scope-denied")
		passes("its scope", s.token(n.scope))
		switch {
		case n.ofID:
			want("the scope for another id", s.token(n.scope+":other"), 403, "scope-denied")
			passes("the scope for its id", s.token(n.scope+":"+id))
		case n.some:
			passes("the scope for some id", s.token(n.scope+":other"))
		case strings.Count(n.scope, ":") == 1:
			want("the scope for one id only", s.token(n.scope+":"+cmp.Or(id, "other")), 403, "scope-denied")
		}
	}
}

// Without tokens, no page that is not the server's own gets anything of any route, not even that there is none.
func TestEveryRouteIsClosedToStrangersPages(t *testing.T) {
	t.Parallel()
	s := newSweepOn(t, newRig(t, `{"auth": {"kind": "none"}, "audit": {"enabled": true, "passphraseRef": "file:pepper"}}`, nil))
	rows := append(table(), rest.Route{Method: "GET", Path: "/nowhere"})
	for _, rt := range rows {
		path, _ := s.path(rt)
		for _, header := range []string{"Host: rebound.example", "Host: 127.0.0.1.rebound.example:80", "Origin: https://evil.example", "Origin: null"} {
			if ans := s.do(rt.Method, path, "", "", header); ans.StatusCode != http.StatusForbidden || ans.code() != "origin-denied" {
				t.Errorf("%s %s with %s = %d %s, want 403 origin-denied", rt.Method, path, header, ans.StatusCode, ans.body)
			}
		}
		if rt.Method != http.MethodGet || string(rt.Access) == "a token or a ticket, in the handshake" {
			continue
		}
		x := s.send(rt.Method, path, "", "", "Host: 10.0.0.7:8080")
		if status := x.response(t).StatusCode; (status != http.StatusForbidden) != rt.Probe {
			t.Errorf("%s %s with an address as Host = %d, want it let in only where it is a probe", rt.Method, path, status)
		}
		x.close()
	}
	if ans := s.do("GET", "/", "", "", "Host: rebound.example"); ans.code() != "origin-denied" {
		t.Errorf("GET / with a stranger's Host = %d %s, want origin-denied", ans.StatusCode, ans.body)
	}
}

// Where a flag of the body chooses the scope, neither scope stands in for the other, and what is wrong with the body
// comes before what is wrong with the scope.
func TestScopesByFlagAreGuarded(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	asked := 0
	for _, rt := range table() {
		n := needOf(rt)
		if n.flag == "" {
			continue
		}
		asked++
		path, _ := s.path(rt)
		want := func(token, body string, status int, code string) {
			t.Helper()
			if ans := s.do(rt.Method, path, token, body); ans.StatusCode != status || ans.code() != code {
				t.Errorf("%s %s %.60s = %d %s, want %d %s", rt.Method, path, body, ans.StatusCode, ans.body, status, code)
			}
		}
		on, off := fmt.Sprintf(`{%q: true}`, n.flag), fmt.Sprintf(`{%q: false}`, n.flag)
		large := `{"x": "` + strings.Repeat("a", 100<<10) + `"}`
		usual, flagged := s.token(n.scope), s.token(n.flagged)
		for _, token := range []string{s.admin, usual} {
			want(token, "", 200, "")
			want(token, off, 200, "")
		}
		for _, token := range []string{s.admin, flagged} {
			want(token, on, 200, "")
		}
		want(usual, on, 403, "scope-denied")
		want(flagged, off, 403, "scope-denied")
		want(flagged, "", 403, "scope-denied")
		for token, code := range map[string]string{"": "auth-required", "garbage": "auth-invalid"} {
			want(token, "", 401, code)
			want(token, on, 401, code)
			want(token, large, 401, code) // nobody reads it
			want(token, `{"no": 1}`, 401, code)
		}
		want(s.token("skills:install"), on, 403, "scope-denied")
		want(s.token("skills:install"), `{"no": 1}`, 400, "config-invalid")
		want(s.admin, large, 400, "config-invalid")
	}
	if asked == 0 {
		t.Error("no row of the table has a scope by a flag")
	}
}

// Ids that nothing has are answered as unknown or denied, whoever asks.
func TestOddIDsAreNoFailures(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	odd := []string{"%00", "%0A", "a%2Fb", "%2e%2e", "..%2f..%2fagents", "%ff%fe", "%F0%9F%98%80", "%25", "'%20OR%20'1'='1", "%22%3b--", "*", "a.b", "-",
		strings.Repeat("x", 129), strings.Repeat("x", 5000)}
	asked := 0
	for _, rt := range table() {
		if !strings.Contains(rt.Path, "{") {
			continue
		}
		n := needOf(rt)
		if n.signed {
			continue
		}
		for _, id := range odd {
			path := strings.NewReplacer("{id}", id, "{name}", id, "{runId}", id, "{threadId}", id).Replace("/v1" + rt.Path)
			for _, token := range []string{"", s.admin, s.token(n.scope), s.token("skills:install")} {
				ans := s.ask(rt.Method, path, token)
				if asked++; ans.StatusCode >= 500 || (ans.StatusCode == 401) != (token == "") {
					t.Errorf("%s %s = %d %s, want it unknown or denied", rt.Method, path, ans.StatusCode, ans.body)
				}
			}
		}
	}
	if asked == 0 {
		t.Error("no row of the table has an id")
	}
}

func TestEveryRouteIsDocumentedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweepConfig, nil)
	patterns := map[string]bool{}
	for _, rt := range table() {
		pattern := rt.Pattern("")
		if patterns[pattern] {
			t.Errorf("%s is in the table twice", pattern)
		}
		if patterns[pattern] = true; rt.Summary == "" {
			t.Errorf("%s has no summary", pattern)
		}
	}
	want := slices.Sorted(maps.Keys(patterns))
	if got := slices.Sorted(maps.Keys(r.contract.operations)); !slices.Equal(got, want) {
		t.Errorf("GET /openapi.json documents\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What is no valid body is refused with 400 and has no effect.
func TestMalformedBodiesHaveNoEffect(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	before := s.inventory()
	asked := 0
	for _, rt := range table() {
		if needOf(rt).signed { // who calls comes before what is sent
			continue
		}
		body := s.bodySchema(rt)
		if body == nil {
			continue
		}
		path, _ := s.path(rt)
		want := fault.ConfigInvalid
		if slices.Contains(rt.Errors, fault.RunStateMalformed) {
			want = fault.RunStateMalformed
		}
		for _, text := range malformed(body) {
			asked++
			ans := s.do(rt.Method, path, s.admin, text)
			if ans.code() == "run-not-suspended" { // what the run is comes before what is sent
				continue
			}
			var e struct{ Issues []json.RawMessage }
			json.Unmarshal([]byte(ans.body), &e) //nolint:errcheck // then there are none
			if ans.StatusCode != 400 || ans.code() != want.Code || len(e.Issues) == 0 {
				t.Errorf("%s %s %.80q = %d %s, want 400 %s with issues", rt.Method, path, text, ans.StatusCode, ans.body, want.Code)
			}
		}
		for name, text := range map[string]string{"JSON": `{"x":"` + strings.Repeat("a", 5<<20) + `"}`, "white space": strings.Repeat(" ", 5<<20)} {
			ans := s.do(rt.Method, path, s.admin, text)
			if ans.code() != "run-not-suspended" && (ans.StatusCode != 413 || ans.code() != "body-too-large") {
				t.Errorf("%s %s with 5 MiB of %s = %d %s, want 413 body-too-large", rt.Method, path, name, ans.StatusCode, ans.body)
			}
		}
	}
	if asked == 0 {
		t.Error("no row of the table has a body")
	}
	if after := s.inventory(); after != before {
		t.Errorf("after all that was refused there is\n%s\nwant\n%s", after, before)
	}
}

// bodySchema is the documented schema of a row's JSON body, nil for none.
func (s *sweep) bodySchema(rt rest.Route) map[string]any {
	s.t.Helper()
	op := s.contract.doc["paths"].(map[string]any)[rt.Path].(map[string]any)[strings.ToLower(rt.Method)].(map[string]any)
	body, ok := op["requestBody"].(map[string]any)
	if !ok {
		return nil
	}
	content, ok := body["content"].(map[string]any)["application/json"].(map[string]any)
	if !ok { // text, which the endpoint reads itself
		return nil
	}
	schema := content["schema"].(map[string]any)
	if ref, ok := schema["$ref"].(string); ok {
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		schema = s.contract.doc["components"].(map[string]any)["schemas"].(map[string]any)[name].(map[string]any)
	}
	return schema
}

// malformed is every way in which a body of a schema can be wrong.
func malformed(schema map[string]any) []string {
	all := []string{
		`{`, `}`, `{"`, `{"a":`, `{"a":1,}`, `{'a':1}`, `{a:1}`, `nul`, `"`, "\x00", "\xef\xbb\xbf{}", `{"a":01}`, `{"a":1e}`, `{"a":NaN}`,
		`null`, `true`, `7`, `"x"`, `""`, `[]`, `[{}]`, `[null]`,
		`{} {}`, `{}x`, `{}]`, `{},`, `{}//`, `/**/{}`,
		`{"unknown_key":1}`, `{"":1}`, `{"__proto__":{}}`,
		strings.Repeat(`{"x":`, 5000) + "1" + strings.Repeat("}", 5000),
	}
	wrong := map[string][]string{
		"string":  {`1`, `true`, `[]`, `{}`, `null`},
		"integer": {`"1"`, `1.5`, `1e400`, `[]`, `null`},
		"boolean": {`"true"`, `0`, `{}`, `null`},
		"array":   {`"x"`, `{}`, `1`, `null`, `[[]]`, `[null]`},
	}
	for name, p := range schema["properties"].(map[string]any) {
		typ, _ := p.(map[string]any)["type"].(string)
		for _, v := range wrong[typ] {
			all = append(all, fmt.Sprintf(`{%q:%s}`, name, v))
		}
		all = append(all, fmt.Sprintf(`{%q:1,%[1]q:1}`, name), fmt.Sprintf(`{%q:1}`, strings.ToUpper(name)))
		if typ == "" { // any value, but no key of it twice
			all = append(all, fmt.Sprintf(`{%q:{"a":[{"b":1,"b":2}]}}`, name))
		}
	}
	return all
}

// inventory is what requests could have made.
func (s *sweep) inventory() string {
	s.t.Helper()
	var all strings.Builder
	for _, path := range []string{"/v1/runs?limit=1000", "/v1/sessions", "/v1/tokens", "/v1/sessions/s1/messages"} {
		ans := s.do("GET", path, s.admin, "")
		if ans.StatusCode != http.StatusOK {
			s.t.Fatalf("GET %s = %d %s", path, ans.StatusCode, ans.body)
		}
		v, err := decodeJSON(ans.body)
		if err != nil {
			s.t.Fatal(err)
		}
		list, _ := v.(map[string]any)["tokens"].([]any)
		for _, token := range list {
			delete(token.(map[string]any), "lastUsedAt")
		}
		b, _ := json.Marshal(v)
		fmt.Fprintf(&all, "%s: %s\n", path, b)
	}
	return all.String()
}
