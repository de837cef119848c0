package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"agentd/server/message"
	"agentd/server/tool"
)

// streaming makes a tool that streams chunks and returns nothing else.
func streaming(chunks ...tool.Chunk) execute {
	return func(_ context.Context, c tool.Call) (tool.Result, error) {
		for _, chunk := range chunks {
			c.Stream(chunk)
		}
		return tool.Result{}, nil
	}
}

func text(s string) tool.Chunk { return tool.Chunk{Kind: tool.Text, Text: s} }

func delta(path, value string) tool.Chunk {
	return tool.Chunk{Kind: tool.JSONDelta, Path: path, Value: json.RawMessage(value)}
}

func TestStreamedBody(t *testing.T) {
	for _, tc := range []struct {
		name   string
		chunks []tool.Chunk
		want   string // output, or the message of an error
	}{
		{"texts", []tool.Chunk{text("one "), text("two\xff")}, `"one two�"`},
		{"empty text", []tool.Chunk{text("")}, `null`},
		{"deltas", []tool.Chunk{delta("/n", `1`)}, `null`},
		{"texts and deltas", []tool.Chunk{text("found:"), delta("/n", `1`), text(" yes")}, `"found: yes"`},
	} {
		o := one(t, tool.Spec{}, streaming(tc.chunks...)).Execute(t.Context(), "t", call).Outcome
		if got := string(o.Output) + o.Message; got != tc.want || o.Truncated {
			t.Errorf("%s: Execute = %s, truncated %v, want %s", tc.name, got, o.Truncated, tc.want)
		}
	}
}

func TestStreamedImages(t *testing.T) {
	image := tool.Chunk{Kind: tool.Image, Data: []byte("png"), MediaType: "image/png"}
	o := one(t, tool.Spec{}, streaming(image)).Execute(t.Context(), "t", call).Outcome
	if len(o.ContentParts) != 1 || o.ContentParts[0].MimeType != "image/png" || string(o.ContentParts[0].Image.Data) != "png" {
		t.Errorf("Execute = %+v, want one image", o)
	}
	if got, want := message.Render(&o), "[image, image/png]"; got != want {
		t.Errorf("Render = %q, want %q", got, want)
	}
}

func TestReturnedValueWinsOverChunks(t *testing.T) {
	o := one(t, tool.Spec{}, func(_ context.Context, c tool.Call) (tool.Result, error) {
		c.Stream(text("working"))
		return tool.Result{Output: json.RawMessage(`{"n":1}`)}, nil
	}).Execute(t.Context(), "t", call).Outcome
	if string(o.Output) != `{"n":1}` {
		t.Errorf("Execute = %s, want the returned value", o.Output)
	}
}

func TestStreamIsCutAtTheBuffer(t *testing.T) {
	const limit = 8 << 20
	piece := strings.Repeat("x", 1<<20)
	for _, tc := range []struct {
		name      string
		chunks    []tool.Chunk
		bytes     int
		truncated bool
	}{
		{"exactly the limit", []tool.Chunk{text(strings.Repeat(piece, 8))}, limit, false},
		{"9 MiB", []tool.Chunk{text(strings.Repeat(piece, 7)), text(strings.Repeat(piece, 2)), text("more")}, limit, true},
		{"on a character boundary", []tool.Chunk{text(piece[1:]), text(strings.Repeat("é", 8<<19))}, limit - 1, true},
		{"an image that does not fit", []tool.Chunk{text(strings.Repeat(piece, 8)), {Kind: tool.Image, Data: []byte("x")}, text("x")}, limit, true},
	} {
		var live int
		c := call
		c.Stream = func(chunk tool.Chunk) { live += len(chunk.Text) }
		o := one(t, tool.Spec{MaxResultTokens: -1}, streaming(tc.chunks...)).Execute(t.Context(), "t", c).Outcome
		sent := 0
		for _, chunk := range tc.chunks {
			sent += len(chunk.Text)
		}
		if live != sent {
			t.Errorf("%s: %d bytes were delivered live, want all %d", tc.name, live, sent)
		}
		var body string
		if err := json.Unmarshal(o.Output, &body); err != nil || len(body) != tc.bytes || o.Truncated != tc.truncated || !utf8.ValidString(body) {
			t.Errorf("%s: Execute kept %d bytes, truncated %v, want %d, %v", tc.name, len(body), o.Truncated, tc.bytes, tc.truncated)
		}
		if note := "\n\n[The tool wrote more than its limit; the rest was not kept.]"; strings.HasSuffix(message.Render(&o), note) != tc.truncated {
			t.Errorf("%s: Render ends with the note: %v, want %v", tc.name, !tc.truncated, tc.truncated)
		}
	}
}

