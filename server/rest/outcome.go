package rest

import (
	"encoding/json"
	"net/http"
	"time"

	"agentd/auth"
	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/store"
)

// again answers with the outcome of the run of a key, once the run has ended or waits, and with the body that the key keeps.
func (a *Runs) again(w http.ResponseWriter, r *http.Request, c Call, first *store.KeyRecord) error {
	if first.Status != 0 {
		return gate.Replay(w, first)
	}
	res, err := a.Engine.Wait(r.Context(), first.Run)
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

// answerOf is the outcome of a run for a principal: an answer or, for a run that was aborted or failed, an error.
func answerOf(p auth.Principal, runID string, res agent.RunResult) (RunAnswer, error) {
	failure := func(kind *fault.Kind, fallback string) error {
		e := fault.New(kind, "%s", fallback)
		if res.Error != nil {
			e.Message = res.Error.Message
			e.With("code", res.Error.Code).Advise(res.Error.Hint)
		}
		return e.With("runId", runID).With("status", res.Status)
	}
	switch res.Status {
	case store.Aborted:
		return RunAnswer{}, failure(fault.RunAborted, "The run was aborted.")
	case store.Failed:
		return RunAnswer{}, failure(fault.RunFailed, "The run failed.")
	case store.Running: // the server is stopping; the run continues after the restart
		return RunAnswer{}, fault.New(fault.ServerDraining, "The server stops. The run continues when it is back.").With("runId", runID).With("status", res.Status).
			After(5 * time.Second).Advise("After `Retry-After`, read `GET /runs/{runId}/state`. Do not start the run again.")
	}
	if !may(p, "agents", "read", res.State.AgentID) {
		res = res.Reduced()
	}
	if !may(p, "traces", "read", "raw") {
		res.State.Withhold()
	}
	return RunAnswer{RunID: runID, Status: res.Status, Result: res}, nil
}

// may reports whether a principal holds a scope.
func may(p auth.Principal, resource, action, target string) bool {
	return gate.Covered(p, auth.Scope{Resource: resource, Action: action, Target: target}) == nil
}

// started is the answer to a request that has started a run of an agent.
func (a *Runs) started(agentID, runID string, status store.Status) RunStarted {
	started := RunStarted{RunID: runID, Status: status, Subscribe: Subscribe{WebSocket: event.OfAgentRun(agentID, runID).String()}}
	if a.SSE {
		started.Subscribe.SSE = a.Base + "/runs/" + runID + "/events"
	}
	return started
}

// stream answers with the events of a run, until it ends or waits: all of them or, for a principal that may not read
// the agent, those of the answer.
func (a *Runs) stream(w http.ResponseWriter, r *http.Request, c Call, agentID, runID string, number int64) error {
	w.Header().Set("X-Run-Id", runID)
	feed := a.Feeds.run(event.OfAgentRun(agentID, runID), event.RunView, number)
	feed.EndOnPause, feed.Answer = true, true
	return a.Streams.ServeSSE(w, r, c.Principal, feed)
}
