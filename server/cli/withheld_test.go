package cli_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// The operator's instructions are in nothing that the program prints of a run unless that is asked for.
func TestInstructionsAreWithheld(t *testing.T) {
	t.Parallel()
	site := func(t *testing.T) string {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data/data.db"},
			"providers": {"script": {"kind": "scripted", "script": "script.json"}},
			"agents": {"clerk": {"kind": "llm", "provider": "script", "model": "m", "instructions": "operator-secret"}}}`)
		write(t, filepath.Join(dir, "script.json"), `{"turns": [{"text": "Done."}]}`)
		return dir
	}
	check := func(t *testing.T, dir string) {
		said := spawn(t, dir, nil, nil, "run", "clerk", "go", "--json").wait().want(t, 0, `"type":"agent.end"`, "").stdout
		var list struct{ Runs []struct{ RunID string } }
		spawn(t, dir, nil, nil, "runs", "list", "--json").wait().want(t, 0, "", "").decode(t, &list)
		shown := spawn(t, dir, nil, nil, "runs", "show", list.Runs[0].RunID, "--json").wait().want(t, 0, `"withheld": true`, "").stdout
		if strings.Contains(said+shown, "operator-secret") {
			t.Errorf("run --json and runs show --json print %s%s, want no instructions", said, shown)
		}
		spawn(t, dir, nil, nil, "runs", "show", list.Runs[0].RunID, "--json", "--raw").wait().want(t, 0, `"content": "operator-secret"`, "")
	}
	t.Run("here", func(t *testing.T) { check(t, site(t)) })
	t.Run("through a server", func(t *testing.T) {
		dir := site(t)
		serve(t, dir)
		check(t, dir)
	})
}
