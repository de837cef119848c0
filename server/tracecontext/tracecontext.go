// Package tracecontext reads and writes the headers of W3C Trace Context, with which programs say to which trace a request
// belongs, and carries their content in a [context.Context].
package tracecontext

import (
	"context"
	"log/slog"
	"slices"
	"strings"
)

// A Context is where in a trace something happens. The zero value is no trace.
type Context struct {
	TraceID string // 32 hex digits in lower case; empty: none
	SpanID  string // 16 hex digits in lower case: of the span within which it happens
	Sampled bool   // the caller may record the trace
	State   string // tracestate, of at most maxState bytes
	Request string // id of the HTTP request that caused it; no header of the standard has it
}

// Names of the headers, as a map of headers has them.
const (
	Parent = "Traceparent"
	State  = "Tracestate"
)

// Of reads the headers of a request. As the standard asks, a traceparent that is not valid counts as none, and a tracestate
// that is not valid is left out.
func Of(header map[string][]string) Context {
	values := header[Parent]
	if len(values) != 1 {
		return Context{}
	}
	c, ok := Parse(values[0])
	if !ok {
		return Context{}
	}
	c.State = stateOf(header[State])
	return c
}

// Parse reads a traceparent (W3C Trace Context, section 3.2): of version 00, or what a later version has in common with it.
func Parse(text string) (c Context, ok bool) {
	text = strings.Trim(text, " \t")
	if len(text) < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return c, false
	}
	version, flags := text[:2], text[53:55]
	c.TraceID, c.SpanID = text[3:35], text[36:52]
	switch {
	case !hex(version) || version == "ff" || !hex(c.TraceID) || !hex(c.SpanID) || !hex(flags):
		return Context{}, false
	case len(text) > 55 && (version == "00" || text[55] != '-'):
		return Context{}, false
	case strings.Trim(c.TraceID, "0") == "" || strings.Trim(c.SpanID, "0") == "":
		return Context{}, false
	}
	c.Sampled = strings.IndexByte("13579bdf", flags[1]) >= 0
	return c, true
}

// String returns the traceparent, of version 00, and "" where there is no span to name.
func (c Context) String() string {
	if c.TraceID == "" || c.SpanID == "" {
		return ""
	}
	flags := "00"
	if c.Sampled {
		flags = "01"
	}
	return "00-" + c.TraceID + "-" + c.SpanID + "-" + flags
}

// Inject adds the headers to those of a request, which keeps a traceparent that it has already.
func (c Context) Inject(header map[string][]string) {
	parent := c.String()
	if parent == "" || header[Parent] != nil {
		return
	}
	header[Parent] = []string{parent}
	if c.State != "" && header[State] == nil {
		header[State] = []string{c.State}
	}
}

// Attrs are the attributes of log lines: the ids of the request and of the trace.
func (c Context) Attrs() (attrs []any) {
	if c.Request != "" {
		attrs = append(attrs, "request", c.Request)
	}
	if c.TraceID != "" {
		attrs = append(attrs, "trace", c.TraceID)
	}
	return attrs
}

// Log returns a log whose lines have the ids of the request that a context belongs to.
func Log(ctx context.Context, log *slog.Logger) *slog.Logger { return log.With(From(ctx).Attrs()...) }

// Limits of a tracestate: the standard's 32 members, and the 512 bytes that it asks everybody to pass on.
const (
	maxMembers = 32
	maxState   = 512
	longMember = 128 // longer ones are left out first
)

// stateOf reads the members of a tracestate (section 3.3). Of one that is too long, whole members are left out: first long
// ones, then those at the end, both from the right. It is empty if a part of it is not valid.
func stateOf(lines []string) string {
	var members, keys []string
	for member := range strings.SplitSeq(strings.Join(lines, ","), ",") {
		if member = strings.Trim(member, " \t"); member == "" {
			continue
		}
		key, value, _ := strings.Cut(member, "=")
		if !validKey(key) || !validValue(value) || slices.Contains(keys, key) || len(members) == maxMembers {
			return ""
		}
		members, keys = append(members, member), append(keys, key)
	}
	size := func() int { return len(strings.Join(members, ",")) }
	for i := len(members) - 1; i >= 0 && size() > maxState; i-- {
		if len(members[i]) > longMember {
			members = slices.Delete(members, i, i+1)
		}
	}
	for size() > maxState {
		members = members[:len(members)-1]
	}
	return strings.Join(members, ",")
}

func validKey(key string) bool {
	if key == "" || len(key) > 256 || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789", rune(key[0])) {
		return false
	}
	return !strings.ContainsFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("_-*/@", r)
	})
}

func validValue(value string) bool {
	return value != "" && len(value) <= 256 && !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' || r == '=' })
}

func hex(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

type key struct{}

// With returns a context that carries c.
func With(ctx context.Context, c Context) context.Context { return context.WithValue(ctx, key{}, c) }

// From returns what a context carries; the zero Context where it carries nothing.
func From(ctx context.Context) Context {
	c, _ := ctx.Value(key{}).(Context)
	return c
}
