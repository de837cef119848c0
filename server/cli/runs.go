package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"agentd/server/agent"
	"agentd/server/message"
	"agentd/store"
)

// statuses are those that a run can have.
var statuses = []store.Status{store.Pending, store.Running, store.Awaiting, store.Completed, store.Failed, store.Aborted}

func (c *call) listRuns(ctx context.Context) error {
	f := store.RunFilter{Status: store.Status(c.flags.status), Limit: c.flags.limit}
	if f.Status != "" && !slices.Contains(statuses, f.Status) {
		return c.cmd.misused("there is no status %q.", c.flags.status)
	}
	if f.Limit < 1 || f.Limit > 1000 {
		return c.cmd.misused("--limit is %d, want 1 to 1000.", f.Limit)
	}
	if c.flags.agent != "" {
		f.Owners = []string{c.flags.agent}
	}
	return c.reading(ctx, func(from records) error {
		runs, err := from.list(ctx, f)
		if err != nil {
			return err
		}
		if c.flags.json {
			return c.printJSON(map[string][]agent.Snapshot{"runs": runs})
		}
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "RUN\tAGENT\tSTATUS\tSESSION\tSTARTED\tENDED\tTOKENS")
		for _, r := range runs {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\n", r.RunID, r.AgentID, r.Status, cmp.Or(r.SessionID, "-"), moment(r.StartedAt),
				moment(r.CompletedAt), r.Usage.TotalTokens)
		}
		return w.Flush()
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
	return c.reading(ctx, func(from records) error {
		s, err := from.show(ctx, c.args[0])
		if err != nil {
			return err
		}
		if s.State != nil && !c.flags.raw {
			s.State.Withhold()
		}
		if c.flags.json {
			return c.printJSON(s)
		}
		return c.describe(s)
	})
}

// describe writes what a person wants to know about a run.
func (c *call) describe(s agent.Snapshot) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s:\t%s\n", name, value)
		}
	}
	row("run", s.RunID)
	row("status", string(s.Status))
	row("agent", s.AgentID)
	if s.Imported {
		row("imported", "yes")
	}
	row("session", s.SessionID)
	row("user", printable(s.UserID))
	row("started", moment(s.StartedAt))
	row("ended", moment(s.CompletedAt))
	row("steps", fmt.Sprint(s.StepNumber))
	row("tokens", fmt.Sprintf("%d (%d in, %d out)", s.Usage.TotalTokens, s.Usage.PromptTokens, s.Usage.CompletionTokens))
	if s.Error != nil {
		row("error", s.Error.Code+": "+printable(s.Error.Message))
		row("hint", printable(s.Error.Hint))
	}
	w.Flush()
	for _, a := range s.PendingApprovals {
		fmt.Fprintf(&b, "\n%s waits for approval since %s:\n%s", printable(a.ToolName), a.RequestedAt, details(a, columns(c.stdout)))
	}
	if text := strings.TrimSpace(lastText(s.State)); text != "" {
		fmt.Fprintf(&b, "\nlast text:\n%s\n", indented(text, columns(c.stdout)))
	}
	_, err := io.WriteString(c.stdout, b.String())
	return err
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
	return c.reading(ctx, func(from records) error {
		list, err := from.waiting(ctx)
		if err != nil {
			return err
		}
		if c.flags.json {
			return c.printJSON(map[string][]agent.Waiting{"approvals": list})
		}
		var b strings.Builder
		for i, a := range list {
			if i > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "run %s: %s waits for approval since %s\n%s", printable(a.RunID), printable(a.ToolName), a.RequestedAt, details(a.Approval, columns(c.stdout)))
			if a.Mismatch != "" {
				fmt.Fprintf(&b, "  CHANGED SINCE IT WAS ASKED FOR: %s\n", printable(a.Mismatch))
			}
		}
		if len(list) == 0 {
			fmt.Fprintln(c.stderr, "agentd: nothing waits for approval")
		}
		_, err = io.WriteString(c.stdout, b.String())
		return err
	})
}
