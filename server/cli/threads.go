package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"agentd/server"
	"agentd/server/fault"
	"agentd/server/rest"
	"agentd/server/workflow"
	"agentd/store"
)

// listWorkflows lists the workflows of a server or, where none is there to be asked, those of the configuration.
func (c *call) listWorkflows(ctx context.Context) error {
	var list rest.WorkflowList
	err := c.catalogue(ctx, "/workflows", &list, func() error {
		list.Workflows = []rest.WorkflowSummary{}
		for _, id := range slices.Sorted(maps.Keys(c.cfg.Workflows)) {
			w := c.cfg.Workflows[id]
			list.Workflows = append(list.Workflows, rest.WorkflowSummary{ID: id, Description: w.Description, Version: w.Version, Declared: true})
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.show(true, list, func(w sheet) {
		w.row("WORKFLOW", "VERSION", "DESCRIPTION")
		for _, f := range list.Workflows {
			w.row(f.ID, f.Version, f.Description)
		}
	})
}

func (c *call) showWorkflow(ctx context.Context) error {
	id := c.args[0]
	var info workflow.Info
	err := c.catalogue(ctx, at("/workflows", id, ""), &info, func() error {
		g, err := c.graph(id)
		if err == nil {
			info = workflow.Info{ID: id, Description: g.Form.Description, Version: g.Form.Version, Declared: true, Input: json.RawMessage(g.Form.Input), Graph: g.Drawing()}
		}
		return err
	})
	if err != nil {
		return err
	}
	return c.show(true, info, func(w sheet) {
		w.facts("workflow", info.ID, "description", info.Description, "version", info.Version)
		if info.Graph == nil {
			return
		}
		w.say("\n")
		w.row("NODE", "KIND", "CALLS", "NEXT")
		for _, n := range info.Graph.Nodes {
			var next []string
			for _, e := range info.Graph.Edges {
				if e.From == n.Name {
					next = append(next, e.To)
				}
			}
			w.row(n.Name, n.Kind, n.Label, strings.Join(slices.Compact(next), ", "))
		}
	})
}

// thread is the path of a route about the thread that the arguments name.
func (c *call) thread(route string) string {
	return at("/workflows", c.args[0], route) + query("threadId", c.args[1])
}

func (c *call) listThreads(ctx context.Context) error {
	blocked := ""
	if c.flags.blocked {
		blocked = "true"
	}
	var list rest.ThreadList
	path := at("/workflows", c.args[0], "/threads") + query("status", c.flags.status, "sessionId", c.flags.session, "blocked", blocked, "limit", c.flags.limit.String())
	return c.fetch(ctx, path, &list, func(w sheet) {
		w.row("THREAD", "STATUS", "STEP", "RUN", "UPDATED", "BLOCKED")
		for _, t := range list.Threads {
			w.row(t.ThreadID, string(t.Status), fmt.Sprint(t.StepNumber), t.RunID, t.UpdatedAt, t.Blocked)
		}
	})
}

func (c *call) showThread(ctx context.Context) error {
	var answer rest.WorkflowState
	return c.fetch(ctx, c.thread("/state"), &answer, func(w sheet) {
		s := answer.State
		w.facts("thread", s.ThreadID, "workflow", s.WorkflowID, "run", s.RunID, "status", string(s.Status), "step", fmt.Sprint(s.StepNumber), "version", s.Version,
			"session", s.SessionID, "blocked", s.Blocked, "active", strings.Join(s.Active, ", "), "created", s.CreatedAt, "updated", s.UpdatedAt)
		if s.Error != nil {
			w.facts("error", s.Error.Code+": "+s.Error.Message, "hint", s.Error.Hint)
		}
		for _, p := range s.PendingPauses {
			w.say("%s", waits(p))
		}
		for _, a := range s.PendingApprovals {
			w.say("\n%s waits for approval since %s:\n%s", printable(a.ToolName), a.RequestedAt, details(a, columns(c.stdout)))
		}
		if b, err := json.MarshalIndent(s.State, "", "  "); err == nil {
			w.say("\nstate:\n%s\n", indented(string(b), columns(c.stdout)))
		}
	})
}

// waits says what a thread waits for, in a line.
func waits(p workflow.Pause) string {
	text := p.Node + " waits"
	switch {
	case p.Kind == "child":
		text += " for run " + p.ChildRun
	case p.Name != "":
		text += " for " + p.Name
	}
	switch {
	case p.Kind == "timer", p.Kind == "retry":
		text += " until " + p.WakeAt
	case p.WakeAt != "":
		text += ", at the latest until " + p.WakeAt
	}
	return printable(text) + "\n"
}

func (c *call) listCheckpoints(ctx context.Context) error {
	var answer rest.Checkpoints
	path := at("/workflows", c.args[0], "/checkpoints") + query("threadId", c.args[1], "limit", c.flags.limit.String())
	return c.fetch(ctx, path, &answer, func(w sheet) {
		w.row("STEP", "NODE", "STATUS", "CREATED", "WROTE")
		for _, s := range answer.Checkpoints {
			w.row(fmt.Sprint(s.StepNumber), s.Node, s.Status, s.CreatedAt, fitting(string(s.Writes), 61))
		}
	})
}

// runWorkflow begins a run and shows what it does, until it ends or waits.
func (c *call) runWorkflow(ctx context.Context) error {
	input, err := c.value()
	if err != nil {
		return err
	}
	defer surviveClosedPipe()()
	return interruptible(ctx, func(ctx context.Context) error {
		var started rest.WorkflowStarted
		d, err := c.open(ctx, server.Run)
		if err != nil {
			return err
		}
		body := rest.ExecuteBody{Input: input, ThreadID: c.flags.thread, SessionID: c.flags.session, UserID: c.flags.user}
		// An interruption waits until the run has begun, because only then it can be aborted.
		if err := d.Call(context.WithoutCancel(ctx), "POST", at("/workflows", c.args[0], "/execute"), body, &started); err != nil {
			return errors.Join(err, d.close())
		}
		if !c.flags.json {
			fmt.Fprintf(c.stderr, "agentd: thread %s, run %s\n", started.ThreadID, started.RunID)
		}
		f := c.newFollower(d, started.RunID, nil)
		f.asker = c.newAsker()
		return errors.Join(f.follow(ctx), d.close())
	})
}

// value is the argument after the workflow and, where the command has one, the thread: JSON, or with - what comes on stdin. Nil
// without it.
func (c *call) value() (json.RawMessage, error) {
	_, most := c.cmd.takes()
	if len(c.args) < most {
		return nil, nil
	}
	text := []byte(c.args[most-1])
	if string(text) == "-" {
		var err error
		if text, err = c.readFile("-", maxInput); err != nil {
			return nil, err
		}
	}
	if !json.Valid(text) {
		return nil, c.cmd.misused("the value is not JSON; quote a text twice: '\"yes\"'.")
	}
	return text, nil
}

func (c *call) resumeThread(ctx context.Context) error {
	value, err := c.value()
	if err != nil {
		return err
	}
	body := rest.WorkflowResumeBody{ThreadID: c.args[1], Resume: value, Name: c.flags.name, AllowVersionMismatch: c.flags.mismatch}
	return c.move(ctx, "/resume", body)
}

func (c *call) retryThread(ctx context.Context) error {
	retry := func(ctx context.Context, d *door, t workflow.ThreadSummary) error {
		wait := ""
		if d.local != nil { // what still runs when the command ends is interrupted
			wait = "true"
		}
		body := rest.RetryBody{ThreadID: t.ThreadID, AllowVersionMismatch: c.flags.mismatch}
		return d.Call(ctx, "POST", at("/workflows", c.args[0], "/retry")+query("wait", wait), body, nil)
	}
	if c.flags.all {
		return c.bulk(ctx, server.Run, "retried", retry)
	}
	if err := c.named(); err != nil {
		return err
	}
	return c.move(ctx, "/retry", rest.RetryBody{ThreadID: c.args[1], AllowVersionMismatch: c.flags.mismatch})
}

// move has a thread continue, and shows how it stands when it has ended or waits again.
func (c *call) move(ctx context.Context, route string, body any) error {
	defer surviveClosedPipe()()
	return c.through(ctx, server.Run, func(d *door) error {
		var out workflow.Outcome
		if err := d.Call(ctx, "POST", at("/workflows", c.args[0], route+"?wait=true"), body, &out); err != nil {
			return err
		}
		err := c.show(true, out, func(w sheet) {
			if out.Status == store.Completed {
				w.say("%s\n", cmp.Or(string(out.Output), "null"))
				return
			}
			w.say("run %s is %s\n", out.RunID, out.Status)
			for _, p := range out.PendingPauses {
				w.say("%s", waits(p))
			}
		})
		if err == nil && out.Status.Parked() {
			err = exitCode(exitAwaiting)
		}
		return err
	})
}

func (c *call) abortThread(ctx context.Context) error {
	abort := func(ctx context.Context, d *door, t workflow.ThreadSummary) error {
		return d.Call(ctx, "POST", at("/runs", t.RunID, "/abort"), rest.AbortBody{Reason: "agentd workflows abort"}, nil)
	}
	if c.flags.all {
		return c.bulk(ctx, server.Hold, "aborted", abort)
	}
	if err := c.named(); err != nil {
		return err
	}
	return c.through(ctx, server.Hold, func(d *door) error {
		var answer rest.WorkflowState
		if err := d.Call(ctx, "GET", c.thread("/state"), nil, &answer); err != nil {
			return err
		}
		if err := abort(ctx, d, workflow.ThreadSummary{RunID: answer.State.RunID}); err != nil {
			return err
		}
		if err := d.Call(ctx, "GET", c.thread("/state"), nil, &answer); err != nil {
			return err
		}
		if s := answer.State.Status; s != store.Aborted {
			return fault.New(fault.RunConflict, "The thread %s is %s.", c.args[1], s).Advise("See it with `agentd workflows state`.")
		}
		return c.report(map[string]any{"threadId": c.args[1], "runId": answer.State.RunID, "status": answer.State.Status}, "Aborted thread %s.", c.args[1])
	})
}

func (c *call) deleteThread(ctx context.Context) error {
	erase := func(ctx context.Context, d *door, t workflow.ThreadSummary) error {
		return d.Call(ctx, "DELETE", at("/workflows", c.args[0], "/threads/"+url.PathEscape(t.ThreadID)), nil, nil)
	}
	what := "all threads of " + c.args[0] + " that are " + c.flags.status
	if !c.flags.all {
		if err := c.named(); err != nil {
			return err
		}
		what = "thread " + c.args[1]
	}
	if err := c.sure(ctx, "Erase "+printable(what)+" with all runs, for good?"); err != nil {
		return err
	}
	if c.flags.all {
		return c.bulk(ctx, server.Hold, "erased", erase)
	}
	err := c.through(ctx, server.Hold, func(d *door) error { return erase(ctx, d, workflow.ThreadSummary{ThreadID: c.args[1]}) })
	if err != nil {
		return err
	}
	return c.report(map[string]any{"threadId": c.args[1], "erased": true}, "Erased thread %s.", c.args[1])
}

// named checks that the command line names one thread, and no others by status.
func (c *call) named() error {
	switch {
	case c.flags.status != "":
		return c.cmd.misused("--status selects threads together with --all.")
	case len(c.args) < 2:
		return c.cmd.misused("the THREAD is missing; with --status S --all, the command takes all threads with that status.")
	}
	return nil
}

// A bulk is what a command did with many threads.
type bulk struct {
	WorkflowID string    `json:"workflowId"`
	Done       int       `json:"done"`
	Failed     []failure `json:"failed"`
}

type failure struct {
	ThreadID string `json:"threadId"`
	Error    string `json:"error"`
	Message  string `json:"message"`
}

// maxFailures is after how many failures a command about many threads stops.
const maxFailures = 100

// bulk does something with each thread that has a status. A failure of one does not stop it; then it fails in the end.
func (c *call) bulk(ctx context.Context, access server.Access, done string, do func(context.Context, *door, workflow.ThreadSummary) error) error {
	switch {
	case c.flags.status == "":
		return c.cmd.misused("--all needs --status.")
	case len(c.args) > 1:
		return c.cmd.misused("--all and a THREAD cannot be combined.")
	}
	all := bulk{WorkflowID: c.args[0], Failed: []failure{}}
	err := c.through(ctx, access, func(d *door) error {
		for cursor, more := "", true; more; more = cursor != "" {
			var page rest.ThreadList
			path := at("/workflows", c.args[0], "/threads") + query("status", c.flags.status, "limit", "1000", "cursor", cursor)
			if err := d.Call(ctx, "GET", path, nil, &page); err != nil {
				return err
			}
			for _, t := range page.Threads {
				err := do(ctx, d, t)
				if err == nil {
					all.Done++
					continue
				}
				f := fault.Of(err)
				if f.Kind == fault.ServerUnreachable || f.Kind == fault.ScopeDenied || len(all.Failed) == maxFailures {
					return err
				}
				all.Failed = append(all.Failed, failure{t.ThreadID, f.Kind.Code, f.Message})
			}
			cursor = page.NextCursor
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.show(len(all.Failed) == 0, all, func(w sheet) {
		w.say("%d thread(s) %s.\n", all.Done, done)
		for _, f := range all.Failed {
			w.say("  %s: %s: %s\n", printable(f.ThreadID), printable(f.Error), printable(f.Message))
		}
	})
}
