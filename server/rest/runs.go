package rest

import (
	"cmp"
	"context"
	"net/http"
	"reflect"
	"slices"

	"agentd/auth"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/message"
	"agentd/server/openapi"
	"agentd/server/recording"
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/server/stream"
	"agentd/server/takeover"
	"agentd/server/workflow"
	"agentd/store"
)

// RunList is the answer of GET /runs.
type RunList struct {
	Runs       []agent.Snapshot `json:"runs"`
	NextCursor string           `json:"nextCursor,omitempty" doc:"Send it as cursor for the next page. Absent on the last page."`
}

type listRunsInput struct {
	Status     string `query:"status" enum:"pending|running|suspended|awaiting_approval|completed|failed|aborted"`
	AgentID    string `query:"agentId"`
	WorkflowID string `query:"workflowId"`
	SessionID  string `query:"sessionId"`
	Parent     string `query:"parent" check:"1.." doc:"Only child runs of this run. Default: only runs that are not child runs."`
	Limit      int    `query:"limit" check:"1..1000" doc:"Default 100."`
	Cursor     string `query:"cursor" check:"1.." doc:"nextCursor of the previous page."`
}

type runInputID struct {
	RunID string `path:"runId"`
}

// AbortBody says how to abort a run.
type AbortBody struct {
	Drain              bool   `json:"drain,omitempty" doc:"Let the current step finish."`
	OnPendingApprovals string `json:"onPendingApprovals,omitempty" enum:"deny|hold|fail" doc:"What happens to waiting approvals. Default: deny. A call with an unknown outcome always waits for a person."`
	Reason             string `json:"reason,omitempty"`
}

// AbortAnswer is the answer of POST /runs/{runId}/abort.
type AbortAnswer struct {
	RunID  string       `json:"runId"`
	Status store.Status `json:"status" doc:"aborted, or the earlier final status; running while a step drains; awaiting_approval until a person has decided on a call with an unknown outcome."`
}

type abortInput struct {
	RunID string `path:"runId"`
	Body  AbortBody
}

// Runs is the routes of runs, and what others need of them.
type Runs struct {
	Engine  *agent.Engine
	Feeds   *Feeds
	Streams *stream.Service
	SSE     bool // there are event streams
	Base    string

	Workflows *workflow.Workflows

	Record func(ctx context.Context, p auth.Principal, r audit.Record, refused error) error // what is done over a WebSocket
}

// Routes are the rows of the table.
func (a *Runs) Routes() []Route {
	routes := []Route{
		{Method: "GET", Path: "/runs", Access: "agents:read or workflows:read", Summary: "List the runs of the agents and workflows that the token may read, newest first. Waiting runs show what they wait for.",
			Errors: []*fault.Kind{fault.RunNotFound}, Endpoint: call(http.StatusOK, a.listRuns)},
		{Method: "GET", Path: "/runs/{runId}/state", Access: "agents:read:" + ofOwner, Summary: "Show a run and its full state. The operator's system messages are withheld without traces:read:raw.",
			Endpoint: encoded[runInputID, RunState](a.state)},
		{Method: "POST", Path: "/runs/{runId}/abort", Access: "agents:invoke:" + ofOwner, Action: audit.RunAbort, Target: "run:{runId}", Summary: "Abort a run.",
			Errors: []*fault.Kind{fault.RunConflict, fault.RunIsChild}, Endpoint: call(http.StatusOK, a.abortRun)},
		{Method: "GET", Path: "/runs/{runId}/cassette", Access: "traces:read:raw",
			Summary: "Export a finished recorded run as a file for `agentd replay`: `svc-tool-cassette` 1.0. It holds everything that was said.",
			Errors:  []*fault.Kind{fault.RunNotFound, fault.RunNotEnded, fault.RunNotRecorded},
			Answers: []openapi.Response{{Status: 200, ContentType: ndjson, Description: "One JSON object on each line. The last line is a footer."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, in runInputID) error {
				return recording.Export(r.Context(), a.Engine, in.RunID, newDownload(w, ndjson))
			})},
		{Method: "POST", Path: "/runs/import", Access: "runs:import", Action: audit.RunImport, Target: "run", Starts: true, Takes: reflect.TypeFor[runstate.State](),
			Summary: "Take over a run that has ended or waits for approvals, from its state (`svc-run-state` 1.x). The token also needs agents:invoke for the state's agent, for the agents of its child runs, and for the agents that waiting calls would call.",
			Errors: []*fault.Kind{fault.RunStateMalformed, fault.RunStateVersionUnsupported, fault.RunStateUnfit, fault.RunExists, fault.SessionExists,
				fault.SessionBusy, fault.Overloaded},
			Endpoint: call(http.StatusCreated, a.importRun)},
	}
	if a.SSE {
		routes = append(routes, a.eventRoutes()...)
	}
	return routes
}

