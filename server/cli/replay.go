package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/manifest"
	"agentd/server/recording"
)

func (c *call) replay(ctx context.Context) error {
	rec, err := c.recording(c.args[0])
	if err != nil {
		return err
	}
	declared, err := manifest.Build(manifest.Options{Config: c.cfg, Logger: c.log(), Offline: true})
	if err != nil {
		return err
	}
	defer declared.Close()
	id := cmp.Or(c.flags.agent, rec.Meta.AgentID)
	if id == "" {
		return c.cmd.misused("the recording names no agent: name one with --agent.")
	}
	i := slices.IndexFunc(declared.Agents, func(r agent.Registration) bool { return r.ID == id })
	if i < 0 {
		return c.undeclared(id)
	}
	return interruptible(ctx, func(ctx context.Context) error {
		report, err := recording.Replay(ctx, declared.Agents[i], rec)
		if err != nil {
			return err
		}
		return c.show(report.Divergence == nil, report, func(w sheet) {
			c.warn(report.Notes)
			if d := report.Divergence; d != nil {
				w.say("divergence in step %d: %s\n  recorded: %s\n  now:      %s\n", d.Step, printable(d.Where), printable(d.Recorded), printable(d.Now))
				return
			}
			w.say("no divergence: %s, %s\n", many(report.ModelCalls, "model call"), many(report.ToolCalls, "tool call"))
		})
	})
}

// recording reads a cassette.
func (c *call) recording(name string) (*recording.Recording, error) {
	unreadable := func(err error) error {
		return fault.New(fault.CassetteInvalid, "The recording cannot be read: %v.", err).Advise("Check the path; `agentd runs cassette` writes one.")
	}
	src, err := c.source(name)
	if err != nil {
		return nil, unreadable(err)
	}
	defer src.Close()
	rec, err := recording.Read(src)
	if err != nil && fault.Of(err).Kind == fault.Internal { // of the source
		return nil, unreadable(err)
	}
	return rec, err
}

func many(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
