package provider_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/server/provider"
)

func none(o *provider.OpenAIOptions) { o.Retries = 0 }

func TestRefusals(t *testing.T) {
	const page = "<html><body>secret page</body></html>"
	for _, tc := range []struct {
		status  int
		body    string
		kind    *fault.Kind
		message string
	}{
		{429, `{"error":{"message":"Slow down","code":"rate_limit_exceeded"}}`, fault.RateLimit, "local answered 429: Slow down"},
		{401, `{"error":{"message":"Incorrect API key provided: k-very-secret"}}`, fault.Unauthorized, "local answered 401: Incorrect API key provided: [redacted]"},
		{401, `{"error":"bad key sk-proj-abcdef123, Bearer xyz"}`, fault.Unauthorized, "local answered 401: bad key [redacted], [redacted]"},
		{403, `{"error":"no ops for gate-secret"}`, fault.Unauthorized, "local answered 403: no ops for [redacted]"},
		{403, ``, fault.Unauthorized, "local answered 403: forbidden"},
		{400, `{"error":{"message":"This model's maximum context length is 8 tokens"}}`, fault.ContextLength, "local answered 400: This model's maximum context length is 8 tokens"},
		{400, `{"error":{"message":"too big","code":"context_length_exceeded"}}`, fault.ContextLength, "local answered 400: too big"},
		{400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens"}}`, fault.ContextLength, "local answered 400: prompt is too long: 9 tokens"},
		{422, `{"detail":[{"loc":["body","messages"],"msg":"field required","input":"context length"},{"msg":"and more"}]}`, fault.InvalidRequest, "local answered 422: messages: field required; and more"},
		{413, `too many tokens`, fault.ContextLength, "local answered 413: too many tokens"},
		{400, `{"error":{"message":"no","code":"content_filter"}}`, fault.ContentFilter, "local answered 400: no"},
		{404, `{"detail":"Not Found"}`, fault.InvalidRequest, "local answered 404: Not Found"},
		{400, `{"object":"error","message":"what?","code":400}`, fault.InvalidRequest, "local answered 400: what?"},
		{400, `[{"error":{"code":400,"message":"a list","status":"INVALID_ARGUMENT"}}]`, fault.InvalidRequest, "local answered 400: a list"},
		{418, page, fault.InvalidRequest, "local answered 418: i'm a teapot"},
		{302, page, fault.InvalidRequest, "local answered 302: redirects are not followed; check baseUrl"},
		{503, `{"error":{"message":"a\n  b\u0000c"}}`, fault.Capacity, "local answered 503: a b c"},
		{529, ``, fault.Capacity, "local answered 529"},
		{400, `gate-secret, gate-secret-more`, fault.InvalidRequest, "local answered 400: [redacted], [redacted]"},
		{500, `{"error":null}`, fault.Transient, "local answered 500: internal server error"},
		{408, ``, fault.Transient, "local answered 408: request timeout"},
		{500, strings.Repeat("é", 5000), fault.Transient, "local answered 500: " + strings.Repeat("é", 299) + "…"},
	} {
		p := mustOpenAI(t, provider.OpenAIOptions{
			APIKey:  "k-very-secret",
			Headers: map[string]string{"X-Gate": "Token gate-secret", "X-Other": "gate-secret-more", "X-Team": "ops"},
			Transport: exchange(func(r *http.Request) (*http.Response, error) {
				h := http.Header{"Location": {"http://elsewhere.test/"}}
				return &http.Response{StatusCode: tc.status, Header: h, Body: io.NopCloser(strings.NewReader(tc.body)), Request: r}, nil
			}),
		})
		_, err := p.Stream(t.Context(), hello(), ignore)
		e := asError(t, err)
		if e.Kind != tc.kind || e.Message != tc.message {
			t.Errorf("Stream() with %d %.60s = %s %q, want %s %q", tc.status, tc.body, e.Kind.Code, e.Message, tc.kind.Code, tc.message)
		}
	}
}

func TestErrorsInsideTheStream(t *testing.T) {
	for _, tc := range []struct {
		body string
		want string
	}{
		{sse(say("he"), `{"error":{"message":"The server is overloaded","type":"overloaded_error"}}`), "capacity: local reported an error: The server is overloaded"},
		{sse(`{"error":{"message":"slow","code":429}}`), "rate-limit: local answered 429: slow"},
		{sse(`{"error":{"message":"slow","type":"rate_limit_error"}}`), "rate-limit: local reported an error: slow"},
		{sse(`{"error":{"message":"x","code":"context_length_exceeded"}}`), "context-length: local reported an error: x"},
		{sse(`{"error":{"message":"x","type":"invalid_request_error"}}`), "invalid-request: local reported an error: x"},
		{sse(`{"error":{"message":"x","type":"authentication_error"}}`), "unauthorized: local reported an error: x"},
		{sse(`{"error":{"message":"x","code":"content_filter"}}`), "content-filter: local reported an error: x"},
		{sse(`{"error":"CUDA error"}`), "transient: local reported an error: CUDA error"},
		{`{"object":"error","message":"x","code":400}`, "invalid-request: local answered 400: x"},
		{`{"status":"ok"}`, "transient: the answer of local broke off or cannot be read: unexpected EOF"},
		{sse(say("he"), `{"choices`), "transient: the answer of local broke off or cannot be read: unexpected end of JSON input"},
		{"data: " + say("he") + "\n\n", "transient: the answer of local broke off or cannot be read: unexpected EOF"},
		{"data: [DONE]\n\n", "transient: the answer of local broke off or cannot be read: unexpected EOF"},
		{"", "transient: the answer of local broke off or cannot be read: EOF"},
		{"data: " + strings.Repeat("x", 2<<20), "unknown: the answer of local is too large: sse: event too long"},
		{strings.Repeat("data: "+strings.Repeat("x", 1<<18)+"\n", 8), "unknown: the answer of local is too large: sse: event too long"},
		{strings.Repeat(": ping\n", 3<<20), "unknown: the answer of local is too large: the answer is larger than 16 MiB"},
	} {
		p := mustOpenAI(t, provider.OpenAIOptions{Transport: answering(strings.NewReader(tc.body))})
		res, err := p.Stream(t.Context(), hello(), ignore)
		if err == nil || err.Error() != tc.want || res != nil {
			t.Errorf("Stream() with %.80s = %v, %v\nwant %s", tc.body, res, err, tc.want)
		}
	}
}

func TestUnreachable(t *testing.T) {
	for _, tc := range []struct {
		cause error
		want  string
	}{
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "local could not be reached: connection refused"},
		{&net.DNSError{Name: "model.test"}, "local could not be reached: its name cannot be resolved"},
		{errors.New("strange"), "local could not be reached"},
	} {
		p := mustOpenAI(t, provider.OpenAIOptions{BaseURL: "http://model.test/v1?key=k-secret",
			Transport: exchange(func(*http.Request) (*http.Response, error) { return nil, tc.cause })})
		_, err := p.Stream(t.Context(), hello(), ignore)
		e := asError(t, err)
		if e.Kind != fault.Transient || e.Message != tc.want || !errors.Is(err, tc.cause) || strings.Contains(err.Error(), "k-secret") {
			t.Errorf("Stream() with %v = %v, want %s", tc.cause, err, tc.want)
		}
	}
}

