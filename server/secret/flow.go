package secret

import (
	"slices"
	"strings"
)

// A Flow hides known values in a text that comes in pieces, wherever it is cut. It holds back what may be the beginning of
// one. It is for one goroutine.
type Flow struct {
	r    *Redactor
	held string
}

// Flow begins a text.
func (r *Redactor) Flow() *Flow { return &Flow{r: r} }

// Push returns what can be shown of the text so far and has not been returned before.
func (f *Flow) Push(piece string) string {
	forms := f.r.hidden()
	if forms == nil && f.held == "" {
		return piece
	}
	s := f.held + piece
	if forms == nil {
		f.held = ""
		return s
	}
	var found []span
	upTo := len(s)
	view{text: s}.each(maxEscaped, func(v view) {
		found = forms.find(v, found)
		upTo = min(upTo, forms.open(v))
	})
	// What was found across that place is held back whole: it may belong to a longer one.
	for again := true; again; {
		again = slices.ContainsFunc(found, func(x span) bool {
			across := x.from < upTo && upTo < x.to
			if across {
				upTo = x.from
			}
			return across
		})
	}
	f.held = strings.Clone(s[upTo:])
	return redact(s[:upTo], slices.DeleteFunc(found, func(x span) bool { return x.from >= upTo }))
}

// Rest ends the text and returns what was held back. With cut the text was cut off there, and what may be the beginning of
// a known value is hidden as Piece does.
func (f *Flow) Rest(cut bool) string {
	s := f.held
	f.held = ""
	forms := f.r.hidden()
	if forms == nil {
		return s
	}
	var found []span
	view{text: s}.each(maxEscaped, func(v view) {
		if found = forms.find(v, found); cut {
			found = forms.findStart(v, found)
		}
	})
	return redact(s, found)
}

// open is where in the text a form may begin that the view's end cuts off, or its end.
func (f *forms) open(v view) int {
	s, ends := v.text, v.ends(maxEscape)
	for i := max(0, len(s)-len(f.all[0])-maxEscape); i < len(s); i++ {
		for _, end := range ends {
			if i == end || i < end && f.begins(s[i:end]) {
				return v.span(i, i).from
			}
		}
	}
	return v.span(len(s), len(s)).to
}

// begins reports whether a form is longer than s and begins with it.
func (f *forms) begins(s string) bool {
	candidates := f.all
	switch {
	case len(s) > 1 && !f.pairs[pair(s, 0)]:
		return false
	case len(s) >= minKnown:
		candidates = f.starts[s[:minKnown]]
	}
	return slices.ContainsFunc(candidates, func(form string) bool { return len(form) > len(s) && strings.HasPrefix(form, s) })
}
