package tool_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tool"
)

func newHTTP(t testing.TB, o tool.HTTPOptions) tool.Tool {
	t.Helper()
	o.Method, o.MaxBytes = cmp.Or(o.Method, "GET"), cmp.Or(o.MaxBytes, 1<<20)
	o.Spec.Name = "web"
	tl, err := tool.NewHTTP(o)
	if err != nil {
		t.Fatalf("NewHTTP(%+v): %v", o, err)
	}
	return tl
}

// serve starts a server. Its URL has 127.0.0.1 as host.
func serve(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// recorder is a transport that answers 200 without connecting to anything.
type recorder struct {
	req  *http.Request
	body string
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.req, r.body = req, ""
	if req.Body != nil {
		b, _ := io.ReadAll(req.Body)
		r.body = string(b)
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`"ok"`)), Request: req}, nil
}

func TestHTTPRequest(t *testing.T) {
	for _, tc := range []struct {
		method, url, body, args string
		want                    string // method, url and body, or the error
	}{
		{"GET", "https://h/v1?city={city}", "", `{"city":"São Paulo & x=1"}`, "GET https://h/v1?city=S%C3%A3o+Paulo+%26+x%3D1 "},
		{"GET", "http://h:8080/v1/{id}/x", "", `{"id":"a/b?c#d e%"}`, "GET http://h:8080/v1/a%2Fb%3Fc%23d%20e%25/x "},
		{"GET", "http://h/{a}-{b}", "", `{"a":1.50,"b":true}`, "GET http://h/1.50-true "},
		{"GET", "http://h?x=1&a={a}&b={b}&c={b}{a}", "", `{"a":"1"}`, "GET http://h/?x=1&a=1 "},
		{"GET", "http://h/?tag={tags}&n=1", "", `{"tags":["a b","c"]}`, "GET http://h/?tag=a+b&tag=c&n=1 "},
		{"GET", "http://h/?tag={tags}", "", `{"tags":[]}`, "GET http://h/ "},
		{"GET", "http://h/?o={o}", "", `{"o":{"a":1}}`, "GET http://h/?o=%7B%22a%22%3A1%7D "},
		{"GET", "http://h/?a={a}", "", `{"a":null,"secret":"x"}`, "GET http://h/ "},
		{"DELETE", "http://h/{id}", "", `{"id":7,"reason":"x"}`, "DELETE http://h/7 "},
		{"POST", "http://h/{id}?q={q}", "", `{"id":7,"q":"x","b":[1,{"c":"<é>"}],"a":1.50}`, `POST http://h/7?q=x {"a":1.50,"b":[1,{"c":"<é>"}]}`},
		{"POST", "http://h/", "", `{}`, "POST http://h/ {}"},
		{"PUT", "http://h/", `{"n":"{n}","text":"Dear {name}, {gone}!","gone":"{gone}","list":["{n}","{gone}",1.50,null],"brace":"{ not one }"}`,
			`{"n":{"x":1},"name":"Ann","extra":1}`, `PUT http://h/ {"brace":"{ not one }","list":[{"x":1},1.50,null],"n":{"x":1},"text":"Dear Ann, !"}`},
		{"POST", "http://h/", `"{all}"`, `{"all":[1]}`, "POST http://h/ [1]"},
		{"POST", "http://h/", `"{all}"`, `{}`, "POST http://h/ null"},

		{"GET", "http://h/{id}", "", `{}`, `The argument "id" must not be empty.`},
		{"GET", "http://h/{id}", "", `{"id":""}`, `The argument "id" must not be empty.`},
		{"GET", "http://h/a/{id}", "", `{"id":".."}`, "The arguments make a path with . or .. in it."},
		{"GET", "http://h/a/{id}/b", "", `{"id":"../../admin"}`, "The arguments make a path with . or .. in it."},
		{"GET", "http://h/a/{id}", "", `{"id":"%2e%2e/x"}`, "The arguments make a path with . or .. in it."},
		{"GET", "http://h/a/{id}", "", `{"id":"..\\x"}`, "The arguments make a path with . or .. in it."},
		{"GET", "http://h/a/{id}", "", `{"id":"..;x"}`, "The arguments make a path with . or .. in it."},
		{"GET", "http://h/{a}{b}/x", "", `{"a":".","b":"."}`, "The arguments make a path with . or .. in it."},
		{"GET", "http://h/{a}", "", `{"a":"...x"}`, "GET http://h/...x "},
		{"GET", "http://h{x}", "", `{}`, "unusable"},
	} {
		rec := &recorder{}
		tl, err := tool.NewHTTP(tool.HTTPOptions{Spec: spec("web"), Method: tc.method, URL: tc.url, Body: json.RawMessage(tc.body), MaxBytes: 1 << 20, Transport: rec})
		if err != nil {
			if tc.want != "unusable" {
				t.Errorf("NewHTTP(%s): %v", tc.url, err)
			}
			continue
		}
		got := use(t, t.Context(), tl, call, tc.args)
		if rec.req != nil {
			got = rec.req.Method + " " + rec.req.URL.String() + " " + rec.body
		} else {
			got, _, _ = strings.Cut(strings.TrimPrefix(got, "Error: "), "\n")
		}
		if got != tc.want {
			t.Errorf("%s %s with %s = %q, want %q", tc.method, tc.url, tc.args, got, tc.want)
		}
	}
}

