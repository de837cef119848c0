package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"agentd/server/client"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/rest"
	"agentd/store"
)

const (
	abortPatience  = 15 * time.Second
	attachPatience = 60 * time.Second
	// maxReattach is how often in a row a stream may break without an event.
	maxReattach = 3
	// heldWait is how long to wait before the events of a run that does not move yet are asked for again. Each wait is
	// twice as long as the one before.
	heldWait = 100 * time.Millisecond
)

// A follower prints what a run says, asks a person what it waits for, and sends the decisions.
//
// One goroutine, that of follow, has the fields; others read the stream, ask, or wait for an answer of the API, and hand
// it the steps that follow from that.
type follower struct {
	c      *call
	d      *door
	runID  string
	watch  client.Watch
	p      *printer
	asker  *asker // nil: nobody is asked, and this command does not wait for a run that waits
	spared bool   // an interruption leaves the run alone
	// past reports whether a run's end, which may be that it waits, is the latest event before the decisions. Events up to
	// it are not shown. Nil: all are.
	past      func(ending) bool
	decisions []rest.DecisionBody // to send once the past is over

	ctx      context.Context // ends at an interruption
	reading  context.Context // ends with follow
	leave    context.CancelCauseFunc
	steps    chan step
	work     sync.WaitGroup
	broken   int    // attempts in a row that brought no event
	unask    func() // ends the question that is open; nil: there is none
	aborting bool
	deciding bool
	unread   bool // the stream may have ended before the latest decision
	moved    bool // the run has moved since that
	wait     time.Duration
}

// A step is what follows from something that has happened. With over, nothing is left to follow.
type step func() (over bool, err error)

var (
	errLeft  = errors.New("the run is not watched any more")
	errMoved = errors.New("the run has moved on")
	// errVoted is the error of decisions that count while the run waits for further approvers as before.
	errVoted = errors.New("further approvers are needed")
)

// newFollower makes a follower of a run, whose stream may be open already.
func (c *call) newFollower(d *door, runID string, open *http.Response) *follower {
	f := &follower{c: c, d: d, runID: runID, p: newPrinter(c), steps: make(chan step), wait: heldWait}
	f.watch = client.Watch{Client: func() (*client.Client, error) { return d.Client, nil }, Path: at("/runs", runID, "/events"), Open: open, Lost: f.lost}
	return f
}

// lost gives up a run whose server does not come back soon.
func (f *follower) lost(err error) error {
	show := "`agentd runs show " + f.runID + "`"
	if fault.Is(err, fault.ServerDraining) {
		return fault.New(fault.ServerDraining, "The server stops. Run %s continues when it is back.", f.runID).Advise("Ask with " + show + " then.")
	}
	if f.broken++; f.broken < maxReattach {
		return nil
	}
	return fault.New(fault.ServerUnreachable, "The connection to the server at %s is lost. Run %s continues there: %v.", f.d.URL(), f.runID, fault.Innermost(err)).
		Because(err).Advise("Ask with " + show + " when the server is back.")
}

// follow prints what the run says until it has ended, or waits for what nobody decides here. When ctx ends, or nobody
// reads what is printed, it aborts the run. The error is what the run's end amounts to.
func (f *follower) follow(ctx context.Context) error {
	reading, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	f.ctx, f.reading, f.leave = ctx, reading, leave
	defer f.work.Wait()
	defer leave(errLeft)
	defer f.closeQuestion()
	if f.past != nil {
		f.after(attachPatience, func() (bool, error) { return f.past != nil, errChanged() })
	}
	f.read()
	for interrupted := ctx.Done(); ; {
		var over bool
		var err error
		select {
		case <-interrupted:
			interrupted = nil
			over, err = f.abort()
		case next := <-f.steps:
			over, err = next()
		}
		if over {
			return err
		}
	}
}

// then hands over a step, and waits until it is taken: so the reader does not connect again after the last one. A step
// after that is dropped.
func (f *follower) then(s step) {
	taken := make(chan struct{})
	select {
	case f.steps <- func() (over bool, err error) {
		defer close(taken)
		if over, err = s(); over {
			f.leave(errLeft)
		}
		return over, err
	}:
		<-taken
	case <-f.reading.Done():
	}
}

// after takes a step after a while.
func (f *follower) after(d time.Duration, s step) {
	f.work.Go(func() {
		select {
		case <-time.After(d):
			f.then(s)
		case <-f.reading.Done():
		}
	})
}

// read reads the stream from where it ended the last time.
func (f *follower) read() {
	f.work.Go(func() {
		err := f.watch.Run(f.reading, func(e *client.Frame) error {
			if e.Kind == "event" {
				f.then(func() (bool, error) { return f.take(e) })
			}
			return context.Cause(f.reading)
		})
		f.then(func() (bool, error) {
			switch {
			case err != nil:
				return true, err
			case f.past != nil:
				return true, errChanged()
			case f.deciding || f.unread: // the stream of a run that was aborted ends until a decision has set it going
				f.unread = f.deciding
				f.after(f.wait, func() (bool, error) { f.read(); return false, nil })
				f.wait *= 2
				return false, nil
			}
			return true, f.c.verdict(f.p, f.runID)
		})
	})
}

