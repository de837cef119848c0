package agent

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
	"agentd/store"
)

// Snapshot is what the API tells about a run. Times are milliseconds since 1970.
type Snapshot struct {
	RunID            string        `json:"runId"`
	Kind             string        `json:"kind" enum:"agent|workflow"`
	Status           store.Status  `json:"status" enum:"pending|running|awaiting_approval|completed|failed|aborted"`
	StartedAt        int64         `json:"startedAt,omitempty" doc:"Milliseconds since 1970; startedAtIso is the same."`
	StartedAtISO     string        `json:"startedAtIso,omitempty"`
	CompletedAt      int64         `json:"completedAt,omitempty" doc:"Milliseconds since 1970; completedAtIso is the same."`
	CompletedAtISO   string        `json:"completedAtIso,omitempty"`
	Error            *RunError     `json:"error,omitempty"`
	AgentID          string        `json:"agentId,omitempty"`
	ParentRunID      string        `json:"parentRunId,omitempty" doc:"The run whose tool call this run is."`
	SessionID        string        `json:"sessionId,omitempty"`
	UserID           string        `json:"userId,omitempty"`
	Usage            message.Usage `json:"usage"`
	PendingApprovals []Approval    `json:"pendingApprovals"`
	Imported         bool          `json:"imported,omitempty" doc:"The run came with a run state that was imported."`
	ChildRuns        []ChildRun    `json:"childRuns,omitempty" doc:"The runs that its tool calls are, in the order in which they were made; absent in lists."`
	StepNumber       int           `json:"stepNumber"`
	State            *State        `json:"state,omitempty" doc:"The full run state; absent in lists."`
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

// Identity is what never changes about a run.
type Identity struct {
	ID      string
	Number  int64 // in the order of creation
	Owner   string
	Session string // empty: none
}

// identities remembers the runs that were asked for last, so that a check of who may see a run costs no read.
type identities struct {
	mu   sync.Mutex // guards the fields below
	byID map[string]Identity
}

const maxIdentities = 4096

// forget drops runs that are erased.
func (k *identities) forget(runs []*store.Run) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, run := range runs {
		delete(k.byID, run.ID)
	}
}

// Identify returns a run's identity; run-not-found when there is none.
func (e *Engine) Identify(ctx context.Context, runID string) (Identity, error) {
	e.known.mu.Lock()
	known, ok := e.known.byID[runID]
	e.known.mu.Unlock()
	if ok {
		return known, nil
	}
	row, err := e.Find(ctx, runID)
	if err != nil {
		return Identity{}, err
	}
	v := Identity{row.ID, row.N, row.Owner, row.Session}
	e.known.mu.Lock()
	defer e.known.mu.Unlock()
	if e.known.byID == nil || len(e.known.byID) >= maxIdentities {
		e.known.byID = map[string]Identity{}
	}
	e.known.byID[runID] = v
	return v, nil
}

// Find returns a run's row; run-not-found when there is none.
func (e *Engine) Find(ctx context.Context, runID string) (*store.Run, error) {
	row, err := e.opts.Runs.Get(ctx, runID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fault.New(fault.RunNotFound, "No run %q.", clip(runID, 128))
	}
	return row, err
}

