package run

import (
	"context"
	"errors"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/span"
	"agentd/server/tracecontext"
	"agentd/store"
)

// An Adoption is a run that was begun elsewhere, as the move that writes it, with the children that wait in its calls.
type Adoption struct {
	Move     *Move
	Record   *journal.Record // as it is after the move; see [NewAdoption]
	Children []*Adoption

	number int64
}

// NewAdoption prepares a run; add fills its move.
func NewAdoption(row store.Run, at int64, add func(*Move) error) (*Adoption, error) {
	m := &Move{At: at}
	m.Done = span.In(&m.Run, at)
	m.Run, m.Run.Was = row, row.Status
	err := add(m)
	if err == nil {
		err = m.encode()
	}
	return &Adoption{Move: m, Record: (&journal.Record{}).After(&m.Change, m.entries)}, err
}

// Keep sets a slot of the run.
func (a *Adoption) Keep(s store.Slot, v any) {
	a.Move.keep(s, v)
	a.Record = (&journal.Record{Parked: a.Record.Parked}).After(&a.Move.Change, a.Move.entries)
}

// Park makes a child wait in a call of the run.
func (a *Adoption) Park(call int, kid *Adoption) {
	kid.Move.Run.ParentCall = call
	a.Children = append(a.Children, kid)
	a.Record.Park(call, &journal.Child{Row: &kid.Move.Run, Record: kid.Record})
}

// Conclude adds the event that reports how the run stands.
func (a *Adoption) Conclude(e *Engine) error { return a.Move.conclude(e, a.Record) }

// Adopt writes a run with its children in one transaction, in which room checks that there is room for it and also, if
// not nil, writes more. Errors: run-exists; server-draining, overloaded, storage-failed.
func (e *Engine) Adopt(ctx context.Context, a *Adoption, room, also func(*store.Tx) error) error {
	r := e.newRun(a.Move.Run, &journal.Record{})
	if err := e.admit(r, false); err != nil {
		return err
	}
	defer e.letGo(r)
	if a.Move.Run.Status == store.Awaiting {
		a.Move.expire(a.Record.Pending)
	}
	err := e.opts.Runs.Update(ctx, func(tx *store.Tx) error {
		err := a.vacant(tx, e.opts.Runs)
		if err == nil {
			err = room(tx)
		}
		if err == nil {
			err = a.apply(tx, e.opts.Runs)
		}
		if err == nil && also != nil {
			err = also(tx)
		}
		return err
	})
	if err != nil {
		return err
	}
	a.publish(e)
	tracecontext.Log(ctx, e.log).Info("run imported", "run", r.Row.ID, "agent", r.Row.Owner, "status", r.Row.Status)
	return nil
}

// vacant checks that no run has the id of this one, or of one below.
func (a *Adoption) vacant(tx *store.Tx, runs *store.Runs) error {
	id := a.Move.Run.ID
	if _, err := runs.Find(tx, id); err == nil {
		return fault.New(fault.RunExists, "The run %q already exists.", id).With("runId", id)
	} else if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	for _, kid := range a.Children {
		if err := kid.vacant(tx, runs); err != nil {
			return err
		}
	}
	return nil
}

// apply writes a run and the children below it.
func (a *Adoption) apply(tx *store.Tx, runs *store.Runs) (err error) {
	if a.number, err = runs.Apply(tx, &a.Move.Change); err != nil {
		return err
	}
	for _, kid := range a.Children {
		kid.Move.Run.Parent = a.number
		if err := kid.apply(tx, runs); err != nil {
			return err
		}
	}
	return nil
}

// publish publishes the ends of the children first, as those of other runs.
func (a *Adoption) publish(e *Engine) {
	for _, kid := range a.Children {
		kid.publish(e)
	}
	r := e.newRun(a.Move.Run, &journal.Record{})
	r.committed(a.Move, a.number)
	r.cancel(nil)
}
