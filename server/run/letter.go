package run

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/tracecontext"
	"agentd/store"
)

// A run whose driver is a Recipient gets letters: answers to what it waits for, and times that have come. While it moves, they
// wait in its mailbox. A run that is parked is taken up for a letter, and its driver finds it there:
//
//	Post --> mailbox --> Letters: the driver acts upon it, in a commit --> Seal --> Rest, End, or Drive returns
//	  |                                                                     |
//	  +--> the run is parked: it is taken up                                +--> false: letters have come meanwhile
//	  +--> the mailbox is sealed: Post waits until the run is let go, and begins again
//
// So no letter is lost, and each is taken once.

// A Letter is something that a run is to act upon.
type Letter interface {
	// Refuse is called for a letter that was posted and that the run did not take: it ended, or was left for the next start.
	Refuse(err error)
}

// A Recipient is a Driver whose runs get letters. What its runs begin with and wait for is its own: they have no messages,
// steps or calls. Drive also gets runs that are parked, with letters; see [Run.Reopen]. A session that a run names is linked
// only: the run takes no turn in it.
type Recipient interface {
	Driver
	// Begin adds what the driver needs to the move that starts a run, with the event that says so. Open is for restarts only.
	Begin(r *Run, m *Move, input json.RawMessage) error
	// Closing adds to the move that ends a run as failed or aborted, for another reason than that the driver has called
	// [Run.End]. The run may be parked. An error leaves the run as it is.
	Closing(r *Run, m *Move, status store.Status, cause error) error
	// Decide applies decisions to a run that has not ended; see [Engine.Resume].
	Decide(ctx context.Context, e *Engine, row *store.Run, decisions []Decision, by string,
		also func(tx *store.Tx, decided []Verdict, unmatched []Decision) error) (unmatched []Decision, err error)
}

// recipient returns the driver of the run as one that gets letters; nil when it is none.
func (r *Run) recipient() Recipient {
	to, _ := r.owner.Driver.(Recipient)
	return to
}

// maxMail is how many letters may wait in a mailbox.
const maxMail = 1024

// Due is the letter that says that the timer of a run is due. The next commit after [Run.Letters] has returned it handles it,
// and replaces the timer, which it clears unless the driver sets it.
type Due struct {
	At   int64 // the timer
	over chan error
}

// Refuse is a part of [Letter].
func (d *Due) Refuse(err error) { d.over <- err }

// Post gives a letter to a run: to the goroutine that moves it or, where it is parked, to one that takes it up. It does not
// wait for the driver. ctx bounds the wait for a run that is about to be let go. When it returns an error, Refuse is not
// called. Errors: run-not-found, run-not-suspended for one that has ended, run-conflict for one that is left for the next
// start, overloaded where 1024 letters wait or no place is free among the moving runs, server-draining, storage-failed.
func (e *Engine) Post(ctx context.Context, runID string, l Letter) error {
	version := int64(0) // of the run that was found running, and not moving
	for {
		if r := e.moved(runID); r != nil {
			sealed, err := r.deliver(l)
			if !sealed {
				return err
			}
			select {
			case <-r.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			e.vacate(r)
			continue
		}
		row, err := e.Find(ctx, runID)
		switch {
		case err != nil:
			return err
		case row.Status.Parked():
			taken, err := e.takeUpFor(ctx, row, l)
			if taken || err != nil {
				return err
			}
		case row.Status != store.Running:
			return journal.NotSuspended(row)
		case row.Version == version:
			return fault.New(fault.RunConflict, "The run continues with the next start of the server.").With("runId", runID)
		default:
			version = row.Version // it moved, or moves, between the two looks
		}
	}
}

// takeUpFor takes up a parked run with a letter; false: somebody else has taken it up.
func (e *Engine) takeUpFor(ctx context.Context, row *store.Run, l Letter) (bool, error) {
	r, err := e.takeUp(ctx, row, false)
	switch {
	case fault.Is(err, fault.RunConflict):
		return false, nil
	case err != nil:
		return false, err
	case r.recipient() == nil:
		e.letGo(r)
		return false, fault.New(fault.RunNotSuspended, "The %s %q gets no letters.", row.Kind, row.Owner).With("runId", row.ID)
	case !r.Row.Status.Parked():
		e.letGo(r)
		return false, nil
	}
	r.by = tracecontext.From(ctx)
	r.mail = []Letter{l} // nobody delivers while the mailbox is sealed
	e.launch(r, func() error { return r.owner.Driver.Drive(r) })
	return true, nil
}

// deliver puts a letter into the mailbox, unless that is sealed.
func (r *Run) deliver(l Letter) (sealed bool, err error) {
	r.e.mu.Lock()
	draining := r.e.draining
	r.e.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case draining:
		return false, fault.New(fault.ServerDraining, "The server is stopping.").After(5 * time.Second)
	case r.sealed:
		return true, nil
	case len(r.mail) >= maxMail:
		return false, fault.New(fault.Overloaded, "%d letters wait for run %s.", maxMail, r.id).After(time.Second)
	}
	r.mail = append(r.mail, l)
	r.ring()
	return false, nil
}

