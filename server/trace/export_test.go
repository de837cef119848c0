package trace_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/span"
	"agentd/server/trace"
	"agentd/server/tracecontext"
	"agentd/store"
)

// otlp is what the tests read of a line.
type otlp struct {
	ResourceSpans []struct {
		ScopeSpans []struct {
			Spans []struct {
				TraceID, SpanID, ParentSpanID, Name string
				Attributes                          []struct {
					Key   string
					Value struct{ StringValue string }
				}
			}
		}
	}
}

// export returns the lines of an export, and what the spans are called, in their order.
func (r *rig) export(sel trace.Selection) (lines []otlp, names string) {
	r.Helper()
	var b bytes.Buffer
	if err := r.service.Export(r.Context(), &b, sel, "1.0"); err != nil {
		r.Fatalf("Export(%+v) = %v", sel, err)
	}
	var all []string
	for line := range strings.Lines(b.String()) {
		var l otlp
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			r.Fatalf("the line %s: %v", line, err)
		}
		for _, s := range l.ResourceSpans[0].ScopeSpans[0].Spans {
			all = append(all, s.Name)
		}
		lines = append(lines, l)
	}
	return lines, strings.Join(all, " ")
}

func TestExportedSpan(t *testing.T) {
	r := newRig(t)
	r.run("a", "", "")
	s := r.span("a", 7, 1544712660123456789)
	s.ParentID, s.Status, s.StatusMessage = span.ID(r.runs["a"].N, span.OfRun, 0), span.Error, "internal"
	for name, value := range map[string]any{"text": "é", "int": 5, "min": int64(-1 << 63), "huge": json.RawMessage("18446744073709551616"), "float": 0.5, "yes": true,
		"list": []any{1, "x", nil}, "object": map[string]any{"b": 1, "a": []any{}}, span.LinkedTrace: "4bf92f3577b34da6a3ce929d0e0e4736", span.LinkedSpan: "00f067aa0ba902b7"} {
		s.Public(name, value)
	}
	s.Internal("hidden", "internal")
	secret, tagged := r.span("a", 8, 0), r.span("a", 9, 0)
	secret.Public("key", "Bearer abcdefghijklmnopqrstuvwxyz0123456789")
	tagged.Public("x", 1)
	tagged.Sensitivity["x"] = "secret"
	r.spans("a", s, secret, tagged)
	var b bytes.Buffer
	if err := r.service.Export(t.Context(), &b, trace.Selection{}, "1.0"); err != nil {
		t.Fatal(err)
	}
	of := span.TraceOf("a", nil)
	want := `{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"agentd"}},{"key":"service.version","value":{"stringValue":"1.0"}}]},` +
		`"scopeSpans":[{"scope":{"name":"agentd","version":"1.0"},"spans":[{"traceId":"ca978112ca1bbdcafac231b39a23dc4d","spanId":"` + of.Wire(s.ID) + `",` +
		`"parentSpanId":"` + of.Wire(s.ParentID) + `","flags":257,"name":"step 7","kind":1,"startTimeUnixNano":"1544712660123456789","endTimeUnixNano":"1544712660123456794",` +
		`"attributes":[{"key":"agentd.span.id","value":{"stringValue":"` + s.ID + `"}},{"key":"agentd.span.type","value":{"stringValue":"agent.step"}},` +
		`{"key":"agentd.status","value":{"stringValue":"error"}},{"key":"float","value":{"doubleValue":0.5}},{"key":"huge","value":{"doubleValue":18446744073709552000}},` +
		`{"key":"int","value":{"intValue":"5"}},{"key":"link.spanId","value":{"stringValue":"00f067aa0ba902b7"}},` +
		`{"key":"link.traceId","value":{"stringValue":"4bf92f3577b34da6a3ce929d0e0e4736"}},` +
		`{"key":"list","value":{"arrayValue":{"values":[{"intValue":"1"},{"stringValue":"x"},{}]}}},{"key":"min","value":{"intValue":"-9223372036854775808"}},` +
		`{"key":"object","value":{"kvlistValue":{"values":[{"key":"a","value":{"arrayValue":{"values":[]}}},{"key":"b","value":{"intValue":"1"}}]}}},` +
		`{"key":"text","value":{"stringValue":"é"}},{"key":"yes","value":{"boolValue":true}}],` +
		`"links":[{"traceId":"4bf92f3577b34da6a3ce929d0e0e4736","spanId":"00f067aa0ba902b7"}],"status":{"code":2}}]}]}]}` + "\n"
	if b.String() != want {
		t.Errorf("Export() = %s\nwant %s", b.String(), want)
	}
}

