package shape

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"agentd/server/fuzztest"
)

// plainJSON is JSON of JSON with comments, found in a second way: white space in the place of comments, line by line, and
// then nothing in the place of commas that nothing follows. ok is false where a comment does not end.
func plainJSON(text string) (plain string, ok bool) {
	var b []byte
	for i := 0; i < len(text); {
		rest := text[i:]
		switch {
		case rest[0] == '"':
			n := 1
			for n < len(rest) && rest[n] != '"' {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
			n = min(n+1, len(rest))
			b = append(b, rest[:n]...)
			i += n
		case strings.HasPrefix(rest, "//"):
			line, _, _ := strings.Cut(rest, "\n")
			b = append(b, ' ')
			i += len(line)
		case strings.HasPrefix(rest, "/*"):
			inside, _, ended := strings.Cut(rest[2:], "*/")
			if !ended {
				return "", false
			}
			b = append(b, ' ')
			i += len(inside) + 4
		case (rest[0] == '}' || rest[0] == ']') && len(b) > 0:
			if before := bytes.TrimRight(b, " \t\r\n"); len(before) > 1 && before[len(before)-1] == ',' {
				if open := bytes.TrimRight(before[:len(before)-1], " \t\r\n"); len(open) > 0 && !strings.ContainsRune("[{,:", rune(open[len(open)-1])) {
					b = before[:len(before)-1]
				}
			}
			b = append(b, rest[0])
			i++
		default:
			b = append(b, rest[0])
			i++
		}
	}
	return string(b), true
}

// FuzzComments holds what is left without comments to the same text with comments taken out in another way: either both
// are JSON of the same value or neither is JSON, and everything stands where it stood.
func FuzzComments(f *testing.F) {
	for _, seed := range []string{
		"// a\n{\"a\": [1, 2,], /* b */ \"c\": {\"d\": null,},}", `[1,,2]`, `[,]`, `{,}`, `[1 /* , */ ,]`, `{"a":"// no /* comment \" */"}`,
		`"\ud83d\ude00\u0000\/"`, `-0.0e+1`, `01`, `nul`, "[1]//", "[1]/", "/*/ 1 */ 2", `{"a":1 "b":2}`, "\"a\tb\"",
		"\"\xff\"", "\v1", `{"a"/**/:/**/1}`, "1 2", "[1 2]", "[1]\u00a0", `{"a":,}`, `"\`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fuzztest.Check(t, len(text), func() { blank([]byte(text)) })
		got := blank([]byte(text))
		if len(got) != len(text) || bytes.Count(got, []byte("\n")) != strings.Count(text, "\n") {
			t.Fatalf("blank(%q) = %q, which has other places", text, got)
		}
		plain, ok := plainJSON(text)
		if valid := ok && json.Valid([]byte(plain)); valid != json.Valid(got) {
			t.Fatalf("blank(%q) = %q, but without comments it is %q", text, got, plain)
		} else if !valid {
			return
		}
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(plain), &b) != nil { // a number that no float64 holds
			return
		}
		if !reflect.DeepEqual(a, b) {
			t.Errorf("blank(%q) is %v, want %v", text, a, b)
		}
	})
}
