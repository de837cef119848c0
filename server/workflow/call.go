package workflow

import (
	"context"
	"encoding/json"
	"fmt"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// Call runs a workflow for a call of a tool, with the call's arguments as its input, and returns its output. The run is linked
// to the run that made the call, and to its session, and belongs to whoever started that. A call that is made again with the
// same key finds the same run. When the run is parked, the error is [tool.Waits]. Other errors are [tool.Error]s, or the cause
// of ctx, whose end leaves the run as it is.
func (w *Workflows) Call(ctx context.Context, id string, c tool.Call) (json.RawMessage, error) {
	runID := c.Waited
	if runID == "" {
		caller, err := w.kernel.Find(ctx, c.RunID)
		if err != nil {
			return nil, unanswered(id, err)
		}
		req := ExecuteRequest{WorkflowID: id, Input: c.Args, SessionID: c.SessionID, UserID: caller.User, By: caller.StartedBy, MayJoin: true, Detached: true,
			Origin: store.CalledOrigin(c.Key)}
		if req.By != "" && req.By != run.Anonymous {
			req.Lineage = c.Payer
		}
		h, err := w.Execute(ctx, req)
		if err != nil {
			return nil, unanswered(id, err)
		}
		runID = h.RunID
	}
	row, _, _, err := w.kernel.Wait(ctx, runID)
	switch {
	case err == nil && row.Status.Terminal():
		return w.outputOf(ctx, id, runID)
	case fault.Is(err, fault.RunNotFound):
		return nil, unanswered(id, err)
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, &tool.Waits{RunID: runID}
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
	f := fault.Of(err)
	return &tool.Error{Kind: message.ExecutionFailed, Message: fmt.Sprintf("The workflow %q failed: %s", id, f.Message), Hint: f.NextStep()}
}
