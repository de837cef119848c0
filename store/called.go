package store

import (
	"errors"
	"strings"
)

// A run that a call of a tool has started, of a workflow for instance, is linked to the run that made the call by its origin
// alone: it is listed, decided on and moved by itself, and is erased with the other.

const called = "tool:"

// CalledOrigin is the origin of the run that a call of a tool starts; key is the call's idempotency key, which begins with the
// id of the run that makes the call, and a colon.
func CalledOrigin(key string) string { return called + key }

// Caller returns the id of the run whose call of a tool has started this one; empty: none has.
func (r *Run) Caller() string {
	key, is := strings.CutPrefix(r.Origin, called)
	if !is {
		return ""
	}
	id, _, _ := strings.Cut(key, ":")
	return id
}

// calledBy selects the runs that calls of a run have started.
const calledBy = "INDEXED BY runs_by_origin WHERE origin > ? AND origin < ?"

func calledRange(runID string) (from, to string) { return called + runID + ":", called + runID + ";" }

// Above returns the run that called or hosts a run; ErrNotFound where there is none.
func (r *Runs) Above(tx *Tx, run *Run) (*Run, error) {
	switch caller := run.Caller(); {
	case run.Parent != 0:
		return r.Number(tx, run.Parent)
	case run.Host != 0:
		return r.HostRun(tx, run.Host)
	case caller != "":
		return r.Find(tx, caller)
	}
	return nil, ErrNotFound
}

// Rouse makes the dormant run due, if there is one, that waits for a run which a call of it, or of a child of it, has started.
func (r *Runs) Rouse(tx *Tx, run *Run) error {
	if run.Caller() == "" {
		return nil
	}
	up, err := r.Find(tx, run.Caller())
	for err == nil && up.Parent != 0 {
		up, err = r.Number(tx, up.Parent)
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err == nil && up.Dormant():
		err = r.Hasten(tx, up.N, tx.Now())
	}
	return err
}
