package agent

import (
	"context"
	"errors"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/store"
)

// maxAttempts is how many processes may take up one step of a run before it is given up: one that brings the server down with it
// must not do so for ever.
const maxAttempts = 3

// Recover takes up the runs that an earlier process left: each that was running goes on from its last commit, or ends
// as failed (server-restarted, crash-loop) where that is not possible; those that wait keep waiting. It is called
// once, before the first Start, and returns the number of runs it set going.
func (e *Engine) Recover(ctx context.Context) (int, error) {
	var open []*store.Run
	err := e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
		open, err = e.opts.Runs.Open(tx, "")
		return err
	})
	if err != nil {
		return 0, err
	}
	going := 0
	sessions := map[string]bool{}
	for _, row := range open {
		switch row.Status {
		case store.Running:
			moved, err := e.recoverRun(ctx, row)
			if err != nil {
				return going, err
			}
			if moved {
				going++
				continue
			}
		case store.Awaiting:
			var pending []Approval
			err := e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
				pending, err = pendingOf(tx, e.opts.Runs, row)
				return err
			})
			if err != nil {
				return going, err
			}
			e.watch(row.ID, pending)
			continue
		}
		sessions[row.Session] = true
	}
	for s := range sessions {
		e.next(s)
	}
	return going, nil
}

// letGo is how long takeUp waits for whoever has just parked or ended a run to let go of it.
const letGo = 5 * time.Second

// takeUp makes a run of a row, with a place among those that move.
func (e *Engine) takeUp(ctx context.Context, row *store.Run, force bool) (*run, error) {
	reg := e.registration(row.Owner)
	// What is on disk can be seen a moment before the run is let go.
	if last := e.moved(row.ID); last != nil && row.Status != store.Running {
		select {
		case <-last.done:
		case <-ctx.Done():
		case <-time.After(letGo):
		}
	}
	var rec *record
	err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) (err error) {
		if row, err = e.opts.Runs.Find(tx, row.ID); err == nil {
			rec, err = load(tx, e.opts.Runs, row)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	r := e.newRun(*row, rec, reg)
	if err := e.admit(r, force); err != nil {
		return nil, err
	}
	return r, nil
}

// registration finds an agent; one that is not registered any more has a stand-in whose runs fail.
func (e *Engine) registration(id string) *Registration {
	if reg := e.opts.Agents.Agent(id); reg != nil {
		return reg
	}
	return &Registration{ID: id, Agent: gone{id}}
}

// gone stands for an agent that is no longer registered.
type gone struct{ id string }

func (g gone) ID() string { return g.id }

func (g gone) Run(context.Context, Input) (Result, error) {
	return Result{}, fault.New(fault.ServerRestarted, "The agent %q is no longer registered.", g.id)
}

// recoverRun sets one run going again, or ends it; moved reports which.
func (e *Engine) recoverRun(ctx context.Context, row *store.Run) (moved bool, err error) {
	r, err := e.takeUp(ctx, row, true)
	if err != nil {
		return false, err
	}
	if verdict := r.verdict(); verdict != nil || r.rec.ending != "" {
		defer e.release(r)
		defer close(r.done)
		defer r.cancel(nil)
		err := r.finish(r.move(), store.Failed, verdict)
		if err == nil && r.row.Status.Terminal() {
			r.count()
		}
		return false, err
	}
	e.log.Info("run goes on after a restart", "run", row.ID, "agent", row.Owner, "attempt", row.Attempt+1)
	e.launch(r, r.reenter)
	return true, nil
}

// verdict is why a run that a restart interrupted cannot go on; nil when it can.
func (r *run) verdict() error {
	switch _, absent := r.reg.Agent.(gone); {
	case absent:
		return fault.New(fault.ServerRestarted, "The server restarted during the run, and the agent %q is no longer registered.", r.row.Owner)
	case r.row.Attempt >= maxAttempts:
		return fault.New(fault.CrashLoop, "The run was interrupted %d times.", r.row.Attempt)
	case r.reg.FailOnRestart, !r.reg.driver().resumable(r):
		return fault.New(fault.ServerRestarted, "The server restarted during the run.")
	}
	return nil
}

// reenter drives a run that a restart interrupted from its last commit.
func (r *run) reenter() error {
	m := r.move()
	m.row.Attempt++
	m.spanResumed(r, "restarted")
	m.say(event.AgentStart, startFields{r.row.ID, r.row.Owner})
	if n := len(r.rec.steps); n > 0 && r.reg.LLM != nil && r.rec.steps[n-1].Ended == 0 && !r.rec.steps[n-1].Resumed && r.rec.openCalls(r.rec.steps[n-1].Number) == 0 {
		m.say(event.StepStart, stepFields{StepNumber: r.rec.steps[n-1].Number}) // its model call is made again
	}
	if err := r.commit(m); err != nil {
		return err
	}
	return r.reg.driver().drive(r)
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
	if err != nil || len(open) == 0 || open[0].Status != store.Pending {
		if err != nil && e.ctx.Err() == nil { // else the next start takes it up
			e.log.Error("the next run of a session could not be read", "session", session, "error", err)
		}
		return
	}
	if err := e.begin(open[0]); err != nil && !fault.Is(err, fault.ServerDraining) && !fault.Is(err, fault.RunConflict) {
		e.log.Error("the next run of a session could not be started", "run", open[0].ID, "error", err)
	}
}

// begin starts a run that waited for its session's turn.
func (e *Engine) begin(row *store.Run) error {
	r, err := e.takeUp(e.ctx, row, true)
	if err != nil {
		return err
	}
	if r.row.Status != store.Pending {
		e.release(r)
		return nil
	}
	e.launch(r, func() error {
		var m *move
		var n int64
		err := r.persist(func(tx *store.Tx) error {
			input, err := e.opts.Runs.Slot(tx, r.row.N, store.InputSlot)
			if err != nil {
				return err
			}
			if m, err = r.firstMove(input); err != nil {
				return err
			}
			m.slot(store.InputSlot, []byte("null")) // the messages hold it now
			if err := m.history(tx, r, r.reg); err != nil {
				return err
			}
			n, err = e.opts.Runs.Apply(tx, m.change())
			return err
		})
		if err != nil {
			return errors.Join(errLeft, err)
		}
		r.committed(m, n)
		return r.reg.driver().drive(r)
	})
	return nil
}