func TestTruncation(t *testing.T) {
	long := strings.Repeat("é", 500) + strings.Repeat("日", 500)
	for _, tc := range []struct {
		name  string
		spec  tool.Spec
		text  string
		want  string
		cut   bool
		spill string
	}{
		{"exactly at the limit", tool.Spec{MaxResultTokens: 250}, long, long, false, ""},
		{"no limit", tool.Spec{MaxResultTokens: -1}, long, long, false, ""},
		{"an endless limit", tool.Spec{MaxResultTokens: math.MaxInt}, long, long, false, ""},
		{"middle", tool.Spec{MaxResultTokens: 100}, long,
			strings.Repeat("é", 174) + "\n[... 653 of 1000 characters are left out here ...]\n" + strings.Repeat("日", 173), true, ""},
		{"tail", tool.Spec{MaxResultTokens: 100, Truncation: tool.Tail}, long,
			"[... 653 of 1000 characters are left out here ...]\n" + strings.Repeat("日", 347), true, ""},
		{"a tiny limit", tool.Spec{MaxResultTokens: 1}, long,
			"éé\n[... 996 of 1000 characters are left out here ...]\n日日", true, ""},
		{"spill", tool.Spec{MaxResultTokens: 249, Truncation: tool.Spill}, long, long, true, "c1.txt"},
	} {
		out, _ := message.Encode(tc.text)
		s := one(t, tc.spec, result(string(out))).Execute(t.Context(), "t", call)
		var got string
		json.Unmarshal(s.Outcome.Output, &got)
		if got != tc.want {
			t.Errorf("%s: Execute = %q, want %q", tc.name, got, tc.want)
		}
		if (s.Spill != nil) != (tc.spill != "") || s.Spill != nil && (s.Spill.Name != tc.spill || string(s.Spill.Data) != tc.text || s.Spill.MediaType != "text/plain") {
			t.Errorf("%s: spill %+v, want %q", tc.name, s.Spill, tc.spill)
		}
		parts := one(t, tc.spec, func(context.Context, tool.Call) (tool.Result, error) {
			return tool.Result{Parts: []message.Part{{Type: "text", Text: tc.text}}}, nil
		}).Execute(t.Context(), "t", call).Outcome.ContentParts
		if (parts[0].Text != tc.text) != tc.cut {
			t.Errorf("%s: the part has %d bytes, want it cut: %v", tc.name, len(parts[0].Text), tc.cut)
		}
	}
}

// spills is a store of spilled results.
type spills map[string]*tool.Blob

func (s spills) ReadSpill(_ context.Context, runID, name string) (string, []byte, error) {
	b := s[runID+"/"+name]
	if b == nil {
		return "", nil, errors.New("there is no such result")
	}
	return b.MediaType, b.Data, nil
}

type read struct {
	Content                   string
	Offset, Bytes, TotalBytes int
	EOF                       bool
}

func readBack(t *testing.T, s *tool.Set, c tool.Call, args string) (read, message.Outcome) {
	t.Helper()
	c.Args = json.RawMessage(args)
	if o := s.Check(&message.ToolCall{Name: message.ReadResultName, Args: c.Args}); o != nil {
		t.Fatalf("Check(%s) = %+v", args, o)
	}
	o := s.Execute(t.Context(), message.ReadResultName, c).Outcome
	var r read
	if !o.Failed() {
		if err := json.Unmarshal(o.Output, &r); err != nil {
			t.Fatal(err)
		}
	}
	return r, o
}

