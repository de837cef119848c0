package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"time"

	"agentd/auth"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/idem"
	"agentd/server/openapi"
	"agentd/server/stream"
	"agentd/store"
)

// AgentSummary tells about an agent.
type AgentSummary struct {
	ID          string   `json:"id"`
	Description string   `json:"description,omitempty"`
	Tags        []string `json:"tags,omitempty"`
}

// AgentList is the answer of GET /agents.
type AgentList struct {
	Agents []AgentSummary `json:"agents"`
}

// RunBody asks for a run.
type RunBody struct {
	Input     json.RawMessage `json:"input,omitempty" ref:"RunInput" doc:"What the agent is to answer: text, a message, a list of messages, or whatever the agent takes. Default: the empty text."`
	SessionID string          `json:"sessionId,omitempty" min:"1" doc:"The conversation that the run belongs to; made when it does not exist. One that another principal has made takes sessions:write:<id>."`
	UserID    string          `json:"userId,omitempty" min:"1"`
	OnBusy    string          `json:"onBusy,omitempty" enum:"refuse|queue" doc:"What to do while another run of the session has not ended. Default: refuse."`
}

// RunInput is what stands as the input of a run, for documents.
type RunInput struct{}

// OpenAPISchema is the schema of what agents take.
func (RunInput) OpenAPISchema() json.RawMessage {
	return json.RawMessage(`{"anyOf":[{"type":"string"},{"$ref":"#/components/schemas/Message"},
		{"type":"array","items":{"$ref":"#/components/schemas/Message"}},{"type":"object"},{"type":["number","boolean","null"]}]}`)
}

// RunAnswer is the answer of POST /agents/{id}/run.
type RunAnswer struct {
	RunID  string          `json:"runId"`
	Status store.Status    `json:"status" enum:"completed|awaiting_approval|aborted|failed"`
	Result agent.RunResult `json:"result"`
	// Unmatched is for resumptions only.
	Unmatched []DecisionBody `json:"unmatched,omitempty" doc:"Decisions for calls that do not wait."`
}

// RunStarted is the answer of POST /agents/{id}/stream.
type RunStarted struct {
	RunID     string       `json:"runId"`
	Status    store.Status `json:"status" enum:"running|pending"`
	Subscribe Subscribe    `json:"subscribe"`
}

// Subscribe says where to watch a run.
type Subscribe struct {
	WebSocket string `json:"websocket" doc:"The run's subject."`
	SSE       string `json:"sse,omitempty" doc:"The path of the run's event stream."`
}

type agentInput struct {
	ID string `path:"id" doc:"The agent's id."`
}

type runInput struct {
	ID   string `path:"id" doc:"The agent's id."`
	Body RunBody
}

func (a *API) agentRoutes() []Route {
	known := func(r *http.Request) error {
		if a.Agents.Agent(r.PathValue("id")) == nil {
			return fault.New(fault.RouteHandlerMissing, "No agent %q is registered.", r.PathValue("id"))
		}
		return nil
	}
	starts := []*fault.Kind{fault.RouteHandlerMissing, fault.SessionBusy, fault.Overloaded}
	return []Route{
		{Method: "GET", Path: "/agents", Access: Scope("agents", "read"), Summary: "List the registered agents.",
			Endpoint: call(http.StatusOK, a.listAgents)},
		{Method: "GET", Path: "/agents/{id}", Access: ScopeOf("agents", "read", "id"), Summary: "Show an agent.",
			Errors: []*fault.Kind{fault.AgentNotFound}, Endpoint: call(http.StatusOK, a.getAgent)},
		{Method: "POST", Path: "/agents/{id}/run", Access: ScopeOf("agents", "invoke", "id"), Effects: true, Action: audit.RunStart, Target: "agent:{id}", Starts: true, Exists: known,
			Again:   a.runAgain,
			Summary: "Run an agent and wait for its answer. The run continues if the client disconnects. The answer holds the run's state only with agents:read for the agent.",
			Errors:  append(starts, fault.RunAborted, fault.RunFailed), Endpoint: call(http.StatusOK, a.runAgent)},
		{Method: "POST", Path: "/agents/{id}/stream", Access: ScopeOf("agents", "invoke", "id"), Effects: true, Action: audit.RunStart, Target: "agent:{id}", Starts: true, Exists: known,
			Again:   a.streamAgain,
			Summary: "Start an agent. With `Accept: text/event-stream`, the answer streams the run's events; without agents:read for the agent, only those of the answer.",
			Errors:  starts,
			Answers: []openapi.Response{{Status: 202, Type: reflect.TypeFor[RunStarted](), Description: "The run is durable and under way."},
				{Status: 200, Type: reflect.TypeFor[stream.Frame](), ContentType: "text/event-stream", Description: "The run's events, with `Accept: text/event-stream`; the header X-Run-Id names the run."}},
			Endpoint: streamed(a.streamAgent)},
	}
}

func (a *API) listAgents(context.Context, Call, struct{}) (AgentList, error) {
	list := AgentList{Agents: []AgentSummary{}}
	for _, reg := range a.Agents.Agents() {
		list.Agents = append(list.Agents, summary(reg))
	}
	return list, nil
}

func (a *API) getAgent(_ context.Context, _ Call, in agentInput) (AgentSummary, error) {
	reg := a.Agents.Agent(in.ID)
	if reg == nil {
		return AgentSummary{}, fault.New(fault.AgentNotFound, "No agent %q is registered.", in.ID)
	}
	return summary(reg), nil
}

