package graph_test

import (
	"strings"
	"testing"

	"agentd/server/graph"
)

func TestMerge(t *testing.T) {
	for _, tt := range []struct {
		merge            graph.Merge
		old, value, want string // an empty result is an error
	}{
		{graph.Replace, `1`, `{"a":1}`, `{"a":1}`},
		{graph.Replace, `null`, `null`, `null`},
		{graph.Append, `[]`, `[1,2]`, `[1,2]`},
		{graph.Append, `[1]`, `[]`, `[1]`},
		{graph.Append, `[1]`, `[[2]]`, `[1,[2]]`},
		{graph.Append, `[1]`, `{"a":[]}`, `[1,{"a":[]}]`},
		{graph.Append, `[1]`, `null`, `[1,null]`},
		{graph.Append, `[ 1 ]`, `[ 2 ]`, `[1,2]`},
		{graph.Append, `1`, `[2]`, ``},
		{graph.Sum, `1`, `2`, `3`},
		{graph.Sum, `1`, `2.0`, `3.0`},
		{graph.Sum, `0.5`, `0.5`, `1.0`},
		{graph.Sum, `9223372036854775807`, `1`, ``},
		{graph.Sum, `-9223372036854775808`, `-1`, ``},
		{graph.Sum, `9223372036854775807`, `-1`, `9223372036854775806`},
		{graph.Sum, `1e308`, `1e308`, ``},
		{graph.Sum, `1`, `"2"`, ``},
		{graph.Sum, `1`, `null`, ``},
		{graph.Sum, `1`, `true`, ``},
		{graph.Sum, `null`, `1`, ``},
		{graph.Max, `null`, `1`, `1`},
		{graph.Max, `1`, `2.5`, `2.5`},
		{graph.Max, `3`, `2.5`, `3`},
		{graph.Max, `9007199254740993`, `9007199254740992`, `9007199254740993`},
		{graph.Max, `"2026-01-01"`, `"2026-02-01"`, `"2026-02-01"`},
		{graph.Max, `"a"`, `1`, ``},
		{graph.Max, `1`, `null`, ``},
		{graph.Min, `null`, `"b"`, `"b"`},
		{graph.Min, `"b"`, `"a"`, `"a"`},
		{graph.Min, `1`, `2`, `1`},
		{graph.Min, `2`, `1.0`, `1.0`},
		{graph.Union, `[]`, `[1,1.0,"1",1e0]`, `[1,"1"]`},
		{graph.Union, `[{"a":1,"b":2}]`, `[{"b":2,"a":1.0},{"a":1}]`, `[{"a":1,"b":2},{"a":1}]`},
		{graph.Union, `[9007199254740993]`, `[9007199254740992]`, `[9007199254740993,9007199254740992]`},
		{graph.Union, `[0]`, `-0.0`, `[0]`},
		{graph.Union, `[-1,[2]]`, `[-1.0,[2.0],[true],[true],[2,null]]`, `[-1,[2],[true],[2,null]]`},
		{graph.Union, `["a"]`, `"b"`, `["a","b"]`},
		{graph.Union, `{}`, `"b"`, ``},
		{graph.Shallow, `{}`, `{"b":1,"a":1.0}`, `{"a":1.0,"b":1}`},
		{graph.Shallow, `{"a":{"x":1},"b":2}`, `{"a":{"y":"<"}}`, `{"a":{"y":"<"},"b":2}`},
		{graph.Shallow, `{"a":1}`, `{"a":null}`, `{"a":null}`},
		{graph.Shallow, `{}`, `[]`, ``},
		{graph.Shallow, `null`, `{}`, ``},
	} {
		merged, delta, err := tt.merge.Of([]byte(tt.old), []byte(tt.value))
		if string(merged) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s.Of(%s, %s) = %s, %v, want %q", tt.merge, tt.old, tt.value, merged, err, tt.want)
		}
		if err != nil {
			if want := "cannot merge with " + string(tt.merge) + ": "; !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s.Of(%s, %s) = %v, want an error that begins with %q", tt.merge, tt.old, tt.value, err, want)
			}
			continue
		}
		again, same, err := tt.merge.Of([]byte(tt.old), delta)
		if err != nil || string(again) != tt.want || string(same) != string(delta) {
			t.Errorf("%s.Of(%s, its delta %s) = %s, %s, %v, want %s and the delta", tt.merge, tt.old, delta, again, same, err, tt.want)
		}
	}
}

func TestInitialValues(t *testing.T) {
	g := compile(t, `{"start": "a", "nodes": {"a": {"kind": "fail", "code": "c", "message": ""}}, "state": {"r": {}, "a": {"merge": "append"}, "s": {"merge": "sum"},
		"x": {"merge": "max"}, "n": {"merge": "min"}, "u": {"merge": "union"}, "h": {"merge": "shallow"}, "i": {"initial": {"a": "$${ x }", "b": 1.0}}}}`)
	for key, want := range map[string]string{"r": "null", "a": "[]", "s": "0", "x": "null", "n": "null", "u": "[]", "h": "{}", "i": `{"a":"${ x }","b":1.0}`} {
		if got := string(g.Keys[key].Initial); got != want {
			t.Errorf("the key %s begins with %s, want %s", key, got, want)
		}
	}
}
