package trace

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	"agentd/server/message"
	"agentd/server/span"
)

// The JSON form of OTLP 1 (opentelemetry-proto, trace/v1): ids are hexadecimal, 64-bit integers are texts and enumerations
// are numbers.

type otlpLine struct {
	ResourceSpans [1]otlpResourceSpans `json:"resourceSpans"`
}

type otlpResourceSpans struct {
	Resource struct {
		Attributes []otlpAttribute `json:"attributes"`
	} `json:"resource"`
	ScopeSpans [1]otlpScopeSpans `json:"scopeSpans"`
}

type otlpScopeSpans struct {
	Scope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	} `json:"scope"`
	Spans []otlpSpan `json:"spans"`
}

type otlpSpan struct {
	TraceID    string          `json:"traceId"`
	SpanID     string          `json:"spanId"`
	State      string          `json:"traceState,omitempty"`
	ParentID   string          `json:"parentSpanId,omitempty"`
	Flags      int             `json:"flags"`
	Name       string          `json:"name"`
	Kind       int             `json:"kind"`
	Start      string          `json:"startTimeUnixNano"`
	End        string          `json:"endTimeUnixNano"`
	Attributes []otlpAttribute `json:"attributes"`
	Links      []otlpLink      `json:"links,omitempty"`
	Status     struct {
		Code int `json:"code,omitempty"`
	} `json:"status"`
}

type otlpLink struct {
	TraceID string `json:"traceId"`
	SpanID  string `json:"spanId"`
}

type otlpAttribute struct {
	Key   string    `json:"key"`
	Value otlpValue `json:"value"`
}

// otlpValue is an AnyValue; without a member it is null.
type otlpValue struct {
	Text   *string     `json:"stringValue,omitempty"`
	Bool   *bool       `json:"boolValue,omitempty"`
	Int    *string     `json:"intValue,omitempty"`
	Double *float64    `json:"doubleValue,omitempty"`
	Array  *otlpArray  `json:"arrayValue,omitempty"`
	Object *otlpObject `json:"kvlistValue,omitempty"`
}

type otlpArray struct {
	Values []otlpValue `json:"values"`
}

type otlpObject struct {
	Values []otlpAttribute `json:"values"`
}

// Numbers of the protocol.
const (
	kindInternal, kindServer, kindClient = 1, 2, 3
	codeOK, codeError                    = 1, 2

	flagSampled, flagKnowsRemote, flagRemote = 1, 0x100, 0x200
)

// line is what the exporter holds as one request.
func (e *exporter) line() *otlpLine {
	l := &otlpLine{}
	r := &l.ResourceSpans[0]
	r.Resource.Attributes = otlpAttributes(map[string]any{"service.name": "agentd", "service.version": e.version})
	scope := &r.ScopeSpans[0]
	scope.Scope.Name, scope.Scope.Version, scope.Spans = "agentd", e.version, e.spans
	return l
}

// otlpOf is a sanitised span as other programs see it.
func otlpOf(s *SpanRecord, o *origin) otlpSpan {
	attributes := maps.Clone(s.Attributes)
	attributes["agentd.span.id"], attributes["agentd.span.type"], attributes["agentd.status"] = s.ID, s.Type, s.Status
	out := otlpSpan{TraceID: o.TraceID, SpanID: o.Wire(s.ID), State: o.State, Flags: flagKnowsRemote, Name: s.Name, Kind: kindInternal,
		Start: strconv.FormatInt(s.Start, 10), End: strconv.FormatInt(s.End, 10)}
	if o.Sampled {
		out.Flags |= flagSampled
	}
	switch {
	case s.ID != o.root && s.ParentID != "":
		out.ParentID = o.Wire(s.ParentID)
	case s.ID == o.root:
		out.ParentID = o.SpanID
	}
	switch {
	case s.ID == o.root && o.remote:
		out.Kind, out.Flags = kindServer, out.Flags|flagRemote
	case s.Type == span.Provider:
		out.Kind = kindClient
	}
	if to, ok := attributes[span.LinkedSpan].(string); ok {
		if in, ok := attributes[span.LinkedTrace].(string); ok {
			out.Links = []otlpLink{{in, to}}
		}
	}
	switch s.Status {
	case span.OK:
		out.Status.Code = codeOK
	case span.Error:
		out.Status.Code = codeError
	}
	out.Attributes = otlpAttributes(attributes)
	return out
}

func otlpAttributes(of map[string]any) []otlpAttribute {
	list := make([]otlpAttribute, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		list = append(list, otlpAttribute{name, otlpValueOf(of[name])})
	}
	return list
}

// otlpValueOf is a value as JSON with [json.Number] gives it.
func otlpValueOf(v any) otlpValue {
	switch v := v.(type) {
	case nil:
		return otlpValue{}
	case string:
		return otlpValue{Text: &v}
	case bool:
		return otlpValue{Bool: &v}
	case json.Number:
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return otlpValue{Int: new(strconv.FormatInt(n, 10))}
		}
		if f, err := v.Float64(); err == nil {
			return otlpValue{Double: &f}
		}
		return otlpValue{Text: new(string(v))} // beyond what the protocol can say
	case []any:
		a := &otlpArray{Values: make([]otlpValue, len(v))}
		for i, item := range v {
			a.Values[i] = otlpValueOf(item)
		}
		return otlpValue{Array: a}
	case map[string]any:
		return otlpValue{Object: &otlpObject{otlpAttributes(v)}}
	}
	text, _ := message.Encode(v) //nolint:errcheck // JSON has no other types
	return otlpValue{Text: new(string(text))}
}
