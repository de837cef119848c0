package secret

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Redacted stands where a secret was.
const Redacted = "[REDACTED]"

// Bounds of what a Redactor hides.
const (
	minKnown = 6       // bytes; a shorter value is in too many texts that do not tell it
	minWord  = 12      // bytes of a word of a value that is hidden by itself
	maxKnown = 1 << 20 // bytes of all values
)

// A Redactor hides known values in texts: as they are, in base64 at any offset, percent-encoded, and as they stand in
// JSON. Values of fewer than 6 bytes are not hidden. The zero value knows none; it is safe for concurrent use, and must
// not be copied.
type Redactor struct {
	mu    sync.Mutex // guards known and size, and is held to replace forms
	known map[string]bool
	size  int

	forms atomic.Pointer[forms] // nil: nothing to hide
}

// forms are the texts that are hidden, longest first, so that a value is hidden before a part of it.
type forms struct {
	all      []string
	replacer *strings.Replacer
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
	var all []string
	for v := range r.known {
		all = appendForms(all, v)
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	all = slices.Compact(all)
	pairs := make([]string, 0, 2*len(all))
	for _, form := range all {
		pairs = append(pairs, form, Redacted)
	}
	r.forms.Store(&forms{all, strings.NewReplacer(pairs...)})
	return true
}

// appendForms adds all that a value may look like. A long word of it counts too: the lines of a key, or the token in a
// header's value.
func appendForms(all []string, value string) []string {
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
		all = append(all, part)
		for _, other := range append(encodings(part), url.QueryEscape(part), url.PathEscape(part), inJSON(part)) {
			if other != part && len(other) >= minKnown {
				all = append(all, other)
			}
		}
	}
	return all
}

func inJSON(s string) string {
	b, _ := json.Marshal(s) // a string always encodes
	return string(b[1 : len(b)-1])
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
func (r *Redactor) Text(s string) string {
	f := r.forms.Load()
	if f == nil {
		return s
	}
	return f.replacer.Replace(s)
}

// Piece is Text for a text that was cut off somewhere: what may be the rest of a known value at its beginning, or the
// beginning of one at its end, is hidden too when it has at least 6 bytes.
func (r *Redactor) Piece(s string) string {
	f := r.forms.Load()
	if f == nil {
		return s
	}
	s = f.replacer.Replace(s)
	head, tail := 0, 0
	for _, form := range f.all {
		for n := min(len(form)-1, len(s)); n >= minKnown && n > head; n-- {
			if strings.HasPrefix(s, form[len(form)-n:]) {
				head = n
			}
		}
		for n := min(len(form)-1, len(s)); n >= minKnown && n > tail; n-- {
			if strings.HasSuffix(s, form[:n]) {
				tail = n
			}
		}
	}
	switch {
	case head+tail >= len(s) && head+tail > 0:
		return Redacted
	case tail > 0:
		s = s[:len(s)-tail] + Redacted
	}
	if head > 0 {
		s = Redacted + s[head:]
	}
	return s
}
