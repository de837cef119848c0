package cli

import (
	"cmp"
	"context"
	"strconv"

	"agentd/server"
	"agentd/server/rest"
)

func (c *call) showRetention(ctx context.Context) error {
	var status rest.RetentionStatus
	return c.fetch(ctx, "/retention", &status, func(w sheet) {
		last := map[string]string{}
		if s := status.LastSweep; s != nil {
			w.fact("last sweep", "%s", s.EndedAt)
			for _, r := range s.Rules {
				last[r.Rule] = deletedText(r)
			}
		}
		if status.NextSweepAt != "" {
			w.fact("next sweep", "%s", status.NextSweepAt)
		}
		w.row("RULE", "ON", "DAYS", "MOST", "LAST", "SETTING")
		for _, r := range status.Rules {
			w.row(r.Rule, map[bool]string{true: "yes", false: "no"}[r.Active], digits(int64(r.Days)), digits(r.Most), last[r.Rule], r.Setting)
		}
	})
}

func (c *call) runRetention(ctx context.Context) error {
	var answer rest.RetentionAnswer
	err := c.through(ctx, server.Hold, func(d *door) error {
		return d.Call(ctx, "POST", "/retention/run", rest.RetentionBody{DryRun: c.flags.dryRun}, &answer)
	})
	if err != nil {
		return err
	}
	whole := true
	for _, r := range answer.Sweep.Rules {
		whole = whole && r.Error == ""
	}
	return c.show(whole, answer, func(w sheet) {
		w.row("RULE", map[bool]string{true: "WOULD DELETE", false: "DELETED"}[c.flags.dryRun])
		for _, r := range answer.Sweep.Rules {
			w.row(r.Rule, deletedText(r))
		}
	})
}

// deletedText is what a sweep has done for a rule, in a cell.
func deletedText(r rest.RetentionResult) string {
	return cmp.Or(r.Error, strconv.FormatInt(r.Deleted, 10))
}

// digits is a number in a cell, which stays empty for 0.
func digits(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
