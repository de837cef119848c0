package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"agentd/server"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/proc"
)

func (c *call) start(ctx context.Context) error {
	if c.file() == "" && !c.flags.dev && len(c.cfg.Agents) == 0 {
		return fault.New(fault.Usage, "There is no configuration: no --config, no AGENTD_CONFIG, and no agentd.json in this folder.").
			Advise("Create one with `agentd init`, or try the demo with `agentd start --dev`.")
	}
	if err := c.unready(); err != nil {
		return notReplaced(c.flags.readyFile, err)
	}
	if err := harden(c.cfg.Hardening); err != nil {
		return err
	}
	listener, err := c.inherited()
	if err != nil {
		return err
	}
	srv, err := server.New(server.Options{
		Config:   c.cfg,
		Logger:   server.NewLogger(c.cfg.Observability.Logger, c.stderr),
		Listener: listener,
		Hooks: server.Hooks{
			OnReady:        func(_ context.Context, addr server.Address) error { return c.ready(addr) },
			BeforeShutdown: func(context.Context, int) error { return c.notify("STOPPING=1") },
		},
	})
	if err != nil {
		return err
	}
	return interruptible(ctx, func(ctx context.Context) error {
		_, err := srv.Start(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil // it was stopped before it was ready
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
		case err = <-srv.Failed():
		}
		return errors.Join(err, c.unready(), srv.Shutdown(context.WithoutCancel(ctx)))
	})
}

// harden limits what the process can do by accident, and what other programs of its user can do to it.
func harden(h config.Hardening) error {
	if !h.ApplyOnStart {
		return nil
	}
	if err := shut(h); err != nil {
		return err
	}
	syscall.Umask(h.Umask)
	if h.RefuseRoot && os.Geteuid() == 0 {
		return fault.New(fault.RefuseRoot, "The process runs as root.")
	}
	return nil
}

// shut keeps other programs of the user out of this process.
func shut(h config.Hardening) error {
	if !h.ApplyOnStart {
		return nil
	}
	if err := proc.Harden(); err != nil {
		return fault.Invalid(fmt.Sprintf("The process cannot protect its memory from other processes: %v.", err)).
			Advise("Allow prctl(PR_SET_DUMPABLE), or set `hardening.applyOnStart` to false.")
	}
	return nil
}

// ready reports that the server listens: to the ready file, which appears with all of its content, to stdout with --json,
// and to a service manager. With --dev it shows what to try.
func (c *call) ready(addr server.Address) error {
	where := struct {
		server.Address
		PID int `json:"pid"`
	}{addr, os.Getpid()}
	if c.flags.readyFile != "" {
		if err := replace(c.flags.readyFile, func(f *os.File) error { return errors.Join(f.Chmod(0o644), json.NewEncoder(f).Encode(where)) }); err != nil {
			return err
		}
	}
	if c.flags.json {
		if err := json.NewEncoder(c.stdout).Encode(where); err != nil {
			return err
		}
	}
	if c.flags.dev {
		fmt.Fprintf(c.stderr, tryThis, addr.URL(c.cfg.Server.BasePath))
	}
	return c.notify("READY=1\nSTATUS=Listening on " + addr.String())
}

// unready removes the ready file, also one that a killed process left.
func (c *call) unready() error {
	if c.flags.readyFile == "" {
		return nil
	}
	if err := os.Remove(c.flags.readyFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

const tryThis = `
The demo is ready at %[1]s. Try this in another terminal:

  curl -N %[1]s/agents/assistant/stream -H 'Accept: text/event-stream' -d '{"input":"6*7"}'
  curl %[1]s/agents/assistant/run -d '{"input":"What time is it?"}'
  curl %[1]s/agents/shout/run -d '{"input":"hello"}'
  agentd run --dev assistant "12.5 * (3 + 4)"

Taking a note needs your approval. The run waits for it, also across restarts:

  curl %[1]s/agents/assistant/run -d '{"input":"note: buy milk"}'
  curl %[1]s/approvals
  agentd runs approve --dev RUN
  curl %[1]s/runs/RUN/resume -d '{"approvals":[{"toolCallId":"CALL","granted":true}]}'

Ctrl-C stops it. Its data stays in ./.agentd-dev.

`
