package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/rest"
)

// listAgents lists the agents of a server or, where none is there to be asked, those of the configuration.
func (c *call) listAgents(ctx context.Context) error {
	cfg, remote, err := c.catalogue()
	if err != nil {
		return err
	}
	list := rest.AgentList{Agents: []rest.AgentSummary{}}
	if remote != nil {
		err = remote.call(ctx, "GET", "/agents", nil, &list)
		remote.close() //nolint:errcheck // it returns none
	} else {
		for _, id := range slices.Sorted(maps.Keys(cfg.Agents)) {
			list.Agents = append(list.Agents, declared(cfg, id))
		}
	}
	if err != nil {
		return err
	}
	if c.flags.json {
		return c.printJSON(list)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "AGENT\tDESCRIPTION")
	for _, a := range list.Agents {
		fmt.Fprintf(w, "%s\t%s\n", printable(a.ID), printable(cmp.Or(a.Description, "-")))
	}
	return w.Flush()
}

func (c *call) showAgent(ctx context.Context) error {
	cfg, remote, err := c.catalogue()
	if err != nil {
		return err
	}
	id := c.args[0]
	var a rest.AgentSummary
	if remote != nil {
		err = remote.call(ctx, "GET", "/agents/"+url.PathEscape(id), nil, &a)
		remote.close() //nolint:errcheck // it returns none
		if fault.Is(err, fault.AgentNotFound) {
			err = advised(err, "List the agents with `agentd agents list`.")
		}
	} else if _, ok := cfg.Agents[id]; ok {
		a = declared(cfg, id)
	} else {
		err = undeclared(cfg, id)
	}
	if err != nil {
		return err
	}
	if c.flags.json {
		return c.printJSON(a)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{{"agent", a.ID}, {"description", a.Description}, {"tags", strings.Join(a.Tags, ", ")}} {
		if row[1] != "" {
			fmt.Fprintf(w, "%s:\t%s\n", row[0], printable(row[1]))
		}
	}
	return w.Flush()
}

// catalogue is where agents are looked up: a server, or else the configuration.
func (c *call) catalogue() (*config.Config, *api, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	remote, err := c.holder(cfg)
	return cfg, remote, err
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
