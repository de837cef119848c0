package cli

import (
	"io/fs"
	"os"
	"strings"
	"unicode"
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

// printable is a text on one line, without characters that would move a terminal's cursor, change its
// colours or show the text in another order.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// onScreen is a text without control characters but for ends of lines and tabs. What an agent says could otherwise clear the
// screen, write to the clipboard, or hide what is written after it, such as the call that somebody is asked to approve.
func onScreen(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, s)
}

// shortened is the beginning of a text, with a mark where the rest is left out.
func shortened(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
