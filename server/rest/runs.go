package rest

import (
	"context"
	"net/http"
	"reflect"

	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/openapi"
	"agentd/server/stream"
	"agentd/store"
)

// RunList is the answer of GET /runs.
type RunList struct {
	Runs       []agent.Snapshot `json:"runs"`
	NextCursor string           `json:"nextCursor,omitempty" doc:"Send it as cursor for the next page; absent on the last."`
}

type listRunsInput struct {
	Status     string `query:"status" enum:"pending|running|awaiting_approval|completed|failed|aborted"`
	AgentID    string `query:"agentId"`
	WorkflowID string `query:"workflowId"`
	SessionID  string `query:"sessionId"`
	Parent     string `query:"parent" min:"1" doc:"Only the runs that are tool calls of this run; without it, only runs that are nobody's."`
	Limit      int    `query:"limit" min:"1" max:"1000" doc:"Default 100."`
	Cursor     string `query:"cursor" min:"1" doc:"nextCursor of the page before."`
}

type runInputID struct {
	RunID string `path:"runId"`
}

// A browser's EventSource can set no header: the query takes what else stands in headers.
type watchRunInput struct {
	RunID       string `path:"runId"`
	Ticket      string `query:"ticket" min:"1" doc:"A single-use ticket of POST /session/ws-ticket, instead of a token."`
	LastEventID string `query:"lastEventId" min:"1" doc:"As the header Last-Event-ID, which comes first."`
}

// AbortBody says how to abort a run.
type AbortBody struct {
	Drain              bool   `json:"drain,omitempty" doc:"Let the current step finish."`
	OnPendingApprovals string `json:"onPendingApprovals,omitempty" enum:"deny|hold|fail" doc:"What becomes of approvals that wait. Default: deny. A call of unknown outcome keeps waiting for a person in any case."`
	Reason             string `json:"reason,omitempty"`
}

// AbortAnswer is the answer of POST /runs/{runId}/abort.
type AbortAnswer struct {
	RunID  string       `json:"runId"`
	Status store.Status `json:"status" doc:"aborted, or what the run had become before; running while a step drains; awaiting_approval until a person has decided on a call of unknown outcome."`
}

type abortInput struct {
	RunID string `path:"runId"`
	Body  AbortBody
}

func (a *API) runRoutes() []Route {
	routes := []Route{
		{Method: "GET", Path: "/runs", Access: ScopeOfSome("agents", "read"), Summary: "List the runs of the agents that the token may read, newest first. Waiting runs show what they wait for.",
			Errors: []*fault.Kind{fault.RunNotFound}, Endpoint: call(http.StatusOK, a.listRuns)},
		{Method: "GET", Path: "/runs/{runId}/state", Access: Owner("read"), Summary: "Show a run and its full state. The operator's system messages are withheld without traces:read:raw.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, c Call, in runInputID) (agent.Snapshot, error) {
				s, err := a.Engine.Snapshot(ctx, in.RunID)
				if err == nil && !may(c.Principal, "traces", "read", "raw") {
					s.State.Withhold()
				}
				return s, err
			})},
		{Method: "POST", Path: "/runs/{runId}/abort", Access: Owner("invoke"), Effects: true, Action: audit.RunAbort, Target: "run:{runId}", Summary: "Abort a run.",
			Errors: []*fault.Kind{fault.RunConflict, fault.RunIsChild}, Endpoint: call(http.StatusOK, a.abortRun)},
		a.cassetteRoute(),
		a.importRoute(),
	}
	if !a.SSE {
		return routes
	}
	return append(routes, a.eventsRoute(), Route{Method: "GET", Path: "/runs/{runId}/events", Access: Owner("read"),
		Summary: "Stream a run's events as Server-Sent Events: first all durable ones, then new ones. The stream resumes after `Last-Event-ID`, also after a restart.",
		Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[stream.Frame](), ContentType: "text/event-stream", Description: "Event frames; a lifecycle frame ends the stream."},
			{Status: 204, Description: "The run has ended, and `Last-Event-ID` is its last event: there is nothing to come back for."}},
		Endpoint: streamed(a.runEvents)})
}

func (a *API) listRuns(ctx context.Context, c Call, in listRunsInput) (RunList, error) {
	f := store.RunFilter{Status: store.Status(in.Status), Session: in.SessionID, Limit: in.Limit}
	if f.Limit == 0 {
		f.Limit = 100
	}
	if in.Cursor != "" {
		n, ok := placeOf(in.Cursor)
		if !ok {
			return RunList{}, fault.Invalid("The request is not valid.", fault.At("is not a cursor of this route", "cursor"))
		}
		f.Before = n
	}
	all, ids := c.Principal.Grant.Targets("agents", "read")
	if in.Parent != "" {
		parent, err := a.Engine.Find(ctx, in.Parent)
		if err != nil {
			return RunList{}, err
		}
		f.Parent = parent.N
	}
	switch {
	case in.AgentID != "" && !all && !contains(ids, in.AgentID):
		return RunList{}, fault.New(fault.ScopeDenied, "The scope agents:read:%s is needed.", in.AgentID).With("required", "agents:read:"+in.AgentID)
	case in.AgentID != "":
		f.Owners = []string{in.AgentID}
	case !all:
		f.Owners = append([]string{}, ids...) // never nil, which would be all
	}
	if in.WorkflowID != "" { // no run belongs to both
		return RunList{Runs: []agent.Snapshot{}}, nil
	}
	runs, next, err := a.Engine.List(ctx, f)
	list := RunList{Runs: runs}
	if next > 0 {
		list.NextCursor = cursorOf(next)
	}
	return list, err
}

func contains(ids []string, id string) bool {
	for _, have := range ids {
		if have == id {
			return true
		}
	}
	return false
}

func (a *API) abortRun(ctx context.Context, c Call, in abortInput) (AbortAnswer, error) {
	c.Request.Details(abortDetails(in.Body.Drain, in.Body.OnPendingApprovals))
	status, err := a.Engine.Abort(ctx, in.RunID, agent.AbortOptions{Drain: in.Body.Drain, OnPending: in.Body.OnPendingApprovals, Reason: in.Body.Reason})
	return AbortAnswer{RunID: in.RunID, Status: status}, err
}

func (a *API) runEvents(w http.ResponseWriter, r *http.Request, c Call, in watchRunInput) error {
	resumeAfter(r, in.LastEventID)
	return a.Streams.ServeSSE(w, r, c.Principal, a.runFeed(event.OfAgentRun(c.Run.Owner, c.Run.ID), event.RunView, c.Run.Number))
}

// resumeAfter lets a stream begin after the event that the query names, unless a header names one.
func resumeAfter(r *http.Request, lastEventID string) {
	if lastEventID != "" && r.Header.Get("Last-Event-ID") == "" {
		r.Header.Set("Last-Event-ID", lastEventID)
	}
}
