package cli

import (
	"context"
	"fmt"
	"strings"

	"agentd/server"
	"agentd/server/fault"
	"agentd/server/rest"
	"agentd/triggers"
)

func (c *call) listTriggers(ctx context.Context) error {
	var list rest.TriggerList
	return c.fetch(ctx, "/triggers", &list, func(w sheet) {
		w.row("TRIGGER", "KIND", "SPEC", "STARTS", "STATE", "LAST FIRED", "NEXT DUE")
		for _, s := range list.Triggers {
			w.row(s.ID, s.Kind, s.Spec, s.CallbackRef, condition(s), s.LastFiredAt, s.NextFireAt)
		}
	})
}

// condition says in a word whether a trigger fires.
func condition(s triggers.State) string {
	switch {
	case s.Orphaned:
		return "orphaned"
	case s.Disabled:
		return "disabled"
	case s.Expired:
		return "expired"
	}
	return "active"
}

func (c *call) showTrigger(ctx context.Context) error {
	var answer rest.TriggerAnswer
	return c.fetch(ctx, at("/triggers", c.args[0], ""), &answer, func(w sheet) { triggerFacts(w, answer.Trigger) })
}

func triggerFacts(w sheet, s triggers.State) {
	w.facts("trigger", s.ID, "kind", s.Kind, "spec", s.Spec, "timezone", s.Timezone, "starts", s.CallbackRef, "state", condition(s), "reason", s.DisabledReason,
		"overlap", s.Overlap, "catch-up", s.CatchUpPolicy, "missed", fmt.Sprint(s.MissedFires), "failures", fmt.Sprint(s.Failures), "tags", strings.Join(s.Tags, ", "),
		"last fired", s.LastFiredAt, "next due", s.NextFireAt, "expires", s.ExpiresAt, "created", s.CreatedAt, "updated", s.UpdatedAt)
}

// running gives fn the API of a running server: a run that this process started would end with it.
func (c *call) running(ctx context.Context, fn func(*door) error) error {
	remote, err := c.holder()
	if err != nil {
		return err
	}
	if remote == nil {
		return fault.New(fault.ServerUnreachable, "No server holds the database.").Advise("Start one with `agentd start`, or name one with --url.")
	}
	defer remote.Close()
	return fn(&door{Client: remote})
}

func (c *call) fireTrigger(ctx context.Context) error {
	var answer rest.TriggerFired
	err := c.running(ctx, func(d *door) error { return d.Call(ctx, "POST", at("/triggers", c.args[0], "/fire"), nil, &answer) })
	if err != nil {
		return err
	}
	return c.show(answer.Outcome != triggers.Failed, answer, func(w sheet) { w.say("%s\n", became(answer.Fired, answer.Outcome, answer.Reason, answer.RunID)) })
}

// became says what became of a firing, in a line.
func became(trigger, outcome, reason, run string) string {
	text := "trigger " + trigger + ": " + outcome
	if reason != "" {
		text += " (" + reason + ")"
	}
	if run != "" {
		text += ", run " + run
	}
	return printable(text)
}

func (c *call) emitEvent(ctx context.Context) error {
	data, err := c.value()
	if err != nil {
		return err
	}
	var answer triggers.Emitted
	err = c.running(ctx, func(d *door) error {
		return d.Call(ctx, "POST", at("/events", c.args[0], ""), rest.EmitBody{ID: c.flags.id, Data: data}, &answer)
	})
	if err != nil {
		return err
	}
	failed := false
	for _, f := range answer.Fired {
		failed = failed || f.Outcome == triggers.Failed
	}
	return c.show(!failed, answer, func(w sheet) {
		switch {
		case answer.Duplicate:
			w.say("event %s came before; nothing has fired now\n", printable(answer.ID))
		case len(answer.Fired) == 0:
			w.say("event %s: no trigger fires on it\n", printable(answer.ID))
		}
		for _, f := range answer.Fired {
			w.say("%s\n", became(f.Trigger, f.Outcome, f.Reason, f.RunID))
		}
	})
}

func (c *call) enableTrigger(ctx context.Context) error  { return c.switchTrigger(ctx, "enable") }
func (c *call) disableTrigger(ctx context.Context) error { return c.switchTrigger(ctx, "disable") }

func (c *call) switchTrigger(ctx context.Context, verb string) error {
	var answer rest.TriggerChanged
	err := c.through(ctx, server.Hold, func(d *door) error { return d.Call(ctx, "POST", at("/triggers", c.args[0], "/"+verb), nil, &answer) })
	if err != nil {
		return err
	}
	return c.show(true, answer, func(w sheet) { triggerFacts(w, answer.Trigger) })
}

func (c *call) deleteTrigger(ctx context.Context) error {
	id := c.args[0]
	if err := c.sure(ctx, fmt.Sprintf("Delete trigger %s with its firings, for good?", printable(id))); err != nil {
		return err
	}
	var answer rest.TriggerRemoved
	err := c.through(ctx, server.Hold, func(d *door) error { return d.Call(ctx, "DELETE", at("/triggers", id, ""), nil, &answer) })
	if err != nil {
		return err
	}
	return c.report(answer, "Deleted trigger %s.", id)
}

func (c *call) pruneTriggers(ctx context.Context) error {
	if !c.flags.disabled && !c.flags.orphaned {
		return c.cmd.misused("it needs --disabled, --orphaned or both.")
	}
	if err := c.sure(ctx, "Delete these triggers with their firings, for good?"); err != nil {
		return err
	}
	var answer rest.TriggersPruned
	body := rest.PruneBody{Disabled: &c.flags.disabled, Orphaned: c.flags.orphaned}
	err := c.through(ctx, server.Hold, func(d *door) error { return d.Call(ctx, "POST", "/triggers/prune", body, &answer) })
	if err != nil {
		return err
	}
	return c.show(true, answer, func(w sheet) {
		w.say("%d trigger(s) deleted.\n", answer.Count)
		for _, id := range answer.Removed {
			w.say("  %s\n", printable(id))
		}
	})
}

func (c *call) listFirings(ctx context.Context) error {
	var list rest.FiringList
	return c.fetch(ctx, at("/triggers", c.args[0], "/firings")+query("limit", c.flags.limit.String()), &list, func(w sheet) {
		w.row("DUE", "ORIGIN", "OUTCOME", "REASON", "RUN", "FIRED BY")
		for _, f := range list.Firings {
			due := f.Due
			if f.Count > 1 {
				due = fmt.Sprintf("%d from %s to %s", f.Count, f.Due, f.LastDue)
			}
			w.row(due, f.Origin, f.Outcome, f.Reason, f.RunID, f.FiredBy)
		}
	})
}

func (c *call) listDues(ctx context.Context) error {
	var list rest.DueList
	return c.fetch(ctx, at("/triggers", c.args[0], "/next")+query("n", c.flags.limit.String()), &list, func(w sheet) {
		for _, due := range list.Dues {
			w.say("%s\n", due)
		}
	})
}
