package cli

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"

	"agentd/server"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/rest"
	"agentd/server/workflow"
)

// drawWorkflow draws a workflow of the configuration or, with a thread, of the server that has it.
func (c *call) drawWorkflow(ctx context.Context) error {
	if c.flags.thread != "" {
		return c.drawThread(ctx)
	}
	g, err := c.graph(c.args[0])
	if err != nil {
		return err
	}
	return c.draw(g.Drawing(), nil)
}

// graph is a workflow of the configuration.
func (c *call) graph(id string) (*graph.Graph, error) {
	if _, ok := c.cfg.Workflows[id]; !ok {
		return nil, missing(fault.RouteHandlerMissing, "workflow", id, slices.Sorted(maps.Keys(c.cfg.Workflows)))
	}
	g, _ := c.cfg.Graph(id) // a loaded configuration has no problems
	return g, nil
}

// drawThread marks what a thread has done since its latest run began, and where it is.
func (c *call) drawThread(ctx context.Context) error {
	thread := query("threadId", c.flags.thread)
	var info workflow.Info
	var state rest.WorkflowState
	var steps rest.Checkpoints
	err := c.through(ctx, server.Read, func(d *door) error {
		if err := d.Call(ctx, "GET", at("/workflows", c.args[0], ""), nil, &info); err != nil {
			return err
		}
		if err := d.Call(ctx, "GET", at("/workflows", c.args[0], "/state"+thread), nil, &state); err != nil {
			return err
		}
		return d.Call(ctx, "GET", at("/workflows", c.args[0], "/checkpoints"+thread+"&limit=1000"), nil, &steps)
	})
	if err != nil {
		return err
	}
	marks := map[string]graph.Mark{}
	for _, s := range slices.Backward(steps.Checkpoints) {
		switch {
		case s.RunID != state.State.RunID:
		case s.Status == "completed":
			for _, node := range append(strings.Split(s.Node, ", "), s.Node) { // of a superstep: its nodes
				marks[node] = graph.Done
			}
		case s.Status == "failed":
			marks[s.Node] = graph.Failed
		}
	}
	for _, node := range state.State.Active {
		marks[node] = graph.Active
	}
	for _, p := range state.State.PendingPauses {
		marks[p.Node] = graph.Parked
	}
	return c.draw(info.Graph, marks)
}

// draw writes a drawing in the format that a flag names.
func (c *call) draw(d *graph.Drawing, marks map[string]graph.Mark) error {
	if c.flags.json {
		return c.printJSON(struct {
			*graph.Drawing
			Marks map[string]graph.Mark `json:"marks,omitempty"`
		}{d, marks})
	}
	text, err := d.Write(c.flags.drawing, marks)
	if err == nil {
		_, err = io.WriteString(c.stdout, text)
	}
	return err
}
