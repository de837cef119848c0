package commentary

import (
	"bytes"
	"unicode"
	"unicode/utf8"
)

// A pattern finds one kind of event. The search is written by hand, because a regular expression starts anew at each
// head of a match that has no end: its time would be quadratic.
type pattern struct {
	reason string
	names  []string // of the event, in quotes
	marker string   // in quotes; empty: none
	behind string   // the marker: "", ":" or `:"`, the latter for a colon and a string that is not empty
}

var patterns = [...]pattern{
	{"tool.call.start-payload-signature", []string{`"tool.call.start"`}, `"toolName"`, `:"`},
	{"tool.call.delta-payload-signature", []string{`"tool.call.delta"`}, `"argsDelta"`, ""},
	{"tool.call.end-payload-signature", []string{`"tool.call.end"`}, `"finalArgs"`, ""},
	{"tool.execute.end-payload-signature", []string{`"tool.execute.end"`}, `"result"`, ":"},
	{"agent.fanout-event-signature", []string{`"agent.fanout.spawned"`, `"agent.fanout.merged"`}, "", ""},
	{"context.compacted-event-signature", []string{`"context.compacted"`}, `"originalTokens"`, ""},
	{"agent.model.fellback-event-signature", []string{`"agent.model.fellback"`}, `"fromModel"`, ""},
}

// matched is a set of patterns, by their index.
type matched uint

func (m matched) reasons() []string {
	var all []string
	for i := range patterns {
		if m&(1<<i) != 0 {
			all = append(all, patterns[i].reason)
		}
	}
	return all
}

// A span is a part of a text, from its first byte to before its last.
type span struct{ start, end int }

// matches adds to all the matches of the pattern within a part of a text, leftmost first, none overlapping another.
func (p *pattern) matches(all []span, text []byte, part span) []span {
	text = text[:part.end]
	if !p.named(text[part.start:]) {
		return all
	}
	for at := part.start; ; {
		open := bytes.IndexByte(text[at:], '{')
		if open < 0 {
			return all
		}
		at += open
		head := p.head(text, at)
		if head < 0 {
			at++
			continue
		}
		end := p.end(text, head)
		if end < 0 { // nor has a head further on an end
			return all
		}
		all = append(all, span{at, end})
		at = end
	}
}

// named reports whether a text has the name of the event, without which it has no match.
func (p *pattern) named(text []byte) bool {
	for _, name := range p.names {
		if bytes.Contains(text, []byte(name)) {
			return true
		}
	}
	return false
}

// head returns where the head of a match that begins at a brace ends, or -1.
func (p *pattern) head(text []byte, at int) int {
	at = token(text, skipSpace(text, at+1), `"type"`)
	at = token(text, skipSpace(text, at), ":")
	at = skipSpace(text, at)
	for _, name := range p.names {
		if end := token(text, at, name); end >= 0 {
			return end
		}
	}
	return -1
}

// end returns where a match ends whose head ended at a place, or -1.
func (p *pattern) end(text []byte, at int) int {
	if at = p.pastMarker(text, at); at < 0 {
		return -1
	}
	if i := bytes.IndexByte(text[at:], '}'); i >= 0 {
		return at + i + 1
	}
	return -1
}

// pastMarker returns where the first marker ends that is at a place or later, with what is behind it, or -1.
func (p *pattern) pastMarker(text []byte, at int) int {
	for p.marker != "" {
		i := bytes.Index(text[at:], []byte(p.marker))
		if i < 0 {
			return -1
		}
		at += i
		if end := p.tail(text, at+len(p.marker)); end >= 0 {
			return end
		}
		at++ // only, for the quote that ends this marker may begin the next
	}
	return at
}

// tail returns where what has to be behind the marker ends, or -1.
func (p *pattern) tail(text []byte, at int) int {
	if p.behind == "" {
		return at
	}
	at = token(text, skipSpace(text, at), ":")
	at = skipSpace(text, at)
	if p.behind == ":" || at < 0 {
		return at
	}
	if at = token(text, at, `"`); at < 0 {
		return -1
	}
	if n := bytes.IndexByte(text[at:], '"'); n > 0 {
		return at + n + 1
	}
	return -1
}

// token returns the place behind a token that is at a place, or -1; also where the place is negative.
func token(text []byte, at int, tok string) int {
	if at < 0 || len(text)-at < len(tok) || string(text[at:at+len(tok)]) != tok {
		return -1
	}
	return at + len(tok)
}

// skipSpace returns the place behind the white space that is at a place, if any; -1 where the place is negative.
func skipSpace(text []byte, at int) int {
	for at >= 0 && at < len(text) {
		r, n := utf8.DecodeRune(text[at:])
		if !isSpace(r) {
			break
		}
		at += n
	}
	return at
}

// isSpace is the class \s of JavaScript's regular expressions (ECMA-262, CharacterClassEscape): WhiteSpace and
// LineTerminator, which take in the byte order mark and leave out U+0085.
func isSpace(r rune) bool { return unicode.IsSpace(r) && r != '\u0085' || r == '\ufeff' }
