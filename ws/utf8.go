package ws

import "unicode/utf8"

// textCheck checks that text which comes in pieces is UTF-8 (section 8.1), and finds a fault in the very byte that makes
// it one. Its zero value is at the beginning of a text.
type textCheck struct {
	open [utf8.UTFMax]byte // the beginning of a code point whose end is in the next piece
	n    int
}

// add reports whether all up to the end of p can be the beginning of a text.
func (c *textCheck) add(p []byte) bool {
	for c.n > 0 && len(p) > 0 {
		c.open[c.n] = p[0]
		c.n++
		p = p[1:]
		if !utf8.FullRune(c.open[:c.n]) {
			continue
		}
		if _, size := utf8.DecodeRune(c.open[:c.n]); size != c.n {
			return false
		}
		c.n = 0
	}
	for i := len(p) - 1; i >= max(0, len(p)-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(p[i]) {
			if !utf8.FullRune(p[i:]) { // a code point that no further byte could make valid counts as full
				c.n = copy(c.open[:], p[i:])
				p = p[:i]
			}
			break
		}
	}
	return utf8.Valid(p)
}

// done reports whether a text may end here.
func (c *textCheck) done() bool { return c.n == 0 }
