package cli_test

import (
	"strings"
	"testing"
)

func TestDrawWorkflow(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "agentd.json", `{"auth": {"kind": "none"}, "workflows": {"pay": {"start": "ask", "nodes": {
		"ask": {"kind": "approval", "name": "big", "next": "end", "denied": "no"}, "no": {"kind": "fail", "code": "refused", "message": "No."}}}}}`)
	for line, want := range map[string]said{
		"workflows graph pay":               {stdout: "flowchart TD\n"},
		"workflows graph pay --format dot":  {stdout: `label="denied", style=dashed`},
		"workflows graph pay --format svg":  {stdout: "<svg "},
		"workflows graph pay --json":        {stdout: `"kind": "denied"`},
		"workflows graph pay --format png":  {code: 2, stderr: "want one of mermaid, dot, svg"},
		"workflows graph pray":              {code: 1, stderr: `no workflow "pray". Did you mean pay?`},
		"workflows graph":                   {code: 2, stderr: "0 argument(s)"},
		"workflows graph pay --config none": {code: 1, stderr: "cannot be read"},
	} {
		here(t, strings.Fields(line)...).want(t, want.code, want.stdout, want.stderr)
	}
}

// config check shows mistakes in workflows with the place inside of an expression.
func TestCheckWorkflow(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "agentd.json", `{"auth": {"kind": "none"}, "workflows": {"pay": {"start": "a", "nodes": {
"a": {"kind": "branch", "cases": [{"if": "inptu.total > 100", "next": "end"}], "else": "b"}}}}}`)
	s := here(t, "config", "check").want(t, 1, "", "agentd.json:2:43: There is no variable inptu. Did you mean input?")
	if want := `agentd.json:2:88: there is no node "b"`; !strings.Contains(s.stderr, want) {
		t.Errorf("config check says %s, want %s", s.stderr, want)
	}
}
