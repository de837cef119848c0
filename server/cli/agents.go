package cli

import (
	"context"
	"maps"
	"slices"
	"strings"

	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/rest"
)

// listAgents lists the agents of a server or, where none is there to be asked, those of the configuration: that makes no
// database.
func (c *call) listAgents(ctx context.Context) error {
	var list rest.AgentList
	err := c.catalogue(ctx, "/agents", &list, func(cfg *config.Config) error {
		list.Agents = []rest.AgentSummary{}
		for _, id := range slices.Sorted(maps.Keys(cfg.Agents)) {
			list.Agents = append(list.Agents, declared(cfg, id))
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
	err := c.catalogue(ctx, at("/agents", id, ""), &a, func(cfg *config.Config) error {
		if _, ok := cfg.Agents[id]; !ok {
			return undeclared(cfg, id)
		}
		a = declared(cfg, id)
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
func (c *call) catalogue(ctx context.Context, path string, to any, here func(*config.Config) error) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	api, err := c.holder(cfg)
	if err != nil {
		return err
	}
	if api == nil {
		return here(cfg)
	}
	defer api.Close()
	return api.Call(ctx, "GET", path, nil, to)
}

func declared(cfg *config.Config, id string) rest.AgentSummary {
	return rest.AgentSummary{ID: id, Description: cfg.Agents[id].Description.Text}
}

// undeclared is the error of an agent that the configuration does not declare.
func undeclared(cfg *config.Config, id string) error {
	known := slices.Sorted(maps.Keys(cfg.Agents))
	missing := fault.New(fault.AgentNotFound, "The configuration has no agent %q.", id)
	if best := fault.Nearest(id, known); best != "" {
		missing.Message += " Did you mean " + best + "?"
	}
	if len(known) == 0 {
		return missing.Advise("Declare one under `agents`, or try `agentd run --dev assistant hello`.")
	}
	return missing.Advise("Name one of: " + strings.Join(known, ", ") + ".")
}
