package run

import (
	"cmp"
	"encoding/json"
	"log/slog"

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
func (e *Engine) alarm(log *slog.Logger, runID string, err error) {
	e.altered.Add(1)
	log.Error("a stored tool call was changed; it is not made", "run", runID, "error", err)
}

// Altered is how often a stored call was found that is not what was asked for.
func (e *Engine) Altered() int64 { return e.altered.Load() }
