package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/openapi"
	"agentd/server/run"
	"agentd/server/stream"
	"agentd/store"
)

// AgentSummary describes an agent.
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
	Input     json.RawMessage `json:"input,omitempty" ref:"RunInput" doc:"Input of the agent: text, a message, a list of messages, or another value that the agent accepts. Default: the empty text."`
	SessionID string          `json:"sessionId,omitempty" check:"1.." doc:"The conversation that the run belongs to, created if it does not exist. A session of another principal requires sessions:write:<id>."`
	UserID    string          `json:"userId,omitempty" check:"1.."`
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
	Status store.Status    `json:"status" enum:"completed|suspended|awaiting_approval|aborted|failed"`
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

// Agents is the routes of agents.
type Agents struct {
	Registry *agent.Registry
	Runs     *Runs
}

// Routes are the rows of the table.
func (a *Agents) Routes() []Route {
	known := func(r *http.Request) error {
		if a.Registry.Agent(r.PathValue("id")) == nil {
			return fault.New(fault.RouteHandlerMissing, "No agent %q is registered.", r.PathValue("id"))
		}
		return nil
	}
	starts := []*fault.Kind{fault.RouteHandlerMissing, fault.SessionBusy, fault.Overloaded}
	return []Route{
		{Method: "GET", Path: "/agents", Access: "agents:read", Summary: "List the registered agents.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (AgentList, error) {
				list := AgentList{Agents: []AgentSummary{}}
				for _, reg := range a.Registry.Agents() {
					list.Agents = append(list.Agents, summary(reg))
				}
				return list, nil
			})},
		{Method: "GET", Path: "/agents/{id}", Access: "agents:read:{id}", Summary: "Show an agent.",
			Errors: []*fault.Kind{fault.AgentNotFound}, Endpoint: call(http.StatusOK, func(_ context.Context, _ Call, in agentInput) (AgentSummary, error) {
				if reg := a.Registry.Agent(in.ID); reg != nil {
					return summary(reg), nil
				}
				return AgentSummary{}, fault.New(fault.AgentNotFound, "No agent %q is registered.", in.ID)
			})},
		{Method: "POST", Path: "/agents/{id}/run", Access: "agents:invoke:{id}", Action: audit.RunStart, Target: "agent:{id}", Starts: true, Exists: known,
			Again:   a.Runs.again,
			Summary: "Run an agent and wait for its answer. The run continues if the client disconnects. The answer holds the run's state only with agents:read for the agent.",
			Errors:  append(starts, fault.RunAborted, fault.RunFailed), Endpoint: call(http.StatusOK, a.runAgent)},
		{Method: "POST", Path: "/agents/{id}/stream", Access: "agents:invoke:{id}", Action: audit.RunStart, Target: "agent:{id}", Starts: true, Exists: known,
			Again:   a.streamAgain,
			Summary: "Start an agent. With `Accept: text/event-stream`, the answer streams the run's events; without agents:read for the agent, only those of the answer.",
			Errors:  starts,
			Answers: []openapi.Response{{Status: 202, Type: reflect.TypeFor[RunStarted](), Description: "The run is durable and in progress."},
				{Status: 200, Type: reflect.TypeFor[stream.Frame](), ContentType: "text/event-stream", Description: "The run's events, with `Accept: text/event-stream`; the header X-Run-Id names the run."}},
			Endpoint: streamed(a.streamAgent)},
	}
}

func summary(reg *agent.Registration) AgentSummary {
	return AgentSummary{ID: reg.ID, Description: reg.Description, Tags: reg.Tags}
}

// start starts a run and binds the request's key to it. With first, the key keeps first's result as the answer. status is what
// the request is answered with once the run is durable; 0: that depends on the run.
func (a *Agents) start(ctx context.Context, c Call, in runInput, status int, first func(runID string, status store.Status) RunStarted) (*agent.Handle, error) {
	h, err := a.Runs.Engine.Start(ctx, run.StartRequest{Owner: in.ID, Input: in.Body.Input, SessionID: in.Body.SessionID,
		UserID: in.Body.UserID, By: c.Principal.Name(), Lineage: c.Principal.Lineage(), MayJoin: may(c.Principal, "sessions", "write", in.Body.SessionID), Queue: in.Body.OnBusy == "queue",
		Detached: status == http.StatusAccepted,
		Also: func(tx *store.Tx, runID string, is store.Status) (err error) {
			if first == nil {
				err = c.Key.Keep(tx, store.KeyRecord{Run: runID, Bound: true}, nil)
			} else {
				err = c.Key.Keep(tx, store.KeyRecord{Run: runID, Bound: true, Status: http.StatusAccepted}, first(runID, is))
			}
			if err != nil {
				return err
			}
			c.Request.Concerns(runID, in.Body.SessionID)
			c.Request.Did("run:"+runID, map[string]any{"agentId": in.ID})
			return c.Request.Commit(tx, status)
		}})
	if err == nil {
		c.weight.started(first != nil)
	}
	return h, err
}

func (a *Agents) runAgent(ctx context.Context, c Call, in runInput) (RunAnswer, error) {
	h, err := a.start(ctx, c, in, 0, nil)
	if err != nil {
		return RunAnswer{}, err
	}
	wait := h.Wait
	if !may(c.Principal, "agents", "read", in.ID) {
		wait = h.Brief
	}
	res, err := wait(ctx)
	if err != nil {
		return RunAnswer{}, err
	}
	return answerOf(c.Principal, h.ID, res)
}

func (a *Agents) streamAgent(w http.ResponseWriter, r *http.Request, c Call, in runInput) error {
	started := func(runID string, status store.Status) RunStarted { return a.Runs.started(in.ID, runID, status) }
	status, events := http.StatusAccepted, a.Runs.SSE && wantsEvents(r)
	if events {
		status = http.StatusOK
	}
	h, err := a.start(r.Context(), c, in, status, started)
	if err != nil {
		return err
	}
	c.Key.Done() // the run has started, and its events may take as long as it runs
	if events {
		r.Header.Del("Last-Event-ID") // a new run has no event that could have been seen
		return a.Runs.stream(w, r, c, in.ID, h.ID, h.Number)
	}
	gate.JSON(w, http.StatusAccepted, started(h.ID, h.Status))
	return nil
}

// streamAgain repeats the first answer to a key or, if the client accepts an event stream, sends the events of the key's run.
func (a *Agents) streamAgain(w http.ResponseWriter, r *http.Request, c Call, first *store.KeyRecord) error {
	if !a.Runs.SSE || !wantsEvents(r) {
		return gate.Replay(w, first)
	}
	run, err := a.Runs.Engine.Identify(r.Context(), first.Run)
	if err != nil {
		return err
	}
	return a.Runs.stream(w, r, c, run.Owner, run.ID, run.Number)
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
