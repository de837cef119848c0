package tool_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"agentd/server/canonical"
	"agentd/server/fuzztest"
	"agentd/server/message"
	secrets "agentd/server/secret"
	"agentd/server/tool"
)

// readCost is what is allowed where JSON becomes Go values and JSON again.
var readCost = fuzztest.Cost{PerByte: 100, Base: 128 << 10}

// FuzzResult settles what a tool returns, which may be anything.
func FuzzResult(f *testing.F) {
	f.Add([]byte(`"héllo `+strings.Repeat("wörld ", 20)+`"`), 8, false)
	f.Add([]byte(`{"a":[1e400,"\ud800"," `+"\xff"+`"]} `), 4, true)
	f.Add([]byte(strings.Repeat("[", 501)+strings.Repeat("]", 501)), -1, true)
	f.Add([]byte("\n"), 0, false)
	f.Fuzz(func(t *testing.T, output []byte, limit int, tail bool) {
		s := tool.Spec{MaxResultTokens: limit, Truncation: tool.Middle}
		if tail {
			s.Truncation = tool.Tail
		}
		tools := one(t, s, nil)
		settle := func(output []byte) tool.Settled {
			return tools.Settle("t", tool.Call{RunID: "r", ID: "c"}, tool.Result{Output: output})
		}
		readCost.Check(t, len(output), func() { settle(output) })
		first := settle(output)
		o := first.Outcome
		if o.Failed() {
			if o.Kind != message.InvalidOutput || json.Valid(bytes.ToValidUTF8(output, nil)) && canonical.Deeper(output, message.MaxDepth) < 0 && utf8.Valid(output) {
				t.Errorf("Settle(%q) = %s %s", output, o.Kind, o.Message)
			}
			return
		}
		if !json.Valid(o.Output) || !utf8.Valid(o.Output) || bytes.ContainsAny(o.Output, "\r\n") || strings.TrimSpace(message.Render(&o)) == "" {
			t.Errorf("Settle(%q) = %q, want JSON on one line", output, o.Output)
		}
		if first.Spill != nil && (o.ResultHandle == nil || int64(len(first.Spill.Data)) != o.ResultHandle.Bytes || !strings.HasPrefix(string(first.Spill.Data), o.ResultHandle.Preview)) {
			t.Errorf("Settle(%q) spills %q and tells of %+v", output, first.Spill.Data, o.ResultHandle)
		}
		// What fits comes through as it means, and as it is the second time.
		var text string
		if again := settle(o.Output).Outcome; first.Spill == nil && json.Unmarshal(o.Output, &text) != nil && !bytes.Equal(again.Output, o.Output) {
			t.Errorf("Settle(%q) = %q, and of that %q", output, o.Output, again.Output)
		}
		if first.Spill == nil && limit > 0 && limit < 1<<20 && utf8.RuneCountInString(text) > 4*limit+len("\n[... 99999999 of 99999999 characters are left out here ...]\n") {
			t.Errorf("Settle() with %d tokens leaves %d characters", limit, utf8.RuneCountInString(text))
		}
	})
}

