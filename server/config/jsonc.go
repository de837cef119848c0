package config

import (
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxBytes = 4 << 20 // of a configuration file
	maxDepth = 64      // of arrays and objects in each other
)

// parse reads JSON with // and /* */ comments and trailing commas. It reports every duplicate key, data after the
// value, and the first error of syntax; that one ends the reading, makes whole false and leaves the tree of what
// stood before it (nil if nothing did).
func parse(data []byte, report func(at pos, path []any, message string)) (root *node, whole bool) {
	p := parser{src: string(data), line: 1, col: 1, report: report}
	if len(data) > maxBytes {
		p.fail("is larger than %d bytes", maxBytes)
		return nil, false
	}
	p.src = strings.TrimPrefix(p.src, "\uFEFF")
	root = p.value(0)
	p.space()
	if !p.failed && p.i < len(p.src) {
		report(p.pos(), nil, "unexpected text after the end")
	}
	return root, !p.failed
}

type parser struct {
	src       string
	i         int
	line, col int
	path      []any
	failed    bool
	report    func(pos, []any, string)
}

func (p *parser) pos() pos { return pos{p.line, p.col} }

// fail reports the error of syntax that ends the reading.
func (p *parser) fail(format string, args ...any) {
	if !p.failed {
		p.failed = true
		p.report(p.pos(), p.path, fmt.Sprintf(format, args...))
	}
}

// peek is the next byte, or 0 at the end and after a failure.
func (p *parser) peek() byte {
	if p.failed || p.i >= len(p.src) {
		return 0
	}
	return p.src[p.i]
}

// skip moves n bytes on.
func (p *parser) skip(n int) {
	for _, c := range []byte(p.src[p.i : p.i+n]) {
		if c == '\n' {
			p.line, p.col = p.line+1, 1
		} else if c&0xC0 != 0x80 {
			p.col++
		}
	}
	p.i += n
}

// unexpected fails at the next character.
func (p *parser) unexpected(want string) {
	switch r, size := utf8.DecodeRuneInString(p.src[p.i:]); {
	case size == 0:
		p.fail("the file ends here; want %s", want)
	case r == utf8.RuneError && size == 1:
		p.fail("this is not UTF-8")
	default:
		p.fail("unexpected %q; want %s", r, want)
	}
}

func (p *parser) space() {
	for {
		switch rest := p.src[p.i:]; {
		case p.failed:
			return
		case strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			p.skip(n)
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				p.fail("this comment does not end")
				return
			}
			p.skip(n + 4)
		case rest != "" && strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			p.skip(1)
		default:
			return
		}
	}
}

// value reads one value. It returns nil when it failed before the value began to make sense.
func (p *parser) value(depth int) *node {
	p.space()
	n := &node{pos: p.pos()}
	switch c := p.peek(); {
	case depth > maxDepth:
		p.fail("is nested deeper than %d", maxDepth)
		return nil
	case c == '{':
		p.object(n, depth)
	case c == '[':
		p.array(n, depth)
	case c == '"':
		n.kind, n.text = stringNode, p.text()
	case c == '-' || '0' <= c && c <= '9':
		n.kind, n.text = numberNode, p.number()
	case 'a' <= c && c <= 'z':
		p.word(n)
	default:
		p.unexpected("a value")
	}
	if p.failed && n.kind != objectNode && n.kind != arrayNode {
		return nil
	}
	return n
}

func (p *parser) word(n *node) {
	rest := p.src[p.i:]
	word := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz"))]
	switch word {
	case "true", "false":
		n.kind, n.text = boolNode, word
	case "null":
	default:
		p.fail("unexpected %s; texts and keys stand in double quotes", quoted(word))
		return
	}
	p.skip(len(word))
}