// ring makes Mail signal.
func (r *Run) ring() {
	select {
	case r.bell <- struct{}{}:
	default:
	}
}

// Mail signals that letters wait, or that an abort was asked for; see [Run.Stopping]. A signal may be stale.
func (r *Run) Mail() <-chan struct{} { return r.bell }

// Letters takes all letters that wait, in the order in which they were posted. The driver refuses those that it cannot act
// upon itself.
func (r *Run) Letters() []Letter {
	r.mu.Lock()
	list := r.mail
	r.mail = nil
	r.mu.Unlock()
	for _, l := range list {
		if d, is := l.(*Due); is {
			r.due, r.dues = d.At, append(r.dues, d)
		}
	}
	return list
}

// Seal closes the mailbox, if it is empty. The driver calls it right before it commits a rest or an end, or returns from
// Drive; what is posted from then on finds the run as it is on disk. False: letters wait.
func (r *Run) Seal() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mail) == 0 {
		r.sealed = true
	}
	return r.sealed
}

// unseal opens the mailbox of a run that its driver is about to drive.
func (r *Run) unseal() {
	if r.recipient() == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sealed = false; len(r.mail) > 0 {
		r.ring()
	}
}

// returnMail seals the mailbox of a run that its driver does not drive any more, and refuses what is in it.
func (r *Run) returnMail() {
	if r.recipient() == nil {
		return
	}
	r.mu.Lock()
	r.sealed = true
	list := slices.Clone(r.mail)
	r.mail = nil
	r.mu.Unlock()
	err := error(journal.NotSuspended(&r.Row))
	switch {
	case r.stopped():
		err = fault.New(fault.ServerDraining, "The server is stopping.").After(5 * time.Second)
	case !r.Row.Status.Terminal():
		err = fault.New(fault.RunConflict, "The run was left before it took the letter.").With("runId", r.id)
	}
	for _, d := range r.dues {
		d.over <- err
	}
	r.dues = nil
	for _, l := range list {
		l.Refuse(err)
	}
}

// heard notes that a commit has handled the due times that the driver was told of.
func (r *Run) heard() {
	for _, d := range r.dues {
		d.over <- nil
	}
	r.dues = nil
}

// Reopen makes a run that is parked run again with the move; why is what its span of the resumption says. A first commit that
// leaves the run parked is the last one before the driver returns.
func (r *Run) Reopen(m *Move, why string) {
	m.Run.Status, m.Due = store.Running, new(int64)
	m.Progress()
	m.Done.Resumed(r.Record.Pending, why, r.by)
}

// Rest commits a move after which the run is parked: it awaits approval where approvals are pending, else it is suspended. It
// is looked at next when the first of them expires or when due, in milliseconds since 1970, has come; 0: never. The driver
// then returns, also with the error, which says that the run is to be aborted instead, or is left.
func (r *Run) Rest(m *Move, pending []journal.Approval, due int64) error {
	m.Run.Status, m.Due = store.Suspended, &due
	if len(pending) > 0 {
		m.Run.Status = store.Awaiting
	}
	m.Progress()
	return r.rest(m, pending)
}

// parks notes that a move leaves the run parked or dormant, so that an abort which is asked for from now on does not count on the driver.
// The error says that one was asked for before.
func (r *Run) parks(m *Move) error {
	if !m.Run.Dormant() && (r.recipient() == nil || !m.Run.Status.Parked()) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked != nil {
		return errAborted
	}
	r.resting = true
	return nil
}

// Show gives the event that reports how the run stands after the move what the run's rows do not keep; see [journal.End].
func (m *Move) Show(shown json.RawMessage) { m.shown = shown }