func TestHTTPHeaders(t *testing.T) {
	rec := &recorder{}
	tl := newHTTP(t, tool.HTTPOptions{Method: "POST", URL: "http://h/", Transport: rec, Headers: map[string]string{"authorization": "Bearer x", "Accept": "text/csv"}})
	use(t, t.Context(), tl, call, `{}`)
	h := rec.req.Header
	if h.Get("Authorization") != "Bearer x" || h.Get("Accept") != "text/csv" || h.Get("Content-Type") != "application/json" || h.Get("User-Agent") != "agentd" ||
		len(h["idempotency-key"]) != 1 || h["idempotency-key"][0] != call.Key {
		t.Errorf("the headers are %v", h)
	}
}

func TestNewHTTPReportsEveryProblem(t *testing.T) {
	in := json.RawMessage(`{"type":"object","properties":{"city":{}}}`)
	for _, tc := range []struct {
		o    tool.HTTPOptions
		want []string
	}{
		{tool.HTTPOptions{Method: "GET", URL: "ftp://h/"}, []string{"[url] want http"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://{host}/"}, []string{"[url] want http"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://h:{port}/"}, []string{"[url] want http"}},
		{tool.HTTPOptions{Method: "GET", URL: "http:///x"}, []string{"[url] want http"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://h:x/"}, []string{"[url] want http"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://u:p@h/"}, []string{"[url] want http"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://h/#{x}"}, []string{"[url] characters"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://h/{a b}"}, []string{"[url] characters"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://h/%zz"}, []string{"[url] characters"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://h/a/../{x}"}, []string{"[url] the path must not contain"}},
		{tool.HTTPOptions{Spec: tool.Spec{Input: in}, Method: "POST", URL: "http://h/{town}?c={city}", Body: json.RawMessage(`{"x":["{place} {town}"]}`)},
			[]string{"[url] {town} is not a property", "[body] {place} is not a property", "[body] {town} is not a property"}},
		{tool.HTTPOptions{Method: "POST", URL: "http://h/", Body: json.RawMessage(`{`)}, []string{"[body] not JSON"}},
		{tool.HTTPOptions{Method: "GET", URL: "http://h/", Headers: map[string]string{"host": "x", "A B": "x", "X": "a\r\nb", "Accept-Encoding": "gzip"}},
			[]string{"[headers A B] is not", "[headers Accept-Encoding] is a header that the server sets", "[headers X] is not", "[headers host] is a header that the server sets"}},
	} {
		_, err := tool.NewHTTP(tc.o)
		if !fault.Is(err, fault.ConfigInvalid) || len(fault.Of(err).Issues) != len(tc.want) {
			t.Errorf("NewHTTP(%+v) = %v, want %d issues", tc.o, err, len(tc.want))
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("NewHTTP(%s) = %v, want %q in it", tc.o.URL, err, want)
			}
		}
	}
}

func TestHTTPAnswers(t *testing.T) {
	for _, tc := range []struct {
		name   string
		status int
		header string // Name: value
		body   string
		want   string
	}{
		{"JSON", 200, "Content-Type: application/json", "{\n\"a\": 1}", `{"a":1}`},
		{"JSON with a byte order mark", 200, "Content-Type: application/json", "\xEF\xBB\xBF{}", `{}`},
		{"JSON that is none", 200, "Content-Type: application/json", `{"a":`, `{"a":`},
		{"text", 200, "Content-Type: text/plain", "Sunny, 25°", "Sunny, 25°"},
		{"text of another charset", 200, "Content-Type: text/plain; charset=latin1", "25\xb0", "25�"},
		{"JSON without type", 201, "Content-Type: text/plain", `[1]`, `[1]`},
		{"nothing", 204, "", "", "(The tool succeeded without output.)"},
		{"image", 200, "Content-Type: image/png", "\x89PNG", "[image, image/png]"},
		{"binary", 200, "Content-Type: application/zip", "PK\xff", "Error: The answer is binary (application/zip).\n[kind: invalid_output; recoverable: no; suggested action: try_alternative; Its effect may have happened; check before calling it again.]"},
		{"not found", 404, "", "no such city\n", "Error: The server answered 404 Not Found: no such city\n[kind: execution_failed; recoverable: no; suggested action: try_alternative]"},
		{"failure without a word", 500, "", "", "Error: The server answered 500 Internal Server Error.\n[kind: execution_failed; recoverable: no; suggested action: try_alternative]"},
		{"failure with many words", 400, "", strings.Repeat("x", 5000), "Error: The server answered 400 Bad Request: " + strings.Repeat("x", 2048) + "\n[kind: execution_failed; recoverable: no; suggested action: try_alternative]"},
		{"a redirect without place", 304, "", "", "Error: The server answered 304 Not Modified.\n[kind: execution_failed; recoverable: no; suggested action: try_alternative]"},
		{"rate limit", 429, "Retry-After: 7", "", "Error: The server answered 429 Too Many Requests.\n[kind: rate_limited; recoverable: yes; suggested action: retry_later; Wait 7s before the next try.]"},
		{"rate limit for ever", 429, "Retry-After: 999999999", "", "Error: The server answered 429 Too Many Requests.\n[kind: rate_limited; recoverable: yes; suggested action: retry_later; Wait 1h0m0s before the next try.]"},
		{"rate limit without time", 429, "Retry-After: soon", "", "Error: The server answered 429 Too Many Requests.\n[kind: rate_limited; recoverable: yes; suggested action: retry_later]"},
	} {
		addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if name, value, ok := strings.Cut(tc.header, ": "); ok {
				w.Header().Set(name, value)
			}
			w.WriteHeader(tc.status)
			io.WriteString(w, tc.body)
		})
		if got := use(t, t.Context(), newHTTP(t, tool.HTTPOptions{URL: addr}), call, `{}`); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestHTTPRetryAfterDate(t *testing.T) {
	for _, off := range []time.Duration{0, -48 * time.Hour, time.Hour} { // the clock of a server may tell another time than ours
		addr := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			now := time.Now().Add(off).UTC()
			w.Header().Set("Date", now.Format(http.TimeFormat))
			w.Header().Set("Retry-After", now.Add(30*time.Minute).Format(http.TimeFormat))
			w.WriteHeader(429)
		})
		if got := use(t, t.Context(), newHTTP(t, tool.HTTPOptions{URL: addr}), call, `{}`); !strings.Contains(got, "Wait 29m") && !strings.Contains(got, "Wait 30m") {
			t.Errorf("the answer with a clock %v off is %q, want a wait of half an hour", off, got)
		}
	}
}

func TestHTTPSizeLimit(t *testing.T) {
	body := strings.Repeat("x", 10_000)
	for _, gz := range []bool{false, true} {
		addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if !gz {
				io.WriteString(w, body)
				return
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, body)
			z.Close()
		})
		for limit, want := range map[int64]string{10_000: body, 9_999: "Error: The server answered 200, and the answer has more than 9999 bytes."} {
			got, _, _ := strings.Cut(use(t, t.Context(), newHTTP(t, tool.HTTPOptions{URL: addr, MaxBytes: limit}), call, `{}`), "\n")
			if got != want {
				t.Errorf("gzip %v, limit %d: %.100q, want %.100q", gz, limit, got, want)
			}
		}
	}
}

