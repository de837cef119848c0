package run

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/store"
)

// maxAttempts is how many processes may take up one step of a run before it is given up, see trial.
const maxAttempts = 4

// suspicion is how often a step of a run must have been taken up for the run to be a suspect.
const suspicion = 2

// recoverAtOnce is how many runs are taken up side by side, so that those that end share their commits.
const recoverAtOnce = 16

// A trial finds out whether it is a run that brings the server down. A crash interrupts every run that moves, so it
// says little about one of them. The runs that were interrupted continue at once after their first crash. One that was
// interrupted again without having come further is a suspect, and suspects are tried: each begins when all that begin
// before it have come further, wait or have ended. So a run that is interrupted as a suspect was the only one that moved
// of all that the crash before had interrupted, and after two such crashes it is given up. New runs are not held back
// meanwhile.
type trial struct {
	turn  chan struct{} // closed when the run may begin
	over  chan struct{} // closed when it has come further, or does not move any more
	once  sync.Once
	root  int64 // number of the run that called or hosts the run, or of that which did so with that one, and so on
	tries int   // how often crashes have found the run, or something below it, at the same place
}

func (t *trial) pass() {
	if t != nil {
		t.once.Do(func() { close(t.over) })
	}
}

// Recover takes up the runs that an earlier process left: each that was running continues from its last commit, or ends
// as failed (server-restarted, crash-loop) where that is not possible; those that wait keep waiting, and timers run. It
// is called once, before the first Start, and returns the number of runs that it set going.
func (e *Engine) Recover(ctx context.Context) (int, error) {
	e.timers.hold()
	var open []*store.Run
	alarms := map[string]error{}
	err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) (err error) {
		open, err = e.opts.Runs.Open(tx, "")
		for _, row := range open {
			if err != nil || row.Status != store.Awaiting {
				continue
			}
			var rec *journal.Record
			if rec, err = journal.LoadWaiting(tx, e.opts.Runs, row); err == nil {
				for _, a := range rec.Pending {
					if _, mismatch := rec.Shown(a); mismatch != nil {
						alarms[row.ID] = mismatch
					}
				}
			}
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	for id, mismatch := range alarms {
		e.alarm(e.log, id, mismatch)
	}
	sessions := map[string]bool{}
	recovered, errs := make([]*Run, len(open)), make([]error, len(open))
	places := make(chan struct{}, recoverAtOnce)
	var all sync.WaitGroup
	for i, row := range open {
		if row.Status != store.Running {
			sessions[row.Session] = sessions[row.Session] || row.Status == store.Pending
			continue
		}
		places <- struct{}{}
		all.Go(func() {
			recovered[i], errs[i] = e.recoverRun(ctx, row)
			<-places
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for i, row := range open {
		if row.Status == store.Running && recovered[i] == nil {
			sessions[row.Session] = true
		}
	}
	recovered = slices.DeleteFunc(recovered, func(r *Run) bool { return r == nil })
	e.try(recovered)
	for s := range sessions {
		e.next(s)
	}
	return len(recovered), e.timers.start(ctx, e)
}

// try lets runs that were interrupted continue: the suspects one by one, the most suspect last.
func (e *Engine) try(runs []*Run) {
	// A hosted run comes before its host, which may wait for it: it was made later, and its host has as many tries.
	slices.SortStableFunc(runs, func(a, b *Run) int {
		return cmp.Or(a.trial.tries-b.trial.tries, cmp.Compare(a.trial.root, b.trial.root), cmp.Compare(b.Row.N, a.Row.N))
	})
	first, _ := slices.BinarySearchFunc(runs, suspicion, func(r *Run, n int) int { return r.trial.tries - n })
	suspects := runs[first:]
	for _, r := range runs[:first] {
		e.launch(r, r.reenter)
	}
	for _, r := range suspects {
		e.launch(r, func() error {
			select {
			case <-r.trial.turn:
				return r.reenter()
			case <-r.ctx.Done():
				return context.Cause(r.ctx)
			}
		})
	}
	if len(suspects) == 0 {
		return
	}
	e.moving.Go(func() { // ends with the runs
		for _, r := range runs[:first] {
			<-r.trial.over
		}
		for _, r := range suspects {
			close(r.trial.turn)
			<-r.trial.over
		}
	})
}

// takeUp makes a run of a row, with a place among those that move.
func (e *Engine) takeUp(ctx context.Context, row *store.Run, force bool) (*Run, error) {
	// What is on disk can be seen a moment before the run is let go.
	if last := e.moved(row.ID); last != nil && row.Status != store.Running {
		last.wait(ctx, Grace)
	}
	for {
		row, rec, err := e.Read(ctx, row.ID)
		if err != nil {
			return nil, err
		}
		r := e.newRun(*row, rec)
		if err := e.admit(r, force); err != nil {
			return nil, err
		}
		// Somebody may have moved the run between the look and the admission.
		version, err := e.opts.Runs.Version(ctx, row.N, row.ID)
		if err == nil && r.recipient() != nil {
			err = e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
				r.due, err = e.opts.Runs.Timer(tx, row.N)
				return err
			})
		}
		if err == nil && version == row.Version {
			return r, nil
		}
		if e.letGo(r); err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
	}
}

// wait waits until nobody moves the run any more, but not for ever.
func (r *Run) wait(ctx context.Context, most time.Duration) {
	select {
	case <-r.done:
	case <-ctx.Done():
	case <-time.After(most):
	}
}

// letGo ends what takeUp began, for a run that no goroutine was launched for.
func (e *Engine) letGo(r *Run) {
	r.cancel(nil)
	close(r.done)
	e.release(r)
}

// recoverRun takes up a run, which is then to be launched, or ends it and returns nil.
func (e *Engine) recoverRun(ctx context.Context, row *store.Run) (*Run, error) {
	r, err := e.takeUp(ctx, row, true)
	if err != nil {
		return nil, err
	}
	r.trial = &trial{turn: make(chan struct{}), over: make(chan struct{})}
	var least int
	err = e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
		root := &r.Row
		for up := root; err == nil; root = up {
			if up, err = e.opts.Runs.Above(tx, root); err != nil {
				break
			}
		}
		if errors.Is(err, store.ErrNotFound) {
			r.trial.root = root.N
			least, r.trial.tries, err = interruptions(tx, e.opts.Runs, &r.Row)
		}
		return err
	})
	verdict := r.verdict(least)
	if err == nil && verdict == nil && r.Record.Ending == "" {
		r.Log().Info("run continues after a restart", "run", row.ID, "agent", row.Owner, "attempt", row.Attempt+1)
		return r, nil
	}
	defer e.letGo(r)
	if err == nil {
		err = r.endFor(r.Move(), store.Failed, verdict)
	}
	if err == nil && r.Row.Status.Terminal() {
		r.count()
	}
	return nil, err
}

