package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/store"
)

// maxAttempts is how many processes may take up one step of a run before it is given up, see trial.
const maxAttempts = 4

// A trial finds out whether it is a run that brings the server down. A crash interrupts every run that moves, so it
// says little about one of them. The runs that were interrupted go on at once after their first crash. One that was
// interrupted again without having come further is a suspect, and suspects are tried: each begins when all that begin
// before it have come further, wait or have ended. So who is interrupted as a suspect was the only one that moved of all
// that the crash before had interrupted, and after two such crashes it is given up. New runs are not held back meanwhile.
type trial struct {
	turn chan struct{} // closed when the run may begin
	over chan struct{} // closed when it has come further, or does not move any more
	once sync.Once
}

// suspicion is how often a step of a run must have been taken up for the run to be a suspect.
const suspicion = 2

func newTrial() *trial { return &trial{turn: make(chan struct{}), over: make(chan struct{})} }

func (t *trial) pass() {
	if t != nil {
		t.once.Do(func() { close(t.over) })
	}
}

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
	var suspects []suspect
	var others []*run
	for _, row := range open {
		switch row.Status {
		case store.Running:
			r, tries, err := e.recoverRun(ctx, row)
			if err != nil {
				return going, err
			}
			if r == nil {
				break
			}
			going++
			if tries >= suspicion {
				suspects = append(suspects, suspect{r, tries})
				continue
			}
			others = append(others, r)
			continue
		case store.Awaiting:
			var rec *record
			err := e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
				rec, err = loadWaiting(tx, e.opts.Runs, row)
				return err
			})
			if err != nil {
				return going, err
			}
			for _, a := range rec.pending {
				if _, err := rec.shown(a); err != nil {
					e.alarm(row.ID, err)
				}
			}
			e.watch(row.ID, rec.pending)
			continue
		}
		sessions[row.Session] = true
	}
	if err := e.endOrphans(ctx); err != nil {
		return going, err
	}
	e.try(others, suspects)
	for s := range sessions {
		e.next(s)
	}
	return going, nil
}

// endOrphans ends the children that an earlier version of the program left open when their parents ended.
func (e *Engine) endOrphans(ctx context.Context) error {
	var rows []*store.Run
	err := e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
		rows, err = e.opts.Runs.Orphans(tx)
		return err
	})
	for _, row := range rows {
		held := false // with their parent
		if err == nil {
			err = e.opts.Runs.View(ctx, func(tx *store.Tx) error {
				parent, err := e.opts.Runs.Number(tx, row.Parent)
				if err != nil || parent.Status != store.Aborted {
					return err
				}
				pending, err := pendingOf(tx, e.opts.Runs, parent)
				held = len(pending) > 0
				return err
			})
		}
		if err != nil {
			return err
		}
		if held {
			continue
		}
		var r *run
		if r, err = e.takeUp(ctx, row, true); err != nil {
			return err
		}
		err = r.finish(r.move(), store.Failed, fault.New(fault.ServerRestarted, "The run that called this one ended before it."))
		e.log.Warn("a child was open although its parent had ended", "run", row.ID, "was", row.Status)
		r.cancel(nil)
		close(r.done)
		e.release(r)
	}
	return err
}

// A suspect is a run that crashes have found at the same place before.
type suspect struct {
	run   *run
	tries int
}

