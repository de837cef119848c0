package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/client"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/rest"
	"agentd/store"
)

func (c *call) listRuns(ctx context.Context) error {
	var list struct {
		Runs []agent.Snapshot `json:"runs"`
	}
	path := "/runs" + query("limit", c.flags.limit.String(), "status", c.flags.status, "agentId", c.flags.agent)
	return c.fetch(ctx, path, &list, func(w sheet) {
		w.row("RUN", "AGENT OR WORKFLOW", "STATUS", "SESSION", "STARTED", "ENDED", "TOKENS")
		for _, r := range list.Runs {
			w.row(r.RunID, cmp.Or(r.AgentID, r.WorkflowID), string(r.Status), r.SessionID, moment(r.StartedAt), moment(r.CompletedAt), strconv.FormatInt(r.Usage.TotalTokens, 10))
		}
	})
}

// moment is a time in milliseconds since 1970 for people; - when there is none.
func moment(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return message.Millis(ms)
}

func (c *call) showRun(ctx context.Context) error {
	return c.through(ctx, server.Read, func(d *door) error {
		s, err := state(ctx, d.Client, c.args[0])
		if err != nil {
			return err
		}
		if s.State != nil && !c.flags.raw {
			s.State.Withhold()
		}
		return c.show(true, s, func(w sheet) { c.describe(w, s) })
	})
}

// state reads the state of a run.
func state(ctx context.Context, api *client.Client, runID string) (s rest.RunState, err error) {
	err = api.Call(ctx, "GET", at("/runs", runID, "/state"), nil, &s)
	return s, err
}

// describe writes what a person wants to know about a run.
func (c *call) describe(w sheet, s rest.RunState) {
	imported, problem, hint := "", "", ""
	if s.Imported {
		imported = "yes"
	}
	if s.Error != nil {
		problem, hint = s.Error.Code+": "+s.Error.Message, s.Error.Hint
	}
	w.facts("run", s.RunID, "status", string(s.Status), "agent", s.AgentID, "workflow", s.WorkflowID, "thread", s.ThreadID, "imported", imported, "session", s.SessionID, "user", s.UserID,
		"started", moment(s.StartedAt), "ended", moment(s.CompletedAt), "steps", strconv.Itoa(s.StepNumber),
		"tokens", fmt.Sprintf("%d (%d in, %d out)", s.Usage.TotalTokens, s.Usage.PromptTokens, s.Usage.CompletionTokens),
		"error", problem, "hint", hint)
	if s.Outcome != nil {
		for _, p := range s.Outcome.PendingPauses {
			w.say("%s", waits(p))
		}
		if len(s.Outcome.Output) > 0 {
			w.say("\noutput:\n%s\n", indented(string(s.Outcome.Output), columns(c.stdout)))
		}
	}
	for _, a := range s.PendingApprovals {
		w.say("\n%s waits for approval since %s:\n%s", printable(a.ToolName), a.RequestedAt, details(a, columns(c.stdout)))
	}
	if text := strings.TrimSpace(lastText(s.State)); text != "" {
		w.say("\nlast text:\n%s\n", indented(text, columns(c.stdout)))
	}
}

// lastText is the latest text that an agent has said.
func lastText(s *agent.State) string {
	if s == nil {
		return ""
	}
	for _, m := range slices.Backward(s.Messages) {
		if text := m.Content.String(); m.Role == message.Assistant && text != "" {
			return text
		}
	}
	return ""
}

func (c *call) approvals(ctx context.Context) error {
	var list rest.ApprovalList
	return c.fetch(ctx, "/approvals", &list, func(w sheet) {
		for i, a := range list.Approvals {
			if i > 0 {
				w.say("\n")
			}
			w.say("run %s: %s waits for approval since %s\n%s", printable(a.RunID), printable(a.ToolName), a.RequestedAt, details(a.Approval, columns(c.stdout)))
			if a.Mismatch != "" {
				w.say("  CHANGED SINCE THE REQUEST: %s\n", printable(a.Mismatch))
			}
		}
		if len(list.Approvals) == 0 {
			fmt.Fprintln(c.stderr, "agentd: nothing waits for approval")
		}
	})
}

// abortRun fails if the run has ended otherwise, or if no process is there to end it.
func (c *call) abortRun(ctx context.Context) error {
	return c.through(ctx, server.Hold, func(d *door) error {
		body := rest.AbortBody{Drain: c.flags.drain, OnPendingApprovals: c.flags.onPending, Reason: "agentd runs abort"}
		var answer rest.AbortAnswer
		if err := d.Call(ctx, "POST", at("/runs", c.args[0], "/abort"), body, &answer); err != nil {
			return err
		}
		switch id := answer.RunID; {
		case answer.Status == store.Aborted, answer.Status == store.Failed && c.flags.onPending == "fail":
			return c.report(answer, "Run %s is %s.", id, answer.Status)
		case answer.Status != store.Running:
			return fault.New(fault.RunConflict, "Run %s has already ended: it is %s.", id, answer.Status).
				Advise("See the result with `agentd runs show " + id + "`.")
		case d.local != nil:
			return fault.New(fault.RunConflict, "The process of run %s was killed.", id).
				Advise("Run `agentd start`, which continues the run, and abort it there.")
		default:
			return c.report(answer, "Run %s ends after its current step.", id)
		}
	})
}

func (c *call) importRun(ctx context.Context) error {
	limit := int64(c.cfg.Server.MaxBodyBytes)
	file, err := c.readFile(c.args[0], limit)
	if err != nil {
		return err
	}
	if int64(len(file)) > limit {
		return fault.New(fault.BodyTooLarge, "The run state is larger than %d bytes.", limit)
	}
	var made rest.RunImport
	err = c.through(ctx, server.Run, func(d *door) error {
		return d.Post(ctx, "POST", "/runs/import"+query("sessionId", c.flags.session), "application/json", stateIn(file), &made)
	})
	switch {
	case fault.Is(err, fault.SessionExists), fault.Is(err, fault.SessionBusy):
		return advised(err, "Give the run another session with --session.")
	case err != nil:
		return err
	}
	c.warn(made.Warnings)
	what := "is " + string(made.Status)
	if made.Status == store.Awaiting {
		what = "waits for approval; decide with `agentd runs approve " + made.RunID + "`"
	}
	return c.report(made, "Took over run %s, which %s.", made.RunID, what)
}

// stateIn is the state in what `agentd runs show --json` and the API say about a run, or the document itself.
func stateIn(doc []byte) []byte {
	var about struct{ Version, State json.RawMessage }
	if json.Unmarshal(doc, &about) == nil && about.Version == nil && about.State != nil {
		return about.State
	}
	return doc
}

// warn writes what a server warns of.
func (c *call) warn(texts []string) {
	if c.flags.json {
		return // the document has them
	}
	for _, text := range texts {
		fmt.Fprintf(c.stderr, "agentd: %s\n", printable(text))
	}
}

// exportSpans writes spans to a file, or to stdout for -.
func (c *call) exportSpans(ctx context.Context) error {
	name := c.args[0]
	if name != "-" {
		c.flags.output = name
	}
	size, err := c.download(ctx, "GET", "/spans/export"+query("since", c.flags.since, "until", c.flags.until, "runId", c.flags.run, "sessionId", c.flags.session))
	if err != nil || name == "-" {
		return err
	}
	return c.report(map[string]any{"file": name, "bytes": size}, "Wrote spans to %s (%d bytes).", name, size)
}

func (c *call) cassette(ctx context.Context) error {
	_, err := c.download(ctx, "GET", at("/runs", c.args[0], "/cassette"))
	return err
}
