package cli

import (
	"context"
	"errors"
	"sync"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
)

// localQueue is how many events may wait for stdout. When more do, those that are stored are read from there later,
// and they hold all of the text.
const localQueue = 4096

// A localRun is a run of this process.
type localRun struct {
	local  *server.Local
	agent  string
	handle *agent.Handle
	last   hub.Position // of the latest event that was yielded
	over   bool
}

func startLocal(ctx context.Context, local *server.Local, req agent.StartRequest) (*localRun, error) {
	h, err := local.Engine().Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return &localRun{local: local, agent: req.AgentID, handle: h}, nil
}

func (r *localRun) close() error { return r.local.Close() }

func (r *localRun) abort(ctx context.Context) error {
	_, err := r.local.Engine().Abort(ctx, r.handle.ID, agent.AbortOptions{Reason: "interrupted"})
	return err
}

func (r *localRun) follow(ctx context.Context, yield func(*hub.Entry)) error {
	moving, ended := context.WithCancelCause(ctx)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer ended(nil)
	waiting.Go(func() {
		r.handle.Wait(moving) //nolint:errcheck // how it ended, its last event tells
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
		return fault.New(fault.StorageFailed, "The run %s could not be recorded any further.", r.handle.ID)
	}
}

// live yields what the hub has and gets, until the run is over or the subscription ends.
func (r *localRun) live(ctx context.Context, yield func(*hub.Entry)) error {
	sub, ring := r.local.Hub().Subscribe(event.OfAgentRun(r.agent, r.handle.ID).String(), localQueue)
	defer sub.Close()
	begin := hub.Position{Epoch: r.handle.Number(), Seq: 1}
	if r.last != (hub.Position{}) || len(ring) == 0 || ring[0].Pos != begin {
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
	return r.local.Engine().Replay(ctx, r.handle.ID, event.RunView, r.last.Seq, func(e *hub.Entry) error {
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
