package trace_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/span"
	"agentd/server/trace"
	"agentd/server/transcript"
	"agentd/store"
)

func run(id string) trace.Target { return trace.Target{RunID: id} }

func session(id string) trace.Target { return trace.Target{SessionID: id} }

// family is a session of two trees, and runs that are not of it:
//
//	session s: a -> b -> c, a -> d; e        session t: f        none: g
func family(t testing.TB) *rig {
	r := newRig(t)
	r.session("s")
	r.session("t")
	for _, v := range [][3]string{{"a", "s"}, {"e", "s"}, {"b", "s", "a"}, {"f", "t"}, {"c", "s", "b"}, {"g"}, {"d", "s", "a"}} {
		r.run(v[0], v[1], v[2])
	}
	r.spans("a", r.span("a", 2, 50))
	r.spans("b", r.span("b", 0, 20), r.span("b", 1, 10))
	r.spans("c", r.span("c", 0, 30))
	r.spans("d", r.span("d", 0, 20))
	r.spans("e", r.span("e", 0, 5))
	r.spans("f", r.span("f", 0, 1))
	r.spans("a", r.span("a", 0, 0), r.span("a", 1, 20))
	return r
}

func TestReplayOrder(t *testing.T) {
	r := family(t)
	list := func(spans ...string) string {
		for i, s := range spans {
			spans[i] = r.id(s[:1], int(s[1]-'0'))
		}
		return strings.Join(spans, " ")
	}
	for _, c := range []struct {
		target trace.Target
		want   string
	}{
		{run("a"), list("a0", "b1", "a1", "b0", "d0", "c0", "a2")},
		{run("b"), list("b1", "b0", "c0")},
		{run("c"), list("c0")},
		{run("e"), list("e0")},
		{run("g"), ""},
		{session("s"), list("a0", "b1", "a1", "b0", "d0", "c0", "a2", "e0")},
		{session("t"), list("f0")},
	} {
		for _, raw := range []bool{false, true} {
			p := r.replay(c.target, trace.Options{Raw: raw})
			if got := ids(p); got != c.want || p.Truncated {
				t.Errorf("Replay(%v) = %s, truncated %v, want %s", c.target, got, p.Truncated, c.want)
			}
		}
		for limit := 1; limit < 9; limit++ {
			got, pages := r.walk(c.target, trace.Options{Limit: limit})
			n := len(strings.Fields(c.want))
			if want := max(1, (n+limit-1)/limit); got != c.want || pages != want {
				t.Errorf("Replay(%v) in pages of %d = %s on %d pages, want %s on %d", c.target, limit, got, pages, c.want, want)
			}
		}
	}
}

// Of a run that goes on, a walk passes over what began before its cursor and ended later. A walk from the beginning has it.
func TestReplayOfARunThatGoesOn(t *testing.T) {
	r := newRig(t)
	r.session("s")
	r.run("g", "s", "")
	r.spans("g", r.span("g", 0, 10), r.span("g", 1, 30), r.span("g", 2, 50))
	page := r.replay(session("s"), trace.Options{Limit: 2})
	r.spans("g", r.span("g", 3, 20), r.span("g", 4, 40)) // the first began before the cursor's, and has ended now
	list := func(numbers ...int) string {
		var all []string
		for _, n := range numbers {
			all = append(all, r.id("g", n))
		}
		return strings.Join(all, " ")
	}
	if got, want := ids(page), list(0, 1); got != want || page.NextCursor != r.id("g", 1) {
		t.Fatalf("the first page = %s up to %s, want %s", got, page.NextCursor, want)
	}
	if got, _ := r.walk(session("s"), trace.Options{Cursor: page.NextCursor}); got != list(4, 2) {
		t.Errorf("from the cursor on = %s, want %s", got, list(4, 2))
	}
	if got, _ := r.walk(session("s"), trace.Options{Limit: 2}); got != list(0, 3, 1, 4, 2) {
		t.Errorf("from the beginning = %s, want %s", got, list(0, 3, 1, 4, 2))
	}
}

