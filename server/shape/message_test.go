package shape_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"agentd/server/fuzztest"
	"agentd/server/shape"
)

type decoded struct {
	Text  string          `json:"text" check:"required"`
	Kind  string          `json:"kind" enum:"a|b"`
	N     int64           `json:"n" check:"1..9"`
	Flag  bool            `json:"flag"`
	List  []string        `json:"list" check:"1..3"`
	Short string          `json:"short" check:"..4"`
	Inner struct{ X int } `json:"inner"`
	Any   json.RawMessage `json:"any"`
}

func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		`{"text":"x","kind":"a","n":1,"flag":true,"list":["y"],"any":null}`: ``,
		``:                                   `[text] "text" is missing`,
		`{}`:                                 `[text] "text" is missing`,
		`null`:                               `[] want an object, got null`,
		`[]`:                                 `[] want an object, got a list`,
		`7`:                                  `[] want an object, got a number`,
		`{"text":"x"`:                        `[] is not valid JSON at byte 11: unexpected end of JSON input`,
		`{"text":"x","n":`:                   `[] is not valid JSON at byte 16: unexpected end of JSON input`,
		`{"text":"x"} {}`:                    `[] is not valid JSON at byte 14: invalid character '{' after top-level value`,
		`{"text":"x"}]`:                      `[] is not valid JSON at byte 13: invalid character ']' after top-level value`,
		`{'text':1}`:                         `[] is not valid JSON at byte 2: invalid character '\'' looking for beginning of object key string`,
		`{"text":""}`:                        `[text] is empty`,
		`{"text":null}`:                      `[text] want text, got null; leave the key out for its default`,
		`{"text":1,"flag":0}`:                `[text] want text, got a number, [flag] want true or false, got a number`,
		`{"text":"x","n":1.5,"list":[]}`:     `[n] want a whole number, written with digits only, got 1.5, [list] want at least one item`,
		`{"text":"x","n":0,"kind":"c"}`:      `[n] want a number from 1 to 9, got 0, [kind] want a or b, got "c"; did you mean "a"?`,
		`{"text":"x","n":10}`:                `[n] want a number from 1 to 9, got 10`,
		`{"text":"x","list":[1,2,"","x",5]}`: `[list] want from 1 to 3 items, got 5`,
		`{"text":"x","list":["","",""]}`:     ``,
		`{"text":"x","short":"12345"}`:       `[short] want up to 4 bytes, got 5`,
		`{"text":"x","list":["a",2,null]}`:   `[list 1] want text, got a number, [list 2] want text, got null; leave the key out for its default`,
		`{"text":"x","Text":"y","text":"z"}`: `[Text] unknown key "Text"; did you mean "text"?, [text] duplicate key "text"`,
		`{"text":"x","any":{"deep":[1,{"a":"}]"}]},"zzz":1}`:                             `[zzz] unknown key "zzz"`,
		`{"text":"x","any":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`: `[] is nested deeper than 200`,
	} {
		var got []string
		var v decoded
		for _, is := range shape.Decode([]byte(in), &v) {
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
		readCost.Check(t, len(in), func() { shape.Decode(in, new(decoded)) })
		var v, again decoded
		if issues := shape.Decode(in, &v); issues != nil || len(bytes.TrimSpace(in)) == 0 {
			if len(issues) == 0 || len(issues) > 101 {
				t.Errorf("Decode(%q) has %d issues, want 1 to 101", in, len(issues))
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
		readCost.Check(t, len(body), func() { shape.Decode(body, new(decoded)) })
		if t.Failed() {
			t.Log(name)
		}
	}
	long := strings.Repeat("n", 30<<10)
	body := fmt.Appendf(nil, `{"text":"x","any":{%q:{%s"":0}}}`, long, strings.Repeat(`"a":0,`, 200))
	if issues := shape.Decode(body, new(decoded)); len(issues) != 3 {
		t.Errorf("Decode() of many problems below a name of 30 KiB has %d issues, want the 2 that 64 KiB have room for, and the number of the others", len(issues))
	}
	body = fmt.Appendf(nil, `{"text":"x","any":{%q:{"":0,"":1}}}`, strings.Repeat(long, 3))
	if issues := shape.Decode(body, new(decoded)); len(issues) != 1 {
		t.Errorf("Decode() of a problem below a name of 90 KiB has %d issues, want it", len(issues))
	}
}
