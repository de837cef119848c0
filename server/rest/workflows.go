package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/openapi"
	"agentd/server/workflow"
	"agentd/store"
)

// WorkflowSummary describes a workflow in a list.
type WorkflowSummary struct {
	ID          string `json:"id"`
	Description string `json:"description,omitempty"`
	Version     string `json:"version,omitempty"`
	Declared    bool   `json:"declared" doc:"Whether the configuration declares it; else a Go program registered it."`
}

// WorkflowList is the answer of GET /workflows.
type WorkflowList struct {
	Workflows []WorkflowSummary `json:"workflows"`
}

// ExecuteBody asks for a run of a workflow.
type ExecuteBody struct {
	Input     json.RawMessage `json:"input,omitempty" doc:"Input of the workflow. Default: the empty object."`
	ThreadID  string          `json:"threadId,omitempty" check:"1.." doc:"1 to 128 characters of A-Z a-z 0-9 _ -. A thread that has ended begins again with a fresh state. Default: the server chooses an id."`
	SessionID string          `json:"sessionId,omitempty" check:"1.." doc:"A session to which the thread belongs, for lists and erasure. A session of another principal requires sessions:write:<id>."`
	UserID    string          `json:"userId,omitempty" check:"1.."`
}

// WorkflowResumeBody answers a wait of a thread.
type WorkflowResumeBody struct {
	ThreadID             string          `json:"threadId" check:"required"`
	Resume               json.RawMessage `json:"resume,omitempty" doc:"The answer. Default: null. For an approval: a boolean, or an object with granted and reason; that also requires workflows:approve."`
	Name                 string          `json:"name,omitempty" check:"1.." doc:"The wait to answer. Default: the only one."`
	AllowVersionMismatch bool            `json:"allowVersionMismatch,omitempty" doc:"Continue under the present definition of the workflow, although its version has changed."`
}

// RetryBody asks for another run of a thread that failed or was aborted.
type RetryBody struct {
	ThreadID             string `json:"threadId" check:"required"`
	AllowVersionMismatch bool   `json:"allowVersionMismatch,omitempty" doc:"As for a resumption."`
}

// TickBody names a thread.
type TickBody struct {
	ThreadID string `json:"threadId" check:"required"`
}

// ForkBody asks for a copy of a thread.
type ForkBody struct {
	FromThreadID     string          `json:"fromThreadId" check:"required"`
	FromCheckpointID string          `json:"fromCheckpointId,omitempty" check:"1.."`
	State            json.RawMessage `json:"state,omitempty"`
}

// WorkflowStarted is the answer to a request that has set a thread going.
type WorkflowStarted struct {
	RunID      string       `json:"runId"`
	ThreadID   string       `json:"threadId"`
	WorkflowID string       `json:"workflowId"`
	Status     store.Status `json:"status" enum:"running|suspended|awaiting_approval|completed|failed|aborted"`
	Kept       bool         `json:"kept,omitempty" doc:"The answer came before its wait, and is kept for it."`
	Subscribe  Subscribe    `json:"subscribe"`
}

// TickAnswer is the answer of POST /workflows/{id}/tick.
type TickAnswer struct {
	WorkflowID    string  `json:"workflowId"`
	ThreadID      string  `json:"threadId"`
	Fired         bool    `json:"fired" doc:"Whether a timer was due."`
	NextWakeAt    *int64  `json:"nextWakeAt" doc:"When the next timer is due, in milliseconds since 1970; null: there is none. nextWakeAtIso is the same."`
	NextWakeAtISO *string `json:"nextWakeAtIso"`
}

// WorkflowState is the answer of GET /workflows/{id}/state.
type WorkflowState struct {
	WorkflowID string      `json:"workflowId"`
	ThreadID   string      `json:"threadId"`
	State      ThreadState `json:"state"`
}

// ThreadState is a thread with its state.
type ThreadState struct {
	workflow.ThreadState
	PendingPause *workflow.Pause `json:"pendingPause,omitempty" doc:"The first of pendingPauses."`
}

