package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tracecontext"
)

// grace is how long a tool may take to return after its time is up or its run aborted.
const grace = 50 * time.Millisecond

var errTimeout = errors.New("the tool reached its time limit")

// Settled is how a call ended. Outcome.ResultHandle names Spill, where there is one; the caller stores it in the same
// transaction as the outcome. With Unknown, the call must not run twice and may have had its effect: Outcome holds what is
// known, and OnUnknownOutcome decides what happens next.
type Settled struct {
	Outcome message.Outcome
	Spill   *Blob
	Unknown bool
	Waits   string // the call has not ended, see [Waits]
	Same    bool   // it is unknown what the call did, and the tool is idempotent: another attempt has to be the same call
}

// A Blob is a result that is kept beside the transcript. Its name is unique within the run.
type Blob struct {
	Name, MediaType string
	Data            []byte
}

// Execute makes one call and returns how it ended: with a result, cut or spilled where it is too long, or with an
// error. It returns when the tool has returned, or 50 ms after the tool's timeout or the end of ctx. It gives up a tool that has
// not returned by then: the goroutine still counts for [Set.Wait], and what it reports is dropped. A panic of the tool is an
// error; its stack goes to the log.
func (s *Set) Execute(ctx context.Context, name string, call Call) Settled {
	start := time.Now()
	var settled Settled
	if e := s.byName[name]; e == nil {
		settled.Outcome = *s.unknown(call.ID, name)
	} else if s.recorded != nil {
		settled.Outcome = s.recorded(name, call)
	} else {
		settled = s.run(ctx, e, call)
	}
	o := &settled.Outcome
	if o.Failed() {
		o.Message, o.Hint = s.Known.Piece(o.Message), s.Known.Piece(o.Hint)
	}
	o.ToolCallID, o.ToolName, o.DurationMS = call.ID, name, time.Since(start).Milliseconds()
	return settled
}

func (s *Set) run(parent context.Context, e *entry, call Call) Settled {
	if parent.Err() != nil {
		return settleError(&Error{Kind: message.AbortedCall, Message: "The call was aborted before it began."})
	}
	if len(call.Args) == 0 {
		call.Args = json.RawMessage("{}")
	}
	ctx, cancel := context.WithTimeoutCause(parent, e.spec.Timeout, errTimeout)
	defer cancel()
	for attempt := 1; ; attempt++ {
		l := &live{progress: call.Progress, stream: call.Stream}
		res, err := s.attempt(ctx, e, call, l)
		l.close()
		if waits, is := errors.AsType[*Waits](err); is && ctx.Err() == nil {
			return Settled{Waits: waits.RunID}
		}
		if err == nil {
			return e.settle(call, res, l)
		}
		refused, _ := errors.AsType[*Error](err)
		known := refused != nil && !refused.Unknown
		over := ctx.Err() != nil
		if !over && s.again(ctx, e, err, attempt, l) {
			continue
		}
		unknown := refused != nil && refused.Unknown
		if ctx.Err() != nil && !(over && known) {
			unknown = !known
			err = e.interrupted(parent, unknown)
		}
		settled := settleError(err)
		settled.Unknown, settled.Same = unknown && !e.spec.Repeatable(), unknown && e.spec.Idempotent
		if l.streamed {
			settled.Outcome.AddHint("A part of its output was streamed before.")
		}
		return settled
	}
}

const mayHaveHappened = "Its effect may have happened; check before calling it again."

// settleError makes the outcome of what a tool returned.
func settleError(err error) Settled {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Message: err.Error()}
		if f, ok := errors.AsType[*fault.Error](err); ok { // its cause is for the log only
			e = &Error{Message: f.Message, Hint: f.NextStep()}
		}
	}
	o := message.Fail("", "", cmp.Or(e.Kind, message.ExecutionFailed), cmp.Or(e.Message, "The tool failed without saying why."), e.Hint)
	if e.RecoveryHint != "" {
		o.Recoverable, o.RecoveryHint = e.RecoveryHint == message.RetryLater, e.RecoveryHint
	}
	return Settled{Outcome: *o}
}

// attempt runs the tool once, in a goroutine that is given up when the tool does not stop in time.
func (s *Set) attempt(ctx context.Context, e *entry, call Call, l *live) (Result, error) {
	type reply struct {
		res Result
		err error
	}
	call.Progress, call.Stream = l.reportProgress, l.reportChunk
	replies := make(chan reply, 1)
	s.calls.Go(func() {
		r := reply{err: &Error{Message: "The tool ended without an answer.", Unknown: true}} // what runtime.Goexit leaves
		defer func() {
			if p := recover(); p != nil {
				tracecontext.Log(ctx, s.logger()).Error("a tool panicked", "tool", e.spec.Name, "run", call.RunID, "call", call.ID,
					"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				r = reply{err: &Error{Message: "The tool failed unexpectedly.", Unknown: true}}
			}
			replies <- r
		}()
		r.res, r.err = e.tool.Execute(ctx, call)
	})
	select {
	case r := <-replies:
		return r.res, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-replies:
		return r.res, r.err
	case <-time.After(grace):
		tracecontext.Log(ctx, s.logger()).Warn("a tool did not stop in time; its goroutine was abandoned", "tool", e.spec.Name, "run", call.RunID, "call", call.ID)
		return Result{}, context.Cause(ctx)
	}
}

// again waits for the next attempt and reports whether there is one. A call that has streamed output is not tried again,
// because clients have seen that output.
func (s *Set) again(ctx context.Context, e *entry, err error, attempt int, l *live) bool {
	refused, ok := errors.AsType[*Error](err)
	refusal := ok && refused.Kind == message.RateLimited && (e.spec.Repeatable() || refused.NotBegun)
	if doubt := ok && refused.Unknown && e.spec.OnUnknownOutcome == Retry; !refusal && !doubt || l.streamed || attempt >= s.Retry.MaxAttempts {
		return false
	}
	wait := max(s.Retry.Backoff<<min(attempt-1, 16), refused.RetryAfter)
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= wait {
		return false
	}
	pause, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	<-pause.Done()
	return ctx.Err() == nil
}

// interrupted is the error for a call that its time-out or the end of its run has ended.
func (e *entry) interrupted(run context.Context, unknown bool) *Error {
	err := &Error{Kind: message.Timeout, Message: fmt.Sprintf("The tool did not answer within %v.", e.spec.Timeout)}
	if run.Err() != nil {
		err = &Error{Kind: message.AbortedCall, Message: "The call was aborted."}
	}
	if unknown && !e.spec.Repeatable() {
		err.Hint = mayHaveHappened
		if err.Kind == message.Timeout {
			err.RecoveryHint = message.ReportToUser
		}
	}
	return err
}

// Wait blocks until no call is running, those that [Set.Execute] has given up included, or until ctx is done, and then
// returns its cause. A shutdown calls it after the last Execute has returned.
func (s *Set) Wait(ctx context.Context) error {
	idle := make(chan struct{})
	go func() { // lasts as long as the calls that were given up
		s.calls.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Set) logger() *slog.Logger { return cmp.Or(s.Logger, slog.Default()) }
