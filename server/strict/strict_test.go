package strict_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentd/server/strict"
)

type decoded struct {
	Text  string          `json:"text" required:"true" min:"1"`
	Kind  string          `json:"kind" enum:"a|b"`
	N     int64           `json:"n" min:"1" max:"9"`
	Flag  bool            `json:"flag"`
	List  []string        `json:"list" min:"1"`
	Inner struct{ X int } `json:"inner"`
	Any   json.RawMessage `json:"any"`
}

func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		`{"text":"x","kind":"a","n":1,"flag":true,"list":["y"],"any":null}`: ``,
		``:                                   `[text] is required`,
		`{}`:                                 `[text] is required`,
		`null`:                               `[] is null`,
		`[]`:                                 `[] is not an object`,
		`7`:                                  `[] is not an object`,
		`{"text":"x"`:                        `[] is not valid JSON at byte 11: unexpected end of JSON input`,
		`{"text":"x","n":`:                   `[] is not valid JSON at byte 16: unexpected end of JSON input`,
		`{"text":"x"} {}`:                    `[] is not valid JSON at byte 14: invalid character '{' after top-level value`,
		`{"text":"x"}]`:                      `[] is not valid JSON at byte 13: invalid character ']' after top-level value`,
		`{'text':1}`:                         `[] is not valid JSON at byte 2: invalid character '\'' looking for beginning of object key string`,
		`{"text":""}`:                        `[text] has at least 1 character(s)`,
		`{"text":null}`:                      `[text] is null`,
		`{"text":1,"flag":0}`:                `[text] is not a string, [flag] is not true or false`,
		`{"text":"x","n":1.5,"list":[]}`:     `[n] is not a whole number, [list] has at least 1 item(s)`,
		`{"text":"x","n":0,"kind":"c"}`:      `[n] is at least 1, [kind] is one of a, b`,
		`{"text":"x","n":10}`:                `[n] is at most 9`,
		`{"text":"x","list":["a",2,null]}`:   `[list 1] is not a string, [list 2] is null`,
		`{"text":"x","Text":"y","text":"z"}`: `[Text] is not a known key, [text] is there twice`,
		`{"text":"x","any":{"deep":[1,{"a":"}]"}]},"zzz":1}`:                             `[zzz] is not a known key`,
		`{"text":"x","any":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`: `[] is nested more than 200 levels deep`,
	} {
		var got []string
		var v decoded
		for _, is := range strict.Decode([]byte(in), &v) {
			got = append(got, fmt.Sprint(is.Path, " ", is.Message))
		}
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("Decode(%.60s) = %s, want %s", in, s, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"text":"x","list":["a"],"any":{"b":[1]}}`))
	f.Add([]byte(`{"text":"x"`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var v decoded
		if strict.Decode(in, &v) == nil && len(strings.TrimSpace(string(in))) > 0 && !json.Valid(in) {
			t.Errorf("Decode(%q) accepted what is not JSON", in)
		}
	})
}
