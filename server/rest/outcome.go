package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"agentd/auth"
	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/journal"
	"agentd/store"
)

// again answers with the outcome of the run of a key, once the run has ended or waits, and with the body that the key keeps.
func (a *Runs) again(w http.ResponseWriter, r *http.Request, c Call, first *store.KeyRecord) error {
	if first.Status != 0 {
		return gate.Replay(w, first)
	}
	run, err := a.Engine.Identify(r.Context(), first.Run)
	if err != nil {
		return err
	}
	var res agent.RunResult
	if run.Kind == store.Workflow {
		res, err = a.outcome(r.Context(), run.ID)
	} else {
		res, err = a.Engine.Wait(r.Context(), run.ID)
	}
	if err != nil {
		return err
	}
	answer, err := answerOf(c.Principal, first.Run, res)
	if err == nil && first.Body != nil {
		err = json.Unmarshal(first.Body, &answer)
	}
	if err != nil {
		return err
	}
	gate.JSON(w, http.StatusOK, answer)
	return nil
}

// outcome waits until a run of a workflow has ended or waits, and returns how it stands, in the form of an agent's run without
// the state.
func (a *Runs) outcome(ctx context.Context, runID string) (agent.RunResult, error) {
	out, err := a.Workflows.Wait(ctx, runID)
	res := agent.RunResult{Output: out.Output, Status: out.Status, Error: out.Error, PendingApprovals: []event.PendingCall{}}
	for _, p := range out.PendingApprovals {
		res.PendingApprovals = append(res.PendingApprovals, event.PendingCall{ToolCallID: p.ToolCallID, ToolName: p.ToolName})
	}
	return res, err
}

// answerOf is the outcome of a run for a principal: an answer or, for a run that was aborted or failed, an error.
func answerOf(p auth.Principal, runID string, res agent.RunResult) (RunAnswer, error) {
	if err := unsuccessful(runID, res.Status, res.Error); err != nil {
		return RunAnswer{}, err
	}
	if res.State.ID != "" && !may(p, "agents", "read", res.State.AgentID) {
		res = res.Reduced()
	}
	if !may(p, "traces", "read", "raw") {
		res.State.Withhold()
	}
	return RunAnswer{RunID: runID, Status: res.Status, Result: res}, nil
}

// unsuccessful is the error for a run that was aborted or failed, with its reason, or that continues after the server's stop; nil
// for any other.
func unsuccessful(runID string, status store.Status, reason *journal.Error) *fault.Error {
	var e *fault.Error
	switch status {
	case store.Aborted:
		e = fault.New(fault.RunAborted, "The run was aborted.")
	case store.Failed:
		e = fault.New(fault.RunFailed, "The run failed.")
	case store.Running: // the server is stopping; the run continues after the restart
		return fault.New(fault.ServerDraining, "The server stops. The run continues when it is back.").With("runId", runID).With("status", status).
			After(5 * time.Second).Advise("After `Retry-After`, read `GET /runs/{runId}/state`. Do not start the run again.")
	default:
		return nil
	}
	if reason != nil {
		e.Message = reason.Message
		e.With("code", reason.Code).Advise(reason.Hint)
	}
	return e.With("runId", runID).With("status", status)
}

// may reports whether a principal holds a scope.
func may(p auth.Principal, resource, action, target string) bool {
	return gate.Covered(p, auth.Scope{Resource: resource, Action: action, Target: target}) == nil
}

// started is the answer to a request that has started a run of an agent.
func (a *Runs) started(agentID, runID string, status store.Status) RunStarted {
	return RunStarted{RunID: runID, Status: status, Subscribe: a.subscribe(event.OfAgentRun(agentID, runID))}
}

// subscribe says where to watch the run of a subject.
func (a *Runs) subscribe(s event.Subject) Subscribe {
	where := Subscribe{WebSocket: s.String()}
	if a.SSE {
		where.SSE = a.Base + "/runs/" + s.Run + "/events"
	}
	return where
}

// stream answers with the events of a run, until it ends or waits: all of them or, for a principal that may not read
// the agent, those of the answer.
func (a *Runs) stream(w http.ResponseWriter, r *http.Request, c Call, agentID, runID string, number int64) error {
	w.Header().Set("X-Run-Id", runID)
	feed := a.Feeds.run(event.OfAgentRun(agentID, runID), event.RunView, number)
	feed.EndOnPause, feed.Answer = true, true
	return a.Streams.ServeSSE(w, r, c.Principal, feed)
}
