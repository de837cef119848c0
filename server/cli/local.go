package cli

import (
	"context"
	"errors"
	"sync"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/store"
)

// localQueue is how many events may wait for stdout. When more do, those that are stored are read from there later,
// and they hold all of the text.
const localQueue = 4096

// A localRun is a run of this process.
type localRun struct {
	local  *server.Local
	agent  string
	runID  string
	scribe *scribe
	handle *agent.Handle // of its latest start
	last   hub.Position  // of the latest event that was yielded
	over   bool
}

func (c *call) startLocal(ctx context.Context, local *server.Local, req agent.StartRequest) (*localRun, error) {
	s := &scribe{log: local.Audit()}
	req.Also = func(_ *store.Tx, runID string, _ store.Status) error {
		return s.begin(ctx, runRecord("run:start", runID, req.AgentID))
	}
	h, err := local.Engine().Start(ctx, req)
	if err != nil {
		return nil, s.end(ctx, c, err)
	}
	return &localRun{local: local, agent: req.AgentID, runID: h.ID, scribe: s, handle: h}, nil
}

// runRecord is the record of something that is done with a run.
func runRecord(action audit.Action, runID, agentID string) audit.Record {
	return audit.Record{Action: action, Target: "run:" + runID, Context: audit.Context{RunID: runID}, Metadata: map[string]any{"agentId": agentID}}
}

// attachLocal prepares to follow a run that waits for approvals, from there on.
func attachLocal(ctx context.Context, local *server.Local, runID string) (*localRun, error) {
	row, err := local.Engine().Suspended(ctx, runID)
	if err != nil {
		return nil, err
	}
	return &localRun{local: local, agent: row.Owner, runID: runID, scribe: &scribe{log: local.Audit()}, last: hub.Position{Epoch: row.N, Seq: row.Events}}, nil
}

func (r *localRun) id() string { return r.runID }

func (r *localRun) close() error { return r.local.Close() }

func (r *localRun) abort(ctx context.Context) error {
	if err := r.scribe.begin(ctx, runRecord("run:abort", r.runID, r.agent)); err != nil {
		return err
	}
	_, err := r.local.Engine().Abort(ctx, r.runID, agent.AbortOptions{Reason: "interrupted"})
	return err
}

func (r *localRun) resume(ctx context.Context, decisions []agent.Decision, yield func(*hub.Entry)) error {
	h, _, err := r.local.Engine().Resume(ctx, r.runID, decisions, "cli")
	if err != nil {
		return err
	}
	if h == nil {
		return errVoted
	}
	r.handle, r.over = h, false
	return r.follow(ctx, yield)
}

func (r *localRun) follow(ctx context.Context, yield func(*hub.Entry)) error {
	if r.over { // it waits: somebody else may decide, or an approval expire
		if err := r.stir(ctx); err != nil {
			return err
		}
		r.over, r.handle = false, nil
	}
	moving, ended := context.WithCancelCause(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer ended(nil)
	waiting.Go(func() {
		if r.handle != nil {
			r.handle.Wait(moving) //nolint:errcheck // how it ended, its last event tells
		} else {
			r.local.Engine().Wait(moving, r.runID) //nolint:errcheck
		}
		ended(errFollowed)
	})
	for {
		err := r.live(moving, yield)
		switch {
		case r.over:
			return nil
		case errors.Is(err, hub.ErrOverflow):
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errFollowed):
			return err
		}
		// The run has ended before its events were seen here; what they told is stored.
		if err := r.replay(ctx, yield); err != nil || r.over {
			return err
		}
		return fault.New(fault.StorageFailed, "The run %s could not be recorded any further.", r.runID)
	}
}

// stir waits until a run that waits has moved on.
func (r *localRun) stir(ctx context.Context) error {
	sub, batch := r.local.Hub().Subscribe(event.OfAgentRun(r.agent, r.runID).String(), localQueue)
	defer sub.Close()
	for {
		if n := len(batch); n > 0 && batch[n-1].Pos.After(r.last) {
			return nil
		}
		var err error
		if batch, err = sub.Next(ctx); err != nil {
			return err
		}
	}
}

// live yields what the hub has and gets, until the run is over or the subscription ends.
func (r *localRun) live(ctx context.Context, yield func(*hub.Entry)) error {
	sub, ring := r.local.Hub().Subscribe(event.OfAgentRun(r.agent, r.runID).String(), localQueue)
	defer sub.Close()
	if r.last != (hub.Position{}) || len(ring) == 0 || ring[0].Pos != (hub.Position{Epoch: r.handle.Number(), Seq: 1}) {
		if err := r.replay(ctx, yield); err != nil {
			return err
		}
	}
	for batch := ring; ; {
		for _, e := range batch {
			r.yield(e, yield)
		}
		if r.over {
			return nil
		}
		var err error
		if batch, err = sub.Next(ctx); err != nil {
			return err
		}
	}
}

func (r *localRun) replay(ctx context.Context, yield func(*hub.Entry)) error {
	return r.local.Engine().Replay(ctx, r.runID, event.RunView, r.last.Seq, func(e *hub.Entry) error {
		r.yield(e, yield)
		return nil
	})
}

// yield drops what has been yielded.
func (r *localRun) yield(e *hub.Entry, yield func(*hub.Entry)) {
	if r.over || !e.Pos.After(r.last) {
		return
	}
	r.last, r.over = e.Pos, followed(e)
	yield(e)
}
