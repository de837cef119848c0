package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/rest"
)

// listAgents lists the agents of a server or, where none is there to be asked, those of the configuration: that makes no
// database.
func (c *call) listAgents(ctx context.Context) error {
	var list rest.AgentList
	err := c.catalogue(ctx, "/agents", &list, func() error {
		list.Agents = []rest.AgentSummary{}
		for _, id := range slices.Sorted(maps.Keys(c.cfg.Agents)) {
			list.Agents = append(list.Agents, c.declared(id))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.show(true, list, func(w sheet) {
		w.row("AGENT", "DESCRIPTION")
		for _, a := range list.Agents {
			w.row(a.ID, a.Description)
		}
	})
}

func (c *call) showAgent(ctx context.Context) error {
	id := c.args[0]
	var a rest.AgentSummary
	err := c.catalogue(ctx, at("/agents", id, ""), &a, func() error {
		if _, ok := c.cfg.Agents[id]; !ok {
			return c.undeclared(id)
		}
		a = c.declared(id)
		return nil
	})
	if err != nil {
		return err
	}
	return c.show(true, a, func(w sheet) {
		w.facts("agent", a.ID, "description", a.Description, "tags", strings.Join(a.Tags, ", "))
	})
}

// catalogue reads an answer of a server or, where there is none, calls here.
func (c *call) catalogue(ctx context.Context, path string, to any, here func() error) error {
	api, err := c.holder()
	switch {
	case err != nil:
		return err
	case api == nil:
		return here()
	}
	defer api.Close()
	return api.Call(ctx, "GET", path, nil, to)
}

func (c *call) declared(id string) rest.AgentSummary {
	return rest.AgentSummary{ID: id, Description: c.cfg.Agents[id].Description.Text}
}

// undeclared is the error of an agent that the configuration does not declare.
func (c *call) undeclared(id string) error {
	return missing(fault.AgentNotFound, "agent", id, slices.Sorted(maps.Keys(c.cfg.Agents)))
}

// missing is the error of an id that the configuration does not declare.
func missing(kind *fault.Kind, what, id string, known []string) error {
	err := fault.New(kind, "The configuration has no %s %q.", what, id)
	if best := fault.Nearest(id, known); best != "" {
		err.Message += " Did you mean " + best + "?"
	}
	if len(known) == 0 {
		return err.Advise("Declare one under `" + what + "s`, or try `agentd run --dev assistant hello`.")
	}
	return err.Advise("Name one of: " + strings.Join(known, ", ") + ".")
}
