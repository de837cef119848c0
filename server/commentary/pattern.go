package commentary

import (
	"bytes"
	"slices"
	"unicode"
)

// A pattern finds one kind of event. The search is written by hand: it skips what no match begins with faster than a
// regular expression.
type pattern struct {
	reason string
	names  []string // of the event, in quotes
	marker string   // in quotes; empty: none
	behind string   // what follows the marker: "", ":" or `:"`, the latter for a colon and a string that is not empty
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
	if !slices.ContainsFunc(p.names, func(name string) bool { return bytes.Contains(text[part.start:], []byte(name)) }) {
		return all
	}
	for at := part.start; ; {
		open := bytes.IndexByte(text[at:], '{')
		if open < 0 {
			return all
		}
		at += open
		rest, found := p.head(text[at+1:])
		if !found {
			at++
			continue
		}
		if rest, found = p.end(rest); !found { // nor has a later head an end
			return all
		}
		all = append(all, span{at, len(text) - len(rest)})
		at = len(text) - len(rest)
	}
}

// head returns what follows the head of a match, of which text follows the brace.
func (p *pattern) head(text []byte) (rest []byte, found bool) {
	if text, found = skip(text, `"type"`); found {
		text, found = skip(text, ":")
	}
	for i := 0; found && i < len(p.names); i++ {
		if rest, found := skip(text, p.names[i]); found {
			return rest, true
		}
	}
	return nil, false
}

// end returns what follows a match, of which text follows the head.
func (p *pattern) end(text []byte) (rest []byte, found bool) {
	for found = p.marker == ""; !found; {
		i := bytes.Index(text, []byte(p.marker))
		if i < 0 {
			return nil, false
		}
		if rest, found = p.tail(text[i+len(p.marker):]); found {
			text = rest
		} else {
			text = text[i+1:] // the quote that ends this marker may begin the next
		}
	}
	i := bytes.IndexByte(text, '}')
	return text[i+1:], i >= 0
}

// tail returns what follows that which has to follow the marker.
func (p *pattern) tail(text []byte) (rest []byte, found bool) {
	if p.behind == "" {
		return text, true
	}
	if text, found = skip(text, ":"); !found || p.behind == ":" {
		return text, found
	}
	if text, found = skip(text, `"`); !found {
		return nil, false
	}
	n := bytes.IndexByte(text, '"')
	return text[n+1:], n > 0
}

// skip returns what follows a token, which white space may precede.
func skip(text []byte, token string) (rest []byte, found bool) {
	return bytes.CutPrefix(bytes.TrimLeftFunc(text, isSpace), []byte(token))
}

// isSpace is the class \s of JavaScript's regular expressions (ECMA-262, CharacterClassEscape): WhiteSpace and
// LineTerminator, which take in the byte order mark and leave out U+0085.
func isSpace(r rune) bool { return unicode.IsSpace(r) && r != '\u0085' || r == '\ufeff' }
