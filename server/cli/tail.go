package cli

import (
	"context"
	"fmt"

	"agentd/server/client"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/rest"
	"agentd/store"
)

// tail watches a subject of a server.
func (c *call) tail(ctx context.Context) error {
	run := event.ValidID(c.args[0])
	subject, err := event.ParseSubject(c.args[0])
	if err != nil && !run {
		return c.cmd.misused("%q is neither a run nor a subject, such as session:ID/events or agent:ID/runs/RUN/events.", c.args[0])
	}
	if err := checkText(c.flags.since); err != nil {
		return err
	}
	defer surviveClosedPipe()()
	return interruptible(ctx, func(ctx context.Context) error {
		w := &tailer{call: c, printer: newPrinter(c)}
		if run {
			s, err := w.state(ctx, c.args[0])
			if err != nil {
				return err
			}
			if subject = event.OfAgentRun(s.AgentID, s.RunID); s.WorkflowID != "" {
				subject = event.OfWorkflowRun(s.WorkflowID, s.RunID)
			}
		}
		return w.watch(ctx, subject)
	})
}

// A tailer is a subject that is watched.
type tailer struct {
	*call
	printer *printer

	last    string // id of the latest event
	run     string // of which that was
	problem string // the latest problem of the connection that was reported
}

// api is the API of the server as it is now.
func (t *tailer) api() (*client.Client, error) {
	a, err := t.holder()
	if a == nil && err == nil {
		err = fault.New(fault.ServerUnreachable, "No server holds the database %s.", t.cfg.Resolve(t.cfg.Storage.Path)).
			Advise("Start one with `agentd start`, or name another with --url.")
	}
	return a, err
}

// state is how a run of the server stands.
func (t *tailer) state(ctx context.Context, runID string) (s rest.RunState, err error) {
	a, err := t.api()
	if err != nil {
		return s, err
	}
	defer a.Close()
	return state(ctx, a, runID)
}

func (t *tailer) watch(ctx context.Context, subject event.Subject) error {
	w := client.Watch{Client: t.api, Path: "/events" + query("subject", subject.String()), Cursor: t.flags.since, Lost: t.lost}
	err := w.Run(ctx, t.show)
	if err == nil && t.printer.end.Result.Status == "" { // its end lies before the cursor
		var s rest.RunState
		s, err = t.state(ctx, subject.Run)
		t.printer.end.Result.Status = s.Status
	}
	if err != nil && t.last != "" && t.printer.broken == nil {
		fmt.Fprintf(t.stderr, "agentd: to continue after this event, use --since %s\n", t.last)
	}
	switch {
	case err == nil, t.printer.broken != nil:
		return t.verdict(t.printer, subject.Run)
	case ctx.Err() != nil && subject.Run == "":
		return nil
	case ctx.Err() != nil:
		return exitCode(exitFailed) // the run has not ended
	}
	return err
}

// lost reports a lost connection, once.
func (t *tailer) lost(err error) error {
	if text := fault.Of(err).Message; text != t.problem {
		t.problem = text
		fmt.Fprintf(t.stderr, "agentd: %s Trying again.\n", printable(text))
	}
	return nil
}

// show prints a frame.
func (t *tailer) show(f *client.Frame) error {
	t.problem = ""
	if f.Kind == "replay-marker" {
		fmt.Fprintln(t.stderr, "agentd: some events may be missing or repeated")
	}
	if f.Kind == "event" {
		t.last = f.EventID
	}
	if f.Ended() {
		t.printer.end.Result.Status = store.Status(f.Status)
	}
	switch {
	case t.flags.json:
		t.printer.line(f.Raw)
	case f.Kind == "event":
		t.event(f)
	}
	return t.printer.broken
}

// event prints an event for people.
func (t *tailer) event(f *client.Frame) {
	at, _ := event.ParseCursor(f.EventID)
	if at.Run != t.run {
		t.printer.another()
		t.run = at.Run
		t.printer.tell("run %s", at.Run)
	}
	t.printer.show(f)
	if ends(f.Type) && t.printer.broken == nil && t.printer.end.Result.Status == store.Awaiting {
		t.tellPending(t.run, t.printer.end.Result.State.PendingApprovals)
	}
}