// Checkpoints is the answer of GET /workflows/{id}/checkpoints.
type Checkpoints struct {
	WorkflowID  string                `json:"workflowId"`
	ThreadID    string                `json:"threadId"`
	Checkpoints []workflow.Checkpoint `json:"checkpoints"`
	NextCursor  string                `json:"nextCursor,omitempty" doc:"Send it as cursor for the next page. Absent on the last page."`
}

// ThreadList is the answer of GET /workflows/{id}/threads.
type ThreadList struct {
	Threads    []workflow.ThreadSummary `json:"threads"`
	NextCursor string                   `json:"nextCursor,omitempty" doc:"Send it as cursor for the next page. Absent on the last page."`
}

type workflowInput struct {
	ID string `path:"id" doc:"The workflow's id."`
}

type threadQuery struct {
	ID       string `path:"id" doc:"The workflow's id."`
	ThreadID string `query:"threadId" doc:"Required."`
}

// named checks that the query names a thread.
func (q threadQuery) named() error {
	if q.ThreadID == "" {
		return fault.Invalid("The request is not valid.", fault.At("is required", "threadId"))
	}
	return nil
}

// moving is what begins or continues a run.
type moving[Body any] struct {
	ID   string `path:"id" doc:"The workflow's id."`
	Wait bool   `query:"wait" doc:"Answer when the run ends or waits, with its outcome. The run continues if the client disconnects."`
	Body Body
}

// Workflows is the routes of workflows and their threads.
type Workflows struct {
	Workflows *workflow.Workflows
	Runs      *Runs
	Keys      *gate.Keys // nil: an Idempotency-Key is not looked at
}

