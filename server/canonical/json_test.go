package canonical_test

import (
	"strings"
	"testing"

	"agentd/server/canonical"
)

var exact = canonical.Rules{Depth: 3, Exact: true}

func TestExact(t *testing.T) {
	for in, want := range map[string]string{
		` { "b" : 1.0, "\u0061" : "\u0070rod" } `: `{"a":"prod","b":1}`,
		`[100.0,1e2,100,-0,0.0e9]`:                `[100,100,100,0,0]`,
		`[9007199254740992,9007199254740994,1e22,0.1,0.1000000000000000055511151231257827]`: `[9007199254740992,9007199254740994,1e+22,0.1,0.1]`,
		`"\ud83d\ude00"`: `"😀"`,
		`[[[]]]`:         `[[[]]]`,
	} {
		if got, err := exact.Append(nil, []byte(in)); err != nil || string(got) != want {
			t.Errorf("Append(%s) = %s, %v, want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		`{"a":1,"\u0061":1}`:          "twice",
		`[{"b":{"a":1,"c":2,"a":1}}]`: "twice",
		`1e400`:                       "no double holds",
		`-1e400`:                      "no double holds",
		`9007199254740993`:            "more digits",
		`-12345678901234567890.5`:     "more digits",
		`1e-400`:                      "more digits",
		`1e-99999999999999999999`:     "more digits",
		`"\ud800"`:                    "not Unicode",
		`{"\udc00\ud800":1}`:          "not Unicode",
		"\"\xff\"":                    "not Unicode",
		`[[[[]]]]`:                    "deeper",
		`{"a":1}{}`:                   "not JSON",
		``:                            "not JSON",
	} {
		if got, err := exact.Append(nil, []byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Append(%s) = %s, %v, want an error: %s", in, got, err, want)
		}
	}
}
