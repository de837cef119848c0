package rest

import (
	"context"
	"net/http"
	"time"

	"agentd/retention"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/message"
)

// RetentionRule is a rule of retention.
type RetentionRule struct {
	Rule    string `json:"rule"`
	Setting string `json:"setting" doc:"The setting that switches the rule on."`
	Table   string `json:"table"`
	Active  bool   `json:"active"`
	Days    int    `json:"days,omitempty" doc:"The window. Absent: the rule has none."`
	Most    int64  `json:"most,omitempty" doc:"How many rows remain at most, however young they are."`
	Deletes string `json:"deletes"`
	Keeps   string `json:"keeps"`
}

// RetentionResult is what a sweep has done for a rule.
type RetentionResult struct {
	Rule    string `json:"rule"`
	Deleted int64  `json:"deleted" doc:"Of a dry run: how many a sweep would delete."`
	Error   string `json:"error,omitempty" doc:"The code of the fault. The server's log has the cause."`
}

// RetentionSweep is what a sweep has done.
type RetentionSweep struct {
	StartedAt string            `json:"startedAt"`
	EndedAt   string            `json:"endedAt"`
	DryRun    bool              `json:"dryRun"`
	Deleted   int64             `json:"deleted"`
	Rules     []RetentionResult `json:"rules"`
}

// RetentionStatus is the answer of GET /retention.
type RetentionStatus struct {
	Enabled     bool            `json:"enabled" doc:"Whether the server sweeps without being asked."`
	IntervalMs  int64           `json:"intervalMs"`
	Running     bool            `json:"running"`
	NextSweepAt string          `json:"nextSweepAt,omitempty"`
	Rules       []RetentionRule `json:"rules" doc:"In the order of a sweep."`
	LastSweep   *RetentionSweep `json:"lastSweep,omitempty" doc:"Since the start of the server."`
}

// RetentionBody asks for a sweep.
type RetentionBody struct {
	DryRun bool `json:"dryRun,omitempty" doc:"Only count what a sweep would delete."`
}

// RetentionAnswer is the answer of POST /retention/run.
type RetentionAnswer struct {
	Sweep RetentionSweep `json:"sweep"`
}

// Retention is the routes of retention.
type Retention struct{ Daemon *retention.Daemon }

// Routes are the rows of the table.
func (a *Retention) Routes() []Route {
	return []Route{
		{Method: "GET", Path: "/retention", Access: "retention:read", Summary: "Show the rules of retention, their windows and the latest sweep.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (RetentionStatus, error) { return a.status(), nil })},
		{Method: "POST", Path: "/retention/run", Access: "retention:run", Action: audit.RetentionRun, Target: "retention",
			Summary: "Sweep now, and answer when the sweep has ended. If the client disconnects, the sweep stops after the transaction in progress.",
			Errors:  []*fault.Kind{fault.RetentionRunning},
			Endpoint: call(http.StatusOK, func(ctx context.Context, c Call, in struct{ Body RetentionBody }) (RetentionAnswer, error) {
				c.Request.On("", map[string]any{"dryRun": in.Body.DryRun})
				s, err := a.Daemon.Sweep(ctx, in.Body.DryRun)
				return RetentionAnswer{sweepOf(s)}, err
			})},
	}
}

func (a *Retention) status() RetentionStatus {
	set, is := a.Daemon.Settings(), a.Daemon.Status()
	answer := RetentionStatus{Enabled: set.Enabled, IntervalMs: set.Interval.Milliseconds(), Running: is.Running, NextSweepAt: moment8601(is.Next)}
	for i := range retention.Rules {
		r := &retention.Rules[i]
		days := a.Daemon.Days(r)
		answer.Rules = append(answer.Rules, RetentionRule{Rule: r.Name, Setting: r.Setting, Table: r.Table, Active: days != 0 || r.Most > 0, Days: max(0, days),
			Most: r.Most, Deletes: r.Deletes, Keeps: r.Keeps})
	}
	if is.Last != nil {
		last := sweepOf(*is.Last)
		answer.LastSweep = &last
	}
	return answer
}

func sweepOf(s retention.Sweep) RetentionSweep {
	answer := RetentionSweep{StartedAt: moment8601(s.Started), EndedAt: moment8601(s.Ended), DryRun: s.Dry, Rules: []RetentionResult{}}
	for _, r := range s.Results {
		result := RetentionResult{Rule: r.Rule, Deleted: r.Deleted}
		if r.Err != nil {
			result.Error = fault.Of(r.Err).Kind.Code
		}
		answer.Deleted += r.Deleted
		answer.Rules = append(answer.Rules, result)
	}
	return answer
}

func moment8601(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return message.Millis(t.UnixMilli())
}