func TestHTTPConnectionProblems(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	hangsUp := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	breaksOff := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "x")
	})
	untrusted := httptest.NewUnstartedServer(nil)
	untrusted.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of the handshake
	untrusted.StartTLS()
	defer untrusted.Close()
	const warning = "; Its effect may have happened; check before calling it again."
	for _, tc := range []struct{ url, want, hint string }{
		{gone.URL + "/?key={key}", "Error: The server could not be reached: connection refused.", ""},
		{hangsUp + "/?key={key}", "Error: The server did not answer, or not in HTTP.", warning},
		{breaksOff + "/?key={key}", "Error: The answer broke off.", warning},
	} {
		got := use(t, t.Context(), newHTTP(t, tool.HTTPOptions{URL: tc.url}), call, `{"key":"s3cret"}`)
		if want := tc.want + "\n[kind: execution_failed; recoverable: no; suggested action: try_alternative" + tc.hint + "]"; got != want {
			t.Errorf("%s: %q, want %q", tc.url, got, want)
		}
	}
	if got := use(t, t.Context(), newHTTP(t, tool.HTTPOptions{URL: untrusted.URL}), call, `{}`); !strings.HasPrefix(got, "Error: The server's certificate is not trusted: ") {
		t.Errorf("an untrusted certificate: %q", got)
	}
}

