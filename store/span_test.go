package store_test

import (
	"fmt"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

func TestTreesAndTheirSpans(t *testing.T) {
	db := storetest.Open(t)
	numbers := map[string]int64{}
	for _, v := range []struct {
		id, parent, session string
		spans               int
	}{{"a", "", "s", 3}, {"b", "a", "s", 0}, {"x", "", "s", 1}, {"c", "b", "s", 2}, {"d", "a", "s", 1}, {"y", "", "t", 0}, {"z", "", "s", 0}} {
		c := newRun(v.id)
		c.Run.Parent, c.Run.Session, c.Run.Spans = numbers[v.parent], v.session, v.spans
		for i := range v.spans {
			c.Spans = append(c.Spans, store.SpanBatch{First: 10 * i, At: int64(i), Body: []byte("[]")})
		}
		numbers[v.id] = apply(t, db, c)
	}
	runs := db.Runs()
	view := func(what, want string, fn func(tx *store.Tx) (any, error)) {
		t.Helper()
		err := db.View(t.Context(), func(tx *store.Tx) error {
			got, err := fn(tx)
			if text := fmt.Sprint(got); err == nil && text != want {
				t.Errorf("%s = %s, want %s", what, text, want)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct {
		root  string
		limit int
		want  string
	}{
		{"a", 100, "[{1 3} {2 0} {4 2} {5 1}]"},
		{"a", 3, "[{1 3} {2 0} {5 1}]"}, // the grandchild is the farthest
		{"b", 100, "[{2 0} {4 2}]"},
		{"x", 100, "[{3 1}]"},
		{"none", 100, "[]"},
	} {
		view(fmt.Sprintf("Tree(%s, %d)", c.root, c.limit), c.want, func(tx *store.Tx) (any, error) { return runs.Tree(tx, numbers[c.root], c.limit) })
	}
	for _, c := range []struct {
		session string
		after   int64
		limit   int
		want    string
	}{{"s", 0, 100, "[1 3 7]"}, {"s", 1, 1, "[3]"}, {"s", 7, 100, "[]"}, {"t", 0, 100, "[6]"}, {"u", 0, 100, "[]"}} {
		view(fmt.Sprintf("Roots(%s, %d, %d)", c.session, c.after, c.limit), c.want, func(tx *store.Tx) (any, error) {
			return runs.Roots(tx, c.session, c.after, c.limit)
		})
	}
	for _, c := range []struct {
		from, limit int
		want        string
	}{{0, 100, "[0 10 20]"}, {0, 2, "[0 10]"}, {1, 100, "[10 20]"}, {10, 1, "[10]"}, {21, 100, "[]"}} {
		view(fmt.Sprintf("SpansFrom(a, %d, %d)", c.from, c.limit), c.want, func(tx *store.Tx) (any, error) {
			list, err := runs.SpansFrom(tx, numbers["a"], c.from, c.limit)
			firsts := []int{}
			for _, b := range list {
				firsts = append(firsts, b.First)
				if b.Run != numbers["a"] || string(b.Body) != "[]" {
					t.Errorf("SpansFrom gives %+v", b)
				}
			}
			return firsts, err
		})
	}
}