func TestSpillAndReadBack(t *testing.T) {
	var items []string
	for i := range 5000 {
		items = append(items, fmt.Sprintf(`{"id":%d,"n":"é日"}`, i))
	}
	big := "[" + strings.Join(items, ",") + "]" // about 100 KB
	c := call
	c.ID = "call/7 é"
	got := one(t, tool.Spec{Truncation: tool.Tail}, result(big)).Execute(t.Context(), "t", c)
	h := got.Outcome.ResultHandle
	if h == nil || got.Spill == nil {
		t.Fatalf("Execute = %+v, want a handle", got.Outcome)
	}
	if !strings.HasPrefix(got.Spill.Name, "call_7__-") || !strings.HasSuffix(got.Spill.Name, ".json") || h.URI != "svc-spill:r1/"+got.Spill.Name ||
		h.Kind != "spill-file" || h.Bytes != int64(len(big)) || h.MediaType != "application/json" || string(got.Spill.Data) != big {
		t.Errorf("handle %+v and blob %s", h, got.Spill.Name)
	}
	if utf8.RuneCountInString(h.Preview) != 1000 || !strings.HasPrefix(big, h.Preview) {
		t.Errorf("the preview has %d characters, want the first 1000", utf8.RuneCountInString(h.Preview))
	}
	want := fmt.Sprintf("%s\n\n[This is the beginning of a result of %d bytes. Call read_result with handle %q to read on.]", h.Preview, len(big), h.URI)
	if msg := message.Render(&got.Outcome); msg != want {
		t.Errorf("Render = %q, want %q", msg, want)
	}

	s := set(t, tool.NewReadResult(spills{"r1/" + got.Spill.Name: got.Spill}))
	var all strings.Builder
	for rounds := 0; ; rounds++ {
		r, o := readBack(t, s, call, fmt.Sprintf(`{"handle":%q,"offset":%d,"maxBytes":4099}`, h.URI, all.Len()))
		if o.Failed() || r.Offset != all.Len() || r.Bytes != len(r.Content) || r.Bytes > 4099 || r.TotalBytes != len(big) {
			t.Fatalf("read_result at %d = %+v, %+v", all.Len(), r, o)
		}
		all.WriteString(r.Content)
		if r.EOF || rounds > 1000 {
			break
		}
	}
	if all.String() != big {
		t.Errorf("read_result gave %d bytes in all, want the %d of the result", all.Len(), len(big))
	}
	// The whole is longer than the usual limit of a result, and not spilled again.
	if r, o := readBack(t, s, call, fmt.Sprintf(`{"handle":%q,"maxBytes":1048576}`, h.URI)); r.Content != big || o.ResultHandle != nil {
		t.Errorf("read_result of all = %d bytes, handle %v, want %d without", len(r.Content), o.ResultHandle, len(big))
	}
}

func TestSpillNamesDiffer(t *testing.T) {
	names := map[string]string{}
	for _, id := range []string{"", "_", "a/b", "a_b", "a b", "../../etc/passwd", strings.Repeat("x", 100), strings.Repeat("x", 101), strings.Repeat("x", 102)} {
		c := call
		c.ID = id
		got := one(t, tool.Spec{MaxResultTokens: 1}, result(`{"a":"0123456789"}`)).Execute(t.Context(), "t", c)
		name := got.Spill.Name
		if other, dup := names[name]; dup {
			t.Errorf("the ids %q and %q both have the name %s", id, other, name)
		}
		names[name] = id
		if strings.ContainsAny(name, "/\\ ") || strings.HasPrefix(name, ".") || len(name) > 128 {
			t.Errorf("the id %q has the name %q", id, name)
		}
		r, _ := readBack(t, set(t, tool.NewReadResult(spills{"r1/" + name: got.Spill})), call, fmt.Sprintf(`{"handle":%q}`, got.Outcome.ResultHandle.URI))
		if r.Content != `{"a":"0123456789"}` {
			t.Errorf("the result of id %q read back = %+v", id, r)
		}
	}
}

func TestReadResult(t *testing.T) {
	s := set(t, tool.NewReadResult(spills{"r1/a.txt": {MediaType: "text/plain", Data: []byte("one\ntwo\n日本\nlast")}}))
	const h = `"handle":"svc-spill:r1/a.txt"`
	for _, tc := range []struct {
		args, content, err string
		offset             int
		eof                bool
	}{
		{args: `{` + h + `}`, content: "one\ntwo\n日本\nlast", eof: true},
		{args: `{` + h + `,"offset":4,"length":3}`, content: "two", offset: 4},
		{args: `{` + h + `,"offset":4.0,"length":3e0}`, content: "two", offset: 4},
		{args: `{` + h + `,"offset":9,"length":3}`, content: "日", offset: 8},
		{args: `{` + h + `,"offset":8,"length":1}`, content: "日", offset: 8},
		{args: `{` + h + `,"offset":8,"maxBytes":2}`, content: "日", offset: 8},
		{args: `{` + h + `,"offset":15}`, content: "last", offset: 15, eof: true},
		{args: `{` + h + `,"offset":1e15}`, offset: 19, eof: true},
		{args: `{` + h + `,"startLine":2,"endLine":3}`, content: "two\n日本\n", offset: 4},
		{args: `{` + h + `,"startLine":4}`, content: "last", offset: 15, eof: true},
		{args: `{` + h + `,"endLine":1}`, content: "one\n"},
		{args: `{` + h + `,"startLine":5}`, offset: 19, eof: true},
		{args: `{` + h + `,"startLine":1,"maxBytes":5}`, content: "one\nt"},
		{args: `{` + h + `,"startLine":1,"offset":5}`, err: "Bytes and lines exclude each other."},
		{args: `{"handle":"svc-spill:r2/a.txt"}`, err: "The handle belongs to another run."},
		{args: `{"handle":"svc-spill:r1/b.txt"}`, err: "there is no such result"},
		{args: `{"handle":"svc-spill:r1/../r2/a.txt"}`, err: "This is not a handle of a result."},
		{args: `{"handle":"file:///etc/passwd"}`, err: "This is not a handle of a result."},
		{args: `{"handle":"svc-spill:r1/a.sh"}`, err: "This is not a handle of a result."},
	} {
		r, o := readBack(t, s, call, tc.args)
		if r.Content != tc.content || r.EOF != tc.eof || r.Offset != tc.offset || o.Message != tc.err || o.Message == "" && (r.Bytes != len(tc.content) || r.TotalBytes != 19) {
			t.Errorf("read_result(%s) = %+v, %q, want %q at %d, eof %v, error %q", tc.args, r, o.Message, tc.content, tc.offset, tc.eof, tc.err)
		}
	}
}