// Routes are the rows of the table.
func (a *Workflows) Routes() []Route {
	known := func(r *http.Request) error { _, err := a.get(r.PathValue("id")); return err }
	row := func(rt Route) Route { // threads of a workflow that is not registered any more are still there
		rt.Path = "/workflows/{id}" + rt.Path
		if rt.Action != "" && rt.Target == "" {
			rt.Target = "workflow:{id}"
		}
		rt.Errors = append([]*fault.Kind{fault.RouteHandlerMissing}, rt.Errors...)
		return rt
	}
	began := []openapi.Response{{Status: 202, Type: reflect.TypeFor[WorkflowStarted](), Description: "The run is durable and in progress."},
		{Status: 200, Type: reflect.TypeFor[workflow.Outcome](), Description: "The run has ended or waits, with `wait`."}}
	moves := []*fault.Kind{fault.ThreadNotFound, fault.WorkflowVersionMismatch, fault.WorkflowDivergence, fault.Overloaded, fault.RunAborted, fault.RunFailed}
	return []Route{
		{Method: "GET", Path: "/workflows", Access: "workflows:read", Summary: "List the workflows.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (WorkflowList, error) {
				list := WorkflowList{Workflows: []WorkflowSummary{}}
				for _, w := range a.Workflows.List() {
					list.Workflows = append(list.Workflows, WorkflowSummary{ID: w.ID, Description: w.Description, Version: w.Version, Declared: w.Declared})
				}
				return list, nil
			})},
		row(Route{Method: "GET", Access: "workflows:read:{id}", Summary: "Show a workflow, with the schema of its input and its graph.",
			Endpoint: call(http.StatusOK, func(_ context.Context, _ Call, in workflowInput) (workflow.Info, error) { return a.get(in.ID) })}),
		row(Route{Method: "POST", Path: "/execute", Exists: known, Access: "workflows:execute:{id}", Action: audit.WorkflowExecute, Starts: true, Again: a.again,
			Summary:  "Begin a run of a workflow, in a new thread or in one that has ended. With `wait`, the answer comes when the run ends or waits; it holds values only with workflows:read for the workflow.",
			Errors:   []*fault.Kind{fault.ThreadOpen, fault.RunIsChild, fault.StateTooLarge, fault.RunAborted, fault.RunFailed, fault.Overloaded},
			Answers:  began,
			Endpoint: streamed(a.execute)}),
		row(Route{Method: "POST", Path: "/resume", Access: "workflows:resume:{id}", Action: audit.WorkflowResume, Starts: true, Again: a.again,
			Summary: "Answer a wait of a thread, or take up a blocked one. An answer to an `await` that the thread has not reached yet is kept. An approval also requires workflows:approve for the workflow.",
			Errors: append(moves, fault.ResumeWithoutSuspension, fault.ConcurrentResume, fault.PauseNotFound, fault.PauseAmbiguous, fault.AnswersFull, fault.AwaitPayloadInvalid, fault.StateTooLarge,
				fault.ApproverRefused),
			Answers: began, Endpoint: streamed(a.resume)}),
		row(Route{Method: "POST", Path: "/retry", Access: "workflows:resume:{id}", Action: audit.WorkflowRetry, Starts: true, Again: a.again,
			Summary: "Begin another run of a thread that failed or was aborted. It continues at what failed or was withdrawn.",
			Errors:  append(moves, fault.NotRetryable, fault.ThreadOpen, fault.RunIsChild), Answers: began, Endpoint: streamed(a.retry)}),
		row(Route{Method: "POST", Path: "/tick", Access: "workflows:resume:{id}", Action: audit.WorkflowTick,
			Summary: "Fire the due timers of a thread, and show when the next one is due. The server fires them itself.",
			Errors:  []*fault.Kind{fault.ThreadNotFound, fault.WorkflowVersionMismatch, fault.WorkflowDivergence}, Endpoint: call(http.StatusOK, a.tick)}),
		row(Route{Method: "GET", Path: "/state", Access: "workflows:read:{id}", Summary: "Show a thread: its status, its state and what it waits for.",
			Errors: []*fault.Kind{fault.ThreadNotFound}, Endpoint: call(http.StatusOK, a.state)}),
		row(Route{Method: "GET", Path: "/checkpoints", Access: "workflows:read:{id}", Summary: "List the steps of a thread, newest first.",
			Errors: []*fault.Kind{fault.ThreadNotFound}, Endpoint: call(http.StatusOK, a.checkpoints)}),
		row(Route{Method: "GET", Path: "/threads", Access: "workflows:read:{id}", Summary: "List the threads of a workflow, newest first.",
			Endpoint: call(http.StatusOK, a.threads)}),
		row(Route{Method: "DELETE", Path: "/threads/{threadId}", Access: "workflows:delete:{id}", Action: audit.ThreadDelete, Target: "thread:{id}/{threadId}",
			Summary: "Erase a thread with its runs, and with all that its nodes started. An unknown thread is no error.",
			Errors:  []*fault.Kind{fault.ThreadRunning, fault.RunIsChild}, Endpoint: call(http.StatusNoContent, a.erase)}),
		row(Route{Method: "POST", Path: "/fork", Access: "workflows:execute:{id}", Action: audit.WorkflowExecute,
			Summary: "Refused: agentd does not fork threads.", Errors: []*fault.Kind{fault.ForkUnsupported},
			Endpoint: streamed(func(_ http.ResponseWriter, _ *http.Request, _ Call, in struct {
				ID   string `path:"id" doc:"The workflow's id."`
				Body ForkBody
			}) error {
				_, err := a.get(in.ID)
				return cmp.Or(err, error(fault.New(fault.ForkUnsupported, "Threads cannot be forked.")))
			})}),
	}
}

func (a *Workflows) get(id string) (workflow.Info, error) {
	if info, ok := a.Workflows.Get(id); ok {
		return info, nil
	}
	return workflow.Info{}, fault.New(fault.RouteHandlerMissing, "No workflow %q is registered.", clip(id))
}

// started is the answer for what a request has set going.
func (a *Workflows) started(s workflow.Started) WorkflowStarted {
	subject := event.OfWorkflowRun(s.WorkflowID, s.RunID)
	return WorkflowStarted{RunID: s.RunID, ThreadID: s.ThreadID, WorkflowID: s.WorkflowID, Status: s.Status, Kept: s.Kept, Subscribe: a.Runs.subscribe(subject)}
}

