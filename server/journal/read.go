package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
	"agentd/store"
)

// A Form shows the runs of one kind.
type Form interface {
	// End makes the event that reports how a run stood; see [End].
	End(row *store.Run, rec *Record, at End) (event.Event, error)
	// Input returns the messages that show an input in a transcript; form is what the driver said of it when it accepted it.
	Input(form string, input json.RawMessage) ([]message.Message, error)
	// EndType is the type of the event that reports how a run stands with a status.
	EndType(status store.Status) string
	// Ends reports whether a type is one that EndType returns.
	Ends(typ string) bool
	// Failed makes the event that says why a run fails: its row has the error.
	Failed(row *store.Run, rec *Record) event.Event
	// Cancelling makes the event that says that somebody wants a run to end; see [agentd/server/run.AbortOptions].
	Cancelling(row *store.Run, rec *Record, drain bool, onPending string) event.Event
	// Expand rebuilds an event of which a message holds a part.
	Expand(row *store.Run, rec *Record, e store.Event) (event.Event, error)
}

// A Reader reads runs and replays their events. It is safe for concurrent use.
type Reader struct {
	runs     *store.Runs
	sessions *store.Sessions
	forms    map[string]Form
	known    identities
	pasts    pasts
	encoded  encodings
}

// NewReader makes a reader; forms are by kind of run, and an unknown kind is shown as an agent's.
func NewReader(runs *store.Runs, sessions *store.Sessions, forms map[string]Form) *Reader {
	return &Reader{runs: runs, sessions: sessions, forms: forms}
}

// Runs is the repository of runs.
func (r *Reader) Runs() *store.Runs { return r.runs }

// Form returns what shows a run.
func (r *Reader) Form(row *store.Run) Form { return cmp.Or(r.forms[row.Kind], r.forms["agent"]) }

// Identity is what never changes about a run.
type Identity struct {
	ID      string
	Number  int64 // in the order of creation
	Kind    string
	Owner   string // the agent or, for the kind workflow, the workflow
	Session string // empty: none
}

// identities remembers the runs that were asked for last, so that a check of who may see a run costs no read.
type identities struct {
	mu   sync.Mutex // guards the fields below
	byID map[string]Identity
}

const maxIdentities = 4096

// Forget drops what the reader remembers of runs that are erased.
func (r *Reader) Forget(runs []*store.Run) {
	r.encoded.forget(runs)
	for _, run := range runs {
		r.pasts.drop(run.Session)
	}
	r.known.mu.Lock()
	defer r.known.mu.Unlock()
	for _, run := range runs {
		delete(r.known.byID, run.ID)
	}
}

// Identify returns a run's identity; run-not-found when there is none.
func (r *Reader) Identify(ctx context.Context, runID string) (Identity, error) {
	r.known.mu.Lock()
	known, ok := r.known.byID[runID]
	r.known.mu.Unlock()
	if ok {
		return known, nil
	}
	row, err := r.Find(ctx, runID)
	if err != nil {
		return Identity{}, err
	}
	v := Identity{row.ID, row.N, row.Kind, row.Owner, row.Session}
	r.known.mu.Lock()
	defer r.known.mu.Unlock()
	if r.known.byID == nil || len(r.known.byID) >= maxIdentities {
		r.known.byID = map[string]Identity{}
	}
	r.known.byID[runID] = v
	return v, nil
}

// Find returns a run's row; run-not-found when there is none.
func (r *Reader) Find(ctx context.Context, runID string) (*store.Run, error) {
	row, err := r.runs.Get(ctx, runID)
	if err != nil {
		return nil, missing(err, runID)
	}
	return row, nil
}

func missing(err error, runID string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.RunNotFound, "There is no run %q.", Clip(runID, 128))
	}
	return err
}

// Read reads a run with its record as they were at one moment; run-not-found when there is none.
func (r *Reader) Read(ctx context.Context, runID string) (row *store.Run, rec *Record, err error) {
	read := func(tx *store.Tx) (err error) {
		if row, err = r.runs.Find(tx, runID); err == nil {
			rec, err = Load(tx, r.runs, row)
		}
		return err
	}
	err = r.runs.View(ctx, func(tx *store.Tx) (err error) {
		if row, err = r.runs.Find(tx, runID); err == nil && row.Status.Terminal() { // nothing changes any more, so no snapshot is needed
			rec, err = Load(tx, r.runs, row)
		}
		return err
	})
	if err == nil && rec == nil {
		err = r.runs.Snapshot(ctx, read)
	}
	return row, rec, missing(err, runID)
}

// PendingOf reads what a run waits for.
func (r *Reader) PendingOf(tx *store.Tx, row *store.Run) ([]Approval, error) {
	if row.Slots&(1<<store.PendingSlot) == 0 {
		return nil, nil
	}
	return PendingOf(tx, r.runs, row)
}

// replayPage is how many stored events are read at a time.
const replayPage = 500

