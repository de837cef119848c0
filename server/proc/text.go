package proc

import (
	"io"
	"iter"
	"strings"
	"unicode/utf8"
)

// Texts yields what r reads, as it comes, in texts of at most 32 KiB that are cut between characters. Each invalid byte becomes
// U+FFFD. However the reads fall, the texts together are the same. The error of r, unless that is io.EOF, comes last.
func Texts(r io.Reader) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		buf := make([]byte, 32<<10)
		held := 0 // bytes of a character whose rest has not been read
		for {
			n, err := r.Read(buf[held:])
			all := buf[:held+n]
			whole := len(all)
			if err == nil {
				whole -= half(all)
			}
			if whole > 0 && !yield(valid(all[:whole]), nil) {
				return
			}
			if err != nil {
				if err != io.EOF {
					yield("", err)
				}
				return
			}
			held = copy(buf, all[whole:])
		}
	}
}

// half is how many bytes at the end of b may be the beginning of a character.
func half(b []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if end := b[len(b)-n:]; utf8.RuneStart(end[0]) {
			if !utf8.FullRune(end) {
				return n
			}
			break
		}
	}
	return 0
}

func valid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b))) // the conversion makes U+FFFD of each invalid byte
}

// A tail is a writer that keeps the last StderrTail bytes.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-StderrTail):]...)
	t.b = t.b[:copy(t.b, t.b[max(0, len(t.b)-StderrTail):])]
	return len(p), nil
}

// String is the text, without the half of a character that the cut may have left at its start.
func (t *tail) String() string { return strings.ToValidUTF8(string(t.b), "") }