// interruptions is how many processes have taken up a run at the place where it is: the run has come as far as that of
// its running children, and of the running ones that it hosts, which has come the least often there.
func interruptions(tx *store.Tx, runs *store.Runs, row *store.Run) (least, most int, err error) {
	least, most = row.Attempt, row.Attempt
	var kids []*store.Run
	if row.Calls > 0 {
		kids, err = runs.Children(tx, row.N)
	}
	if err == nil && row.Attempt > 0 {
		var hosted []*store.Run
		hosted, err = runs.Hosted(tx, hosts(row))
		kids = append(kids, hosted...)
	}
	for _, kid := range kids {
		if kid.Status == store.Running && !kid.Dormant() && err == nil {
			var low, high int
			low, high, err = interruptions(tx, runs, kid)
			least, most = min(least, low), max(most, high)
		}
	}
	return least, most, err
}

// verdict returns why a run that a restart interrupted cannot continue; nil when it can. It was interrupted so many times
// where it is.
func (r *Run) verdict(times int) error {
	switch {
	case r.owner.absent():
		return fault.New(fault.ServerRestarted, "The server restarted during the run, and the agent %q is no longer registered.", r.Row.Owner)
	case times >= maxAttempts:
		return fault.New(fault.CrashLoop, "The run was interrupted %d times at the same place.", times)
	case r.owner.FailOnRestart, !r.owner.Driver.Resumable(r):
		return fault.New(fault.ServerRestarted, "The server restarted during the run.")
	}
	return nil
}

// reenter drives a run that a restart interrupted from its last commit.
func (r *Run) reenter() error {
	m := r.Move()
	m.Run.Attempt++
	m.Done.Resumed(r.Record.Pending, "restarted", r.by)
	return r.reopen(m)
}

// reopen commits a move that shows that the run moves again, and drives it.
func (r *Run) reopen(m *Move) error {
	if r.recipient() == nil {
		m.Say(event.AgentStart, startFields{r.Row.ID, r.Row.Owner})
	}
	r.owner.Driver.Open(r, m)
	if err := r.Commit(m); err != nil {
		return err
	}
	return r.owner.Driver.Drive(r)
}

// next starts the run of a session whose turn has come, if one waits.
func (e *Engine) next(session string) {
	if session == "" {
		return
	}
	var open []*store.Run
	err := e.opts.Runs.View(e.ctx, func(tx *store.Tx) (err error) {
		open, err = e.opts.Runs.Open(tx, session)
		return err
	})
	if err == nil && len(open) > 0 && open[0].Status == store.Pending {
		err = e.begin(open[0])
	}
	if err != nil && e.ctx.Err() == nil && !fault.Is(err, fault.ServerDraining) && !fault.Is(err, fault.RunConflict) {
		e.log.Error("the next run of a session could not be started; the next start of the server starts it", "session", session, "error", err)
	}
}

// begin starts a run that waited for its session's turn.
func (e *Engine) begin(row *store.Run) error {
	r, err := e.takeUp(e.ctx, row, true)
	if err != nil {
		return err
	}
	if r.Row.Status != store.Pending {
		e.letGo(r)
		return nil
	}
	e.launch(r, func() error {
		// The runs of the session before it have ended, and those after it wait, so nothing comes between.
		var in store.Session
		err := e.opts.Runs.View(e.ctx, func(tx *store.Tx) (err error) {
			in, err = e.opts.Sessions.Find(tx, r.Row.Session)
			return err
		})
		var m *Move
		if err == nil {
			m, err = r.start(r.Record.Slots[store.InputSlot], in)
		}
		if err == nil {
			m.Slot(store.InputSlot, []byte("null")) // the messages hold it now
			err = r.Commit(m)
		}
		if err != nil {
			return errors.Join(ErrLeft, err)
		}
		return r.owner.Driver.Drive(r)
	})
	return nil
}