// keep makes what binds a request's key to a run, and records the request in the chain. Without wait, the key keeps the answer.
func (a *Workflows) keep(c Call, session string, wait bool) func(tx *store.Tx, s workflow.Started) error {
	return func(tx *store.Tx, s workflow.Started) error {
		c.Request.Concerns(s.RunID, session)
		c.Request.Did("run:"+s.RunID, map[string]any{"workflowId": s.WorkflowID, "threadId": s.ThreadID})
		if wait {
			return c.Keep(tx, store.KeyRecord{Run: s.RunID, Bound: true}, nil)
		}
		return c.Keep(tx, store.KeyRecord{Run: s.RunID, Bound: true, Status: http.StatusAccepted}, a.started(s))
	}
}

// answer answers with what a request has set going or, with wait, with the outcome.
func (a *Workflows) answer(w http.ResponseWriter, r *http.Request, c Call, h *workflow.Handle, wait bool) error {
	c.weight.started(!wait)
	if !wait {
		gate.JSON(w, http.StatusAccepted, a.started(h.Started))
		return nil
	}
	out, err := h.Wait(r.Context())
	if err != nil {
		return err
	}
	return tellOutcome(w, c.Principal, out)
}

// again answers with what a key keeps or, where that is nothing, with the outcome of its run.
func (a *Workflows) again(w http.ResponseWriter, r *http.Request, c Call, first *store.KeyRecord) error {
	if first.Status != 0 {
		return gate.Replay(w, first)
	}
	out, err := a.Workflows.Wait(r.Context(), first.Run)
	if err != nil {
		return err
	}
	return tellOutcome(w, c.Principal, out)
}

// tellOutcome answers with the outcome of a run; the error is that of one that was aborted or failed. Without workflows:read, waits
// and approvals lack their values.
func tellOutcome(w http.ResponseWriter, p auth.Principal, out workflow.Outcome) error {
	if err := unsuccessful(out.RunID, out.Status, out.Error); err != nil {
		return err.With("threadId", out.ThreadID)
	}
	if !may(p, "workflows", "read", out.WorkflowID) {
		for i := range out.PendingPauses {
			out.PendingPauses[i].Value = nil
		}
		for i, q := range out.PendingApprovals {
			out.PendingApprovals[i] = journal.Approval{ToolCallID: q.ToolCallID, ToolName: q.ToolName, RequestedAt: q.RequestedAt, SubRunToolCallID: q.SubRunToolCallID}
		}
	}
	gate.JSON(w, http.StatusOK, out)
	return nil
}

func (a *Workflows) execute(w http.ResponseWriter, r *http.Request, c Call, in moving[ExecuteBody]) error {
	b := in.Body
	h, err := a.Workflows.Execute(r.Context(), workflow.ExecuteRequest{WorkflowID: in.ID, ThreadID: b.ThreadID, Input: b.Input, SessionID: b.SessionID, UserID: b.UserID,
		By: c.Principal.Name(), Lineage: c.Principal.Lineage(), MayJoin: may(c.Principal, "sessions", "write", b.SessionID), Detached: !in.Wait,
		Also: a.keep(c, b.SessionID, in.Wait)})
	if err != nil {
		return err
	}
	return a.answer(w, r, c, h, in.Wait)
}

func (a *Workflows) resume(w http.ResponseWriter, r *http.Request, c Call, in moving[WorkflowResumeBody]) error {
	b := in.Body
	h, err := a.Workflows.Resume(r.Context(), workflow.ResumeRequest{WorkflowID: in.ID, ThreadID: b.ThreadID, Name: b.Name, Value: b.Resume,
		AllowVersionMismatch: b.AllowVersionMismatch, By: c.Principal.Name(), Also: a.keep(c, "", in.Wait),
		MayApprove: func() error {
			return gate.Covered(c.Principal, auth.Scope{Resource: "workflows", Action: "approve", Target: in.ID})
		}})
	if err != nil {
		return err
	}
	return a.answer(w, r, c, h, in.Wait)
}

