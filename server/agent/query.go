package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// Snapshot is what the API tells about a run. Times are milliseconds since 1970.
type Snapshot struct {
	RunID            string        `json:"runId"`
	Kind             string        `json:"kind" enum:"agent|workflow"`
	Status           store.Status  `json:"status" enum:"pending|running|suspended|awaiting_approval|completed|failed|aborted"`
	StartedAt        int64         `json:"startedAt,omitempty" doc:"Milliseconds since 1970; startedAtIso is the same."`
	StartedAtISO     string        `json:"startedAtIso,omitempty"`
	CompletedAt      int64         `json:"completedAt,omitempty" doc:"Milliseconds since 1970; completedAtIso is the same."`
	CompletedAtISO   string        `json:"completedAtIso,omitempty"`
	Error            *RunError     `json:"error,omitempty"`
	AgentID          string        `json:"agentId,omitempty"`
	WorkflowID       string        `json:"workflowId,omitempty" doc:"Instead of agentId, for a run of a workflow."`
	ThreadID         string        `json:"threadId,omitempty" doc:"The thread of a run of a workflow."`
	ParentRunID      string        `json:"parentRunId,omitempty" doc:"The run whose tool call this run is."`
	SessionID        string        `json:"sessionId,omitempty"`
	UserID           string        `json:"userId,omitempty"`
	Usage            message.Usage `json:"usage"`
	PendingApprovals []Approval    `json:"pendingApprovals"`
	Imported         bool          `json:"imported,omitempty" doc:"The run belongs to an imported run state."`
	ChildRuns        []ChildRun    `json:"childRuns,omitempty" doc:"The child runs, in the order of their creation; absent in lists."`
	StepNumber       int           `json:"stepNumber"`
	State            *State        `json:"state,omitempty" doc:"The full state of an agent's run; absent in lists."`
}

// ChildRun is a run that is a tool call of another.
type ChildRun struct {
	ToolCallID string       `json:"toolCallId"`
	RunID      string       `json:"runId"`
	AgentID    string       `json:"agentId"`
	Status     store.Status `json:"status" enum:"pending|running|awaiting_approval|completed|failed|aborted"`
}

func summary(row *store.Run) (Snapshot, error) {
	s := Snapshot{RunID: row.ID, Kind: row.Kind, Status: row.Status, StartedAt: row.Started, CompletedAt: row.Finished,
		AgentID: row.Owner, SessionID: row.Session, UserID: row.User, PendingApprovals: []Approval{}, StepNumber: row.Step,
		Imported: row.Slots&(1<<store.ImportedSlot) != 0}
	if row.Kind == store.Workflow {
		s.AgentID, s.WorkflowID = "", row.Owner
	}
	if s.StartedAt != 0 {
		s.StartedAtISO = message.Millis(s.StartedAt)
	}
	if s.CompletedAt != 0 {
		s.CompletedAtISO = message.Millis(s.CompletedAt)
	}
	if row.Error != nil {
		if err := json.Unmarshal(row.Error, &s.Error); err != nil {
			return s, store.Damaged(err)
		}
	}
	if err := json.Unmarshal(row.Usage, &s.Usage); err != nil {
		return s, store.Damaged(err)
	}
	return s, nil
}

// Snapshot tells about one run, its full state included.
func (e *Engine) Snapshot(ctx context.Context, runID string) (Snapshot, error) {
	s, _, err := e.snapshot(ctx, runID)
	return s, err
}

// SnapshotJSON is the JSON of a run's snapshot and a line break, without the operator's words unless whole. Nobody may change it.
func (e *Engine) SnapshotJSON(ctx context.Context, run journal.Identity, whole bool) ([]byte, error) {
	return e.Encoded(ctx, run, whole, func() (journal.Shown, error) {
		s, shown, err := e.snapshot(ctx, run.ID)
		if err != nil {
			return shown, err
		}
		if !whole {
			s.State.Withhold()
		}
		b, err := message.Encode(struct {
			Snapshot
			State any `json:"state"` // hides the one of the snapshot, and encodes faster
		}{s, s.State.Plain()})
		shown.JSON = append(b, '\n')
		return shown, err
	})
}

