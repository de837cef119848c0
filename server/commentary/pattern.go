package commentary

import (
	"regexp"
	"strings"
)

// A pattern finds one kind of event in a text.
type pattern struct {
	reason string
	name   string         // with which the event's type begins: a text without it has no match
	head   *regexp.Regexp // up to the event's type
	marker *regexp.Regexp
}

var patterns = [...]pattern{
	newPattern("tool.call.start-payload-signature", "tool.call.start", "", `"toolName"WS*:WS*"[^"]+"`),
	newPattern("tool.call.delta-payload-signature", "tool.call.delta", "", `"argsDelta"`),
	newPattern("tool.call.end-payload-signature", "tool.call.end", "", `"finalArgs"`),
	newPattern("tool.execute.end-payload-signature", "tool.execute.end", "", `"result"WS*:`),
	newPattern("agent.fanout-event-signature", "agent.fanout.", "(?:spawned|merged)", ""),
	newPattern("context.compacted-event-signature", "context.compacted", "", `"originalTokens"`),
	newPattern("agent.model.fellback-event-signature", "agent.model.fellback", "", `"fromModel"`),
}

// space is the class \s of JavaScript's regular expressions (ECMA-262, CharacterClassEscape).
const space = `[\t\n\v\f\r\p{Zs}\x{2028}\x{2029}\x{feff}]`

func newPattern(reason, name, rest, marker string) pattern {
	compile := func(exp string) *regexp.Regexp { return regexp.MustCompile(strings.ReplaceAll(exp, "WS", space)) }
	return pattern{reason, `"` + name, compile(`\{WS*"type"WS*:WS*"` + regexp.QuoteMeta(name) + rest + `"`), compile(marker)}
}

// find returns where the first match begins and ends. It looks at the head, the marker and the brace one after the other:
// if there is no end for the first head, there is none for a later one. One expression for the whole match would be
// slower.
func (p *pattern) find(text string) (start, end int, found bool) {
	if !strings.Contains(text, p.name) {
		return 0, 0, false
	}
	head := p.head.FindStringIndex(text)
	if head == nil {
		return 0, 0, false
	}
	marker := p.marker.FindStringIndex(text[head[1]:])
	if marker == nil {
		return 0, 0, false
	}
	end = head[1] + marker[1]
	brace := strings.IndexByte(text[end:], '}')
	return head[0], end + brace + 1, brace >= 0
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
