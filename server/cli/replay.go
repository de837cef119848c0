package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
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
	regs, done, err := manifest.Build(manifest.Options{Config: c.cfg, Logger: c.log(), Offline: true})
	if err != nil {
		return err
	}
	defer done()
	reg, err := c.actor(regs, rec)
	if err != nil {
		return err
	}
	return interruptible(ctx, func(ctx context.Context) error {
		report, err := recording.Replay(ctx, reg, rec)
		if err != nil {
			return err
		}
		return c.show(report.Divergence == nil, report, func(w sheet) { c.sayReplay(w, report) })
	})
}

// recording reads a cassette from a file or, for -, from stdin.
func (c *call) recording(name string) (*recording.Recording, error) {
	unreadable := func(err error) error {
		return fault.New(fault.CassetteInvalid, "The recording cannot be read: %v.", err).Advise("Check the path; `agentd runs cassette` writes one.")
	}
	var src io.Reader = c.stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, unreadable(err)
		}
		defer f.Close()
		src = f
	}
	rec, err := recording.Read(src)
	if err != nil && fault.Of(err).Kind == fault.Internal { // of the source
		return nil, unreadable(err)
	}
	return rec, err
}

// actor is the agent to replay with.
func (c *call) actor(regs []agent.Registration, rec *recording.Recording) (agent.Registration, error) {
	id := cmp.Or(c.flags.agent, rec.Meta.AgentID)
	if id == "" {
		return agent.Registration{}, c.cmd.misused("the recording names no agent: name one with --agent.")
	}
	i := slices.IndexFunc(regs, func(r agent.Registration) bool { return r.ID == id })
	if i < 0 {
		return agent.Registration{}, c.undeclared(id)
	}
	return regs[i], nil
}

// sayReplay says what came of a replay.
func (c *call) sayReplay(w sheet, r recording.Report) {
	for _, note := range r.Notes {
		fmt.Fprintf(c.stderr, "agentd: %s\n", printable(note))
	}
	if d := r.Divergence; d != nil {
		w.say("divergence in step %d: %s\n  recorded: %s\n  now:      %s\n", d.Step, printable(d.Where), printable(d.Recorded), printable(d.Now))
		return
	}
	w.say("no divergence: %s, %s\n", many(r.ModelCalls, "model call"), many(r.ToolCalls, "tool call"))
}

func many(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