// A run that continues a trace shows its caller as the parent of its own span, and so do its descendants show theirs.
func TestExportOfATrace(t *testing.T) {
	r := newRig(t)
	r.session("s")
	r.run("a", "s", "")
	r.run("b", "s", "a")
	caller, _ := tracecontext.Parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")
	r.runs["a"].Slots = 1 << store.TraceSlot
	r.apply("a", store.Change{Slots: map[store.Slot]json.RawMessage{store.TraceSlot: span.Keep(caller)}})
	call := span.ID(r.runs["a"].N, span.OfCall, 0)
	for id, parent := range map[string]string{"a": "", "b": call} {
		s := r.span(id, 0, 1)
		s.ID, s.ParentID, s.Name = span.ID(r.runs[id].N, span.OfRun, 0), parent, id
		r.spans(id, s)
	}
	of := span.TraceOf("a", span.Keep(caller))
	for _, sel := range []trace.Selection{{}, {Target: run("a")}, {Target: session("s")}} {
		lines, names := r.export(sel)
		if names != "a b" {
			t.Fatalf("Export(%+v) has %s, want a and b", sel, names)
		}
		for i, parent := range []string{caller.SpanID, of.Wire(call)} {
			if s := lines[0].ResourceSpans[0].ScopeSpans[0].Spans[i]; s.TraceID != caller.TraceID || s.ParentSpanID != parent || s.SpanID == s.Attributes[0].Value.StringValue {
				t.Errorf("Export(%+v) shows %+v below the span %s, want below %s", sel, s, s.ParentSpanID, parent)
			}
		}
	}
	if _, names := r.export(trace.Selection{Target: run("b")}); names != "b" {
		t.Errorf("the export of the child has %s", names)
	}
}

func TestExportSelection(t *testing.T) {
	r := newRig(t)
	r.session("s")
	r.run("a", "s", "")
	r.run("x", "", "")
	for i, id := range []string{"a", "x"} {
		for n := range 3 {
			s := r.span(id, n, int64(i*3+n)*1e6)
			s.Name = fmt.Sprint(id, n)
			r.batchAt(id, int64(i*3+n), s)
		}
	}
	for _, c := range []struct {
		sel  trace.Selection
		want string
	}{
		{trace.Selection{}, "a0 a1 a2 x0 x1 x2"},
		{trace.Selection{Since: 1, Until: 4}, "a1 a2 x0"},
		{trace.Selection{Target: session("s"), Since: 2}, "a2"},
		{trace.Selection{Target: run("x"), Until: 5}, "x0 x1"},
		{trace.Selection{Until: -1}, ""},
		{trace.Selection{Since: 6}, ""},
	} {
		if _, names := r.export(c.sel); names != c.want {
			t.Errorf("Export(%+v) has %q, want %q", c.sel, names, c.want)
		}
	}
	if err := r.service.Export(t.Context(), new(bytes.Buffer), trace.Selection{Target: run("none")}, ""); !fault.Is(err, fault.RunNotFound) {
		t.Errorf("the export of an unknown run = %v, want run-not-found", err)
	}
	if err := r.service.Export(t.Context(), new(bytes.Buffer), trace.Selection{Target: session("none")}, ""); !fault.Is(err, fault.SessionNotFound) {
		t.Errorf("the export of an unknown session = %v, want session-not-found", err)
	}
}

// A long export comes in lines of a bounded length, and ends with its reader.
func TestExportOfManySpans(t *testing.T) {
	r := newRig(t)
	r.run("a", "", "")
	batches := make([][]span.Span, 700)
	for i := range batches {
		batches[i] = []span.Span{r.span("a", 2*i, 1), r.span("a", 2*i+1, 1)}
	}
	r.batches("a", batches...)
	lines, names := r.export(trace.Selection{})
	seen := map[string]bool{}
	for _, l := range lines {
		spans := l.ResourceSpans[0].ScopeSpans[0].Spans
		if len(spans) > 257 {
			t.Errorf("a line has %d spans", len(spans))
		}
		for _, s := range spans {
			seen[s.SpanID] = true
		}
	}
	if n := strings.Count(names, "step"); n != 1400 || len(seen) != 1400 || len(lines) != 6 {
		t.Errorf("the export has %d spans, %d ids and %d lines, want 1400, 1400 and 6", n, len(seen), len(lines))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.service.Export(ctx, new(bytes.Buffer), trace.Selection{}, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("an export for nobody = %v, want context.Canceled", err)
	}
}
