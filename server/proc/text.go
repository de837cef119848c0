package proc

import (
	"io"
	"iter"
	"strings"
	"unicode/utf8"
)

// A Hider takes texts that must not be shown out of a text that comes in pieces. Push returns what can be shown so far, Rest what
// it has held back; cut says that the text does not end there.
type Hider interface {
	Push(piece string) string
	Rest(cut bool) string
}

// Texts yields what r reads and hide shows, as it comes, in texts that are cut between characters. Each invalid byte becomes
// U+FFFD. However the reads fall, the texts together are the same. The error of r, unless that is io.EOF, comes last; half a
// character before it is dropped.
func Texts(r io.Reader, hide Hider) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		buf := make([]byte, 32<<10)
		held := 0 // bytes of a character whose rest has not been read
		for {
			n, err := r.Read(buf[held:])
			all := buf[:held+n]
			whole := len(all)
			if err != io.EOF {
				whole -= half(all)
			}
			shown := hide.Push(valid(all[:whole]))
			if err != nil {
				shown += hide.Rest(err != io.EOF)
			}
			switch {
			case shown != "" && !yield(shown, nil), err == io.EOF:
				return
			case err != nil:
				yield("", err)
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
