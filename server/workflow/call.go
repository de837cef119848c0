package workflow

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// Call runs a workflow for a call of a tool, with the call's arguments as its input, and returns its output. The run is linked
// to the session of the run that made the call, and belongs to whoever started that. The call ends when the run has ended,
// however long that waits. A call that is made again with the same key continues to wait for the same run; one whose context
// ends, for another reason than the server's stop, aborts it. Errors are [tool.Error]s.
func (w *Workflows) Call(ctx context.Context, id string, c tool.Call) (json.RawMessage, error) {
	caller, err := w.kernel.Find(ctx, c.RunID)
	if err != nil {
		return nil, unanswered(id, err)
	}
	req := ExecuteRequest{WorkflowID: id, Input: c.Args, SessionID: c.SessionID, UserID: caller.User, By: caller.StartedBy, MayJoin: true, Detached: true,
		origin: "tool:" + c.Key}
	if req.By != "" && req.By != run.Anonymous {
		req.Lineage = c.Payer
	}
	h, err := w.Execute(ctx, req)
	if err != nil {
		return nil, unanswered(id, err)
	}
	for {
		_, _, _, err := w.kernel.WaitEnd(ctx, h.RunID)
		switch {
		case err == nil:
			return w.outputOf(ctx, id, h.RunID)
		case fault.Is(err, fault.RunNotFound):
			return nil, unanswered(id, err)
		case ctx.Err() == nil: // reading failed, or the server is stopping and ends ctx next; the run continues
			select {
			case <-time.After(time.Second):
				continue
			case <-ctx.Done():
			}
		}
		if !fault.Is(context.Cause(ctx), fault.ShutdownTimeout) {
			opts := run.AbortOptions{Reason: "the run that called it no longer waits", NoWait: true}
			if _, err := w.kernel.Abort(context.WithoutCancel(ctx), h.RunID, opts); err != nil {
				w.opts.Logger.Warn("a workflow that a tool call started could not be aborted", "run", h.RunID, "error", err)
			}
		}
		return nil, context.Cause(ctx)
	}
}

// outputOf is the output of a run that has ended, or why it has none.
func (w *Workflows) outputOf(ctx context.Context, id, runID string) (json.RawMessage, error) {
	out, err := w.Outcome(ctx, runID)
	switch {
	case err != nil:
		return nil, unanswered(id, err)
	case out.Status == store.Completed:
		return out.Output, nil
	case out.Status == store.Aborted:
		return nil, &tool.Error{Kind: message.ExecutionFailed, Message: fmt.Sprintf("The workflow %q was aborted.", id)}
	case out.Error == nil:
		return nil, unanswered(id, fault.New(fault.RunFailed, "It failed."))
	}
	return nil, unanswered(id, fault.New(fault.RunFailed, "%s", out.Error.Message))
}

// unanswered is the error of a call whose workflow did not complete.
func unanswered(id string, err error) *tool.Error {
	return &tool.Error{Kind: message.ExecutionFailed, Message: fmt.Sprintf("The workflow %q failed: %s", id, fault.Of(err).Message)}
}
