package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/schema"
)

// contract is what holds for every answer, taken from the server's own OpenAPI document: its status, its content type
// and the form of its body are documented, errors have the one form that errors have, and no header is forgotten.
type contract struct {
	doc        map[string]any
	operations map[string]operation // by method and path

	mu       sync.Mutex // guards the one below
	compiled map[string]*schema.Schema
}

type operation struct {
	segments  []string
	responses map[string]any
	at        string // JSON pointer of responses
	queries   []string
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

func readContract(t testing.TB, r *rig) *contract {
	t.Helper()
	c := &contract{operations: map[string]operation{}, compiled: map[string]*schema.Schema{}}
	r.contract = nil
	ans := r.do("GET", r.cfg.Server.BasePath+"/openapi.json", "", "")
	if err := json.Unmarshal([]byte(ans.body), &c.doc); err != nil {
		t.Fatalf("GET openapi.json = %d %s: %v", ans.StatusCode, ans.body, err)
	}
	base := r.cfg.Server.BasePath
	for pattern, item := range c.doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			var queries []string
			params, _ := op.(map[string]any)["parameters"].([]any)
			for _, p := range params {
				if p := p.(map[string]any); p["in"] == "query" {
					queries = append(queries, p["name"].(string))
				}
			}
			c.operations[strings.ToUpper(method)+" "+pattern] = operation{
				segments:  strings.Split(base+pattern, "/"),
				responses: op.(map[string]any)["responses"].(map[string]any),
				queries:   queries,
				at:        "#/paths/" + pointerEscaper.Replace(pattern) + "/" + method + "/responses/",
			}
		}
	}
	return c
}

// operation finds the row that a request belongs to. A path that is not clean, also where that is hidden by escapes,
// belongs to none.
func (c *contract) operation(method, target string) (operation, bool) {
	target, _, _ = strings.Cut(target, "?")
	if plain, err := url.PathUnescape(target); err != nil || plain != path.Clean(plain) {
		return operation{}, false
	}
	got := strings.Split(target, "/")
	if method == http.MethodHead {
		method = http.MethodGet
	}
next:
	for name, op := range c.operations {
		if !strings.HasPrefix(name, method+" ") || len(op.segments) != len(got) {
			continue
		}
		for i, s := range op.segments {
			if s != got[i] && !(strings.HasPrefix(s, "{") && got[i] != "") {
				continue next
			}
		}
		return op, true
	}
	return operation{}, false
}

func (c *contract) check(t testing.TB, x *exchange, body string) {
	t.Helper()
	for _, problem := range c.problems(x, body) {
		t.Errorf("%s %s = %d: %s", x.method, x.path, x.resp.StatusCode, problem)
	}
}

// readable are the headers that a page of another origin may always read, and those that mean nothing to it: of the
// connection, of CORS itself, and what no page may read at all.
var readable = []string{"Cache-Control", "Content-Length", "Content-Type", "X-Csrf-Token",
	"Access-Control-Allow-Credentials", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods", "Access-Control-Allow-Origin",
	"Access-Control-Expose-Headers", "Access-Control-Max-Age", "Connection", "Date", "Sec-Websocket-Version", "Set-Cookie", "Upgrade", "Vary"}

