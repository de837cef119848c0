package shape_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentd/server/shape"
)

// required has more than one field that must be there, and one that takes any value.
type required struct {
	First  string          `json:"first" check:"required"`
	Second string          `json:"second" check:"required"`
	Third  string          `json:"third" check:"required"`
	Any    json.RawMessage `json:"any"`
}

func problems(body string) string {
	var all []string
	for _, is := range shape.Decode([]byte(body), new(required)) {
		all = append(all, fmt.Sprint(is.Path, " ", is.Message))
	}
	return strings.Join(all, ", ")
}

func TestMissingKeysAreToldInTheOrderOfTheFields(t *testing.T) {
	const want = "[first] \"first\" is missing, [second] \"second\" is missing, [third] \"third\" is missing"
	for range 20 {
		if got := problems(`{}`); got != want {
			t.Fatalf("Decode({}) = %s, want %s", got, want)
		}
	}
}

func TestKeysAreUniqueAtEveryDepth(t *testing.T) {
	for any, want := range map[string]string{
		`{"a":1,"b":{"a":1},"c":[{"a":1},{"a":1}]}`: "",
		`{"a":1,"a":1}`:                    `[any a] duplicate key "a"`,
		`[0,{"x":{"y":[{"z":1,"z":2}]}}]`:  `[any 1 x y 0 z] duplicate key "z"`,
		`{"a":{"b":1,"b":2},"c":1,"c":[]}`: `[any a b] duplicate key "b", [any c] duplicate key "c"`,
		`{"a":"\"a\":1","\u0061":2}`:       `[any a] duplicate key "a"`,
		`"{\"a\":1,\"a\":2}"`:              "",
	} {
		if got := problems(`{"first":"1","second":"2","third":"3","any":` + any + `}`); got != want {
			t.Errorf("Decode(any: %s) = %s, want %s", any, got, want)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	body := "{" + strings.Repeat(`"x":1,`, 100_000) + `"y":1}`
	if got := len(shape.Decode([]byte(body), new(required))); got != 101 {
		t.Errorf("Decode(100000 unknown keys) = %d problems, want 100 and their number", got)
	}
}