func summary(reg *agent.Registration) AgentSummary {
	return AgentSummary{ID: reg.ID, Description: reg.Description, Tags: reg.Tags}
}

// start starts a run. The request's key is bound to it, and stands for what first tells of it, if that is given.
func (a *API) start(ctx context.Context, c Call, in runInput, first func(runID string, status store.Status) RunStarted) (*agent.Handle, error) {
	h, err := a.Engine.Start(ctx, agent.StartRequest{AgentID: in.ID, Input: in.Body.Input, SessionID: in.Body.SessionID,
		UserID: in.Body.UserID, By: c.Principal.Name(), Lineage: c.Principal.Lineage(), MayJoin: may(c.Principal, "sessions", "write", in.Body.SessionID), Queue: in.Body.OnBusy == "queue",
		Also: func(tx *store.Tx, runID string, status store.Status) error {
			if first == nil {
				return c.bind(tx, runID, 0, nil)
			}
			return c.bind(tx, runID, http.StatusAccepted, first(runID, status))
		}})
	if err == nil {
		c.weight.started(first != nil)
		c.Request.Concerns(h.ID, in.Body.SessionID)
		c.Request.Did("run:" + h.ID)
		c.Request.Details(map[string]any{"agentId": in.ID})
	}
	return h, err
}

func (a *API) runAgent(ctx context.Context, c Call, in runInput) (RunAnswer, error) {
	h, err := a.start(ctx, c, in, nil)
	if err != nil {
		return RunAnswer{}, err
	}
	res, err := h.Wait(ctx)
	if err != nil {
		return RunAnswer{}, err
	}
	return answerOf(c.Principal, h.ID, res)
}

// runAgain tells how the run of a key has ended or that it waits, once it does; with what was told first beside that.
func (a *API) runAgain(w http.ResponseWriter, r *http.Request, c Call, first *idem.Answer) error {
	if first.Status != 0 {
		writeFirst(w, first)
		return nil
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

// answerOf tells a principal how a run has ended or that it waits: as an answer or, where it was aborted or failed, as an error.
func answerOf(p auth.Principal, runID string, res agent.RunResult) (RunAnswer, error) {
	tell := func(kind *fault.Kind, fallback string) error {
		e := fault.New(kind, "%s", fallback)
		if res.Error != nil {
			e.Message = res.Error.Message
			e.With("code", res.Error.Code).Advise(res.Error.Hint)
		}
		return e.With("runId", runID).With("status", res.Status)
	}
	switch res.Status {
	case store.Aborted:
		return RunAnswer{}, tell(fault.RunAborted, "The run was aborted.")
	case store.Failed:
		return RunAnswer{}, tell(fault.RunFailed, "The run failed.")
	case store.Running: // the server is stopping, and the run goes on after its restart
		return RunAnswer{}, fault.New(fault.ServerDraining, "The server stops; the run goes on when it is back.").With("runId", runID).With("status", res.Status).
			After(5 * time.Second).Advise("Read what becomes of it with `GET /runs/{runId}/state`, after `Retry-After`; do not start it again.")
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

func (a *API) streamAgent(w http.ResponseWriter, r *http.Request, c Call, in runInput) error {
	started := func(runID string, status store.Status) RunStarted { return a.startedRun(in.ID, runID, status) }
	h, err := a.start(r.Context(), c, in, started)
	if err != nil {
		return err
	}
	c.Key.Done() // the run is what was asked for; telling of it may take as long as it runs
	if a.SSE && wantsEvents(r) {
		r.Header.Del("Last-Event-ID") // a new run has no event that could have been seen
		return a.streamRun(w, r, c, in.ID, h.ID, h.Number())
	}
	gate.JSON(w, http.StatusAccepted, started(h.ID, h.Status()))
	return nil
}

// streamAgain tells of the run of a key as its first request did or, when the client asks for that, with its events.
func (a *API) streamAgain(w http.ResponseWriter, r *http.Request, c Call, first *idem.Answer) error {
	if !a.SSE || !wantsEvents(r) {
		writeFirst(w, first)
		return nil
	}
	run, err := a.Engine.Identify(r.Context(), first.Run)
	if err != nil {
		return err
	}
	return a.streamRun(w, r, c, run.Owner, run.ID, run.Number)
}

// startedRun tells of a run that an agent was started with.
func (a *API) startedRun(agentID, runID string, status store.Status) RunStarted {
	started := RunStarted{RunID: runID, Status: status, Subscribe: Subscribe{WebSocket: event.OfAgentRun(agentID, runID).String()}}
	if a.SSE {
		started.Subscribe.SSE = a.BasePath + "/runs/" + runID + "/events"
	}
	return started
}

// streamRun answers with the events of a run, until it ends or waits: all of them or, to one who may not read the agent,
// those of the answer.
func (a *API) streamRun(w http.ResponseWriter, r *http.Request, c Call, agentID, runID string, number int64) error {
	w.Header().Set("X-Run-Id", runID)
	feed := a.runFeed(event.OfAgentRun(agentID, runID), event.RunView, number)
	feed.EndOnPause, feed.Answer = true, true
	return a.Streams.ServeSSE(w, r, c.Principal, feed)
}

// wantsEvents reports whether the client asks for an event stream.
func wantsEvents(r *http.Request) bool { return accepts(r, "text/event-stream") }

// accepts reports whether the client names a media type as one that it takes.
func accepts(r *http.Request, wanted string) bool {
	for _, v := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(v, ",") {
			media, _, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(media), wanted) {
				return true
			}
		}
	}
	return false
}
