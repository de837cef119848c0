package external_test

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/external"
	"agentd/server/fault"
	"agentd/server/message"
)

func newHTTP(t *testing.T, opts external.HTTPOptions) *external.HTTP {
	t.Helper()
	opts.ID, opts.Timeout, opts.MaxOutput = "bot", cmp.Or(opts.Timeout, time.Minute), cmp.Or(opts.MaxOutput, 1<<20)
	a, err := external.NewHTTP(opts)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// answering serves the same answer to every request.
func answering(t *testing.T, status int, contentType, body string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestHTTPPostsTheInput(t *testing.T) {
	var got *http.Request
	var body []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		io.WriteString(w, ` {"output":{"n":1},"usage":{"promptTokens":3,"completionTokens":4,"totalTokens":7},"more":true} `)
	}))
	defer srv.Close()
	key := []byte("hook key")
	a := newHTTP(t, external.HTTPOptions{URL: srv.URL + "/run?x=1", Headers: map[string]string{"x-team": "ops"}, HMACKey: key})
	in := input("a<b")
	in.SessionID, in.UserID = "s", "u"
	in.Messages = func() ([]message.Message, error) {
		return []message.Message{{Role: message.User, Content: message.Text("before")}}, nil
	}
	before := time.Now().Unix()
	res, err := a.Run(t.Context(), in)
	if err != nil || output(t, res) != `{"n":1}` || res.Usage.TotalTokens != 7 || a.ID() != "bot" {
		t.Errorf("Run() = %s, %+v, %v", res.Output, res.Usage, err)
	}
	want := `{"runId":"run-1","agentId":"bot","sessionId":"s","userId":"u","input":"a<b","messages":[{"role":"user","content":"before"}]}`
	if string(body) != want {
		t.Errorf("body = %s, want %s", body, want)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json", "Idempotency-Key": "run-1", "X-Team": "ops",
	} {
		if got.Header.Get(name) != want {
			t.Errorf("%s = %q, want %q", name, got.Header.Get(name), want)
		}
	}
	stamp := got.Header.Get("X-Timestamp")
	if n, err := strconv.ParseInt(stamp, 10, 64); err != nil || n < before || n > time.Now().Unix() {
		t.Errorf("X-Timestamp = %q, want the time in seconds", stamp)
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%s", stamp, body)
	if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); got.Header.Get("X-Signature") != want {
		t.Errorf("X-Signature = %q, want %q", got.Header.Get("X-Signature"), want)
	}
	if got.Method != http.MethodPost || got.URL.RequestURI() != "/run?x=1" {
		t.Errorf("request line = %s %s", got.Method, got.URL.RequestURI())
	}
}

func TestHTTPUnsignedWithoutKey(t *testing.T) {
	var got http.Header
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		io.WriteString(w, `{"output":1}`)
	}))
	defer srv.Close()
	if _, err := newHTTP(t, external.HTTPOptions{URL: srv.URL}).Run(t.Context(), input("")); err != nil {
		t.Fatal(err)
	}
	if got.Get("X-Signature") != "" || got.Get("X-Timestamp") != "" {
		t.Errorf("headers = %v, want no signature", got)
	}
}

func TestHTTPStream(t *testing.T) {
	body := ": welcome\r\n\r\n" +
		"event: text.delta\r\ndata: {\"delta\":\"Hel\"}\r\n\r\n" +
		"data: {\"type\":\"my.own\",\ndata:  \"n\":1}\n\n" +
		"data: {\"type\":\"text.complete\",\"text\":\"Hello\"}\n\n" +
		"event: result\ndata: {\"output\":\"Hello\",\"usage\":{\"promptTokens\":1,\"completionTokens\":2}}\n\n" +
		"data: this is not read\n\n"
	a := newHTTP(t, external.HTTPOptions{URL: answering(t, 200, "text/event-stream; charset=utf-8", body), Stream: "sse"})
	sink := &recorder{}
	res, err := a.Stream(t.Context(), input("hi"), sink)
	if err != nil || output(t, res) != `"Hello"` || res.Usage.TotalTokens != 3 {
		t.Errorf("Stream() = %s, %+v, %v", res.Output, res.Usage, err)
	}
	want := `{"delta":"Hel","type":"text.delta"}` + "\n" + `{"type":"my.own","n":1}` + "\n" + `{"type":"text.complete","text":"Hello"}`
	if sink.String() != want {
		t.Errorf("events = %s, want %s", sink, want)
	}
	if _, ok := any(a).(agent.Resumer); ok {
		t.Error("HTTP is a Resumer, but no server can go on from a checkpoint")
	}
}

