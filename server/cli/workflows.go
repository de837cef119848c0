package cli

import (
	"context"
	"io"
	"maps"
	"slices"

	"agentd/server/fault"
	"agentd/server/graph"
)

// drawWorkflow draws a workflow of the configuration.
func (c *call) drawWorkflow(context.Context) error {
	id := c.args[0]
	if _, ok := c.cfg.Workflows[id]; !ok {
		return missing(fault.RouteHandlerMissing, "workflow", id, slices.Sorted(maps.Keys(c.cfg.Workflows)))
	}
	g, _ := c.cfg.Graph(id) // a loaded configuration has no problems
	return c.draw(g.Drawing(), nil)
}

// draw writes a drawing in the format that a flag names.
func (c *call) draw(d *graph.Drawing, marks map[string]graph.Mark) error {
	if c.flags.json {
		return c.printJSON(d)
	}
	text, err := d.Write(c.flags.drawing, marks)
	if err == nil {
		_, err = io.WriteString(c.stdout, text)
	}
	return err
}
