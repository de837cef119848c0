package graph

import (
	"encoding/json"

	"agentd/server/expr"
)

// Template compiles a template that stands outside of a workflow. It returns nil and the problems if it is not sound; without
// JSON, nil and none.
func Template(raw json.RawMessage, vars expr.Vars) (*expr.Template, []Problem) {
	c := compiler{}
	t, _ := c.template(use{}, raw, vars)
	return t, c.problems
}

// Condition compiles a condition that stands outside of a workflow. It returns nil and the problem if it is not sound.
func Condition(text string, vars expr.Vars) (*expr.Program, []Problem) {
	c := compiler{vars: vars}
	return c.condition(use{}, text), c.problems
}
