package secret

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
)

// Handler is h without the values that are known when a record is made: not in its message, and not in its attributes.
func (r *Redactor) Handler(h slog.Handler) slog.Handler { return handler{h, r} }

type handler struct {
	slog.Handler
	known *Redactor
}

func (h handler) Handle(ctx context.Context, rec slog.Record) error {
	if h.known.forms.Load() == nil { // nothing is known yet
		return h.Handler.Handle(ctx, rec)
	}
	clean := slog.NewRecord(rec.Time, rec.Level, h.known.Text(rec.Message), rec.PC)
	rec.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.attr(a))
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	attrs = slices.Clone(attrs)
	for i := range attrs {
		attrs[i] = h.attr(attrs[i])
	}
	return handler{h.Handler.WithAttrs(attrs), h.known}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.known}
}

func (h handler) attr(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(h.known.Text(a.Value.String()))
	case slog.KindGroup:
		group := slices.Clone(a.Value.Group())
		for i := range group {
			group[i] = h.attr(group[i])
		}
		a.Value = slog.GroupValue(group...)
	case slog.KindAny:
		a.Value = h.any(a.Value)
	}
	return a
}

// any keeps a value that shows no secret in the forms that handlers write, and makes others their redacted text.
func (h handler) any(v slog.Value) slog.Value {
	text := fmt.Sprintf("%+v", v.Any())
	clean := h.known.Text(text)
	if clean == text {
		if _, isError := v.Any().(error); isError {
			return v
		}
		if b, err := json.Marshal(v.Any()); err != nil || h.known.Text(string(b)) == string(b) {
			return v
		}
	}
	if clean == text { // only its JSON shows one
		return slog.StringValue(Redacted)
	}
	return slog.StringValue(clean)
}
