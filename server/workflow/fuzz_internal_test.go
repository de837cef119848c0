package workflow

import (
	"encoding/json"
	"testing"

	"agentd/server/canonical"
	"agentd/server/fuzztest"
)

// FuzzBegin begins a run with any input: the state is JSON and holds what the input gives, or the input is refused.
// Then each channel merges what the input gives a second time, and stays JSON.
func FuzzBegin(f *testing.F) {
	for _, seed := range []string{`{}`, `{"x":1,"list":[1,[2]],"unique":["a",1,1.0],"sum":3}`, `{"x":{"a":null}}`, `{"y":1}`, `{"list":1}`, `[]`, `{"x":`, `{"unique":[{"a":1,"b":2},{"b":2,"a":1}]}`, `{"b":{}}`, ` {"x" : "\ud800" } `} {
		f.Add([]byte(seed))
	}
	p, err := (Definition{ID: "w", Nodes: map[string]Node{"a": says()}, Edges: line("a"), MaxStateBytes: 1 << 16,
		Channels: map[string]Channel{"x": {}, "any": AnyValue(), "list": List(), "stream": Stream(false), "unique": Stream(true), "b": Barrier("a")}}).compile()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		var s *superstep
		fuzztest.Cost{PerByte: 64}.Check(t, len(input), func() { s, err = p.start(input) })
		if err != nil {
			return
		}
		if !canonicalObject(input) {
			t.Fatalf("begin(%s) = a state", input)
		}
		given := map[string]json.RawMessage{}
		for name, value := range s.state {
			if name != "b" {
				given[name] = value
			}
		}
		lists := map[string]int{}
		for _, name := range []string{"list", "stream", "unique"} {
			lists[name] = length(s.state[name])
		}
		s.tasks = []*task{{Node: "a", Phase: done, Go: &nodeTask{Writes: given}}}
		if _, _, _, err := s.merge(); err != nil {
			return // it is too large
		}
		for name, value := range s.state {
			if !json.Valid(value) {
				t.Errorf("%s of %s = %s", name, input, value)
			}
		}
		for name, before := range lists {
			want := 2 * before
			if got := length(s.state[name]); name != "unique" && got != want || name == "unique" && got > want {
				t.Errorf("%s of %s has %d elements, want %d", name, input, got, want)
			}
		}
	})
}

func canonicalObject(text []byte) bool {
	var members map[string]json.RawMessage
	return json.Unmarshal(text, &members) == nil && members != nil
}

func length(list []byte) (n int) {
	for range canonical.Elements(list) {
		n++
	}
	return n
}
