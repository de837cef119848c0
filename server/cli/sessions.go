package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"agentd/server"
	"agentd/server/rest"
	"agentd/server/session"
)

func (c *call) listSessions(ctx context.Context) error {
	var list rest.SessionList
	return c.fetch(ctx, "/sessions"+query("userId", c.flags.user, "agentId", c.flags.agent), &list, func(w sheet) {
		w.row("SESSION", "USER", "AGENT", "CREATED", "UPDATED", "TITLE")
		for _, s := range list.Sessions {
			w.row(s.ID, s.UserID, s.AgentID, s.CreatedAt, s.UpdatedAt, fitting(s.Title, 61))
		}
	})
}

func (c *call) showSession(ctx context.Context) error {
	var answer rest.SessionAnswer
	return c.fetch(ctx, at("/sessions", c.args[0], ""), &answer, func(w sheet) {
		s := answer.Session
		w.facts("session", s.ID, "title", s.Title, "user", s.UserID, "agent", s.AgentID, "created", s.CreatedAt,
			"updated", s.UpdatedAt, "closed", s.ClosedAt, "tags", strings.Join(s.Tags, ", "))
	})
}

func (c *call) showMessages(ctx context.Context) error {
	return c.through(ctx, server.Read, func(d *door) error {
		if err := d.Call(ctx, "GET", at("/sessions", c.args[0], ""), nil, nil); err != nil { // without it, its transcript is only empty
			return err
		}
		var answer rest.SessionMessages
		if err := d.Call(ctx, "GET", at("/sessions", c.args[0], "/messages?limit="+c.flags.messages.String()), nil, &answer); err != nil {
			return err
		}
		return c.show(true, answer, func(w sheet) {
			for _, m := range answer.Messages {
				by := string(m.Role)
				if who := printable(cmp.Or(m.AgentID, m.UserID)); who != "" {
					by += " " + who
				}
				if m.LeftOut != "" {
					by += fmt.Sprintf("  (run %s; not shown to later runs)", m.LeftOut)
				}
				w.say("%d  %s  %s\n", m.Sequence, m.CreatedAt, by)
				if text := strings.TrimSpace(m.Content.String()); text != "" {
					w.say("%s\n", indented(text, columns(c.stdout)))
				}
				for _, call := range m.ToolCalls {
					w.say("  calls %s %s\n", printable(call.Name), printable(string(call.Args)))
				}
			}
		})
	})
}

func (c *call) closeSession(ctx context.Context) error {
	var answer rest.SessionAnswer
	err := c.through(ctx, server.Hold, func(d *door) error { return d.Call(ctx, "POST", at("/sessions", c.args[0], "/close"), nil, &answer) })
	if err != nil {
		return err
	}
	return c.report(answer, "Closed session %s.", c.args[0])
}

func (c *call) deleteSession(ctx context.Context) error {
	id := c.args[0]
	if err := c.sure(ctx, fmt.Sprintf("Erase session %s with all that was said in it, for good?", printable(id))); err != nil {
		return err
	}
	err := c.through(ctx, server.Hold, func(d *door) error { return d.Call(ctx, "DELETE", at("/sessions", id, ""), nil, nil) })
	if err != nil {
		return err
	}
	return c.report(map[string]any{"sessionId": id, "erased": true}, "Erased session %s.", id)
}

// sure asks whether to erase something, unless the command line says so.
func (c *call) sure(ctx context.Context, question string) error {
	if c.flags.yes {
		return nil
	}
	who := c.newAsker()
	if who == nil {
		return c.cmd.misused("--yes is missing, and there is no terminal to ask on.")
	}
	answer, err := who.line(ctx, question+" [y/N] ")
	if answer = strings.ToLower(answer); err != nil || answer != "y" && answer != "yes" {
		fmt.Fprintln(c.stderr, "agentd: nothing was erased")
		return exitCode(exitFailed)
	}
	return nil
}

func (c *call) exportSession(ctx context.Context) error {
	id := c.args[0]
	size, err := c.download(ctx, "POST", at("/sessions", id, "/export"))
	if err != nil || c.flags.output == "" {
		return err
	}
	return c.report(map[string]any{"sessionId": id, "file": c.flags.output, "bytes": size}, "Wrote session %s to %s (%d bytes).", id, c.flags.output, size)
}

func (c *call) importSession(ctx context.Context) error {
	file, err := c.readFile(c.args[0], session.MaxImport)
	if err != nil {
		return err
	}
	var made rest.SessionImport
	err = c.through(ctx, server.Hold, func(d *door) error {
		return d.Post(ctx, "POST", "/sessions/import"+query("as", c.flags.as), "application/x-ndjson", file, &made)
	})
	if err != nil {
		return err
	}
	c.warn(made.Warnings)
	return c.report(made, "Created session %s with %d message(s) and %d hand-off(s).", made.Session.ID, made.Messages, made.Handoffs)
}
