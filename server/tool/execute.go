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

	"agentd/server/message"
)

// grace is how long a tool may take to return after its time is up or its run aborted.
const grace = 50 * time.Millisecond

var errTimeout = errors.New("the tool's time is up")

// Settled is how a call ended. Spill, where there is one, is what Outcome.ResultHandle names; it is to be stored in
// the same transaction as the outcome. With Unknown, the call must not run twice and may have had its effect: Outcome
// says what is known, and OnUnknownOutcome what becomes of the call.
type Settled struct {
	Outcome message.Outcome
	Spill   *Blob
	Unknown bool
}

// A Blob is a result that is kept beside the transcript. Its name is unique within the run.
type Blob struct {
	Name, MediaType string
	Data            []byte
}

// Execute makes one call and returns how it ended: with a result, cut or spilled where it is too long, or with an
// error. It returns when the tool has, or 50 ms after the tool's timeout or the end of ctx. A tool that has not
// returned by then is given up: its goroutine stays the Set's (see [Set.Wait]), and what it still reports is dropped.
// Panics of the tool are errors; their stack goes to the log.
func (s *Set) Execute(ctx context.Context, name string, call Call) Settled {
	start := time.Now()
	var settled Settled
	if e := s.byName[name]; e == nil {
		settled.Outcome = *s.unknown(call.ID, name)
	} else if r, ok := e.tool.(recorded); ok {
		settled.Outcome = r.outcome(call)
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
		switch {
		case over && known:
		case parent.Err() != nil:
			unknown = !known
			err = e.aborted(unknown)
		case ctx.Err() != nil:
			unknown = !known
			err = e.timedOut(unknown)
		}
		settled := settleError(err)
		settled.Unknown = unknown && !e.spec.Repeatable()
		if l.streamed {
			o := &settled.Outcome
			o.Hint = clean(join(o.Hint, "A part of its output was streamed before."), maxHint)
		}
		return settled
	}
}

func settleError(err error) Settled { return Settled{Outcome: *failed(err)} }

// attempt runs the tool once, in a goroutine of its own, so that a deaf one can be given up.
func (s *Set) attempt(ctx context.Context, e *entry, call Call, l *live) (Result, error) {
	type reply struct {
		res Result
		err error
	}
	call.Progress, call.Stream = l.reportProgress, l.reportChunk
	replies := make(chan reply, 1)
	s.calls.enter()
	go func() {
		defer s.calls.leave()
		r := reply{err: &Error{Message: "The tool ended without an answer.", Unknown: true}} // what runtime.Goexit leaves
		defer func() {
			if p := recover(); p != nil {
				s.logger().Error("a tool panicked", "tool", e.spec.Name, "run", call.RunID, "call", call.ID,
					"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				r = reply{err: &Error{Message: "The tool failed unexpectedly.", Unknown: true}}
			}
			replies <- r
		}()
		r.res, r.err = e.tool.Execute(ctx, call)
	}()
	select {
	case r := <-replies:
		return r.res, r.err
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case r := <-replies:
		return r.res, r.err
	case <-late.C:
		s.logger().Warn("a tool did not stop in time and was given up", "tool", e.spec.Name, "run", call.RunID, "call", call.ID)
		return Result{}, context.Cause(ctx)
	}
}

// again waits for the next attempt and reports whether there is one. What has streamed output is not tried again:
// whoever watches has seen it already.
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
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (e *entry) aborted(unknown bool) *Error {
	err := &Error{Kind: message.AbortedCall, Message: "The call was aborted."}
	if unknown && !e.spec.Repeatable() {
		err.Hint = mayHaveHappened
	}
	return err
}

func (e *entry) timedOut(unknown bool) *Error {
	err := &Error{Kind: message.Timeout, Message: fmt.Sprintf("The tool did not answer within %v.", e.spec.Timeout)}
	if unknown && !e.spec.Repeatable() {
		err.RecoveryHint, err.Hint = message.ReportToUser, mayHaveHappened
	}
	return err
}

func (s *Set) logger() *slog.Logger { return cmp.Or(s.Logger, slog.Default()) }

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + " " + b
}