func TestHTTPAbort(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	addr := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
		close(done)
	})
	if got := use(t, ctx, newHTTP(t, tool.HTTPOptions{URL: addr}), call, `{}`); !strings.Contains(got, "kind: aborted") {
		t.Errorf("an aborted call: %q", got)
	}
	<-done
}

func TestHTTPRedirects(t *testing.T) {
	secret := map[string]string{"Authorization": "Bearer s", "X-Api-Key": "k", "Cookie": "c=1"}
	var got *http.Request
	var body string
	target := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got, body = r, string(b)
		io.WriteString(w, `"arrived"`)
	}
	other := serve(t, target)
	otherHost := strings.TrimPrefix(other, "http://")
	hops := 0
	var status int
	var location string
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/end"):
			target(w, r)
		case strings.HasPrefix(r.URL.Path, "/loop"):
			hops++
			http.Redirect(w, r, "/loop", http.StatusFound)
		default:
			http.Redirect(w, r, location, status)
		}
	})
	for _, tc := range []struct {
		name, method, location string
		status                 int
		allow                  []string
		want                   string
		secrets                bool
		body                   string
	}{
		{"same host", "GET", "/end", 302, nil, "arrived", true, ""},
		{"same host, body kept", "POST", "/end", 307, nil, "arrived", true, `{"q":"x"}`},
		{"same host, absolute", "GET", addr + "/end", 301, nil, "arrived", true, ""},
		{"other host", "GET", other, 302, nil, "Error: The server redirects to " + otherHost + ", which is not allowed.", false, ""},
		{"other name of the host", "GET", strings.Replace(addr, "127.0.0.1", "localhost", 1), 302, nil, "which is not allowed.", false, ""},
		{"allowed host", "GET", other, 302, []string{otherHost}, "arrived", false, ""},
		{"allowed host, body kept", "POST", other, 308, []string{strings.ToUpper(otherHost)}, "arrived", false, `{"q":"x"}`},
		{"allowed host of another port", "GET", other, 302, []string{"127.0.0.1"}, "which is not allowed.", false, ""},
		{"no http", "GET", "file:///etc/passwd", 302, nil, "Error: The server redirects to something that is not http.", false, ""},
		{"no end", "GET", "/loop", 302, nil, "Error: The server redirects more than 5 times.", false, ""},
		{"with a password", "GET", strings.Replace(addr, "//", "//u:p@", 1) + "/end", 302, nil, "arrived", true, ""},
	} {
		got, body, hops, status, location = nil, "", 0, tc.status, tc.location
		text := use(t, t.Context(), newHTTP(t, tool.HTTPOptions{Method: tc.method, URL: addr + "/start", Headers: secret, AllowHosts: tc.allow}), call, `{"q":"x"}`)
		if !strings.Contains(text, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, text, tc.want)
		}
		if hops > 5 {
			t.Errorf("%s: %d hops", tc.name, hops)
		}
		if tc.want != "arrived" {
			if got != nil {
				t.Errorf("%s: the redirect was followed", tc.name)
			}
			continue
		}
		for name, value := range secret {
			if want := map[bool]string{true: value}[tc.secrets]; got.Header.Get(name) != want {
				t.Errorf("%s: %s is %q, want %q", tc.name, name, got.Header.Get(name), want)
			}
		}
		if body != tc.body || got.Header.Get("Referer") != "" || got.Header.Get("Idempotency-Key") != call.Key {
			t.Errorf("%s: body %q, headers %v", tc.name, body, got.Header)
		}
	}
}

