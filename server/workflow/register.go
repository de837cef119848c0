package workflow

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/store"
)

// Register adds a workflow written in Go. It is called before the server starts, in each process that has threads of the
// workflow. Errors: unknown-node for a definition that only names nodes which it does not have, config-invalid for other
// problems, with all of them; duplicate-id.
func (w *Workflows) Register(d Definition) error {
	p, err := d.compile()
	if err != nil {
		return err
	}
	g := p.graph()
	return w.add(&registration{id: d.ID, graph: g, program: p, info: Info{ID: d.ID, Description: d.Description, Version: d.Version, Input: d.Input, Graph: p.drawing()}})
}

// Kinds of nodes that only graphs written in Go have.
const (
	kindSupersteps = "supersteps" // the task under which those of all nodes are
	kindNode       = "go"
)

// stepping is the node of the task of kindSupersteps.
const stepping = "__supersteps__"

// registered is what is stored instead of a definition, which is code.
type registered struct {
	ID string `json:"registered"`
}

// notRegistered is why a thread is blocked whose definition is code that the process lacks.
var notRegistered = fault.RouteHandlerMissing.Code

// absent reports a thread whose definition is code that this process does not have.
func absent(source json.RawMessage) error {
	var r registered
	if json.Unmarshal(source, &r) != nil || r.ID == "" {
		return nil
	}
	return fault.New(fault.RouteHandlerMissing, "The thread belongs to the workflow %q, which a Go program registers, and this one does not.", r.ID).
		Advise("Start the program that registers the workflow. The thread continues then.")
}

// Unblock has the threads continue that rest because an earlier process lacked their workflow, where this one has it. It is
// called once, before the kernel recovers runs.
func (w *Workflows) Unblock(ctx context.Context) error {
	var here []string
	w.mu.Lock()
	for id, reg := range w.known {
		if reg.program != nil {
			here = append(here, id)
		}
	}
	w.mu.Unlock()
	if len(here) == 0 {
		return nil
	}
	return w.runs.Update(ctx, func(tx *store.Tx) error {
		for _, id := range here {
			if err := w.threads.Unblock(tx, id, notRegistered); err != nil {
				return err
			}
		}
		return nil
	})
}

// graph is the program as threads see it: what a task is, the keys of the state, and the bounds.
func (p *program) graph() *graph.Graph {
	g := &graph.Graph{ID: p.ID, Input: p.input, Digest: p.digest[:], Source: encoded(registered{p.ID}), Start: stepping, Keys: map[string]*graph.Key{},
		KeepSteps: p.KeepSteps, MaxStateBytes: p.MaxStateBytes, Nodes: map[string]*graph.Node{stepping: {Name: stepping, Kind: kindSupersteps}}}
	g.Form.Version = p.Version
	for name, n := range p.Nodes {
		g.Nodes[name] = &graph.Node{Name: name, Kind: kindNode, Retry: &graph.Retry{Max: n.Retry.MaxAttempts, Backoff: n.Retry.Backoff, MaxBackoff: n.Retry.MaxBackoff}}
	}
	for _, name := range p.Awaits {
		g.Nodes["__await__"+name] = &graph.Node{Kind: graph.KindAwait, Wait: name} // no task executes it
	}
	for name, initial := range p.initial {
		g.Keys[name] = &graph.Key{Initial: initial}
	}
	return g
}

// drawing shows the nodes and edges.
func (p *program) drawing() *graph.Drawing {
	d := &graph.Drawing{Nodes: []graph.DrawnNode{{Name: Start, Kind: "start"}}}
	for _, name := range slices.Sorted(maps.Keys(p.Nodes)) {
		d.Nodes = append(d.Nodes, graph.DrawnNode{Name: name, Kind: kindNode})
	}
	d.Nodes = append(d.Nodes, graph.DrawnNode{Name: End, Kind: "end"})
	for _, e := range p.Edges {
		line := graph.DrawnEdge{From: e.From, To: e.To, Kind: "next"}
		if e.When != nil {
			line.Label = "when"
		}
		d.Edges = append(d.Edges, line)
	}
	return d
}