func TestReplayWalksEverySpanOnce(t *testing.T) {
	r := newRig(t)
	r.session("s")
	random := rand.New(rand.NewPCG(1, 2))
	type place struct {
		root, start int64
		id          string
	}
	var all []place
	for i := range 120 { // more than are read in one go
		id, parent := fmt.Sprint("run", i), ""
		root := int64(0)
		if i%10 != 0 {
			parent = fmt.Sprint("run", i/10*10+random.IntN(i%10))
		}
		r.run(id, "s", parent)
		if root = r.runs[id].N; parent != "" {
			root = r.runs[fmt.Sprint("run", i/10*10)].N
		}
		number := 0
		var batches [][]span.Span
		for range random.IntN(6) * random.IntN(2) * 20 { // more batches than are read in one go
			var batch []span.Span
			for range 1 + random.IntN(3) {
				s := r.span(id, number, random.Int64N(50))
				batch = append(batch, s)
				all = append(all, place{root, s.Start, s.ID})
				number++
			}
			batches = append(batches, batch)
		}
		r.batches(id, batches...)
	}
	slices.SortFunc(all, func(a, b place) int {
		if a.root != b.root {
			return int(a.root - b.root)
		}
		if a.start != b.start {
			return int(a.start - b.start)
		}
		return strings.Compare(a.id, b.id)
	})
	var want []string
	for _, p := range all {
		want = append(want, p.id)
	}
	for _, limit := range []int{331, 0} {
		got, _ := r.walk(session("s"), trace.Options{Limit: limit})
		if got := strings.Fields(got); !slices.Equal(got, want) {
			t.Errorf("a walk in pages of %d has %d spans, want the %d there are, in order", limit, len(got), len(want))
		}
	}
	if p := r.replay(session("s"), trace.Options{Limit: 5000}); len(p.Events) != trace.MaxPage+2 {
		t.Errorf("Replay with limit 5000 has %d events, want %d and two", len(p.Events), trace.MaxPage)
	}
}