// FuzzAnswer lets an HTTP tool read whatever a server answers.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "application/json", "", []byte(`{"a":1}`))
	f.Add(200, "image/png; x=\"", "", []byte("\x89PNG"))
	f.Add(200, "text/plain; charset=latin1", "", []byte("\xEF\xBB\xBF\xff"))
	f.Add(429, "text/html", "120", []byte("the key is s3cr3t-value"))
	f.Add(429, "", "Fri, 31 Dec 9999 23:59:59 GMT", []byte("a\x1b[0m\xff"))
	f.Add(503, ";", "-1", []byte(" \n"))
	f.Fuzz(func(t *testing.T, status int, media, wait string, body []byte) {
		if status < 200 || status > 599 || status/100 == 3 {
			return
		}
		const secret = "s3cr3t-value"
		known := &secrets.Redactor{}
		known.Add([]byte(secret))
		tl := newHTTP(t, tool.HTTPOptions{Method: "GET", URL: "http://h/", Headers: map[string]string{"X-Key": secret}, Known: known,
			Transport: answering(func(req *http.Request) *http.Response {
				return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {media}, "Retry-After": {wait}},
					Body: io.NopCloser(bytes.NewReader(body)), Request: req}
			})})
		res, err := tl.Execute(t.Context(), call)
		if e, ok := errors.AsType[*tool.Error](err); err != nil {
			if !ok || e.Message == "" || !utf8.ValidString(e.Message) || strings.Contains(e.Message, secret) || e.RetryAfter < 0 || e.RetryAfter > 24*time.Hour {
				t.Errorf("%d %q %q %q = %+v, want a sound error without the secret", status, media, wait, body, err)
			}
			return
		}
		switch {
		case status/100 != 2:
			t.Errorf("%d is taken for a success", status)
		case res.Output != nil && !json.Valid(res.Output):
			t.Errorf("%q %q = %q, want JSON", media, body, res.Output)
		case len(res.Parts) > 0 && (res.Parts[0].Type != "image" || !bytes.Equal(res.Parts[0].Image.Data, body)):
			t.Errorf("%q %q = %+v, want its image", media, body, res.Parts)
		}
	})
}

type answering func(*http.Request) *http.Response

func (a answering) RoundTrip(req *http.Request) (*http.Response, error) { return a(req), nil }

// FuzzPairs fills a query with arguments that are lists, which repeat a pair.
func FuzzPairs(f *testing.F) {
	f.Add([]byte(`{"a":["1","2"],"b":["x",["y"],null]}`))
	f.Add([]byte(`{"a":[[]],"b":{}}`))
	f.Add(fmt.Appendf(nil, `{"a":[%s0],"b":[%[1]s0]}`, strings.Repeat("0,", 1000)))
	f.Fuzz(func(t *testing.T, args []byte) {
		rec := &recorder{}
		tl := newHTTP(t, tool.HTTPOptions{Method: "GET", URL: "http://h/?p={a}-{b}&q={b}", Transport: rec})
		c := call
		c.Args = args
		execute := func() (err error) {
			_, err = tl.Execute(t.Context(), c)
			return err
		}
		pairCost.Check(t, len(args), func() { execute() }) //nolint:errcheck // it is looked at below
		if err := execute(); err != nil {
			if e, ok := errors.AsType[*tool.Error](err); !ok || e.Kind != message.InvalidInput {
				t.Errorf("the arguments %q: %v, want invalid_input", args, err)
			}
			return
		}
		if pairs := strings.Count(rec.req.URL.RawQuery, "&") + 1; pairs > 1000 {
			t.Errorf("the arguments %q make %d pairs", args, pairs)
		}
		for name := range rec.req.URL.Query() {
			if name != "p" && name != "q" {
				t.Errorf("the arguments %q make the query %q", args, rec.req.URL.RawQuery)
			}
		}
	})
}

// pairCost has room for a thousand pairs with a long argument in each, which may be read in each.
var pairCost = fuzztest.Cost{PerByte: 4000, Base: 4 << 20, Time: time.Second}

func TestPairsCost(t *testing.T) {
	list := fuzztest.Fill("[", func(int) string { return "0," }, "0]")
	tl := newHTTP(t, tool.HTTPOptions{Method: "GET", URL: "http://h/?p={a}&q={b}&r={a}{b}", Transport: &recorder{}})
	for name, args := range map[string][]byte{
		"long list":      fmt.Appendf(nil, `{"a":%s}`, list),
		"lists in lists": fmt.Appendf(nil, `{"a":%s0%s,"b":%s}`, strings.Repeat("[", 400), strings.Repeat("]", 400), list),
	} {
		c := call
		c.Args = args
		pairCost.Check(t, len(args), func() {
			if _, err := tl.Execute(t.Context(), c); err == nil {
				t.Error("a list of 32000 makes a query")
			}
		})
		if t.Failed() {
			t.Fatal(name)
		}
	}
}