// Replay yields the durable events of a run after sequence number after, as they were published on the given view,
// until there are no more. It holds no transaction while it yields.
func (r *Reader) Replay(ctx context.Context, runID string, v event.View, after int, yield func(*hub.Entry) error) error {
	x := expander{r: r}
	for {
		page, err := r.page(ctx, &x, runID, v, after)
		if err != nil {
			return missing(err, runID)
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

// Readers is whose readers may see all of a run's events; see [hub.Entry].
func Readers(row *store.Run) string {
	if row.Kind == store.Workflow {
		return "workflow:" + row.Owner
	}
	return row.Owner
}

// page reads the events of a run after one, with an expander that may have read some before.
func (r *Reader) page(ctx context.Context, x *expander, runID string, v event.View, after int) (entries []*hub.Entry, err error) {
	err = r.runs.Snapshot(ctx, func(tx *store.Tx) error {
		row, err := r.runs.Find(tx, runID)
		if err != nil {
			return err
		}
		stored, err := r.runs.Events(tx, row.N, after, replayPage)
		x.begin(tx, row)
		for _, s := range stored {
			ev, err := x.expand(row, s)
			if err != nil {
				return err
			}
			entry := &hub.Entry{Pos: hub.Position{Epoch: row.N, Seq: s.Seq}, Type: ev.Type, Payload: ev.Payload, Owner: Readers(row), Before: s.Transient,
				ID: event.Cursor{View: v, Run: row.ID, Seq: s.Seq}.String()}
			if r.Form(row).Ends(s.Type) && v != event.SessionView {
				var at End
				if err := json.Unmarshal(s.Payload, &at); err != nil {
					return err
				}
				if at.Status.Terminal() && s.Seq < row.Events { // it was held, and continued
					at.Status = store.Awaiting
				}
				entry.Lifecycle = Lifecycle(at.Status)
			}
			entries = append(entries, entry)
		}
		return err
	})
	return entries, err
}

// Backlog counts the durable events of a run after a number and before an entry of the same view, or all when that is
// nil, and returns the id of the last.
func (r *Reader) Backlog(ctx context.Context, runID string, v event.View, after int, before *hub.Entry) (n int, last string, err error) {
	row, err := r.Find(ctx, runID)
	if err != nil {
		return 0, "", err
	}
	if after, err = r.kept(ctx, row, after); err != nil {
		return 0, "", err
	}
	n, last = backlog(row, v, after, before)
	return n, last, nil
}

// kept is the number of the event after which a replay of a run begins, when a client asks for what is after another: the
// first events of a run of a workflow are deleted with the steps that they are of.
func (r *Reader) kept(ctx context.Context, row *store.Run, after int) (int, error) {
	if row.Kind != store.Workflow {
		return after, nil
	}
	err := r.runs.View(ctx, func(tx *store.Tx) error {
		first, err := r.runs.FirstEvent(tx, row.N)
		if after = max(after, first-1); first == 0 {
			after = row.Events
		}
		return err
	})
	return after, err
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
// those of the latest runs that were made since the given time (milliseconds since 1970). A run that was aborted before its
// turn came is among them once its turn would have come.
func (r *Reader) ReplaySession(ctx context.Context, session string, after hub.Position, since int64, yield func(*hub.Entry) error) error {
	return r.eachOfSession(ctx, session, after, since, func(row *store.Run, seq int) error {
		return r.Replay(ctx, row.ID, event.SessionView, seq, yield)
	})
}

// SessionBacklog counts what ReplaySession would yield before an entry, or at all when that is nil, and returns the id of
// the last.
func (r *Reader) SessionBacklog(ctx context.Context, session string, after hub.Position, since int64, before *hub.Entry) (n int, last string, err error) {
	err = r.eachOfSession(ctx, session, after, since, func(row *store.Run, seq int) error {
		if more, id := backlog(row, event.SessionView, seq, before); more > 0 {
			n, last = n+more, id
		}
		return nil
	})
	return n, last, err
}

// eachOfSession calls fn for the runs of a session from the position's on, with the number of the event after which to
// begin. It leaves out runs that never began: they were aborted before their turn, or wait for it.
func (r *Reader) eachOfSession(ctx context.Context, session string, after hub.Position, since int64, fn func(row *store.Run, seq int) error) error {
	from := after.Epoch
	if from == 0 {
		err := r.runs.View(ctx, func(tx *store.Tx) (err error) {
			from, err = r.runs.FirstSince(tx, session, since)
			return err
		})
		if err != nil || from == 0 {
			return err
		}
	}
	for {
		var runs []*store.Run
		err := r.runs.View(ctx, func(tx *store.Tx) (err error) {
			runs, err = r.runs.List(tx, store.RunFilter{Session: session, Hosted: true, Workflows: []string{}, From: from, Limit: replayPage})
			return err
		})
		if err != nil {
			return err
		}
		for _, row := range runs {
			seq := 0
			switch {
			case row.Started == 0:
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