func TestKeyThatCannotBeUsed(t *testing.T) {
	_, err := provider.NewOpenAI(provider.OpenAIOptions{BaseURL: "http://h", APIKey: "a\nb"})
	if f := fault.Of(err); f == nil || f.Kind != fault.ConfigInvalid || f.Issues[0].Path[0] != "apiKeyRef" || strings.Contains(f.Error(), "a\nb") {
		t.Errorf("NewOpenAI() with a key of two lines = %v, want config-invalid without the key", err)
	}
}

func TestRetries(t *testing.T) {
	ok := reply{body: sse(say("hi", "stop"))}
	busy := reply{status: 503}
	after := func(value string) reply { return reply{status: 429, header: map[string]string{"Retry-After": value}} }
	for _, tc := range []struct {
		name     string
		replies  []reply
		kind     *fault.Kind   // nil = success
		min, max time.Duration // that the call takes
	}{
		{"nothing fails", []reply{ok}, nil, 0, 0},
		{"twice busy", []reply{busy, busy, ok}, nil, 375 * time.Millisecond, 750 * time.Millisecond},
		{"always busy", []reply{busy, busy, busy, busy}, fault.Capacity, 875 * time.Millisecond, 1750 * time.Millisecond},
		{"seconds", []reply{after("7"), ok}, nil, 7 * time.Second, 7 * time.Second},
		{"a date", []reply{after("Sat, 01 Jan 2000 00:00:09 GMT"), ok}, nil, 9 * time.Second, 9 * time.Second},
		{"milliseconds", []reply{{status: 429, header: map[string]string{"Retry-After": "7", "Retry-After-Ms": "1500"}}, ok}, nil, 1500 * time.Millisecond, 1500 * time.Millisecond},
		{"too long", []reply{after("3600"), ok}, nil, 30 * time.Second, 30 * time.Second},
		{"nonsense", []reply{after("NaN"), after("-5"), after("1e999"), ok}, nil, 875 * time.Millisecond, 1750 * time.Millisecond},
		{"cut before the first delta", []reply{{body: ": ping\n\n"}, ok}, nil, 125 * time.Millisecond, 250 * time.Millisecond},
		{"cut after the first delta", []reply{{body: "data: " + say("h") + "\n\n"}}, fault.Transient, 0, 0},
		{"wrong", []reply{{status: 400}}, fault.InvalidRequest, 0, 0},
		{"locked out", []reply{{status: 401}}, fault.Unauthorized, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newServer(t, nil, tc.replies...)
				start := time.Now()
				res, err := p.Stream(t.Context(), hello(), ignore)
				if took := time.Since(start); took < tc.min || took > tc.max {
					t.Errorf("Stream() took %v, want %v to %v", took, tc.min, tc.max)
				}
				if len(s.bodies) != len(tc.replies) {
					t.Errorf("Stream() made %d requests, want %d", len(s.bodies), len(tc.replies))
				}
				if tc.kind != nil {
					if e := asError(t, err); e.Kind != tc.kind {
						t.Errorf("Stream() = %v, want %s", err, tc.kind.Code)
					}
				} else if err != nil {
					t.Errorf("Stream() = %+v, %v, want success", res, err)
				}
			})
		})
	}
}

