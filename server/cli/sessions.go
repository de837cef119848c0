package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/rest"
	"agentd/server/session"
	"agentd/store"
)

// conversations is where sessions are read: the store, or a server that holds it.
type conversations interface {
	sessions(ctx context.Context, user, agent string) (rest.SessionList, error)
	session(ctx context.Context, id string) (rest.SessionAnswer, error)
	messages(ctx context.Context, id string, limit int) (rest.SessionMessages, error)
	export(ctx context.Context, id string, w io.Writer) error
}

// conversing gives fn the sessions.
func (c *call) conversing(ctx context.Context, fn func(conversations) error) error {
	return sessionHint(c.either(ctx, func(remote *api) error { return fn(remote) }, func(db *store.DB) error {
		return fn(storedSessions{session.New(db.Sessions())})
	}))
}

// changing writes: here, in the store, with a scribe that records it, or there, through the server that holds it.
func (c *call) changing(ctx context.Context, there func(*api) error, here func(*scribe, *store.DB) error) error {
	remote, err := c.named()
	var cfg *config.Config
	var db *store.DB
	if remote == nil && err == nil {
		cfg, db, err = c.own(ctx)
	}
	if fault.Is(err, fault.StoreLocked) {
		remote, err = c.instead(cfg, err)
	}
	if err != nil {
		return err
	}
	if remote != nil {
		return sessionHint(errors.Join(there(remote), remote.close()))
	}
	return sessionHint(errors.Join(c.chronicle(ctx, cfg, func(s *scribe) error { return here(s, db) }), db.Close()))
}

// sessionHint makes errors that speak of routes speak of commands.
func sessionHint(err error) error {
	switch {
	case fault.Is(err, fault.SessionNotFound):
		return advised(err, "List the sessions with `agentd sessions list`.")
	case fault.Is(err, fault.SessionExists):
		return advised(err, "Give the session another id with --as.")
	}
	return err
}

func (c *call) listSessions(ctx context.Context) error {
	return c.conversing(ctx, func(from conversations) error {
		list, err := from.sessions(ctx, c.flags.user, c.flags.agent)
		if err != nil {
			return err
		}
		if c.flags.json {
			return c.printJSON(list)
		}
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SESSION\tUSER\tAGENT\tCREATED\tUPDATED\tTITLE")
		for _, s := range list.Sessions {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", s.ID, printable(s.UserID), printable(s.AgentID), s.CreatedAt, cmp.Or(s.UpdatedAt, "-"),
				shortened(printable(cmp.Or(s.Title, "-")), 60))
		}
		return w.Flush()
	})
}

func (c *call) showSession(ctx context.Context) error {
	return c.conversing(ctx, func(from conversations) error {
		answer, err := from.session(ctx, c.args[0])
		if err != nil {
			return err
		}
		if c.flags.json {
			return c.printJSON(answer)
		}
		s := answer.Session
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		for _, row := range [][2]string{{"session", s.ID}, {"title", s.Title}, {"user", s.UserID}, {"agent", s.AgentID}, {"created", s.CreatedAt},
			{"updated", s.UpdatedAt}, {"closed", s.ClosedAt}, {"tags", strings.Join(s.Tags, ", ")}} {
			if row[1] != "" {
				fmt.Fprintf(w, "%s:\t%s\n", row[0], printable(row[1]))
			}
		}
		return w.Flush()
	})
}

