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
	for _, v := range views(s) {
		found = forms.find(v, found)
		upTo = min(upTo, forms.open(v, 0))
	}
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
	return f.r.hide(s, false, cut)
}