func TestHTTPNoDowngrade(t *testing.T) {
	plain := serve(t, func(w http.ResponseWriter, _ *http.Request) { t.Error("the redirect to http was followed") })
	secure := httptest.NewTLSServer(http.RedirectHandler(plain, http.StatusFound))
	defer secure.Close()
	tl := newHTTP(t, tool.HTTPOptions{URL: secure.URL, AllowHosts: []string{strings.TrimPrefix(plain, "http://")}, Transport: secure.Client().Transport})
	if got := use(t, t.Context(), tl, call, `{}`); !strings.HasPrefix(got, "Error: The server redirects from https to http.") {
		t.Errorf("a redirect from https to http: %q", got)
	}
}

// net/http repeats a request with the header Idempotency-Key when a kept connection breaks. Ours must be sent once.
func TestHTTPIsSentOnce(t *testing.T) {
	var requests atomic.Int32
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if requests.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, "ok")
	})
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	tl := newHTTP(t, tool.HTTPOptions{Method: "POST", URL: addr, Transport: transport})
	first, second := use(t, t.Context(), tl, call, `{}`), use(t, t.Context(), tl, call, `{}`)
	if first != "ok" || !strings.HasPrefix(second, "Error: ") || requests.Load() != 2 {
		t.Errorf("two calls made %d requests: %q, %q", requests.Load(), first, second)
	}
}

func TestHTTPUsesNoProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	addr := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	if got := use(t, t.Context(), newHTTP(t, tool.HTTPOptions{URL: addr}), call, `{}`); got != "ok" {
		t.Errorf("with HTTP_PROXY set: %q, want ok", got)
	}
}

func FuzzURLTemplate(f *testing.F) {
	for _, u := range []string{"https://h.example/v1/{a}?q={b}", "http://h:8080/{a}{b}/x?{a}={b}&c", "http://[::1]/{a};p={b}", "http://h/%2e/{a}", "http://h?{a}"} {
		for _, v := range []string{"x", "../..", "a/b?c#d", "@evil.example", "%2e%2e", "\\..\\", "é\x00\n"} {
			f.Add(u, v, v+"&x=1")
		}
	}
	f.Fuzz(func(t *testing.T, template, a, b string) {
		rec := &recorder{}
		tl, err := tool.NewHTTP(tool.HTTPOptions{Spec: spec("web"), Method: "GET", URL: template, MaxBytes: 1 << 20, Transport: rec})
		if err != nil {
			return
		}
		args, _ := message.Encode(map[string]string{"a": a, "b": b})
		c := call
		c.Args = args
		if _, err := tl.Execute(t.Context(), c); err != nil || rec.req == nil {
			return
		}
		u := rec.req.URL
		_, rest, _ := strings.Cut(template, "://")
		if i := strings.IndexAny(rest, "/?#"); i >= 0 {
			rest = rest[:i]
		}
		want, err := url.Parse("http://" + rest)
		if err != nil || !strings.EqualFold(u.Hostname(), want.Hostname()) || u.Port() != want.Port() || u.User != nil || u.Fragment != "" {
			t.Errorf("%q with %s went to %s", template, args, u)
		}
		for segment := range strings.SplitSeq(u.Path, "/") {
			if segment == "." || segment == ".." {
				t.Errorf("%q with %s made the path %s", template, args, u.Path)
			}
		}
		// The arguments cannot make more pairs than the template has.
		_, query, _ := strings.Cut(template, "?")
		if strings.Count(u.RawQuery, "&") > strings.Count(query, "&") {
			t.Errorf("%q with %s made the query %s", template, args, u.RawQuery)
		}
	})
}