// Snapshot tells about one run, its full state included.
func (e *Engine) Snapshot(ctx context.Context, runID string) (Snapshot, error) {
	row, rec, err := e.read(ctx, runID)
	if err != nil {
		return Snapshot{}, err
	}
	s, err := summary(row)
	if err != nil {
		return s, err
	}
	res, err := result(row, rec, ending(row, rec, now()))
	if err != nil {
		return s, err
	}
	err = e.opts.Runs.View(ctx, func(tx *store.Tx) error {
		if slices.ContainsFunc(rec.calls, func(c store.Call) bool { return c.Child != "" }) {
			kids, err := e.opts.Runs.Children(tx, row.N)
			if err != nil {
				return err
			}
			for _, k := range kids {
				if k.ParentCall < len(rec.calls) {
					s.ChildRuns = append(s.ChildRuns, ChildRun{rec.calls[k.ParentCall].ID, k.ID, k.Owner, k.Status})
				}
			}
		}
		if row.Parent == 0 {
			return nil
		}
		parent, err := e.opts.Runs.Number(tx, row.Parent)
		if err == nil {
			s.ParentRunID = parent.ID
		}
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return s, err
	}
	s.State, s.PendingApprovals = &res.State, res.State.PendingApprovals
	return s, nil
}

// read reads a run with its record as they were at one moment; run-not-found when there is none.
func (e *Engine) read(ctx context.Context, runID string) (row *store.Run, rec *record, err error) {
	read := func(tx *store.Tx) (err error) {
		row, err = e.opts.Runs.Find(tx, runID)
		return err
	}
	err = e.opts.Runs.View(ctx, func(tx *store.Tx) error {
		err := read(tx)
		if err == nil && row.Status.Terminal() { // nothing changes any more, so no snapshot is needed
			rec, err = load(tx, e.opts.Runs, row)
		}
		return err
	})
	if err == nil && rec == nil {
		err = e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
			err := read(tx)
			if err == nil {
				rec, err = load(tx, e.opts.Runs, row)
			}
			return err
		})
	}
	if errors.Is(err, store.ErrNotFound) {
		err = fault.New(fault.RunNotFound, "No run %q.", clip(runID, 128))
	}
	return row, rec, err
}

// Result is how a run stands, in the form in which agent.end tells it.
func (e *Engine) Result(ctx context.Context, runID string) (RunResult, error) {
	row, rec, err := e.read(ctx, runID)
	if err != nil {
		return RunResult{}, err
	}
	return result(row, rec, ending(row, rec, now()))
}

