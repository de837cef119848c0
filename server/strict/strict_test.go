package strict_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"agentd/server/fuzztest"
	"agentd/server/strict"
)

type decoded struct {
	Text  string          `json:"text" required:"true" min:"1"`
	Kind  string          `json:"kind" enum:"a|b"`
	N     int64           `json:"n" min:"1" max:"9"`
	Flag  bool            `json:"flag"`
	List  []string        `json:"list" min:"1" max:"3"`
	Short string          `json:"short" max:"4"`
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
		`{"text":"x","list":[1,2,"","x",5]}`: `[list] has at most 3 item(s)`,
		`{"text":"x","list":["","",""]}`:     ``,
		`{"text":"x","short":"12345"}`:       `[short] has at most 4 bytes`,
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

// readCost is that of Decode's contract.
var readCost = fuzztest.Cost{PerByte: 100}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"text":"x","list":["a"],"any":{"b":[1]}}`))
	f.Add([]byte(`{"text":"x"`))
	f.Add([]byte(`{"text":"\ud800","kind":"b","n":9,"any":[{"a":1,"a":2}],"inner":{"X":-1}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		readCost.Check(t, len(in), func() { strict.Decode(in, new(decoded)) })
		var v, again decoded
		if issues := strict.Decode(in, &v); issues != nil || len(bytes.TrimSpace(in)) == 0 {
			if len(issues) == 0 || len(issues) > 100 {
				t.Errorf("Decode(%q) has %d issues, want 1 to 100", in, len(issues))
			}
			return
		}
		// What it takes, the standard library reads alike.
		dec := json.NewDecoder(bytes.NewReader(in))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&again); err != nil || !reflect.DeepEqual(again, v) {
			t.Errorf("Decode(%q) = %+v, but encoding/json %+v, %v", in, v, again, err)
		}
		if _, err := dec.Token(); err != io.EOF {
			t.Errorf("Decode(%q) takes what stands after the value", in)
		}
	})
}

func TestDecodeCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		body := fmt.Appendf(nil, `{"text":"x","any":%s}`, text)
		readCost.Check(t, len(body), func() { strict.Decode(body, new(decoded)) })
		if t.Failed() {
			t.Log(name)
		}
	}
	long := strings.Repeat("n", 30<<10)
	body := fmt.Appendf(nil, `{"text":"x","any":{%q:{%s"":0}}}`, long, strings.Repeat(`"a":0,`, 200))
	if issues := strict.Decode(body, new(decoded)); len(issues) != 2 {
		t.Errorf("Decode() of many problems below a name of 30 KiB has %d issues, want the 2 that 64 KiB have room for", len(issues))
	}
	body = fmt.Appendf(nil, `{"text":"x","any":{%q:{"":0,"":1}}}`, strings.Repeat(long, 3))
	if issues := strict.Decode(body, new(decoded)); len(issues) != 1 {
		t.Errorf("Decode() of a problem below a name of 90 KiB has %d issues, want it", len(issues))
	}
}