func (e *Engine) snapshot(ctx context.Context, runID string) (s Snapshot, from journal.Shown, err error) {
	row, rec, err := e.Read(ctx, runID)
	if err != nil {
		return s, from, err
	}
	from.Row, from.Record = row, rec
	if s, err = summary(row); err != nil {
		return s, from, err
	}
	if row.Kind == store.Workflow {
		s.PendingApprovals = append(s.PendingApprovals, rec.Pending...)
	} else {
		res, err := ResultAt(row, rec, journal.EndOf(row, rec, time.Now().UnixMilli()))
		if err != nil {
			return s, from, err
		}
		s.State, s.PendingApprovals = &res.State, res.State.PendingApprovals
	}
	if err := e.relate(ctx, &s, row, rec); err != nil && !errors.Is(err, store.ErrNotFound) {
		return s, from, err
	}
	return s, from, nil
}

// relate adds the runs that called a run and that it called.
func (e *Engine) relate(ctx context.Context, s *Snapshot, row *store.Run, rec *journal.Record) error {
	calls := slices.ContainsFunc(rec.Calls, func(c store.Call) bool { return c.Child != "" })
	if row.Parent == 0 && row.Host == 0 && row.Thread == 0 && !calls {
		return nil
	}
	return e.Runs().View(ctx, func(tx *store.Tx) (err error) {
		if row.Thread != 0 {
			if s.ThreadID, err = e.Runs().ThreadID(tx, row.Thread); err != nil {
				return err
			}
		}
		if calls {
			kids, err := e.Runs().Children(tx, row.N)
			if err != nil {
				return err
			}
			for _, k := range kids {
				if k.ParentCall < len(rec.Calls) {
					s.ChildRuns = append(s.ChildRuns, ChildRun{rec.Calls[k.ParentCall].ID, k.ID, k.Owner, k.Status})
				}
			}
		}
		parent, err := e.Runs().Above(tx, row)
		if err == nil {
			s.ParentRunID = parent.ID
		}
		return err
	})
}

// Result is how a run stands, in the form in which agent.end tells it.
func (e *Engine) Result(ctx context.Context, runID string) (RunResult, error) {
	row, rec, err := e.Read(ctx, runID)
	if err != nil {
		return RunResult{}, err
	}
	return ResultAt(row, rec, journal.EndOf(row, rec, time.Now().UnixMilli()))
}

// List tells about runs, newest first, without their states, and what those of them wait for that wait. next is the filter's Before for the page that follows, 0
// when this is the last.
func (e *Engine) List(ctx context.Context, f store.RunFilter) (runs []Snapshot, next int64, err error) {
	runs = []Snapshot{}
	err = e.Runs().View(ctx, func(tx *store.Tx) error {
		rows, err := e.Runs().List(tx, f)
		if err != nil {
			return err
		}
		parent := ""
		if f.Parent != 0 {
			p, err := e.Runs().Number(tx, f.Parent)
			if err != nil {
				return err
			}
			parent = p.ID
		}
		size := 0
		for _, row := range rows {
			s, err := summary(row)
			if err != nil {
				return err
			}
			s.ParentRunID = parent
			if row.Thread != 0 {
				if s.ThreadID, err = e.Runs().ThreadID(tx, row.Thread); err != nil {
					return err
				}
			}
			if (row.Status == store.Awaiting || row.Status == store.Aborted) && row.Slots&(1<<store.PendingSlot) != 0 {
				pending, err := e.PendingOf(tx, row)
				if err != nil {
					return err
				}
				for _, a := range pending {
					size += len(a.Args) + len(a.Reason)
				}
				if s.PendingApprovals = pending; pending == nil {
					s.PendingApprovals = []Approval{}
				}
			}
			runs, next = append(runs, s), row.N
			if size > maxListedArgs {
				return nil // the rest is on the next page
			}
		}
		if len(rows) < f.Limit {
			next = 0
		}
		return nil
	})
	return runs, next, err
}

// maxListedArgs is how many bytes of arguments end a page of runs.
const maxListedArgs = 4 << 20