func errChanged() error {
	return fault.New(fault.RunConflict, "The run no longer waits for the same calls.").Advise(runState)
}

// take shows an event.
func (f *follower) take(e *client.Frame) (over bool, err error) {
	f.broken = 0
	if f.past != nil {
		if ends(e.Type) && f.past(endingOf(e)) {
			f.past = nil
			f.decide(f.decisions)
		}
		return false, nil
	}
	f.closeQuestion()
	f.moved = true
	f.p.show(e)
	if f.p.broken != nil {
		if over, err := f.abort(); over {
			return over, err
		}
	}
	switch result := &f.p.end.Result; {
	case !ends(e.Type):
		return false, nil
	case result.Status == store.Awaiting && f.aborting && result.Error == nil: // it is about to end
		return false, nil
	case result.Status != store.Awaiting || f.aborting || f.asker == nil:
		return true, f.c.verdict(f.p, f.runID)
	}
	f.ask(f.p.end.Result.State.PendingApprovals)
	return false, nil
}

// ask asks a person, until they have answered or closeQuestion is called.
func (f *follower) ask(pending []journal.Approval) {
	asking, stop := context.WithCancelCause(f.ctx)
	closed, open := make(chan struct{}), true
	f.unask = func() {
		open = false
		stop(errMoved)
		<-closed
	}
	f.work.Go(func() {
		decisions, abort := f.asker.ask(asking, pending)
		close(closed)
		f.then(func() (bool, error) {
			switch {
			case !open:
				return false, nil
			case abort || f.ctx.Err() != nil:
				return f.abort()
			case len(decisions) == 0: // the person leaves it waiting
				return true, f.c.verdict(f.p, f.runID)
			}
			f.unask = nil
			f.decide(decisions)
			return false, nil
		})
	})
}

// closeQuestion ends the question that is open, if there is one: somebody else has decided, or an approval has expired.
func (f *follower) closeQuestion() {
	if f.unask != nil {
		f.unask()
		f.unask = nil
	}
}

// decide sends decisions, and reads what follows from them.
func (f *follower) decide(decisions []rest.DecisionBody) {
	f.deciding, f.unread, f.moved = true, true, false
	f.work.Go(func() {
		err := f.d.decide(f.reading, f.runID, decisions)
		f.then(func() (bool, error) {
			f.deciding = false
			faster := fault.Is(err, fault.RunConflict) || fault.Is(err, fault.RunNotSuspended) || fault.Is(err, fault.ApprovalNotWaiting)
			switch {
			case errors.Is(err, errVoted):
				fmt.Fprintf(f.c.stderr, "agentd: the decision counts, but run %s needs further approvers; see `agentd runs show %[1]s`\n", f.runID)
				return true, exitCode(exitAwaiting)
			case err == nil, f.moved, f.asker != nil && faster: // its events say the rest
				return false, nil
			}
			return true, err
		})
	})
}

// decide sends decisions. The answer comes when the run has ended or waits again; that it has failed since is no error.
func (d *door) decide(ctx context.Context, runID string, decisions []rest.DecisionBody) error {
	var answer struct {
		Result struct {
			State struct{ PendingApprovals []journal.Approval }
		}
	}
	err := d.Call(ctx, "POST", at("/runs", runID, "/resume"), rest.ResumeBody{Approvals: decisions}, &answer)
	voted := func(b rest.DecisionBody) bool {
		return slices.ContainsFunc(answer.Result.State.PendingApprovals, func(a journal.Approval) bool {
			return len(a.GrantedBy) > 0 && a.ToolCallID == b.ToolCallID && a.SubRunToolCallID == b.SubRunToolCallID
		})
	}
	switch {
	case fault.Is(err, fault.RunFailed), fault.Is(err, fault.RunAborted):
		return nil
	case err == nil && !slices.ContainsFunc(decisions, func(b rest.DecisionBody) bool { return !voted(b) }):
		return errVoted
	}
	return err
}

// abort asks for the run's end, once. Its events say when that has come.
func (f *follower) abort() (over bool, err error) {
	if f.aborting {
		return false, nil
	}
	f.aborting = true
	f.closeQuestion()
	if f.spared {
		where := "it continues in the server"
		if f.d.local != nil {
			where = "the next `agentd start` continues it"
		}
		fmt.Fprintf(f.c.stderr, "agentd: stopped watching run %s; %s\n", f.runID, where)
		return true, exitCode(exitFailed)
	}
	f.work.Go(func() {
		limit, cancel := context.WithTimeout(f.reading, abortPatience)
		defer cancel()
		err := f.d.Call(limit, "POST", at("/runs", f.runID, "/abort"), nil, nil)
		f.then(func() (bool, error) { return err != nil, err })
	})
	return false, nil
}