func (c *contract) problems(x *exchange, body string) (problems []string) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	h := x.resp.Header
	want := func(name, value string) {
		if got := h.Values(name); len(got) != 1 || got[0] != value {
			add("header %s is %q, want %q", name, got, value)
		}
	}
	status := x.resp.StatusCode
	stream := strings.HasPrefix(h.Get("Content-Type"), "text/event-stream")
	if id := h.Values("X-Request-Id"); len(id) != 1 || id[0] == "" {
		add("header X-Request-Id is %q, want one", id)
	}
	want("X-Content-Type-Options", "nosniff")
	for name := range h {
		same := func(other string) bool { return strings.EqualFold(name, other) }
		if !slices.ContainsFunc(gate.Exposed, same) && !slices.ContainsFunc(readable, same) {
			add("header %s is not among those that pages of other origins may read", name)
		}
	}
	if stream {
		want("Content-Type", "text/event-stream; charset=utf-8")
		want("Cache-Control", "no-cache, no-transform")
		want("X-Accel-Buffering", "no")
	} else {
		want("Cache-Control", "no-store")
	}
	signed := strings.Contains(x.path, "/hooks/")
	if (status == http.StatusUnauthorized && !signed) != (h.Get("WWW-Authenticate") == "Bearer") {
		add("header WWW-Authenticate is %q", h.Get("WWW-Authenticate"))
	}
	if status == http.StatusNoContent && (body != "" || h.Get("Content-Type") != "") {
		add("there is a body")
	}
	code := ""
	if status >= 400 && !(status == http.StatusServiceUnavailable && strings.Contains(x.path, "/health")) && x.method != http.MethodHead {
		code = c.fault(x.resp, body, add)
	}

	op, ok := c.operation(x.method, x.path)
	if !ok && (x.method == http.MethodHead || x.method == http.MethodOptions && status == http.StatusNoContent) { // the latter is a preflight
		return problems
	}
	if !ok {
		switch code {
		case "not-found", "method-not-allowed", "auth-required", "auth-invalid", "auth-revoked", "auth-expired", "auth-locked-out", "origin-denied":
		default:
			add("there is no such operation, so the error cannot be %q", code)
		}
		return problems
	}
	response, ok := op.responses[strconv.Itoa(status)].(map[string]any)
	if !ok {
		add("the status is not documented; the body is %s", body)
		return problems
	}
	content, _ := response["content"].(map[string]any)
	media := h.Get("Content-Type")
	if stream {
		media = "text/event-stream"
	}
	if media != "" && content[media] == nil {
		add("the content type %q is not documented", media)
	}
	if stream {
		c.frames(body, add)
	}
	if media != "application/json" || x.method == http.MethodHead {
		return problems
	}
	s, err := c.schema(op.at + strconv.Itoa(status) + "/content/application~1json/schema")
	if err != nil {
		add("%v", err)
		return problems
	}
	for _, is := range s.Validate(json.RawMessage(body)) {
		add("the body is not as documented: %v; it is %s", is, body)
	}
	return problems
}

// frames checks what a stream has sent so far. Agents may publish events that are not in the catalogue.
func (c *contract) frames(body string, add func(string, ...any)) {
	s, err := c.schema("#/components/schemas/Frame")
	if err != nil {
		add("%v", err)
		return
	}
	for line := range strings.Lines(body) {
		data, ok := strings.CutPrefix(line, "data: ")
		var f struct{ Kind, Type string }
		if !ok || !strings.HasSuffix(data, "\n") || json.Unmarshal([]byte(data), &f) != nil || f.Kind == "event" && !slices.ContainsFunc(event.Catalogue(), func(t event.Type) bool { return t.Name == f.Type }) {
			continue
		}
		for _, is := range s.Validate(json.RawMessage(data)) {
			add("a frame is not as documented: %v; it is %s", is, data)
		}
	}
}

// fault checks the form of an error and returns its code.
func (c *contract) fault(resp *http.Response, body string, add func(string, ...any)) string {
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		add("the error has the content type %q", got)
	}
	for _, problem := range mismatch(`{"error": "<string>", "message": "<string>", "hint": "<sentence>", "...": 0}`, body) {
		add("%s; the body is %s", problem, body)
	}
	var e struct {
		Error  string
		Issues []struct {
			Path    []any
			Message string
		}
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		return ""
	}
	if k := fault.ByCode(e.Error); k == nil || k.Status != resp.StatusCode {
		add("%q is no code of this status", e.Error)
	}
	for _, is := range e.Issues {
		if is.Path == nil || is.Message == "" {
			add("the issue %v has no path or no message", is)
		}
	}
	return e.Error
}

// schema compiles the schema at a place of the document.
func (c *contract) schema(at string) (*schema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.compiled[at]; s != nil {
		return s, nil
	}
	root := map[string]any{"$ref": at, "paths": c.doc["paths"], "components": c.doc["components"]}
	raw, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	s, err := schema.Compile(raw)
	if err != nil {
		return nil, fmt.Errorf("the schema at %s: %w", at, err)
	}
	c.compiled[at] = s
	return s, nil
}