func TestReplayRefuses(t *testing.T) {
	r := family(t)
	r.session("empty")
	at := r.message("b", message.User, time.UnixMilli(1), message.Message{Role: message.User})
	id := func(run string) string { return transcript.ID(r.runs[run].N, at) }
	const cursor, from = "cursor", "fromMessageId"
	for _, c := range []struct {
		target trace.Target
		opts   trace.Options
		kind   *fault.Kind
		paths  string
	}{
		{target: run("none"), opts: trace.Options{Cursor: "x"}, kind: fault.RunNotFound},
		{target: run(""), kind: fault.RunNotFound},
		{target: session("none"), opts: trace.Options{Cursor: "x"}, kind: fault.SessionNotFound},
		{target: session("a"), kind: fault.SessionNotFound},
		{target: run("a"), opts: trace.Options{Cursor: r.id("c", 0)}},
		{target: run("a"), opts: trace.Options{Cursor: r.id("e", 0)}, kind: fault.ConfigInvalid, paths: cursor},
		{target: run("b"), opts: trace.Options{Cursor: r.id("a", 0)}, kind: fault.ConfigInvalid, paths: cursor},
		{target: run("a"), opts: trace.Options{Cursor: r.id("a", 9)}, kind: fault.ConfigInvalid, paths: cursor},
		{target: session("s"), opts: trace.Options{Cursor: r.id("f", 0)}, kind: fault.ConfigInvalid, paths: cursor},
		{target: session("s"), opts: trace.Options{Cursor: strings.Repeat("f", 16)}, kind: fault.ConfigInvalid, paths: cursor},
		{target: session("empty"), opts: trace.Options{Cursor: r.id("a", 0)}, kind: fault.ConfigInvalid, paths: cursor},
		{target: run("a"), opts: trace.Options{FromMessageID: id("b")}},
		{target: session("s"), opts: trace.Options{FromMessageID: id("b")}},
		{target: run("c"), opts: trace.Options{FromMessageID: id("b")}, kind: fault.ConfigInvalid, paths: from},
		{target: run("a"), opts: trace.Options{FromMessageID: id("a")}, kind: fault.ConfigInvalid, paths: from},
		{target: session("t"), opts: trace.Options{FromMessageID: id("b")}, kind: fault.ConfigInvalid, paths: from},
		{target: session("s"), opts: trace.Options{FromMessageID: "msg-zzz-0", Cursor: "?"}, kind: fault.ConfigInvalid, paths: from + " " + cursor},
	} {
		_, err := r.service.Replay(t.Context(), c.target, c.opts)
		if c.kind == nil {
			if err != nil {
				t.Errorf("Replay(%v, %+v) = %v, want no error", c.target, c.opts, err)
			}
			continue
		}
		var paths []string
		if f := fault.Of(err); f != nil {
			for _, is := range f.Issues {
				paths = append(paths, fmt.Sprint(is.Path...))
			}
		}
		if !fault.Is(err, c.kind) || strings.Join(paths, " ") != c.paths {
			t.Errorf("Replay(%v, %+v) = %v, want %s with issues at %q", c.target, c.opts, err, c.kind.Code, c.paths)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	left := fmt.Errorf("the client has left")
	cancel(left)
	if _, err := r.service.Replay(ctx, run("a"), trace.Options{}); err != left {
		t.Errorf("Replay for nobody = %v, want %v", err, left)
	}
}

func TestReplayFromMessage(t *testing.T) {
	r := newRig(t)
	r.session("s")
	second := time.Unix(100, 0)
	for i, name := range []string{"a", "b"} {
		r.run(name, "s", "")
		r.message(name, message.User, second.Add(time.Duration(i)*time.Second), message.Message{Role: message.User})
		start := second.Add(time.Duration(i) * time.Second).UnixNano()
		r.spans(name, r.span(name, 0, start-1), r.span(name, 1, start), r.span(name, 2, start+int64(time.Second)))
	}
	for name, want := range map[string]string{
		"a": strings.Join([]string{r.id("a", 1), r.id("a", 2), r.id("b", 0), r.id("b", 1), r.id("b", 2)}, " "),
		"b": strings.Join([]string{r.id("a", 2), r.id("b", 1), r.id("b", 2)}, " "),
	} {
		o := trace.Options{FromMessageID: transcript.ID(r.runs[name].N, 0), Limit: 2}
		if got, _ := r.walk(session("s"), o); got != want {
			t.Errorf("Replay from the message of %s = %s, want %s", name, got, want)
		}
	}
}

func TestReplayOfAProvider(t *testing.T) {
	r := newRig(t)
	r.run("a", "", "")
	spans := make([]span.Span, 6)
	for i := range spans {
		spans[i] = r.span("a", i, int64(i))
		if i > 0 {
			spans[i].Type = span.Provider
		}
	}
	spans[1].Public("provider", "one")
	spans[2].Public("provider", "two")
	spans[3].Internal("provider", "one")
	spans[4].Public("provider", "one")
	r.spans("a", spans...)
	for _, c := range []struct {
		provider string
		raw      bool
		want     []int
	}{
		{"", false, []int{0, 1, 2, 3, 4, 5}},
		{"one", false, []int{0, 1, 4}}, // of the fourth it is not told who provided it
		{"one", true, []int{0, 1, 3, 4}},
		{"two", false, []int{0, 2}},
		{"three", true, []int{0}},
	} {
		var want []string
		for _, n := range c.want {
			want = append(want, r.id("a", n))
		}
		got, pages := r.walk(run("a"), trace.Options{Provider: c.provider, Raw: c.raw, Limit: 2})
		if got != strings.Join(want, " ") || pages != (len(want)+1)/2 {
			t.Errorf("Replay(provider %q, raw %v) = %s on %d pages, want %s", c.provider, c.raw, got, pages, strings.Join(want, " "))
		}
	}
}

func TestReplaySanitized(t *testing.T) {
	r := newRig(t)
	r.run("a", "", "")
	plain, secret, tagged := r.span("a", 0, 0), r.span("a", 1, 1), r.span("a", 2, 2)
	plain.ParentID, plain.Status, plain.StatusMessage, plain.Message = "parent", span.Error, "of Mrs Smith", new(0)
	plain.Public("tokens", 12345678901234567)
	plain.Internal("prompt", "of Mrs Smith")
	secret.Public("model", "AKIA"+"IOSFODNN7EXAMPLE")
	tagged.Attributes, tagged.Sensitivity = map[string]any{"x": "of Mrs Smith"}, map[string]string{"x": "secret"}
	r.message("a", message.Assistant, time.UnixMilli(0), message.Message{Role: message.Assistant, Content: message.Text("of Mrs Smith")})
	r.spans("a", plain, secret, tagged)
	p := r.replay(run("a"), trace.Options{})
	p.Events[4].DurationMS = nil
	got, err := message.Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"mode":"sanitized","events":[` +
		`{"type":"replay.start","target":{"runId":"a"},"mode":"sanitized"},` +
		`{"type":"replay.event","span":{"type":"agent.step","id":"0000000130000000","traceId":"ca978112ca1bbdcafac231b39a23dc4d","parentId":"parent","name":"step 0",` +
		`"startUnixNano":0,"endUnixNano":5,"startIso":"1970-01-01T00:00:00.000Z","endIso":"1970-01-01T00:00:00.000Z","status":"error","attributes":{"tokens":12345678901234567},"events":[],` +
		`"sensitivityByAttribute":{"tokens":"public"}},"sanitized":true},` +
		`{"type":"replay.skipped","reason":"redaction-violation","spanId":"0000000130000001"},` +
		`{"type":"replay.skipped","reason":"sensitivity","spanId":"0000000130000002"},` +
		`{"type":"replay.end","eventsEmitted":1,"eventsSkipped":2}]}`
	if string(got) != want {
		t.Errorf("Replay() = %s\nwant %s", got, want)
	}
	if got, _ := r.walk(run("a"), trace.Options{Limit: 1}); got != ids(p) { // also past what is skipped
		t.Errorf("a walk = %s, want %s", got, ids(p))
	}
}

func TestReplayRawJoinsTheTranscript(t *testing.T) {
	r := newRig(t)
	r.run("a", "", "")
	now := time.UnixMilli(0)
	call := func(args string) message.ToolCall {
		return message.ToolCall{ID: "call_1", Name: "pay", Args: json.RawMessage(args)}
	}
	ask := func(content string, calls ...message.ToolCall) int {
		return r.message("a", message.Assistant, now, message.Message{Role: message.Assistant, Content: message.Text(content), ToolCalls: calls})
	}
	answer := func(asked int, id string, o message.Outcome) int {
		o.ToolCallID, o.ToolName = id, "pay"
		answered := r.message("a", message.Tool, now, o)
		r.apply("a", store.Change{Calls: []store.Call{{Index: r.runs["a"].Calls, ID: id, Name: "pay", Phase: store.CallDone, ArgsHash: []byte{1}, Asked: asked, Answered: answered}}})
		return answered
	}
	// Two turns in which the model gives its call the same id.
	first := ask("Paying.", call(`{"to":"ann"}`))
	paid := answer(first, "call_1", message.Outcome{Output: json.RawMessage(`{"paid":1.50}`), ContentParts: []message.Part{{Type: "text", Text: "p"}}})
	second := ask("", call(`{"to":"bob"}`))
	failed := answer(second, "call_1", message.Outcome{Kind: message.Timeout, Message: "too slow", Recoverable: true, RecoveryHint: message.RetryLater})
	silent := answer(second, "call_2", message.Outcome{})
	large := answer(second, "call_1", message.Outcome{ResultHandle: &message.Handle{URI: "svc-spill:a/x", Kind: "spill-file", Preview: "0"}})
	last := ask("Done.")
	wants := map[int]string{
		first:  `{"kept":true,"output.text":"Paying.","output.toolCalls":[{"toolCallId":"call_1","toolName":"pay","args":{"to":"ann"}}]}`,
		paid:   `{"kept":true,"tool.arguments":{"to":"ann"},"tool.contentParts":[{"type":"text","text":"p"}],"tool.result":{"paid":1.50}}`,
		second: `{"kept":true,"output.toolCalls":[{"toolCallId":"call_1","toolName":"pay","args":{"to":"bob"}}]}`,
		failed: `{"kept":true,"tool.arguments":{"to":"bob"},"tool.error":{"kind":"timeout","message":"too slow","recoverable":true,"recoveryHint":"retry_later"}}`,
		silent: `{"kept":true,"tool.result":null}`,
		large:  `{"kept":true,"tool.arguments":{"to":"bob"},"tool.result":{"uri":"svc-spill:a/x","kind":"spill-file","preview":"0"}}`,
		last:   `{"kept":true,"output.text":"Done."}`,
		99:     `{"kept":true}`, // there is no such message
	}
	var spans []span.Span
	for index := range wants {
		s := r.span("a", index, int64(index))
		s.StatusMessage, s.Message = "said", &index
		s.Internal("kept", true)
		spans = append(spans, s)
	}
	r.spans("a", spans...)
	p := r.replay(run("a"), trace.Options{Raw: true})
	if len(p.Events) != len(wants)+2 {
		t.Fatalf("Replay() has %d events, want %d", len(p.Events), len(wants)+2)
	}
	for _, e := range p.Events[1 : len(p.Events)-1] {
		got, err := message.Encode(e.Span.Attributes)
		if want := wants[int(e.Span.Start)]; err != nil || string(got) != want || e.Span.StatusMessage != "said" {
			t.Errorf("the span of message %d has %s, %q, %v, want %s", e.Span.Start, got, e.Span.StatusMessage, err, want)
		}
	}
	if text, _ := message.Encode(p); strings.Contains(string(text), `"message":0`) || strings.Contains(string(text), `"message":99`) {
		t.Errorf("Replay() shows an index of a message: %s", text)
	}
}

func TestReplayRawIsBounded(t *testing.T) {
	r := newRig(t)
	r.run("a", "", "")
	text := strings.Repeat("x", 3<<20)
	var spans []span.Span
	for i := range 6 {
		s := r.span("a", i, int64(i))
		if i == 3 {
			s.Message = new(r.message("a", message.Assistant, time.UnixMilli(0), message.Message{Content: message.Text(strings.Repeat(text, 3))}))
		} else {
			s.Message = new(r.message("a", message.Assistant, time.UnixMilli(0), message.Message{Content: message.Text(text)}))
		}
		spans = append(spans, s)
	}
	r.spans("a", spans...)
	want := ids(r.replay(run("a"), trace.Options{}))
	got, pages := r.walk(run("a"), trace.Options{Raw: true})
	if got != want || pages != 4 { // two, the third, the one that is too large alone, two
		t.Errorf("a walk = %s on %d pages, want %s on 4", got, pages, want)
	}
}

// Calls that were asked for together are shown in a time that does not grow with the square of their number.
func TestReplayRawOfManyCalls(t *testing.T) {
	r := newRig(t)
	r.run("a", "", "")
	const n = 900
	var calls []message.ToolCall
	for i := range n {
		calls = append(calls, message.ToolCall{ID: fmt.Sprint("c", i), Name: "pay", Args: json.RawMessage(fmt.Sprintf(`{"n":%d,"text":%q}`, i, strings.Repeat("x", 6000)))})
	}
	asked := r.message("a", message.Assistant, time.UnixMilli(0), message.Message{Role: message.Assistant, ToolCalls: calls})
	var c store.Change
	var spans []span.Span
	for i := range n {
		c.Calls = append(c.Calls, store.Call{Index: i, ID: calls[i].ID, Name: "pay", Phase: store.CallDone, ArgsHash: []byte{1}, Asked: asked, Answered: asked + 1 + i})
		body, _ := message.Encode(message.Outcome{ToolCallID: calls[i].ID, ToolName: "pay", Output: json.RawMessage("1")})
		c.Messages = append(c.Messages, store.Message{Index: asked + 1 + i, Role: "tool", Body: body})
		s := r.span("a", i, int64(i))
		s.Message = new(asked + 1 + i)
		spans = append(spans, s)
	}
	r.apply("a", c)
	r.spans("a", spans...)
	began := time.Now()
	p := r.replay(run("a"), trace.Options{Raw: true})
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("Replay of %d calls took %v", n, took)
	}
	if len(p.Events) != n+2 {
		t.Fatalf("Replay has %d events, want %d", len(p.Events), n+2)
	}
	for i, e := range p.Events[1 : n+1] {
		if got, _ := message.Encode(e.Span.Attributes["tool.arguments"]); string(got) != string(calls[i].Args) {
			t.Fatalf("arguments of call %d = %.100s, want %.100s", i, got, calls[i].Args)
		}
	}
}

func TestReplayOfTooManySpans(t *testing.T) {
	r := newRig(t)
	r.session("s")
	r.run("a", "s", "")
	r.run("b", "s", "a")
	r.run("c", "s", "")
	const batch = 20_000
	for i := range trace.MaxTree / batch {
		name := "a"
		if i > 3 {
			name = "b"
		}
		spans := make([]span.Span, batch)
		for k := range spans {
			n := i*batch + k
			spans[k] = span.Span{ID: r.id(name, n), Start: int64(n)}
		}
		r.spans(name, spans...)
	}
	last := r.id("b", trace.MaxTree-1)
	p := r.replay(run("a"), trace.Options{Cursor: r.id("b", trace.MaxTree-2)})
	if ids(p) != last || p.Truncated || p.OmittedSpans != 0 {
		t.Errorf("Replay of all that may be = %s, truncated %v, %d omitted", ids(p), p.Truncated, p.OmittedSpans)
	}
	r.spans("b", r.span("b", trace.MaxTree, 1), r.span("b", trace.MaxTree+1, 2))
	r.spans("c", r.span("c", 0, 0))
	p = r.replay(run("a"), trace.Options{Cursor: r.id("b", trace.MaxTree-2)})
	if ids(p) != last || !p.Truncated || p.NextCursor != "" || p.OmittedSpans != 2 {
		t.Errorf("the last page of more = %s, truncated %v, cursor %q, %d omitted; want %s, true, none, 2", ids(p), p.Truncated, p.NextCursor, p.OmittedSpans, last)
	}
	p = r.replay(session("s"), trace.Options{Cursor: r.id("b", trace.MaxTree-2)}) // the next tree is there all the same
	if want := last + " " + r.id("c", 0); ids(p) != want || p.OmittedSpans != 2 {
		t.Errorf("the page after = %s, %d omitted; want %s, 2", ids(p), p.OmittedSpans, want)
	}
}
