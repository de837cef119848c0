package cli_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestExportOfSpans writes the spans of runs to files, here and through a server.
func TestExportOfSpans(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, dir string) {
		do := func(args ...string) said {
			t.Helper()
			return spawn(t, dir, nil, nil, append([]string{"spans", "export"}, args...)...).wait()
		}
		for _, session := range []string{"s1", "s2"} {
			spawn(t, dir, nil, nil, "run", "same", "hello", "--session", session).wait().want(t, 0, "hello", "")
		}
		all := do("-").want(t, 0, `{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"agentd"}}`, "").stdout
		if n := strings.Count(all, `"stringValue":"agent.run"`); n != 2 {
			t.Errorf("the export has %d spans of runs, want 2:\n%s", n, all)
		}
		do("all.jsonl").want(t, 0, "Wrote spans to all.jsonl (", "")
		write(t, filepath.Join(dir, "old"), "old")
		do("old", "--json", "--until", "2100-01-01", "--since", "2000-01-01").want(t, 0, `"file": "old"`, "")
		for _, name := range []string{"all.jsonl", "old"} {
			if got := read(t, filepath.Join(dir, name)); got != all {
				t.Errorf("%s = %s\nwant %s", name, got, all)
			}
		}
		if one := do("-", "--session", "s2").want(t, 0, "agent.run", "").stdout; strings.Count(one, `"stringValue":"agent.run"`) != 1 {
			t.Errorf("the export of a session = %s", one)
		}
		if none := do("-", "--since", "2100-01-01").want(t, 0, "", "").stdout; none != "" {
			t.Errorf("the export of the future = %s", none)
		}
		do("-", "--run", "none").want(t, 1, "", "agentd: run-not-found: ")
		do("none.jsonl", "--since", "yesterday").want(t, 1, "", "agentd: config-invalid: ")
		do("-", "--run", "r", "--session", "s1").want(t, 1, "", "cannot be combined with runId")
		do().want(t, 2, "", "agentd: usage: ")
	})
}