// try lets runs that were interrupted go on: the suspects one by one, the most suspect last.
func (e *Engine) try(others []*run, suspects []suspect) {
	for _, r := range others {
		e.launch(r, r.reenter)
	}
	if len(suspects) == 0 {
		return
	}
	slices.SortStableFunc(suspects, func(a, b suspect) int { return a.tries - b.tries })
	for _, s := range suspects {
		e.launch(s.run, func() error {
			select {
			case <-s.run.trial.turn:
				return s.run.reenter()
			case <-s.run.ctx.Done():
				return context.Cause(s.run.ctx)
			}
		})
	}
	e.moving.Go(func() { // ends with the runs
		for _, r := range others {
			<-r.trial.over
		}
		for _, s := range suspects {
			close(s.run.trial.turn)
			<-s.run.trial.over
		}
	})
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

// recoverRun takes up a run, which is then to be launched, or ends it and returns nil. tries is how often a crash has
// found it, or something below it, at the same place.
func (e *Engine) recoverRun(ctx context.Context, row *store.Run) (r *run, tries int, err error) {
	if r, err = e.takeUp(ctx, row, true); err != nil {
		return nil, 0, err
	}
	r.trial = newTrial()
	var least int
	err = e.opts.Runs.View(ctx, func(tx *store.Tx) (err error) {
		least, tries, err = interruptions(tx, e.opts.Runs, &r.row)
		return err
	})
	verdict := r.verdict(least)
	if err == nil && verdict == nil && r.rec.ending == "" {
		e.log.Info("run goes on after a restart", "run", row.ID, "agent", row.Owner, "attempt", row.Attempt+1)
		return r, tries, nil
	}
	defer e.release(r)
	defer close(r.done)
	defer r.cancel(nil)
	if err == nil {
		err = r.finish(r.move(), store.Failed, verdict)
	}
	if err == nil && r.row.Status.Terminal() {
		r.count()
	}
	return nil, 0, err
}

// interruptions is how many processes have taken up a run at the place where it is: the run has come as far as that of
// its running children which has come the least often there.
func interruptions(tx *store.Tx, runs *store.Runs, row *store.Run) (least, most int, err error) {
	least, most = row.Attempt, row.Attempt
	if row.Calls == 0 {
		return least, most, nil
	}
	kids, err := runs.Children(tx, row.N)
	for _, kid := range kids {
		if kid.Status != store.Running || err != nil {
			continue
		}
		var low, high int
		low, high, err = interruptions(tx, runs, kid)
		least, most = min(least, low), max(most, high)
	}
	return least, most, err
}

// verdict is why a run that a restart interrupted cannot go on; nil when it can. It was interrupted so many times where
// it is.
func (r *run) verdict(times int) error {
	switch _, absent := r.reg.Agent.(gone); {
	case absent:
		return fault.New(fault.ServerRestarted, "The server restarted during the run, and the agent %q is no longer registered.", r.row.Owner)
	case times >= maxAttempts:
		return fault.New(fault.CrashLoop, "The run was interrupted %d times at the same place.", times)
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
	if err == nil {
		e.unhush(session, open)
	}
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

// hush notes a run that was aborted before its session's turn came: its session shows it when its turn would have come,
// so that events there keep the order of runs.
func (e *Engine) hush(r *run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hushed[r.row.Session] = append(e.hushed[r.row.Session], r)
}

// unhush shows the hushed runs of a session that come before all that are open.
func (e *Engine) unhush(session string, open []*store.Run) {
	e.mu.Lock()
	due := e.hushed[session]
	slices.SortFunc(due, func(a, b *run) int { return cmp.Compare(a.row.N, b.row.N) })
	n := len(due)
	if len(open) > 0 {
		n, _ = slices.BinarySearchFunc(due, open[0].N, func(r *run, first int64) int { return cmp.Compare(r.row.N, first) })
	}
	due, e.hushed[session] = due[:n:n], due[n:]
	if len(e.hushed[session]) == 0 {
		delete(e.hushed, session)
	}
	e.mu.Unlock()
	for _, r := range due {
		err := e.Replay(e.ctx, r.row.ID, event.SessionView, 0, func(entry *hub.Entry) error {
			e.opts.Hub.Publish(event.OfSession(session).String(), entry)
			return nil
		})
		if err != nil && e.ctx.Err() == nil && !fault.Is(err, fault.RunNotFound) {
			e.log.Error("a run could not be shown on its session's stream; a reconnection shows it", "run", r.row.ID, "error", err)
		}
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
		// The runs of the session before it have ended, and those after it wait, so nothing comes between.
		before, err := e.pastOf(e.ctx, r.row.Session, r.reg)
		if err != nil {
			return errors.Join(errLeft, err)
		}
		err = r.persist(func(tx *store.Tx) error {
			input, err := e.opts.Runs.Slot(tx, r.row.N, store.InputSlot)
			if err != nil {
				return err
			}
			if m, err = r.firstMove(input); err != nil {
				return err
			}
			m.slot(store.InputSlot, []byte("null")) // the messages hold it now
			if before != nil {
				m.precede(before)
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
