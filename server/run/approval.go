package run

import (
	"cmp"
	"context"
	"encoding/json"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// asks makes the approval that a call waits for.
func (r *Run) asks(c *store.Call, args json.RawMessage, at int64) journal.Approval {
	a := journal.Approval{ToolCallID: c.ID, ToolName: c.Name, Args: args, ArgsDigest: journal.ArgsDigest(args), Reason: c.Reason, RequestedAt: message.Millis(at),
		RequestedBy: cmp.Or(r.Row.StartedBy, Anonymous), RequestedByAgent: r.Row.Owner, Imported: r.Record.Imported(c)}
	if a.MayHaveHappened() {
		a.Previous = &message.Previous{Attempts: max(1, c.Attempts), BegunAt: message.Millis(c.Claimed), Known: cmp.Or(r.unknown[c.Index], serverStopped)}
	}
	return a
}

// alarm notes that a stored call is not what was asked for. Health reports it until the next start, which looks at all
// calls that wait.
func (e *Engine) alarm(runID string, err error) {
	e.altered.Add(1)
	e.log.Error("a stored tool call was changed; it is not made", "run", runID, "error", err)
}

// Altered is how often a stored call was found that is not what was asked for.
func (e *Engine) Altered() int64 { return e.altered.Load() }

// Waiting is an approval that waits, with the run that waits for it.
type Waiting struct {
	RunID     string `json:"runId"`
	AgentID   string `json:"agentId"`
	SessionID string `json:"sessionId,omitempty"`
	UserID    string `json:"userId,omitempty"`
	journal.Approval
	Mismatch string `json:"mismatch,omitempty" doc:"Why the call cannot be granted: the stored arguments differ from the requested ones."`
}

// Approvals lists what waits for a decision, oldest run first, of at most 1000 runs; with owners, of those only.
func (e *Engine) Approvals(ctx context.Context, owners []string) ([]Waiting, error) {
	list := []Waiting{}
	err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
		rows, err := e.opts.Runs.Awaiting(tx, owners)
		for _, row := range rows {
			rec, err := journal.LoadWaiting(tx, e.opts.Runs, row)
			if err != nil {
				return err
			}
			for _, a := range rec.Pending {
				w := Waiting{RunID: row.ID, AgentID: row.Owner, SessionID: row.Session, UserID: row.User, Approval: a}
				if _, err := rec.Shown(a); err != nil {
					w.Mismatch = fault.Of(err).Message
				}
				list = append(list, w)
			}
		}
		return err
	})
	return list, err
}