func ExampleNewHTTP() {
	rec := &recorder{}
	weather, err := tool.NewHTTP(tool.HTTPOptions{
		Spec:      tool.Spec{Name: "weather", SideEffect: tool.ReadOnly},
		Method:    "GET",
		URL:       "https://wx.intra/v1/{city}?units={units}",
		MaxBytes:  1 << 20,
		Transport: rec, // answers "ok"
	})
	if err != nil {
		panic(err)
	}
	tools, err := tool.NewSet(weather)
	if err != nil {
		panic(err)
	}
	settled := tools.Execute(context.Background(), "weather", tool.Call{ID: "c1", Args: json.RawMessage(`{"city":"Rio de Janeiro"}`)})
	fmt.Println(rec.req.URL)
	fmt.Println(message.Render(&settled.Outcome))
	// Output:
	// https://wx.intra/v1/Rio%20de%20Janeiro
	// ok
}

// redirecting answers the first request with a redirect, and notes whom the others go to.
type redirecting struct {
	to   string
	sent []*http.Request
}

func (r *redirecting) RoundTrip(req *http.Request) (*http.Response, error) {
	r.sent = append(r.sent, req)
	if len(r.sent) == 1 {
		return &http.Response{StatusCode: 302, Header: http.Header{"Location": {r.to}}, Body: http.NoBody, Request: req}, nil
	}
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}}, Body: http.NoBody, Request: req}, nil
}

// FuzzRedirect follows redirects to the hosts that are allowed only, never to http, and with the secret to none but the
// tool's own.
func FuzzRedirect(f *testing.F) {
	for _, to := range []string{"/x", "//other.example/x", "https://other.example:8443/", "http://h.example/", "https://h.example@evil.example/", "https://OTHER.example:443",
		"https://evil.example#@h.example", "https:h.example", "\\\\evil.example", "file:///etc/passwd", "https://h.example:44３/", "?a=b", "", "https://[::1]/", "https://u:p@h.example/"} {
		f.Add(to)
	}
	f.Fuzz(func(t *testing.T, to string) {
		via := &redirecting{to: to}
		tl, err := tool.NewHTTP(tool.HTTPOptions{Spec: spec("web"), Method: "GET", URL: "https://h.example/a", MaxBytes: 1 << 20, AllowHosts: []string{"other.example"},
			Headers: map[string]string{"Authorization": "secret"}, Transport: via})
		if err != nil {
			t.Fatal(err)
		}
		tl.Execute(t.Context(), call) //nolint:errcheck // a refusal is as good
		for _, req := range via.sent {
			host := strings.ToLower(req.URL.Host)
			own := host == "h.example" || host == "h.example:443"
			if req.URL.Scheme != "https" || !own && host != "other.example" && host != "other.example:443" || req.URL.User != nil {
				t.Errorf("the redirect to %q leads to %s", to, req.URL)
			}
			// net/http takes the same name in capitals for another host, and sends it less.
			less := own && req.URL.Host != host
			if got := req.Header.Get("Authorization"); (got == "secret") != own && !less || got != "" && got != "secret" {
				t.Errorf("the redirect to %q takes Authorization %q to %s", to, got, req.URL)
			}
		}
	})
}
