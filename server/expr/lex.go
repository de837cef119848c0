package expr

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// A token is a word of an expression. Its text is that of an operator or a name; a literal has a value.
type token struct {
	kind  tokenKind
	text  string
	value any
	at    int
}

type tokenKind int

const (
	tokenEnd tokenKind = iota
	tokenName
	tokenField // a name in backquotes
	tokenLiteral
	tokenOperator
)

// operators are all of them, longer ones before those that they begin with.
var operators = []string{"&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")", "[", "]", "{", "}"}

const (
	digits = "0123456789"
	hex    = digits + "abcdefABCDEF"
	space  = " \t\r\n\f"
)

func span(s, set string) int { return len(s) - len(strings.TrimLeft(s, set)) }

func isLetter(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// nameLength is how many bytes of a name s begins with.
func nameLength(s string) (n int) {
	for n < len(s) && (isLetter(s[n]) || n > 0 && s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return n
}

// scan reads the token at or after an index of the source, and returns the index after it.
func scan(src string, at int) (token, int, *Error) {
	rest := strings.TrimLeft(src[at:], space)
	for strings.HasPrefix(rest, "//") {
		_, rest, _ = strings.Cut(rest, "\n")
		rest = strings.TrimLeft(rest, space)
	}
	at = len(src) - len(rest)
	switch {
	case rest == "":
		return token{kind: tokenEnd, at: at}, at, nil
	case rest[0] >= '0' && rest[0] <= '9', len(rest) > 1 && rest[0] == '.' && rest[1] >= '0' && rest[1] <= '9':
		return scanNumber(src, at)
	case rest[0] == '`':
		n := strings.IndexByte(rest[1:], '`')
		if n < 1 || strings.Trim(rest[1:1+n], digits+"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-/ ") != "" {
			return token{}, at, &Error{Offset: at, Message: "A field in backquotes has letters, digits, spaces and _.-/ between them.", Hint: "Write other fields as an index: x['...']."}
		}
		return token{kind: tokenField, text: rest[1 : 1+n], at: at}, at + n + 2, nil
	case isLetter(rest[0]):
		n := nameLength(rest)
		if quoted := n == 1 && len(rest) > 1 && (rest[1] == '"' || rest[1] == '\''); quoted && (rest[0]|0x20 == 'b') {
			return token{}, at, &Error{Offset: at, Message: "There are no bytes.", Hint: "Leave out the b."}
		} else if quoted && (rest[0]|0x20 == 'r') {
			return scanText(src, at, at+1)
		}
		return token{kind: tokenName, text: rest[:n], at: at}, at + n, nil
	case rest[0] == '"' || rest[0] == '\'':
		return scanText(src, at, at)
	}
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			return token{kind: tokenOperator, text: op, at: at}, at + len(op), nil
		}
	}
	r, _ := utf8.DecodeRuneInString(rest)
	return token{}, at, &Error{Offset: at, Message: "No expression has the character " + strconv.QuoteRune(r) + " here."}
}

// scanNumber reads 10, 0x0a, 1.0, .5 or 1e3.
func scanNumber(src string, at int) (token, int, *Error) {
	rest := src[at:]
	n, base := span(rest, digits), 10
	double := false
	if strings.HasPrefix(rest, "0x") && span(rest[2:], hex) > 0 {
		n, base = 2+span(rest[2:], hex), 16
	} else {
		if m := span(strings.TrimPrefix(rest[n:], "."), digits); strings.HasPrefix(rest[n:], ".") && m > 0 {
			n, double = n+1+m, true
		}
		if n < len(rest) && rest[n]|0x20 == 'e' {
			sign := min(1, span(rest[n+1:], "+-"))
			if m := span(rest[n+1+sign:], digits); m > 0 {
				n, double = n+1+sign+m, true
			}
		}
	}
	end := at + n
	if strings.HasPrefix(src[end:], "u") || strings.HasPrefix(src[end:], "U") {
		return token{}, at, &Error{Offset: at, Message: "There are no unsigned integers.", Hint: "Leave out the u."}
	}
	if nameLength(src[end:]) > 0 {
		return token{}, at, &Error{Offset: end, Message: "A number ends in a letter."}
	}
	text := rest[:n]
	if double {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return token{}, at, &Error{Offset: at, Message: "The number is too large for a double."}
		}
		return token{kind: tokenLiteral, value: f, at: at}, end, nil
	}
	u, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), base, 64)
	if err != nil || u > 1<<63 { // 1<<63 is right after a minus only
		return token{}, at, &Error{Offset: at, Message: "The number is too large for an int.", Hint: "Write a double, such as 1e20."}
	}
	return token{kind: tokenLiteral, value: u, at: at}, end, nil
}

// scanText reads a text whose quotes begin at an index. It is raw if they are not its beginning: r'...'.
func scanText(src string, at, quotes int) (token, int, *Error) {
	raw := quotes > at
	quote := src[quotes : quotes+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(src[quotes:], triple) {
		quote = triple
	}
	open := quotes + len(quote)
	for i := open; i < len(src); i++ {
		switch {
		case strings.HasPrefix(src[i:], quote):
			text := src[open:i]
			if !raw {
				var err *Error
				if text, err = unescape(src, open, i); err != nil {
					return token{}, at, err
				}
			}
			return token{kind: tokenLiteral, value: text, at: at}, i + len(quote), nil
		case src[i] == '\\' && !raw:
			i++
		case (src[i] == '\n' || src[i] == '\r') && len(quote) == 1:
			return token{}, at, &Error{Offset: i, Message: "The text does not end on its line.", Hint: "Close it, or write three quotes on both sides."}
		}
	}
	return token{}, at, &Error{Offset: at, Message: "The text does not end.", Hint: "Close it with " + quote + "."}
}

// unescape is the text that src has between two indices.
func unescape(src string, from, to int) (string, *Error) {
	s := src[from:to]
	if strings.IndexByte(s, '\\') < 0 {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			i++
			continue
		}
		r, n := escape(s[i:])
		if n == 0 {
			return "", &Error{Offset: from + i, Message: "The text has an escape that there is not.", Hint: `Write \\ for a backslash, or r before the quotes.`}
		}
		b.WriteRune(r)
		i += n
	}
	return b.String(), nil
}

// escape reads an escape, and returns how many bytes it has; 0 if it is none. Those of Go are escapes, and a few more.
func escape(s string) (rune, int) {
	if len(s) > 1 && strings.IndexByte("?\"'`", s[1]) >= 0 {
		return rune(s[1]), 2
	}
	if strings.HasPrefix(s, `\X`) {
		s = `\x` + s[2:min(len(s), 4)]
	}
	r, _, rest, err := strconv.UnquoteChar(s, 0)
	if err != nil {
		return 0, 0
	}
	return r, len(s) - len(rest)
}
