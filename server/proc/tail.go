package proc

import "strings"

// A tail is a writer that keeps the last StderrTail bytes.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	p = p[max(0, n-StderrTail):]
	if over := len(t.b) + len(p) - StderrTail; over > 0 {
		t.b = t.b[:copy(t.b, t.b[over:])]
	}
	t.b = append(t.b, p...)
	return n, nil
}

// String is the text, without the half of a character that the cut may have left at its start.
func (t *tail) String() string { return strings.ToValidUTF8(string(t.b), "") }
