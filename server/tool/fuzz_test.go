package tool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
			if o.Kind != message.InvalidOutput || json.Valid(bytes.ToValidUTF8(output, nil)) && message.Depth(output) <= message.MaxDepth && utf8.Valid(output) {
				t.Errorf("Settle(%q) = %s %s", output, o.Kind, o.Message)
			}
			return
		}
		if !json.Valid(o.Output) || !utf8.Valid(o.Output) || bytes.ContainsAny(o.Output, "\r\n") || strings.TrimSpace(tool.Render(&o)) == "" {
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

// FuzzDeltas puts together what a tool streams as changes, a path and a value on a line each.
func FuzzDeltas(f *testing.F) {
	f.Add("\n{}\n/a\n[]\n/a/-\n1\n/a/0\n{\"b\":null}\n/a/0/b\n\"x\"")
	f.Add("/a~1b/~0\n1e400\n/-/-\n2\n/\n3\na\n4")
	f.Add("/a\n1\n/a/b\n2")
	f.Add(strings.Repeat("/a", 101) + "\n1\n/00\n[\n/1\n")
	f.Fuzz(func(t *testing.T, script string) {
		lines := strings.Split(script, "\n")
		tools := one(t, tool.Spec{MaxResultTokens: -1}, func(_ context.Context, c tool.Call) (tool.Result, error) {
			for i := 0; i+1 < len(lines); i += 2 {
				c.Stream(tool.Chunk{Kind: tool.JSONDelta, Path: lines[i], Value: json.RawMessage(lines[i+1])})
			}
			return tool.Result{}, nil
		})
		o := tools.Execute(t.Context(), "t", call).Outcome
		if len(lines) < 2 {
			return
		}
		want, ok := assembled(lines)
		if o.Failed() {
			if ok || o.Kind != message.InvalidOutput || len(o.Message) > 1000 {
				t.Errorf("the deltas %q make %s %q, want %v", lines, o.Kind, o.Message, want)
			}
			return
		}
		dec := json.NewDecoder(bytes.NewReader(o.Output))
		dec.UseNumber()
		var got any
		if err := dec.Decode(&got); err != nil || !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("the deltas %q make %s, want %v, %v", lines, o.Output, want, ok)
		}
	})
}

// assembled is what deltas make, found in a second way: nodes that know their parents' slots. ok is false where nothing
// sound comes out.
func assembled(lines []string) (root any, ok bool) {
	for i := 0; i+1 < len(lines); i += 2 {
		dec := json.NewDecoder(strings.NewReader(lines[i+1]))
		dec.UseNumber() // some are too large for a float64
		var value any
		if !json.Valid([]byte(lines[i+1])) || dec.Decode(&value) != nil {
			return nil, false
		}
		set, get := func(v any) { root = v }, func() any { return root }
		if path := lines[i]; path != "" {
			if path[0] != '/' || strings.Count(path, "/") > 100 {
				return nil, false
			}
			for token := range strings.SplitSeq(path[1:], "/") {
				token = strings.ToValidUTF8(strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~"), "\uFFFD")
				parent, put := get(), set
				if parent == nil {
					if parent = any(map[string]any{}); token == "-" {
						parent = []any{}
					}
					put(parent)
				}
				switch p := parent.(type) {
				case map[string]any:
					set, get = func(v any) { p[token] = v }, func() any { return p[token] }
				case []any:
					at, err := strconv.Atoi(token)
					if token == "-" {
						at, err = len(p), nil
					}
					if err != nil || at < 0 || at > len(p) {
						return nil, false
					}
					if at == len(p) {
						p = append(p, nil)
						put(p)
					}
					set, get = func(v any) { p[at] = v }, func() any { return p[at] }
				default:
					return nil, false
				}
			}
		}
		set(value)
	}
	b, err := message.Encode(root)
	return root, err == nil && message.Depth(b) <= message.MaxDepth
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

// FuzzPairs fills a query with arguments that are lists, of which a pair may have several.
func FuzzPairs(f *testing.F) {
	f.Add([]byte(`{"a":["1","2"],"b":["x",["y"],null]}`))
	f.Add([]byte(`{"a":[[]],"b":{}}`))
	f.Add(fmt.Appendf(nil, `{"a":[%s0],"b":[%[1]s0]}`, strings.Repeat("0,", 60)))
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
	tl := newHTTP(t, tool.HTTPOptions{Method: "GET", URL: "http://h/?p={a}{b}{c}", Transport: &recorder{}})
	for name, args := range map[string][]byte{
		"two lists":             fmt.Appendf(nil, `{"a":%s,"b":%[1]s,"c":0}`, list),
		"two lists for nothing": fmt.Appendf(nil, `{"a":%s,"b":%[1]s}`, list),
		"lists in lists":        fmt.Appendf(nil, `{"a":%s0%s,"c":%s}`, strings.Repeat("[", 400), strings.Repeat("]", 400), list),
	} {
		c := call
		c.Args = args
		pairCost.Check(t, len(args), func() {
			if _, err := tl.Execute(t.Context(), c); err == nil && name == "two lists" {
				t.Error("two lists of 32000 make a query")
			}
		})
		if t.Failed() {
			t.Fatal(name)
		}
	}
}