func (p *parser) object(n *node, depth int) {
	n.kind = objectNode
	seen := map[string]pos{}
	for p.open(); !p.close('}'); p.comma('}') {
		if p.peek() != '"' {
			p.unexpected("a key in double quotes")
			return
		}
		m := member{pos: p.pos(), key: p.text()}
		p.path = append(p.path, m.key)
		if p.space(); p.peek() == ':' {
			p.skip(1)
		} else {
			p.unexpected(`":"`)
		}
		if m.value = p.value(depth + 1); m.value != nil && !p.failed {
			if first, ok := seen[m.key]; ok {
				p.report(m.pos, p.path, fmt.Sprintf("duplicate key %s; the first is at %v", quoted(m.key), first))
			}
		}
		if _, ok := seen[m.key]; !ok && m.value != nil {
			seen[m.key] = m.pos
			n.members = append(n.members, m)
		}
		p.path = p.path[:len(p.path)-1]
	}
}

func (p *parser) array(n *node, depth int) {
	n.kind = arrayNode
	for p.open(); !p.close(']'); p.comma(']') {
		p.path = append(p.path, len(n.items))
		if item := p.value(depth + 1); item != nil {
			n.items = append(n.items, item)
		}
		p.path = p.path[:len(p.path)-1]
	}
}

// open, close and comma walk over the brackets and commas of an array or object that ends with the byte end.
func (p *parser) open() {
	p.skip(1)
	p.space()
}

func (p *parser) close(end byte) bool {
	if p.peek() == end {
		p.skip(1)
		return true
	}
	return p.failed
}

func (p *parser) comma(end byte) {
	switch p.space(); p.peek() {
	case ',':
		p.skip(1)
		p.space()
	case end:
	default:
		if !p.failed {
			p.unexpected(fmt.Sprintf(`"," or %q`, string(end)))
		}
	}
}

// number reads a literal of RFC 8259 section 6.
func (p *parser) number() string {
	start := p.i
	digits := func() bool {
		from := p.i
		for c := p.peek(); '0' <= c && c <= '9'; c = p.peek() {
			p.skip(1)
		}
		return p.i > from
	}
	if p.peek() == '-' {
		p.skip(1)
	}
	if p.peek() == '0' {
		p.skip(1)
	} else if !digits() {
		p.unexpected("a digit")
	}
	if p.peek() == '.' {
		if p.skip(1); !digits() {
			p.unexpected("a digit")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.skip(1)
		if c := p.peek(); c == '+' || c == '-' {
			p.skip(1)
		}
		if !digits() {
			p.unexpected("a digit")
		}
	}
	return p.src[start:p.i]
}

// text reads a string literal.
func (p *parser) text() string {
	p.skip(1)
	var b strings.Builder
	for !p.failed {
		r, size := utf8.DecodeRuneInString(p.src[p.i:])
		switch {
		case r == '"':
			p.skip(1)
			return b.String()
		case r == '\\':
			p.escape(&b)
		case size == 0, r == utf8.RuneError && size == 1:
			p.unexpected(`the closing '"'`)
		case r < ' ':
			p.fail("unexpected %q; a text stands on one line (\\n is a line break)", r)
		default:
			b.WriteString(p.src[p.i : p.i+size])
			p.skip(size)
		}
	}
	return ""
}

func (p *parser) escape(b *strings.Builder) {
	const named = `"\/bfnrt`
	rest := p.src[p.i:]
	if len(rest) >= 2 {
		if k := strings.IndexByte(named, rest[1]); k >= 0 {
			b.WriteByte("\"\\/\b\f\n\r\t"[k])
			p.skip(2)
			return
		}
	}
	r, ok := unit(rest)
	size := 6
	if ok && utf16.IsSurrogate(r) {
		low, _ := unit(rest[6:])
		r = utf16.DecodeRune(r, low)
		ok, size = r != utf8.RuneError, 12
	}
	if !ok {
		p.fail(`unknown escape; want one of \" \\ \/ \b \f \n \r \t or \u and four hex digits (surrogates in pairs)`)
		return
	}
	b.WriteRune(r)
	p.skip(size)
}

// unit decodes \u and four hex digits at the start of s.
func unit(s string) (r rune, ok bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	for _, c := range []byte(s[2:6]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
