package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"agentd/server/fuzztest"
)

// plainJSON is JSON of JSON with comments, by a way of its own: white space in the place of comments, line by line, and
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

// FuzzComments holds the reader of files to the reader of the standard library, with comments taken out.
func FuzzComments(f *testing.F) {
	for _, seed := range []string{
		"// a\n{\"a\": [1, 2,], /* b */ \"c\": {\"d\": null,},}", `[1,,2]`, `[,]`, `{,}`, `[1 /* , */ ,]`, `{"a":"// no /* comment \" */"}`,
		"\ufeff{}", `"\ud83d\ude00\u0000\/"`, `"\ud800"`, `-0.0e+1`, `01`, `1.`, `+1`, `nul`, "[1]//", "[1]/", "/*/ 1 */ 2", `{"a":1 "b":2}`, `{"a":1,"a":2}`, "\"a\tb\"",
		"\"\xff\"", "\v1", strings.Repeat("[", 65) + strings.Repeat("]", 65), `{"a"/**/:/**/1}`, "1 2", "[1 2]", "[1]\u00a0",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// A node and its place for each value, of which the shortest has two bytes.
		fuzztest.Cost{PerByte: 100}.Check(t, len(text), func() { parse([]byte(text), func(pos, []any, string) {}) })
		problems, twice, deep := 0, false, false
		root, whole := parse([]byte(text), func(at pos, _ []any, message string) {
			problems++
			twice = twice || strings.HasPrefix(message, "duplicate key")
			deep = deep || strings.HasPrefix(message, "is nested deeper")
			if at.line < 1 || at.col < 1 || at.line > strings.Count(text, "\n")+1 || at.col > len(text)+1 || len(message) > 400 {
				t.Errorf("parse(%q) reports %q at %v", text, message, at)
			}
		})
		if !whole && problems == 0 {
			t.Errorf("parse(%q) breaks off and does not tell why", text)
		}
		plain, ok := plainJSON(strings.TrimPrefix(text, "\ufeff"))
		// Two things are errors here and no errors there, beside what parse is asked to report: broken UTF-8 and halves
		// of surrogate pairs, which become U+FFFD.
		valid := ok && json.Valid([]byte(plain)) && utf8.ValidString(plain) && !twice && !deep
		if valid && problems > 0 {
			var v any
			json.Unmarshal([]byte(plain), &v) //nolint:errcheck // it is valid
			if b, _ := json.Marshal(v); strings.Count(string(b), "\ufffd") == strings.Count(plain, "\ufffd") {
				t.Errorf("parse(%q) reports %d problems, though %q is JSON", text, problems, plain)
			}
			return
		}
		if problems > 0 {
			return
		}
		if !valid {
			t.Fatalf("parse(%q) reports nothing, though %q is no JSON", text, plain)
		}
		var got, want any
		if err := json.Unmarshal(root.appendJSON(nil), &got); err != nil {
			if _, outside := err.(*json.UnmarshalTypeError); outside { // a number that no float64 holds
				return
			}
			t.Fatalf("parse(%q) = %s: %v", text, root.appendJSON(nil), err)
		}
		if err := json.Unmarshal([]byte(plain), &want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("parse(%q) = %v, want %v, %v", text, got, want, err)
		}
	})
}