func TestRender(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    message.Outcome
		want string
	}{
		{"text", message.Outcome{Output: json.RawMessage(`"a\nb"`)}, "a\nb"},
		{"JSON", message.Outcome{Output: json.RawMessage(`{"a":"b"}`)}, `{"a":"b"}`},
		{"number", message.Outcome{Output: json.RawMessage(`1.50`)}, `1.50`},
		{"null", message.Outcome{Output: json.RawMessage(`null`)}, "(The tool succeeded without output.)"},
		{"absent", message.Outcome{}, "(The tool succeeded without output.)"},
		{"blank", message.Outcome{Output: json.RawMessage(`" \n"`)}, "(The tool succeeded without output.)"},
		{"parts", message.Outcome{ContentParts: []message.Part{{Type: "text", Text: "one"}, {Type: "file", MimeType: "application/pdf", Filename: "a.pdf"}, {Type: "text", Text: "two"}}},
			"one\n[file, application/pdf, a.pdf]\ntwo"},
		{"output and parts", message.Outcome{Output: json.RawMessage(`"out"`), ContentParts: []message.Part{{Type: "text", Text: "one"}, {Type: "image"}}}, "out\n[image]"},
		{"error", message.Outcome{Kind: message.Timeout, Message: "Late.", Recoverable: true, RecoveryHint: message.RetryLater},
			"Error: Late.\n[kind: timeout; recoverable: yes; suggested action: retry_later]"},
		{"error with hint", message.Outcome{Kind: message.InvalidInput, Message: "Bad.", RecoveryHint: message.CheckInput, Hint: "Fix it."},
			"Error: Bad.\n[kind: invalid_input; recoverable: no; suggested action: check_input; Fix it.]"},
		{"aborted", message.Outcome{Kind: message.AbortedCall, Message: "The call was aborted."}, "Error: The call was aborted.\n[kind: aborted; recoverable: no]"},
		{"denied", message.Outcome{Kind: message.ApprovalDenied, Message: "The approval was denied: too risky", RecoveryHint: message.ReportToUser}, "Error: The approval was denied: too risky"},
		{"denied without a word", message.Outcome{Kind: message.ApprovalDenied}, "Error: the approval was denied."},
	} {
		if got := message.Render(&tc.o); got != tc.want {
			t.Errorf("%s: Render = %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestFail(t *testing.T) {
	for _, tc := range []struct {
		kind        message.ErrorKind
		recoverable bool
		hint        message.RecoveryHint
	}{
		{message.RateLimited, true, message.RetryLater}, {message.Timeout, true, message.RetryLater},
		{message.InvalidInput, false, message.CheckInput}, {message.InvalidOutput, false, message.TryAlternative},
		{message.UnknownTool, false, message.TryAlternative}, {message.ExecutionFailed, false, message.TryAlternative},
		{message.ApprovalDenied, false, message.ReportToUser}, {message.CapabilityBlocked, false, message.ReportToUser},
		{message.AbortedCall, false, ""},
	} {
		o := message.Fail("c", "t", tc.kind, strings.Repeat("é", 8<<10), strings.Repeat("x", 2000))
		if o.Kind != tc.kind || o.Recoverable != tc.recoverable || o.RecoveryHint != tc.hint || o.ToolCallID != "c" || o.ToolName != "t" {
			t.Errorf("Fail(%s) = %+v, want recoverable %v, %s", tc.kind, o, tc.recoverable, tc.hint)
		}
		if len(o.Message) != 8<<10 || len(o.Hint) != 1<<10 || !utf8.ValidString(o.Message) {
			t.Errorf("Fail(%s) has a message of %d bytes and a hint of %d", tc.kind, len(o.Message), len(o.Hint))
		}
	}
}
