package server_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A JSON pattern is JSON that a value must equal: the same members, the same items, the same numbers as they are
// written. These exceptions make it a pattern:
//
//	"<any>"           any value, null included; further names are those of classes below
//	"<~ REGEXP>"      a string that the regular expression matches as a whole
//	"member?": ...    the member may be absent
//	"...": ...        the object may have further members
//	[..., "..."]      the list may have further items
var classes = map[string]*regexp.Regexp{
	"<string>":   regexp.MustCompile(`(?s)^.+$`),
	"<sentence>": regexp.MustCompile(`^[A-Z0-9].*\.$`), // for people
	"<uuid7>":    regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`),
	"<iso>":      regexp.MustCompile(`^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`),
	"<token>":    regexp.MustCompile(`^svc_(live|test|local)_v1_[0-9A-Za-z]{49}$`),
}

// numbers are classes of JSON numbers.
var numbers = map[string]*regexp.Regexp{
	"<ms>":  regexp.MustCompile(`^1[6-9]\d{11}$`), // milliseconds since 1970, of this age
	"<int>": regexp.MustCompile(`^\d+$`),
}

// mismatch tells every difference between a text and a pattern; nothing when it matches.
func mismatch(pattern, text string) []string {
	want, err := decodeJSON(pattern)
	if err != nil {
		return []string{fmt.Sprintf("the pattern %s is no JSON: %v", pattern, err)}
	}
	got, err := decodeJSON(text)
	if err != nil {
		return []string{fmt.Sprintf("%q is no JSON: %v", text, err)}
	}
	return compare(want, got, "")
}

func decodeJSON(text string) (v any, err error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("there is more after its end")
	}
	return v, nil
}

func compare(want, got any, at string) []string {
	differ := func() []string {
		return []string{fmt.Sprintf("%s is %s, want %s", cmp.Or(at, "."), show(got), show(want))}
	}
	switch w := want.(type) {
	case string:
		return compareString(w, got, differ)
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return differ()
		}
		return compareObjects(w, g, at)
	case []any:
		g, ok := got.([]any)
		open := len(w) > 0 && w[len(w)-1] == "..."
		if open {
			w = w[:len(w)-1]
		}
		if !ok || len(g) < len(w) || len(g) > len(w) && !open {
			return differ()
		}
		var all []string
		for i := range w {
			all = append(all, compare(w[i], g[i], fmt.Sprintf("%s[%d]", at, i))...)
		}
		return all
	}
	if want != got {
		return differ()
	}
	return nil
}

func compareString(want string, got any, differ func() []string) []string {
	if want == "<any>" {
		return nil
	}
	if re := numbers[want]; re != nil {
		if n, ok := got.(json.Number); !ok || !re.MatchString(n.String()) {
			return differ()
		}
		return nil
	}
	s, ok := got.(string)
	re := classes[want]
	if expr, ok := strings.CutPrefix(want, "<~ "); ok {
		re = regexp.MustCompile(`^(?s:` + strings.TrimSuffix(expr, ">") + `)$`)
	}
	if !ok || re != nil && !re.MatchString(s) || re == nil && s != want {
		return differ()
	}
	return nil
}

func compareObjects(want, got map[string]any, at string) []string {
	var all []string
	_, open := want["..."]
	known := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		name, optional := strings.CutSuffix(key, "?")
		if known[name] = true; key == "..." {
			continue
		}
		v, there := got[name]
		switch {
		case there:
			all = append(all, compare(want[key], v, at+"."+name)...)
		case !optional:
			all = append(all, fmt.Sprintf("%s.%s is missing", at, name))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if !known[key] && !open {
			all = append(all, fmt.Sprintf("%s.%s = %s is not wanted", at, key, show(got[key])))
		}
	}
	return all
}

func show(v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.Encode(v) //nolint:errcheck // it was decoded
	if text := strings.TrimSpace(b.String()); len(text) <= 300 {
		return text
	}
	return b.String()[:300] + "…"
}

// find follows a place such as .runs[0].runId and returns a string's value or the JSON of anything else.
func find(text, place string) (string, error) {
	v, err := decodeJSON(text)
	if err != nil {
		return "", err
	}
	for _, step := range regexp.MustCompile(`\.[^.\[]+|\[\d+\]`).FindAllString(place, -1) {
		switch at := v.(type) {
		case map[string]any:
			v = at[step[1:]]
		case []any:
			var i int
			if fmt.Sscanf(step, "[%d]", &i); i >= len(at) {
				return "", fmt.Errorf("%s is not in %s", place, text)
			}
			v = at[i]
		}
	}
	switch v := v.(type) {
	case nil:
		return "", fmt.Errorf("%s is not in %s", place, text)
	case string:
		return v, nil
	}
	return show(v), nil
}

func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, text string
		want          int
	}{
		{`{"a":1}`, `{"a":1}`, 0},
		{`{"a":1}`, `{"a":1.0}`, 1},
		{`{"a":1}`, `{"a":"1"}`, 1},
		{`{"a":1}`, `{"a":1,"b":2}`, 1},
		{`{"a":1,"b":2}`, `{"a":1}`, 1},
		{`{"a":1,"b?":2}`, `{"a":1}`, 0},
		{`{"a":1,"b?":2}`, `{"a":1,"b":3}`, 1},
		{`{"a":1,"...":0}`, `{"a":1,"b":2}`, 0},
		{`[1,2]`, `[1]`, 1},
		{`[1,"..."]`, `[1,2,3]`, 0},
		{`["..."]`, `{}`, 1},
		{`["<int>","<ms>"]`, `[7,1750000000000]`, 0},
		{`["<int>","<ms>"]`, `["7",17]`, 2},
		{`["<~ a+b>"]`, `["aab"]`, 0},
		{`["<~ a+b>"]`, `["aabc"]`, 1},
		{`["<iso>","<uuid7>"]`, `["2026-01-01T00:00:00Z","x"]`, 2},
		{`["<string>"]`, `[""]`, 1},
		{`["<any>"]`, `[null]`, 0},
		{`null`, `0`, 1},
		{`{}`, `{} {}`, 1},
		{`{}`, ``, 1},
	} {
		if got := mismatch(tc.pattern, tc.text); len(got) != tc.want {
			t.Errorf("mismatch(%s, %s) = %q, want %d", tc.pattern, tc.text, got, tc.want)
		}
	}
}
