package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
	"agentd/server/rest"
	"agentd/server/sse"
)

// maxReattach is how often in a row a stream may break without an event.
const maxReattach = 3

// A remoteRun is a run of a server that holds the store.
type remoteRun struct {
	*api
	runID  string
	stream *http.Response // nil: not open
	cursor string         // the latest event's id
	last   hub.Position   // and its position
	over   bool           // that event ends what there is to follow
}

// startRemote starts a run in a server. The run's events come for as long as ctx lasts.
func startRemote(ctx context.Context, a *api, req agent.StartRequest) (*remoteRun, error) {
	body, err := message.Encode(struct {
		Input     json.RawMessage `json:"input"`
		SessionID string          `json:"sessionId,omitempty"`
		UserID    string          `json:"userId,omitempty"`
	}{req.Input, req.SessionID, req.UserID})
	if err != nil {
		return nil, err
	}
	r := &remoteRun{api: a}
	if r.stream, err = r.do(ctx, "POST", "/agents/"+url.PathEscape(req.AgentID)+"/stream", body, ""); err != nil {
		return nil, err
	}
	r.runID = r.stream.Header.Get("X-Run-Id")
	if !isStream(r.stream) {
		var started struct{ RunID string }
		json.NewDecoder(io.LimitReader(r.stream.Body, maxRefusal)).Decode(&started) //nolint:errcheck // then the id is unknown
		r.close()
		return nil, fault.New(fault.ServerUnreachable, "The server at %s started the run %s, but sends no events (server.sse.enabled).", r.base, started.RunID).
			Advise("Read its state with `agentd runs show " + started.RunID + "`.")
	}
	return r, nil
}

// attachRemote prepares to follow a run that stands as the snapshot tells: what it told until then is passed over.
func attachRemote(ctx context.Context, a *api, s agent.Snapshot) (*remoteRun, error) {
	limit, cancel := context.WithTimeoutCause(ctx, answerPatience, fault.New(fault.RunConflict, "The run does not wait for the same calls any more."))
	defer cancel()
	r := &remoteRun{api: a, runID: s.RunID}
	err := r.attached(limit, func(e *hub.Entry) {
		var end ending
		if r.over {
			json.Unmarshal(e.Payload, &end) //nolint:errcheck // then it is not the one that is sought
			r.over = end.Result.Status == s.Status && samePending(end.Result.State.PendingApprovals, s.PendingApprovals)
		}
	})
	r.detach()
	return r, err
}

// samePending reports whether two lists of approvals are those of the same moment.
func samePending(a, b []agent.Approval) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !a[i].Same(b[i]) || a[i].RequestedAt != b[i].RequestedAt {
			return false
		}
	}
	return true
}

func isStream(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
}

func (r *remoteRun) id() string { return r.runID }

func (r *remoteRun) path(of string) string { return runPath(r.runID) + of }

func (r *remoteRun) close() error {
	r.detach()
	return r.api.close()
}

// detach closes the stream of events, if one is open.
func (r *remoteRun) detach() {
	if r.stream != nil {
		r.stream.Body.Close()
		r.stream = nil
	}
}

// lost tells what became of the run when its server does not answer any more.
func (r *remoteRun) lost(err error) error {
	return fault.New(fault.ServerUnreachable, "The connection to the server at %s is lost; run %s goes on there: %v.", r.base, r.runID, innermost(err)).
		Because(err).Advise("Ask with `agentd runs show " + r.runID + "` when the server is back.")
}

func (r *remoteRun) abort(ctx context.Context) error {
	return r.call(ctx, "POST", r.path("/abort"), nil, nil)
}

func (r *remoteRun) resume(ctx context.Context, decisions []agent.Decision, yield func(*hub.Entry)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel(errFollowed)
	var moved atomic.Bool
	decided := make(chan struct{})
	asking.Go(func() {
		defer close(decided)
		// The answer comes when the run has ended or waits again. Once it moves, its events tell all there is to know.
		if err := r.decide(ctx, decisions); err != nil && !moved.Load() {
			cancel(err)
		}
	})
	return r.heed(ctx, decided, func(e *hub.Entry) {
		moved.Store(true)
		yield(e)
	})
}

// heldWait is how long to wait before the events of a run are asked for again that does not move yet, each time twice as long.
const heldWait = 100 * time.Millisecond

