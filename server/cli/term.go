package cli

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf16"
	"unsafe"
)

// isTerminal reports whether a stream is one that a person looks at: a character device other than the null device.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// hidden are the characters that no terminal gets from others: they move its cursor, change its colours, show the text in
// another order, or cannot be seen.
var hidden = []*unicode.RangeTable{
	unicode.Cc, // control characters
	unicode.Cf, // directions, joiners, zero widths, tags
	unicode.Zl, unicode.Zp,
	unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector,
}

// printable is a text on one line, with a space for each hidden character.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.In(r, hidden...) {
			return ' '
		}
		return r
	}, s)
}

// escaped is a JSON document in which each hidden character but the ends of lines is an escape sequence, so that whoever
// decides on it sees all of it.
func escaped(json string) string {
	var b strings.Builder
	for _, r := range json {
		switch {
		case r == '\n' || !unicode.In(r, hidden...):
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// indented is a text of several lines, with two spaces before each line of a terminal.
func indented(text string, width int) string {
	in := margin{mark: "  ", width: width}
	return in.set(text)
}

// A margin sets what others say apart from what the program says: each line begins with the mark, and no line is wider
// than the terminal, which would show the rest of it at its edge, as it shows a prompt. Hidden characters are spaces.
type margin struct {
	mark  string
	width int // of the terminal
	used  int // columns of the last line, if it has the mark already
	begun bool
}

// set is the next piece of a text.
func (m *margin) set(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r == '\n' {
			b.WriteByte('\n')
			m.begun = false
			continue
		}
		piece, wide := string(r), cells(r)
		if r == '\t' {
			piece = "    "
		}
		if m.begun && m.used+wide >= m.width {
			b.WriteByte('\n')
			m.begun = false
		}
		if !m.begun {
			b.WriteString(m.mark)
			m.begun, m.used = true, len([]rune(m.mark))
		}
		b.WriteString(printable(piece))
		m.used += wide
	}
	return b.String()
}

// cells is how many columns of a terminal a character takes, or more.
func cells(r rune) int {
	switch {
	case r == '\t':
		return 4
	case r >= 0x1100: // East Asian characters take two, and to count others so does no harm
		return 2
	}
	return 1
}

// columns is the width of a terminal: 80 if it is unknown, and unlimited for anything else.
func columns(stream any) int {
	const usual, least = 80, 20
	f, ok := stream.(*os.File)
	if !ok || !isTerminal(f) {
		return math.MaxInt
	}
	var size struct{ rows, columns, x, y uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if errno != 0 || size.columns == 0 {
		return usual
	}
	return max(int(size.columns), least)
}

// fitting is the beginning of a text on one line, as much of it as the columns hold, with a mark where the rest is left out.
func fitting(s string, columns int) string {
	s = printable(s)
	used := 0
	for i, r := range s {
		if used += cells(r); used >= columns {
			return s[:i] + "…"
		}
	}
	return s
}
