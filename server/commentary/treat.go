package commentary

import (
	"bytes"
	"cmp"
	"slices"
)

// The marks of an envelope. What is in one is commentary, and known as such.
const (
	opener = "<<<commentary>>>"
	closer = "<<</commentary>>>"
)

// wrap puts the matches in the body of a JSON string in envelopes.
//
// It is done when it is done once: what is left between the matches and the envelopes is split up further by the next
// patterns, but never joined, so no pattern that did not match there can match later. Marks are added in pairs around
// text without a closer. So to the next wrap every part of what was left is a part of a text between envelopes, or, if
// a lone opener comes before it, of an envelope.
func wrap(body []byte) ([]byte, matched) {
	text := unescape(body)
	parts := outside(text)
	var all []span
	var m matched
	for i := range patterns {
		before := len(all)
		var left []span
		for _, part := range parts {
			found := len(all)
			all = patterns[i].matches(all, text, part)
			for _, match := range all[found:] {
				left = append(left, span{part.start, match.start})
				part.start = match.end
			}
			left = append(left, part)
		}
		if len(all) > before {
			m |= 1 << i
			parts = left
		}
	}
	if m == 0 {
		return nil, 0
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	return splice(body, all, func(out, match []byte) []byte {
		return append(append(append(out, opener...), match...), closer...)
	}), m
}

// outside returns the parts of a text that are in no envelope, split at the closers that end none. An opener without a
// closer is text like any other.
func outside(text []byte) []span {
	var parts []span
	start := 0
	for at := 0; ; {
		i := bytes.Index(text[at:], []byte(opener[:3]))
		if i < 0 {
			break
		}
		at += i
		end := at + len(closer)
		if bytes.HasPrefix(text[at:], []byte(opener)) {
			i := bytes.Index(text[at:], []byte(closer))
			if i < 0 {
				break
			}
			end += i
		} else if !bytes.HasPrefix(text[at:], []byte(closer)) {
			at++
			continue
		}
		parts = append(parts, span{start, at})
		start, at = end, end
	}
	return append(parts, span{start, len(text)})
}

// maxPasses bounds how often strip searches a string. In the last pass it finds nothing.
const maxPasses = 9

// strip removes the matches from the body of a JSON string, and those that their removal makes.
func strip(body []byte) ([]byte, matched) {
	var m matched
	var all []span
	text := unescape(body)
	for range maxPasses {
		clean := true
		for i := range patterns {
			if all = patterns[i].matches(all[:0], text, span{0, len(text)}); len(all) > 0 {
				clean = false
				m |= 1 << i
				body = splice(body, all, func(out, _ []byte) []byte { return out })
				text = unescape(body)
			}
		}
		if clean {
			return body, m
		}
	}
	return nil, m
}