// heed follows a run on which a decision is under way. The stream of one that was aborted ends at once for as long as
// the decision has not set it going.
func (r *remoteRun) heed(ctx context.Context, decided <-chan struct{}, yield func(*hub.Entry)) error {
	for wait := heldWait; ; wait *= 2 {
		if err := r.follow(ctx, yield); err != nil || r.over {
			return err
		}
		select {
		case <-decided:
			return r.follow(ctx, yield)
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// decide sends decisions. That the run has failed since is no error here.
func (r *remoteRun) decide(ctx context.Context, decisions []agent.Decision) error {
	var body rest.ResumeBody
	for _, d := range decisions {
		body.Approvals = append(body.Approvals, rest.DecisionBody(d))
	}
	var answer struct {
		Result struct {
			State struct{ PendingApprovals []agent.Approval }
		}
	}
	err := r.call(ctx, "POST", r.path("/resume"), body, &answer)
	if fault.Is(err, fault.RunFailed) || fault.Is(err, fault.RunAborted) {
		return nil
	}
	if err == nil && !slices.ContainsFunc(decisions, func(d agent.Decision) bool {
		return !slices.ContainsFunc(answer.Result.State.PendingApprovals, func(a agent.Approval) bool {
			return len(a.GrantedBy) > 0 && a.ToolCallID == d.ToolCallID && a.SubRunToolCallID == d.SubRunToolCallID
		})
	}) {
		return errVoted
	}
	return err
}

func (r *remoteRun) follow(ctx context.Context, yield func(*hub.Entry)) error {
	r.over = false
	return r.attached(ctx, yield)
}

// errBroken says that a stream ended before its run.
var errBroken = errors.New("the stream ended too early")

// attached yields events until one has set r.over. The stream is opened where it is not open, and again when it breaks.
func (r *remoteRun) attached(ctx context.Context, yield func(*hub.Entry)) error {
	if r.stream != nil { // later ones belong to a request that ends with ctx
		first := r.stream.Body
		defer context.AfterFunc(ctx, func() { first.Close() })()
	}
	for broken := 0; ; broken++ {
		before := r.last
		err := errBroken
		if r.stream != nil {
			err = r.read(yield)
		}
		switch {
		case err == nil:
			r.detach()
			return nil
		case ctx.Err() != nil:
			r.detach()
			return context.Cause(ctx)
		case !errors.Is(err, errBroken):
			return err
		}
		if r.last != before {
			broken = 0
		}
		if broken == maxReattach {
			return r.lost(err)
		}
		r.detach()
		again, err := r.do(ctx, "GET", r.path("/events"), nil, r.cursor)
		if fault.Is(err, fault.ServerUnreachable) && r.cursor != "" {
			return r.lost(err)
		}
		if err != nil {
			return err
		}
		if again.StatusCode == http.StatusNoContent { // the run has ended, and nothing of it is new
			again.Body.Close()
			return nil
		}
		r.stream = again
	}
}

// A frame is the data of one event of the stream, of either kind.
type frame struct {
	Payload json.RawMessage
	Type    string // of the payload
	Status  string // of a lifecycle frame
	Reason  string
}

// read yields what one stream brings. It returns nil when the run is over, and errBroken when the stream is.
func (r *remoteRun) read(yield func(*hub.Entry)) error {
	events := sse.NewReader(r.stream.Body, maxAnswer)
	for !r.over {
		ev, err := events.Next()
		if errors.Is(err, sse.ErrTooLong) {
			return err
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		if ev.Type == "replay-marker" {
			continue
		}
		var f frame
		if err := json.Unmarshal(ev.Data, &f); err != nil {
			return fault.New(fault.ServerUnreachable, "What answers at %s sends no events of agentd.", r.base).Because(err)
		}
		switch {
		case ev.Type != "lifecycle":
			r.take(ev.ID, f, yield)
		case f.Reason == "flow.throttled": // stdout is slow; what was missed is stored
			return errBroken
		case f.Reason == "server-shutdown":
			return fault.New(fault.ServerDraining, "The server stops; run %s goes on when it is back.", r.runID).
				Advise("Ask with `agentd runs show " + r.runID + "` then.")
		case f.Status != "paused": // that comes with an event which is heeded
			return nil
		}
	}
	return nil
}

// take yields an event unless it has been yielded.
func (r *remoteRun) take(id string, f frame, yield func(*hub.Entry)) {
	cur, ok := event.ParseCursor(id)
	pos := hub.Position{Seq: cur.Seq, Sub: cur.Sub}
	if !ok || !pos.After(r.last) {
		return
	}
	e := &hub.Entry{Pos: pos, ID: id, Type: f.Type, Payload: f.Payload}
	r.cursor, r.last, r.over = id, pos, followed(e)
	yield(e)
}
