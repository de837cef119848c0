package commentary

import "strings"

// The marks of an envelope. What is in one is commentary, and known as such.
const (
	opener = "<<<commentary>>>"
	closer = "<<</commentary>>>"
)

// wrapping is the text that wrap has written so far.
type wrapping struct {
	strings.Builder
	found matched
}

// wrap puts the matches in a text in envelopes.
//
// A second wrap changes nothing: what is left between the matches and the envelopes is split up further by the next
// patterns, but never joined, so no pattern that did not match there can match later. Marks are added in pairs around
// text without a closer. So to the next wrap every part of what was left is a part of a text between envelopes, or, if
// a lone opener comes before it, of an envelope.
func wrap(text string) (string, matched) {
	var w wrapping
	for {
		start, end, found := envelope(text)
		if !found {
			break
		}
		w.part(text[:start], 0)
		w.WriteString(text[start:end])
		text = text[end:]
	}
	w.part(text, 0)
	return w.String(), w.found
}

// envelope returns where the first envelope begins and ends, or the first closer that ends none. An opener without a closer
// is text like any other.
func envelope(text string) (start, end int, found bool) {
	start = strings.Index(text, closer)
	if start < 0 {
		return 0, 0, false
	}
	end = start + len(closer)
	if open := strings.Index(text[:start], opener); open >= 0 {
		start = open
	}
	return start, end, true
}

// part writes a text outside of envelopes, where the patterns before that index have no match.
func (w *wrapping) part(text string, index int) {
	if index == len(patterns) {
		w.WriteString(text)
		return
	}
	for {
		start, end, found := patterns[index].find(text)
		if !found {
			break
		}
		w.found |= 1 << index
		w.part(text[:start], index+1)
		w.WriteString(opener + text[start:end] + closer)
		text = text[end:]
	}
	w.part(text, index+1)
}

// maxPasses bounds how often strip searches a string. In the last pass it finds nothing.
const maxPasses = 9

// strip removes the matches from a text, and those that their removal makes.
func strip(text string) (string, matched) {
	var all matched
	for range maxPasses {
		clean := true
		for i := range patterns {
			var left strings.Builder
			for start, end, found := patterns[i].find(text); found; start, end, found = patterns[i].find(text) {
				clean = false
				all |= 1 << i
				left.WriteString(text[:start])
				text = text[end:]
			}
			text = left.String() + text
		}
		if clean {
			return text, all
		}
	}
	return "", all
}
