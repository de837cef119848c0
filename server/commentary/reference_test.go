package commentary_test

import (
	"regexp"
	"slices"
	"strings"

	"agentd/server/commentary"
)

// The patterns as regular expressions, and the policies as they read in the documentation of the package: slower than
// what the package does, but plain.

const (
	opener = "<<<commentary>>>"
	closer = "<<</commentary>>>"
)

type refPattern struct {
	reason string
	re     *regexp.Regexp
}

var refPatterns = []refPattern{
	{"tool.call.start-payload-signature", refExp(`tool\.call\.start`, `"toolName"WS*:WS*"[^"]+"`)},
	{"tool.call.delta-payload-signature", refExp(`tool\.call\.delta`, `"argsDelta"`)},
	{"tool.call.end-payload-signature", refExp(`tool\.call\.end`, `"finalArgs"`)},
	{"tool.execute.end-payload-signature", refExp(`tool\.execute\.end`, `"result"WS*:WS*`)},
	{"agent.fanout-event-signature", refExp(`agent\.fanout\.(?:spawned|merged)`, ``)},
	{"context.compacted-event-signature", refExp(`context\.compacted`, `"originalTokens"`)},
	{"agent.model.fellback-event-signature", refExp(`agent\.model\.fellback`, `"fromModel"`)},
}

func refExp(name, marker string) *regexp.Regexp {
	exp := `\{WS*"type"WS*:WS*"` + name + `"(?s:.*?)` + marker + `(?s:.*?)\}`
	space := `[\t\n\v\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}]`
	return regexp.MustCompile(strings.ReplaceAll(exp, "WS", space))
}

var refEnvelopes = regexp.MustCompile(`(?s:<<<commentary>>>.*?<<</commentary>>>|<<</commentary>>>)`)

// A refPart is a part of a text, done when no pattern looks at it any more.
type refPart struct {
	text string
	done bool
}

// refSplit makes parts of a text: those that the expression matches, which are done, and those between.
func refSplit(text string, re *regexp.Regexp, change func(string) string) (parts []refPart) {
	at := 0
	for _, m := range re.FindAllStringIndex(text, -1) {
		parts = append(parts, refPart{text[at:m[0]], false}, refPart{change(text[m[0]:m[1]]), true})
		at = m[1]
	}
	return append(parts, refPart{text[at:], false})
}

func refWrap(text string) (string, []string) {
	var reasons []string
	parts := refSplit(text, refEnvelopes, func(s string) string { return s })
	for _, p := range refPatterns {
		var next []refPart
		for _, part := range parts {
			if part.done {
				next = append(next, part)
				continue
			}
			next = append(next, refSplit(part.text, p.re, func(s string) string {
				reasons = append(reasons, p.reason)
				return opener + s + closer
			})...)
		}
		parts = next
	}
	var out strings.Builder
	for _, part := range parts {
		out.WriteString(part.text)
	}
	return out.String(), slices.Compact(reasons)
}

func refStrip(text string) (string, []string) {
	found := map[string]bool{}
	passes := 0
	for before := ""; text != before; passes++ {
		if passes > 8 {
			text = ""
			break
		}
		before = text
		for _, p := range refPatterns {
			if after := p.re.ReplaceAllString(text, ""); after != text {
				found[p.reason], text = true, after
			}
		}
	}
	var reasons []string
	for _, p := range refPatterns {
		if found[p.reason] {
			reasons = append(reasons, p.reason)
		}
	}
	return text, reasons
}

func reference(policy commentary.Policy, text string) (string, []string) {
	if policy == commentary.Strip {
		return refStrip(text)
	}
	return refWrap(text)
}
