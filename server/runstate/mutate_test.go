package runstate_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"agentd/server/runstate"
)

// TestUnknownAnywhere adds an unknown member to every object of the newest fixture in turn, and looks for it in what
// is written.
func TestUnknownAnywhere(t *testing.T) {
	data := fixtures(t)["run-state-1.2"]
	const name, member = "~new/ ", `"~new/ ":{"a":[1,"<"]}`
	for n := 0; ; n++ {
		var doc any
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
		objects := objectsOf(doc)
		if n == len(objects) {
			break
		}
		objects[n][name] = map[string]any{"a": []any{1, "<"}}
		changed := encode(t, doc)
		want := member
		if objects[n]["m-small"] != nil { // its members are models
			want = `"~new/ ":{"promptTokens":0,"completionTokens":0,"totalTokens":0,"cachedReadTokens":0,"cacheWriteTokens":0,"attemptCount":1,"a":[1,"<"]}`
		}
		if got := string(encode(t, read(t, changed))); strings.Count(got, want) != 1 {
			t.Errorf("Encode(Read(%s)) =\n%s\nwant %s once in it", changed, got, want)
		}
		checkStable(t, changed)
	}
}

// objectsOf lists all objects within v, in a fixed order.
func objectsOf(v any) []map[string]any {
	var all []map[string]any
	switch v := v.(type) {
	case map[string]any:
		all = append(all, v)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			all = append(all, objectsOf(v[k])...)
		}
	case []any:
		for _, e := range v {
			all = append(all, objectsOf(e)...)
		}
	}
	return all
}

// TestMutations changes the fixtures at random places. What can still be read has to survive its round trip.
func TestMutations(t *testing.T) {
	const rounds = 200
	values := []string{`null`, `true`, `0`, `-1.5`, `""`, `"7"`, `[]`, `[null,"a",{}]`, `{}`, `{"0":1}`, `{"enc":"url","href":"h"}`, `{"type":"text"}`}
	rnd := rand.New(rand.NewPCG(1, 2))
	intact, total := 0, 0
	for _, data := range fixtures(t) {
		for range rounds {
			var doc any
			if err := json.Unmarshal(data, &doc); err != nil {
				t.Fatal(err)
			}
			objects := objectsOf(doc)
			for range 1 + rnd.IntN(3) {
				o := objects[rnd.IntN(len(objects))]
				names := slices.Sorted(maps.Keys(o))
				if len(names) == 0 || rnd.IntN(4) == 0 {
					names = []string{"new"}
				}
				name := names[rnd.IntN(len(names))]
				if rnd.IntN(4) == 0 {
					delete(o, name)
					continue
				}
				o[name] = json.RawMessage(values[rnd.IntN(len(values))])
			}
			changed := encode(t, doc)
			total++
			if _, err := runstate.Read(changed); err == nil {
				intact++
				checkStable(t, changed)
			}
			if t.Failed() {
				t.Fatalf("changed fixture:\n%s", changed)
			}
		}
	}
	if intact < total/4 {
		t.Errorf("%d of %d changed fixtures can be read, want at least a quarter", intact, total)
	}
}