func (a *Runs) listRuns(ctx context.Context, c Call, in listRunsInput) (RunList, error) {
	f := store.RunFilter{Status: store.Status(in.Status), Session: in.SessionID, Limit: cmp.Or(in.Limit, 100),
		Agents: readable(c.Principal, "agents"), Workflows: readable(c.Principal, "workflows")}
	var err error
	if f.Before, err = before(in.Cursor); err != nil {
		return RunList{}, err
	}
	if in.Parent != "" {
		parent, err := a.Engine.Find(ctx, in.Parent)
		if err != nil {
			return RunList{}, err
		}
		f.Parent = parent.N
	}
	if in.AgentID != "" && in.WorkflowID != "" { // no run belongs to both
		return RunList{Runs: []agent.Snapshot{}}, nil
	}
	if in.AgentID != "" {
		if err := within(f.Agents, "agents:read:"+in.AgentID, in.AgentID); err != nil {
			return RunList{}, err
		}
		f.Agents, f.Workflows = []string{in.AgentID}, []string{}
	}
	if in.WorkflowID != "" {
		if err := within(f.Workflows, "workflows:read:"+in.WorkflowID, in.WorkflowID); err != nil {
			return RunList{}, err
		}
		f.Agents, f.Workflows = []string{}, []string{in.WorkflowID}
	}
	runs, next, err := a.Engine.List(ctx, f)
	return RunList{Runs: runs, NextCursor: nextCursor(next)}, err
}

// within refuses an id that is not among those that a principal may read; nil are all.
func within(readable []string, scope, id string) error {
	if readable == nil || slices.Contains(readable, id) {
		return nil
	}
	return fault.New(fault.ScopeDenied, "The request requires the scope %s.", scope).With("required", scope)
}

// readable are the agents or the workflows that a principal may read: nil for all, and else a list that may be empty.
func readable(p auth.Principal, kind string) []string {
	all, ids := p.Grant.Targets(kind, "read")
	if all {
		return nil
	}
	return append([]string{}, ids...)
}

// RunState is the answer of GET /runs/{runId}/state.
type RunState struct {
	agent.Snapshot
	Outcome *workflow.Outcome `json:"outcome,omitempty" doc:"How a run of a workflow stands. GET /workflows/{id}/state shows the thread with its state."`
}

func (a *Runs) state(ctx context.Context, c Call, _ runInputID) ([]byte, error) {
	if c.Run.Kind != store.Workflow {
		return a.Engine.SnapshotJSON(ctx, c.Run, may(c.Principal, "traces", "read", "raw"))
	}
	s, err := a.Engine.Snapshot(ctx, c.Run.ID)
	if err != nil {
		return nil, err
	}
	out, err := a.Workflows.Outcome(ctx, c.Run.ID)
	if err != nil {
		return nil, err
	}
	b, err := message.Encode(RunState{s, &out})
	return append(b, '\n'), err
}

func (a *Runs) abortRun(ctx context.Context, c Call, in abortInput) (AbortAnswer, error) {
	status, err := a.Engine.Abort(ctx, in.RunID, run.AbortOptions{Drain: in.Body.Drain, OnPending: in.Body.OnPendingApprovals, Reason: in.Body.Reason})
	details := abortDetails(in.Body.Drain, in.Body.OnPendingApprovals)
	details["status"] = string(status)
	c.Request.On("", details)
	return AbortAnswer{RunID: in.RunID, Status: status}, err
}

// RunImport is the result of the import of a run.
type RunImport takeover.Imported

func (a *Runs) importRun(ctx context.Context, c Call, in struct {
	SessionID string `query:"sessionId" doc:"A session for the run, instead of the one in the state. It must be new or empty."`
	Body      []byte
}) (RunImport, error) {
	st, err := runstate.Read(in.Body)
	if err != nil {
		return RunImport{}, err
	}
	made, err := takeover.Import(ctx, a.Engine, st, takeover.Options{SessionID: in.SessionID, By: c.Principal.Name(), Lineage: c.Principal.Lineage(),
		MayJoin: may(c.Principal, "sessions", "write", cmp.Or(in.SessionID, st.SessionID)),
		May: func(agentID string) error {
			return gate.Covered(c.Principal, auth.Scope{Resource: "agents", Action: "invoke", Target: agentID})
		},
		Also: func(tx *store.Tx, v takeover.Imported) error {
			c.Request.Concerns(v.RunID, v.SessionID)
			c.Request.Did("run:"+v.RunID, map[string]any{"agentId": st.AgentID})
			return c.Keep(tx, store.KeyRecord{Run: v.RunID, Session: v.SessionID, Status: http.StatusCreated}, RunImport(v))
		}})
	return RunImport(made), err
}