func TestRetryAfterIsTold(t *testing.T) {
	for value, want := range map[string]time.Duration{"90": 90 * time.Second, "99999999999": 24 * time.Hour, "soon": 0} {
		synctest.Test(t, func(t *testing.T) {
			_, p := newServer(t, none, reply{status: 429, header: map[string]string{"Retry-After": value}})
			_, err := p.Stream(t.Context(), hello(), ignore)
			if e := asError(t, err); e.RetryAfter != want || fault.Of(err).RetryAfter != want {
				t.Errorf("RetryAfter with %q = %v, want %v", value, e.RetryAfter, want)
			}
		})
	}
}

// The clock of a server may tell another time than ours.
func TestRetryAfterIsByTheServersClock(t *testing.T) {
	sent := time.Now().Add(-48 * time.Hour).UTC()
	synctest.Test(t, func(t *testing.T) {
		_, p := newServer(t, none, reply{status: 429, header: map[string]string{"Date": sent.Format(http.TimeFormat),
			"Retry-After": sent.Add(90 * time.Second).Format(http.TimeFormat)}})
		_, err := p.Stream(t.Context(), hello(), ignore)
		if e := asError(t, err); e.RetryAfter != 90*time.Second {
			t.Errorf("RetryAfter of a date 90 seconds after that of the answer = %v", e.RetryAfter)
		}
	})
}

