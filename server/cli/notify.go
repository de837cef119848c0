package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"agentd/server"
	"agentd/server/notify"
	"agentd/server/rest"
)

func (c *call) listNotifications(ctx context.Context) error {
	var list rest.NotificationList
	return c.fetch(ctx, "/notifications"+query("state", c.flags.state, "limit", c.flags.limit.String()), &list, func(w sheet) {
		w.row("RECEIVER", "ON", "AGENTS", "STATE")
		for _, r := range list.Receivers {
			w.row(r.Target, strings.Join(r.On, ","), cmp.Or(strings.Join(r.Agents, ","), "all"), standing(r))
		}
		w.row()
		w.row("NOTIFICATION", "TYPE", "RECEIVER", "STATE", "ATTEMPTS", "FAILURE", "CREATED", "DUE")
		for _, n := range list.Notifications {
			w.row(n.ID, n.Type, n.Target, n.State, fmt.Sprint(n.Attempts), n.Failure, n.CreatedAt, n.DueAt)
		}
	})
}

// standing says in a word or two whether a receiver gets notifications.
func standing(r notify.Receiver) string {
	switch {
	case r.Disabled:
		return "disabled by its 410"
	case r.Failures > 0:
		return fmt.Sprintf("%d failures in a row", r.Failures)
	}
	return "active"
}

func (c *call) retryNotifications(ctx context.Context) error {
	if (len(c.args) == 0) == (c.flags.target == "") {
		return c.cmd.misused("it needs ids or --target, and not both.")
	}
	var answer rest.NotifyRetried
	body := rest.NotifyRetryBody{IDs: c.args, Target: c.flags.target}
	err := c.through(ctx, server.Hold, func(d *door) error { return d.Call(ctx, "POST", "/notifications/retry", body, &answer) })
	if err != nil {
		return err
	}
	return c.show(true, answer, func(w sheet) { w.say("%d notification(s) wait to be sent.\n", answer.Retried) })
}

func (c *call) testNotifications(ctx context.Context) error {
	var answer rest.NotifyTested
	err := c.running(ctx, func(d *door) error {
		return d.Call(ctx, "POST", "/notifications/test", rest.NotifyTestBody{Target: c.flags.target}, &answer)
	})
	if err != nil {
		return err
	}
	ok := true
	for _, r := range answer.Results {
		ok = ok && r.OK
	}
	return c.show(ok, answer, func(w sheet) {
		for _, r := range answer.Results {
			w.say("%s: %s (%d ms)\n", printable(r.Target), printable(cmp.Or(r.Failure, fmt.Sprintf("answered %d", r.Status))), r.TookMs)
		}
	})
}
