package server_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"agentd/metrics"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/event"
	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/openapi"
)

var updateReference = flag.Bool("update-reference", false, "write the tables of the manual")

// TestReference compares the tables at the ends of pages in the manual with those that the program declares.
func TestReference(t *testing.T) {
	api := api(false)
	events := "| Type | Kept | Answer | Fields | When |\n|---|---|---|---|---|\n"
	yes := map[bool]string{true: "yes", false: "no"}
	for _, e := range event.Catalogue() {
		events += fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", e.Name, yes[!e.Transient], yes[e.Answer], e.Fields, e.When)
	}
	actions := "| Action | Target | Metadata | When |\n|---|---|---|---|\n"
	for _, a := range audit.Actions {
		actions += fmt.Sprintf("| `%s` | %s | %s | %s |\n", a.Action, a.Target, a.Carries, a.When)
	}
	expressions := "| Function | Result |\n|---|---|\n"
	for _, f := range expr.Functions() {
		expressions += fmt.Sprintf("| `%s` | %s |\n", strings.ReplaceAll(f.Usage, " or ", "` or `"), f.Does)
	}
	expressions += "\n## Limits\n\nAll expressions of one value, such as the arguments of a tool, are one evaluation.\n\n| What | At most |\n|---|---|\n" +
		fmt.Sprintf("| Length of an expression | %d bytes |\n", expr.MaxSource) +
		fmt.Sprintf("| Levels inside each other | %d |\n", expr.MaxNesting) +
		fmt.Sprintf("| Operations of one evaluation; one on a long text or list counts as several | %d |\n", expr.MaxSteps) +
		fmt.Sprintf("| Texts, lists and maps that one evaluation makes | %d MiB |\n", expr.MaxBytes>>20) +
		fmt.Sprintf("| A regular expression | %d bytes and about %d states |\n", expr.MaxPattern, expr.MaxProgram) +
		fmt.Sprintf("| JSON that is read, such as a key of the state or the text of `json`, and that a result is written as | %d MiB and %d levels |\n", expr.MaxJSON>>20, expr.MaxDepth) +
		fmt.Sprintf("| Memory of a value that is read from JSON, such as a key of the state; a small object takes about 400 bytes | %d MiB |\n", expr.MaxValue>>20)
	inventory := metrics.New("")
	inventory.Process()
	for page, table := range map[string]string{
		"routes":        api.Markdown(),
		"errors":        openapi.ErrorsMarkdown(fault.Kinds()),
		"configuration": config.Markdown(),
		"events":        events,
		"expressions":   expressions,
		"actions":       actions,
		"metrics":       inventory.Markdown(),
	} {
		path := "manual/" + page + ".md"
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		prose, _, found := strings.Cut(string(text), "-update-reference -->\n")
		if !found {
			t.Fatalf("%s has no line that marks where its table begins", path)
		}
		want := prose + "-update-reference -->\n\n" + strings.TrimSpace(table) + "\n"
		if *updateReference {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if string(text) != want {
			t.Errorf("%s differs from the tables of the program; run go test ./server -run TestReference -update-reference", path)
		}
	}
}