func (c *call) showMessages(ctx context.Context) error {
	if c.flags.limit < 1 || c.flags.limit > 1000 {
		return c.cmd.misused("--limit is %d, want 1 to 1000.", c.flags.limit)
	}
	return c.conversing(ctx, func(from conversations) error {
		if _, err := from.session(ctx, c.args[0]); err != nil { // without it, its transcript is only empty
			return err
		}
		answer, err := from.messages(ctx, c.args[0], c.flags.limit)
		if err != nil {
			return err
		}
		if c.flags.json {
			return c.printJSON(answer)
		}
		var b strings.Builder
		for _, m := range answer.Messages {
			by := string(m.Role)
			if who := cmp.Or(m.AgentID, m.UserID); who != "" {
				by += " " + printable(who)
			}
			if m.LeftOut != "" {
				by += fmt.Sprintf("  (run %s; not shown to later runs)", m.LeftOut)
			}
			fmt.Fprintf(&b, "%d  %s  %s\n", m.Sequence, m.CreatedAt, by)
			if text := strings.TrimSpace(m.Content.String()); text != "" {
				fmt.Fprintf(&b, "%s\n", indented(text, columns(c.stdout)))
			}
			for _, call := range m.ToolCalls {
				fmt.Fprintf(&b, "  calls %s %s\n", printable(call.Name), printable(string(call.Args)))
			}
		}
		_, err = io.WriteString(c.stdout, b.String())
		return err
	})
}

func (c *call) deleteSession(ctx context.Context) error {
	id := c.args[0]
	if !c.flags.yes {
		who := c.newAsker()
		if who == nil {
			return c.cmd.misused("--yes is missing: nobody can be asked here.")
		}
		answer, err := who.line(ctx, fmt.Sprintf("Erase session %s with all that was said in it, for good? [y/N] ", printable(id)))
		if answer = strings.ToLower(answer); err != nil || answer != "y" && answer != "yes" {
			fmt.Fprintln(c.stderr, "agentd: nothing was erased")
			return exitCode(exitFailed)
		}
	}
	err := c.changing(ctx, func(remote *api) error { return remote.call(ctx, "DELETE", sessionPath(id), nil, nil) },
		func(s *scribe, db *store.DB) error {
			engine := agent.New(agent.Options{Runs: db.Runs(), Sessions: db.Sessions(), Hub: hub.New(hub.Options{}), Logger: c.log()})
			return engine.EraseSession(ctx, id, func(*store.Tx) error {
				return s.begin(ctx, audit.Record{Action: "session:delete", Target: "session:" + id, Context: audit.Context{SessionID: id}})
			})
		})
	if err != nil {
		return err
	}
	if c.flags.json {
		return c.printJSON(map[string]any{"sessionId": id, "erased": true})
	}
	_, err = fmt.Fprintf(c.stdout, "Erased session %s.\n", id)
	return err
}

// storedSessions reads sessions in the store.
type storedSessions struct{ *session.Service }

func (s storedSessions) sessions(ctx context.Context, user, agent string) (rest.SessionList, error) {
	stored, err := s.List(ctx, user, agent)
	return rest.SessionListOf(stored), err
}

func (s storedSessions) session(ctx context.Context, id string) (rest.SessionAnswer, error) {
	v, err := s.Get(ctx, id)
	return rest.SessionAnswer{Session: rest.SessionOf(v)}, err
}

func (s storedSessions) messages(ctx context.Context, id string, limit int) (rest.SessionMessages, error) {
	list, err := s.Messages(ctx, id, limit)
	return rest.SessionMessages{SessionID: id, Messages: list}, err
}

func sessionPath(id string) string { return "/sessions/" + url.PathEscape(id) }

func (a *api) sessions(ctx context.Context, user, agent string) (answer rest.SessionList, err error) {
	err = a.call(ctx, "GET", "/sessions?"+url.Values{"userId": {user}, "agentId": {agent}}.Encode(), nil, &answer)
	return answer, err
}

func (a *api) session(ctx context.Context, id string) (answer rest.SessionAnswer, err error) {
	err = a.call(ctx, "GET", sessionPath(id), nil, &answer)
	return answer, err
}

func (a *api) messages(ctx context.Context, id string, limit int) (answer rest.SessionMessages, err error) {
	err = a.call(ctx, "GET", sessionPath(id)+"/messages?limit="+strconv.Itoa(limit), nil, &answer)
	return answer, err
}
