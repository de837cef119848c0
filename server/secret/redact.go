package secret

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// Redacted stands where a secret was.
const Redacted = "[REDACTED]"

// Bounds of what a Redactor hides.
const (
	minKnown = 6       // bytes; a shorter value is in too many texts by chance
	minWord  = 12      // bytes of a word of a value that is hidden by itself
	maxKnown = 1 << 20 // bytes of all values
)

// A Redactor hides known values in texts: as they are, in hexadecimal, and in base64 at any offset; and each of these also
// where it is percent-encoded or stands in a quoted text, of JSON for instance, whichever characters were escaped and up to
// three times over, or is broken into lines. Values of fewer than 6 bytes are not hidden. The zero value and nil know none.
// It is safe for concurrent use, and must not be copied.
type Redactor struct {
	mu    sync.Mutex // guards known and size, and is held to replace forms
	known map[string]bool
	size  int

	forms atomic.Pointer[forms] // nil: nothing to hide
}

// forms are the texts that are hidden.
type forms struct {
	all    []string            // longest first
	starts map[string][]string // by their first minKnown bytes, longest first
	pairs  [1 << 16]bool       // which two bytes one of them begins with
}

// Add makes a value known from now on. It returns false, and does not, when the values would have more than 1 MiB.
func (r *Redactor) Add(value []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(value) < minKnown || r.known[string(value)] {
		return true
	}
	if r.size+len(value) > maxKnown {
		return false
	}
	if r.known == nil {
		r.known = map[string]bool{}
	}
	r.known[string(value)] = true
	r.size += len(value)
	f := &forms{starts: map[string][]string{}}
	for v := range r.known {
		f.all = appendForms(f.all, v)
	}
	slices.SortFunc(f.all, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	f.all = slices.Compact(f.all)
	for _, form := range f.all {
		f.starts[form[:minKnown]] = append(f.starts[form[:minKnown]], form)
		f.pairs[pair(form, 0)] = true
	}
	r.forms.Store(f)
	return true
}

func pair(s string, i int) uint16 { return uint16(s[i])<<8 | uint16(s[i+1]) }

// appendForms adds all that a value may look like once escapes are undone, which may undo some of the value's own. A long
// word of it counts too: the lines of a key, or the token in a header's value.
func appendForms(all []string, value string) []string {
	for _, v := range views(value)[1:] {
		if len(v.text) >= minKnown {
			all = append(all, v.text, strings.ReplaceAll(v.text, " ", "+"))
		}
	}
	parts := []string{value}
	if trimmed := strings.TrimSpace(value); trimmed != value {
		parts = append(parts, trimmed)
	}
	for word := range strings.FieldsSeq(value) {
		if len(word) >= minWord && len(word) < len(value) {
			parts = append(parts, word)
		}
	}
	for _, part := range parts {
		if len(part) < minKnown {
			continue
		}
		digits := hex.EncodeToString([]byte(part))
		all = append(all, part, strings.ReplaceAll(part, " ", "+"), digits, strings.ToUpper(digits))
		if !utf8.ValidString(part) { // what JSON makes of it
			all = append(all, string([]rune(part)))
		}
		for _, other := range encodings(part) {
			if len(other) >= minKnown {
				all = append(all, other)
			}
		}
	}
	return all
}

// encodings are the characters that base64 makes of a value alone, whatever stands before and after it: one text for each
// offset within three bytes.
func encodings(value string) (all []string) {
	for offset, first := range []int{0, 2, 3} { // the characters before first depend on what stands before the value
		text := base64.RawStdEncoding.EncodeToString(append(bytes.Repeat([]byte{0}, offset), value...))
		text = text[first : (offset+len(value))*8/6] // so does the last one on what follows, if it is not full
		all = append(all, text)
		if strings.ContainsAny(text, "+/") {
			all = append(all, strings.NewReplacer("+", "-", "/", "_").Replace(text))
		}
	}
	return all
}

// Text is s without the known values.
func (r *Redactor) Text(s string) string { return r.hide(s, false, false) }

// Piece is Text for a text that was cut off somewhere: what may be the rest of a known value at its beginning, the beginning
// of one at its end, or the middle of one, is hidden too when it has at least 6 bytes.
func (r *Redactor) Piece(s string) string { return r.hide(s, true, true) }

// hide is s without the known values, and without what may be left of one where s was cut off: at its start, or at its end.
func (r *Redactor) hide(s string, start, end bool) string {
	f := r.hidden()
	if f == nil {
		return s
	}
	var found []span
	for _, v := range views(s) {
		found = f.find(v, found)
		if start {
			found = f.findRest(v, found)
		}
		if at := f.open(v, minKnown); end && at < len(s) {
			found = append(found, span{at, len(s)})
		}
	}
	return redact(s, found)
}

// hidden is what to hide; nil: nothing.
func (r *Redactor) hidden() *forms {
	if r == nil {
		return nil
	}
	return r.forms.Load()
}

// redact puts Redacted in the place of what was found.
func redact(s string, found []span) string {
	if len(found) == 0 {
		return s
	}
	slices.SortFunc(found, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var b strings.Builder
	done := 0
	for _, next := range found {
		if next.from >= done { // else it overlaps the one before
			b.WriteString(s[done:next.from])
			b.WriteString(Redacted)
		}
		done = max(done, next.to)
	}
	b.WriteString(s[done:])
	return b.String()
}

// find adds where a view has a form.
func (f *forms) find(v view, found []span) []span {
	s := v.text
	for i := 0; i+minKnown <= len(s); i++ {
		if !f.pairs[pair(s, i)] {
			continue
		}
		for _, form := range f.starts[s[i:i+minKnown]] {
			if strings.HasPrefix(s[i:], form) {
				found = append(found, v.span(i, i+len(form)))
				break
			}
		}
	}
	return found
}

// open is where in the text a form may begin of which the view's end has at least so many bytes, and cuts off the rest; or
// the text's end.
func (f *forms) open(v view, least int) int {
	s, ends := v.text, v.ends()
	for i := max(0, len(s)-len(f.all[0])-maxEscape); i < len(s); i++ {
		for _, end := range ends {
			if i+least <= end && f.begins(s[i:end]) {
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

// findRest adds where a view starts with a later part of a form: its end, or as much of it as there is.
func (f *forms) findRest(v view, found []span) []span {
	for _, start := range v.starts() {
		s := v.text[start:]
		if len(s) < minKnown {
			break
		}
		for _, form := range f.all {
			for from := 1; from < len(form); from++ {
				at := strings.Index(form[from:], s[:minKnown])
				if at < 0 {
					break
				}
				from += at
				if n := min(len(form)-from, len(s)); form[from:from+n] == s[:n] {
					found = append(found, v.span(0, start+n))
					break
				}
			}
		}
	}
	return found
}