// List tells about runs, newest first, without their states, and what those of them wait for that wait. next is the filter's Before for the page that follows, 0
// when this is the last.
func (e *Engine) List(ctx context.Context, f store.RunFilter) (runs []Snapshot, next int64, err error) {
	runs = []Snapshot{}
	err = e.opts.Runs.View(ctx, func(tx *store.Tx) error {
		rows, err := e.opts.Runs.List(tx, f)
		if err != nil {
			return err
		}
		parent := ""
		if f.Parent != 0 {
			p, err := e.opts.Runs.Number(tx, f.Parent)
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
			if (row.Status == store.Awaiting || row.Status == store.Aborted) && row.Slots&(1<<store.PendingSlot) != 0 {
				pending, err := pendingOf(tx, e.opts.Runs, row)
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

// replayPage is how many stored events are read at a time.
const replayPage = 500

// Replay yields the durable events of a run after sequence number after, as they were published on the given view,
// until there are no more. It holds no transaction while it yields.
func (e *Engine) Replay(ctx context.Context, runID string, v event.View, after int, yield func(*hub.Entry) error) error {
	x := expander{runs: e.opts.Runs}
	for {
		page, err := e.page(ctx, &x, runID, v, after)
		if err != nil {
			return err
		}
		for _, entry := range page {
			if err := yield(entry); err != nil {
				return err
			}
			after = entry.Pos.Seq
		}
		if len(page) < replayPage {
			return nil
		}
	}
}

// page reads the events of a run after one, with an expander that may have read some before.
func (e *Engine) page(ctx context.Context, x *expander, runID string, v event.View, after int) ([]*hub.Entry, error) {
	var entries []*hub.Entry
	err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
		row, err := e.opts.Runs.Find(tx, runID)
		if err != nil {
			return err
		}
		stored, err := e.opts.Runs.Events(tx, row.N, after, replayPage)
		if err != nil {
			return err
		}
		x.begin(tx, row)
		for _, s := range stored {
			ev, err := x.expand(row, s)
			if err != nil {
				return err
			}
			entry := &hub.Entry{Pos: hub.Position{Epoch: row.N, Seq: s.Seq}, Type: ev.Type, Payload: ev.Payload, Owner: row.Owner, Before: s.Transient,
				ID: event.Cursor{View: v, Run: row.ID, Seq: s.Seq}.String()}
			if s.Type == event.AgentEnd && v != event.SessionView {
				var at end
				if err := json.Unmarshal(s.Payload, &at); err != nil {
					return err
				}
				entry.Lifecycle = lifecycleOf(at.Status)
				if at.Status.Terminal() && s.Seq < row.Events { // it was held, and has gone on
					entry.Lifecycle = lifecycleOf(store.Awaiting)
				}
			}
			entries = append(entries, entry)
		}
		return nil
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, fault.New(fault.RunNotFound, "No run %q.", clip(runID, 128))
	}
	return entries, err
}

// Backlog counts the durable events of a run after a number and before an entry of the same view, or all when that is
// nil, and tells the id of the last.
func (e *Engine) Backlog(ctx context.Context, runID string, v event.View, after int, before *hub.Entry) (n int, last string, err error) {
	row, err := e.Find(ctx, runID)
	if err != nil {
		return 0, "", err
	}
	n, last = backlog(row, v, after, before)
	return n, last, nil
}

func backlog(row *store.Run, v event.View, after int, before *hub.Entry) (int, string) {
	end := row.Events
	if before != nil && before.Pos.Epoch <= row.N {
		end = 0 // a later run's
		if before.Pos.Epoch == row.N {
			if end = before.Pos.Seq; before.Pos.Sub == 0 {
				end--
			}
		}
	}
	if end <= after {
		return 0, ""
	}
	return end - after, event.Cursor{View: v, Run: row.ID, Seq: end}.String()
}

// ReplaySession yields the durable events of a session's runs, in order: those after a position or, when that is zero,
// those of the runs that were made since the given time (milliseconds since 1970). A run that was aborted before its
// turn came is among them once its turn would have come.
func (e *Engine) ReplaySession(ctx context.Context, session string, after hub.Position, since int64, yield func(*hub.Entry) error) error {
	return e.eachOfSession(ctx, session, after, since, func(row *store.Run, seq int) error {
		return e.Replay(ctx, row.ID, event.SessionView, seq, yield)
	})
}

// SessionBacklog counts what ReplaySession would yield before an entry, or at all when that is nil, and tells the id of
// the last.
func (e *Engine) SessionBacklog(ctx context.Context, session string, after hub.Position, since int64, before *hub.Entry) (n int, last string, err error) {
	err = e.eachOfSession(ctx, session, after, since, func(row *store.Run, seq int) error {
		if more, id := backlog(row, event.SessionView, seq, before); more > 0 {
			n, last = n+more, id
		}
		return nil
	})
	return n, last, err
}

// eachOfSession calls fn for the runs of a session from the position's on, with the number of the event after which to
// begin.
func (e *Engine) eachOfSession(ctx context.Context, session string, after hub.Position, since int64, fn func(row *store.Run, seq int) error) error {
	from, first := max(after.Epoch, 1), int64(math.MaxInt64)
	for {
		var runs []*store.Run
		err := e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
			open, err := e.opts.Runs.Open(tx, session)
			if err == nil && len(open) > 0 {
				first = open[0].N
			}
			if err == nil {
				runs, err = e.opts.Runs.List(tx, store.RunFilter{Session: session, From: from, Limit: replayPage})
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, row := range runs {
			seq := 0
			switch {
			case row.Started == 0 && row.N >= first, after.Epoch == 0 && row.Created < since:
				continue
			case row.N == after.Epoch:
				seq = after.Seq
			}
			if err := fn(row, seq); err != nil {
				return err
			}
		}
		if len(runs) < replayPage {
			return nil
		}
		from = runs[len(runs)-1].N + 1
	}
}