func TestHTTPFailures(t *testing.T) {
	const sse, js = "text/event-stream", "application/json"
	for _, tc := range []struct {
		name        string
		status      int
		contentType string
		body        string
		stream      string
		kind        *fault.Kind
		says        []string
	}{
		{"status", 503, "text/plain", "no\n\tmodel \x00\xff" + strings.Repeat("y", 400), "", fault.AgentProtocol, []string{"503 Service Unavailable: no model \uFFFDy"}},
		{"status without body", 500, js, "", "sse", fault.AgentProtocol, []string{"500 Internal Server Error."}},
		{"no JSON", 200, js, "hello", "", fault.AgentProtocol, []string{"not JSON"}},
		{"no object", 200, js, "[]", "", fault.AgentProtocol, []string{"not a JSON object"}},
		{"empty", 200, js, "", "", fault.AgentProtocol, []string{"not JSON"}},
		{"trailing", 200, js, `{"output":1} x`, "", fault.AgentProtocol, []string{"not JSON"}},
		{"no output", 200, js, `{"answer":1}`, "", fault.AgentProtocol, []string{`no "output"`}},
		{"bad usage", 200, js, `{"output":1,"usage":{"promptTokens":"x"}}`, "", fault.AgentProtocol, []string{`"usage"`}},
		{"too large", 200, js, `{"output":"` + strings.Repeat("x", 1000) + `"}`, "", fault.OutputTooLarge, []string{"1000 bytes"}},
		{"no stream", 200, js, `{"output":1}`, "sse", fault.AgentProtocol, []string{"application/json"}},
		{"no result", 200, sse, "data: {\"type\":\"text.delta\",\"delta\":\"x\"}\n\n", "sse", fault.AgentProtocol, []string{"without a result"}},
		{"bad event", 200, sse, "data: {\"type\":\"a\"}\n\ndata: {}\n\n", "sse", fault.AgentProtocol, []string{"event 2"}},
		{"checkpoint", 200, sse, "data: {\"type\":\"checkpoint\",\"state\":1}\n\n", "sse", fault.AgentProtocol, []string{"checkpoint"}},
		{"approval", 200, sse, "data: {\"type\":\"approval.request\",\"toolCallId\":\"c\",\"toolName\":\"t\",\"args\":{}}\n\n", "sse",
			fault.AgentProtocol, []string{"event 1 is of type approval.request, but a run of an http agent cannot be resumed"}},
		{"stream too large", 200, sse, ":" + strings.Repeat("x", 1000) + "\n\n", "sse", fault.OutputTooLarge, []string{"1000 bytes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newHTTP(t, external.HTTPOptions{URL: answering(t, tc.status, tc.contentType, tc.body), Stream: tc.stream, MaxOutput: 1000})
			_, err := a.Stream(t.Context(), input("x"), &recorder{})
			wantFault(t, "Stream()", err, tc.kind, tc.says...)
			if f := fault.Of(err); len(f.Message) > 400 {
				t.Errorf("message has %d bytes: %s", len(f.Message), f.Message)
			}
		})
	}
}

func TestHTTPDoesNotFollowRedirects(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the redirect was followed")
	}))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	_, err := newHTTP(t, external.HTTPOptions{URL: srv.URL}).Run(t.Context(), input(""))
	wantFault(t, "Run()", err, fault.AgentProtocol, "307", "agentd follows no redirects")
}

func TestHTTPUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = newHTTP(t, external.HTTPOptions{URL: "http://" + addr + "/?key=secret"}).Run(t.Context(), input(""))
	wantFault(t, "Run()", err, fault.AgentUnreachable, "connection refused")
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("Run() error = %v, want nothing of the query", err)
	}
}

func TestHTTPConnectionLost(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000")
		io.WriteString(w, `{"output":1}`)
	}))
	defer srv.Close()
	_, err := newHTTP(t, external.HTTPOptions{URL: srv.URL}).Run(t.Context(), input(""))
	wantFault(t, "Run()", err, fault.AgentProtocol, "ended without a result")
}

func TestHTTPSinkErrorEndsTheRun(t *testing.T) {
	url := answering(t, 200, "text/event-stream", "data: {\"type\":\"a\"}\n\ndata: {\"type\":\"b\"}\n\n")
	sink := &recorder{fail: errSink}
	_, err := newHTTP(t, external.HTTPOptions{URL: url, Stream: "sse"}).Stream(t.Context(), input(""), sink)
	if !errors.Is(err, errSink) || sink.String() != `{"type":"a"}` {
		t.Errorf("Stream() error = %v after %s, want %v after the first event", err, sink, errSink)
	}
}

// A silent is a server that says the beginning of a stream and then nothing until the request is given up.
type silent struct{ begin string }

func (s silent) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.begin == "" {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	pr, pw := io.Pipe()
	go func() {
		io.WriteString(pw, s.begin)
		<-r.Context().Done()
		pw.CloseWithError(r.Context().Err())
	}()
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: pr}, nil
}

func TestHTTPTimeoutAndAbort(t *testing.T) {
	for _, begin := range []string{"", "data: {\"type\":\"text.delta\",\"delta\":\"x\"}\n\n"} {
		synctest.Test(t, func(t *testing.T) {
			a := newHTTP(t, external.HTTPOptions{URL: "http://bot.intra/", Stream: "sse", Timeout: time.Minute, Transport: silent{begin}})
			start := time.Now()
			_, err := a.Stream(t.Context(), input(""), &recorder{})
			wantFault(t, "Stream()", err, fault.AgentTimeout, "1m0s")
			if took := time.Since(start); took != time.Minute {
				t.Errorf("Stream() took %v, want a minute", took)
			}

			why := errors.New("somebody aborted")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(why) })
			if _, err = a.Stream(ctx, input(""), &recorder{}); err != why {
				t.Errorf("Stream() error = %v, want the cause %v", err, why)
			}
		})
	}
}

func TestNewHTTPNamesEveryProblem(t *testing.T) {
	_, err := external.NewHTTP(external.HTTPOptions{
		ID: "a", URL: "x",
		Headers: map[string]string{"bad name": "x", "content-type": "x", "X-A": "a\nb", "X-B": "1", "x-b": "2", "X-Ok": "ü"},
	})
	wantFault(t, "NewHTTP()", err, fault.ConfigInvalid, "[url]",
		"[headers bad name]", "[headers content-type]", "[headers X-A]", "[headers x-b]")
	if n := len(fault.Of(err).Issues); n != 5 {
		t.Errorf("NewHTTP() has %d issues, want 5: %v", n, err)
	}
	for _, url := range []string{"", "/x", "http://", "http://a b/", "https:x"} {
		if _, err := external.NewHTTP(external.HTTPOptions{ID: "a", URL: url}); !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("NewHTTP(url %q) error = %v, want config-invalid", url, err)
		}
	}
}