func TestRepairsAreRemembered(t *testing.T) {
	refuse := func(text string) reply { return reply{status: 400, body: `{"error":{"message":"` + text + `"}}`} }
	ok := reply{body: sse(say("1", "stop"))}
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		s, p := newServer(t, func(o *provider.OpenAIOptions) {
			none(o)
			o.Logger = slog.New(slog.NewTextHandler(&logged, nil))
		},
			refuse("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
			refuse("'temperature' does not support 0.2 with this model."),
			reply{status: 422, body: `{"detail":[{"loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}`},
			refuse("This response_format type is unavailable now"),
			ok, ok, refuse("no such model"),
		)
		req := hello()
		req.Temperature, req.MaxTokens = new(0.2), 5
		req.Output = &provider.OutputSpec{Schema: []byte(`{"type":"number"}`)}
		for call, requests := range []int{5, 6} {
			if res, err := p.Stream(t.Context(), req, ignore); err != nil || len(s.bodies) != requests {
				t.Fatalf("call %d: Stream() = %+v, %v after %d requests, want success after %d", call, res, err, len(s.bodies), requests)
			}
			last := s.bodies[len(s.bodies)-1]
			for _, member := range []string{"max_tokens", "temperature", "stream_options", "response_format"} {
				if v, sent := last[member]; sent {
					t.Errorf("call %d: body[%s] = %s, want it left out", call, member, v)
				}
			}
			if got := string(last["max_completion_tokens"]); got != "5" {
				t.Errorf("call %d: body[max_completion_tokens] = %s, want 5", call, got)
			}
			if got := string(last["messages"]); !strings.Contains(got, `{"role":"system","content":"Answer with one JSON value`) || !strings.Contains(got, `{\"type\":\"number\"}`) {
				t.Errorf("call %d: messages = %s, want the schema in a last message", call, got)
			}
		}
		// Another model starts afresh.
		other := *req
		other.Model = "other"
		_, err := p.Stream(t.Context(), &other, ignore)
		if e := asError(t, err); e.Kind != fault.InvalidRequest || s.bodies[len(s.bodies)-1]["max_tokens"] == nil {
			t.Errorf("Stream(other) = %v with %v, want invalid-request for a whole body", err, s.bodies[len(s.bodies)-1])
		}
		if got := strings.Count(logged.String(), "model refused a parameter"); got != 4 || strings.Contains(logged.String(), "hello") {
			t.Errorf("log = %s, want four repairs and no content", logged.String())
		}
	})
}

func TestRepairsThatDoNotHelp(t *testing.T) {
	refused := func(text string) reply { return reply{status: 400, body: `{"error":{"message":"` + text + `"}}`} }
	for _, tc := range []struct {
		name    string
		replies []reply
		want    string
	}{
		{"a value out of range is the caller's", []reply{refused("temperature must be at most 2")}, "local answered 400: temperature must be at most 2"},
		{"a long conversation is not the limit's fault", []reply{refused("max_tokens: maximum context length is 8")}, "local answered 400: max_tokens: maximum context length is 8"},
		{"each repair is tried once", []reply{refused("max_tokens no"), refused("max_tokens no")}, "local answered 400: max_tokens no"},
	} {
		synctest.Test(t, func(t *testing.T) {
			again := reply{body: sse(say("x", "stop"))}
			s, p := newServer(t, nil, append(tc.replies, again)...)
			req := hello()
			req.Temperature, req.MaxTokens = new(3.0), 9000
			if _, err := p.Stream(t.Context(), req, ignore); asError(t, err).Message != tc.want {
				t.Errorf("%s: Stream() = %v, want %s", tc.name, err, tc.want)
			}
			if _, err := p.Stream(t.Context(), req, ignore); err != nil {
				t.Errorf("%s: second Stream() = %v", tc.name, err)
			}
			last := s.bodies[len(s.bodies)-1]
			if len(s.bodies) != len(tc.replies)+1 || last["max_tokens"] == nil || last["temperature"] == nil {
				t.Errorf("%s: request %d = %v, want nothing remembered", tc.name, len(s.bodies), last)
			}
		})
	}
}
