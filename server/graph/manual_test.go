package graph_test

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentd/server/graph"
	"agentd/server/shape"
)

func manual(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../manual/workflows.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// The manual's table of kinds has a row for each kind, with the fields that the form gives it.
func TestManualKinds(t *testing.T) {
	fields, kinds := map[string][]string{}, []string{}
	for _, row := range shape.Of(reflect.TypeFor[graph.Workflow]()).Rows() {
		field, isNode := strings.CutPrefix(row.Path, "nodes.<id>.")
		if field == "kind" {
			kinds = strings.Split(strings.ReplaceAll(row.Type, " or ", ", "), ", ")
		}
		if field, _, _ = strings.Cut(field, "."); !isNode || field == "kind" || strings.HasPrefix(row.Path, "nodes.<id>.do.") && field != "do" {
			continue
		}
		of := row.Kinds
		if field == "do" {
			of = []string{graph.KindMap} // the kinds of its own fields are those of the node in it
		}
		for _, kind := range of {
			if !slices.Contains(fields[kind], field) {
				fields[kind] = append(fields[kind], field)
			}
		}
	}
	said := map[string]bool{}
	code := regexp.MustCompile("`([A-Za-z]+)`")
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| .* \\| (`[a-zA-Z`, ]+) \\|$").FindAllStringSubmatch(manual(t), -1) {
		var named []string
		for _, m := range code.FindAllStringSubmatch(row[2], -1) {
			named = append(named, m[1])
		}
		want := slices.Clone(fields[row[1]])
		if said[row[1]] = true; !slices.Equal(slices.Sorted(slices.Values(named)), slices.Sorted(slices.Values(want))) {
			t.Errorf("the manual gives kind %s the fields %q, want %q", row[1], named, want)
		}
	}
	for _, kind := range kinds {
		if !said[kind] {
			t.Errorf("the manual's table has no row for kind %s", kind)
		}
	}
	if len(said) != len(kinds) {
		t.Errorf("the manual's table has the rows %v, want one for each of %q", said, kinds)
	}
}

// The manual states the limits of the code.
func TestManualLimits(t *testing.T) {
	page := manual(t)
	for what, n := range map[string]int{"Nodes of a workflow": graph.MaxNodes, "Names of nodes in other nodes": graph.MaxLinks,
		"Parallels inside each other": graph.MaxNesting, "Elements of a map": graph.MaxElements} {
		if row := fmt.Sprintf("\n| %s | %d |\n", what, n); !strings.Contains(page, row) {
			t.Errorf("the manual lacks the row %s", row)
		}
	}
}