func (a *Workflows) retry(w http.ResponseWriter, r *http.Request, c Call, in moving[RetryBody]) error {
	h, err := a.Workflows.Retry(r.Context(), workflow.RetryRequest{WorkflowID: in.ID, ThreadID: in.Body.ThreadID, AllowVersionMismatch: in.Body.AllowVersionMismatch,
		By: c.Principal.Name(), Lineage: c.Principal.Lineage(), Also: a.keep(c, "", in.Wait)})
	if err != nil {
		return err
	}
	return a.answer(w, r, c, h, in.Wait)
}

func (a *Workflows) tick(ctx context.Context, c Call, in struct {
	ID   string `path:"id" doc:"The workflow's id."`
	Body TickBody
}) (TickAnswer, error) {
	fired, next, err := a.Workflows.Tick(ctx, in.ID, in.Body.ThreadID)
	c.Request.On("", map[string]any{"threadId": clip(in.Body.ThreadID), "fired": fired})
	answer := TickAnswer{WorkflowID: in.ID, ThreadID: in.Body.ThreadID, Fired: fired}
	if next > 0 {
		answer.NextWakeAt, answer.NextWakeAtISO = &next, new(message.Millis(next))
	}
	return answer, err
}

func (a *Workflows) state(ctx context.Context, _ Call, in threadQuery) (WorkflowState, error) {
	if err := in.named(); err != nil {
		return WorkflowState{}, err
	}
	s, err := a.Workflows.State(ctx, in.ID, in.ThreadID)
	if err != nil {
		return WorkflowState{}, err
	}
	state := ThreadState{ThreadState: *s}
	if len(s.PendingPauses) > 0 {
		state.PendingPause = &s.PendingPauses[0]
	}
	return WorkflowState{WorkflowID: in.ID, ThreadID: in.ThreadID, State: state}, nil
}

func (a *Workflows) checkpoints(ctx context.Context, _ Call, in struct {
	threadQuery
	Limit  int    `query:"limit" check:"1..1000" doc:"Default 100."`
	Cursor string `query:"cursor" check:"1.." doc:"nextCursor of the previous page."`
}) (Checkpoints, error) {
	before, err := before(in.Cursor)
	if err = cmp.Or(in.named(), err); err != nil {
		return Checkpoints{}, err
	}
	list, next, err := a.Workflows.Checkpoints(ctx, in.ID, in.ThreadID, cmp.Or(in.Limit, 100), int(before))
	return Checkpoints{WorkflowID: in.ID, ThreadID: in.ThreadID, Checkpoints: list, NextCursor: nextCursor(int64(next))}, err
}

func (a *Workflows) threads(ctx context.Context, _ Call, in struct {
	ID        string `path:"id" doc:"The workflow's id."`
	Status    string `query:"status" enum:"running|suspended|awaiting_approval|completed|failed|aborted"`
	SessionID string `query:"sessionId"`
	Blocked   bool   `query:"blocked" doc:"Only threads that are due and cannot continue before somebody resumes them."`
	Limit     int    `query:"limit" check:"1..1000" doc:"Default 100."`
	Cursor    string `query:"cursor" check:"1.." doc:"nextCursor of the previous page."`
}) (ThreadList, error) {
	before, err := before(in.Cursor)
	if err != nil {
		return ThreadList{}, err
	}
	list, next, err := a.Workflows.Threads(ctx, workflow.ThreadFilter{Workflow: in.ID, Status: store.Status(in.Status), SessionID: in.SessionID,
		Blocked: in.Blocked, Before: before, Limit: in.Limit})
	if err == nil && len(list) == 0 {
		_, err = a.get(in.ID)
	}
	return ThreadList{Threads: list, NextCursor: nextCursor(next)}, err
}

func (a *Workflows) erase(ctx context.Context, c Call, in struct {
	ID       string `path:"id" doc:"The workflow's id."`
	ThreadID string `path:"threadId"`
}) (none, error) {
	err := a.Workflows.Delete(ctx, in.ID, in.ThreadID, func(tx *store.Tx) error { return c.Keep(tx, store.KeyRecord{Status: http.StatusNoContent}, nil) })
	if fault.Is(err, fault.ThreadNotFound) {
		return none{}, nil
	}
	if err == nil && a.Keys != nil {
		a.Keys.Forget()
	}
	return none{}, err
}
