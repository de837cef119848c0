package rest

import (
	"context"
	"encoding/json"
	"net/http"

	"agentd/auth"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// DecisionBody is a person's word on one tool call.
type DecisionBody struct {
	ToolCallID       string `json:"toolCallId" check:"required"`
	Granted          bool   `json:"granted" check:"required"`
	Reason           string `json:"reason,omitempty" doc:"The reason, which the model learns if the call is denied."`
	SubRunToolCallID string `json:"subRunToolCallId,omitempty" check:"1.." doc:"As in the pending approval, for a call of a child run."`
	Again            bool   `json:"again,omitempty" doc:"Allow a call that may already have taken effect to be made once more. Without it, the server refuses to grant an approval with the reason outcome-unknown."`

	Args   json.RawMessage `json:"args,omitempty" doc:"Arguments for the call instead of the requested ones, if the tool's approval has edit. They must fit the tool's schema and the agent's permissions."`
	Result json.RawMessage `json:"result,omitempty" doc:"What a call of a workflow has given of which nobody knew the outcome: a person has found out, and denies that it is made again."`
}

// ResumeBody is decisions on what a run waits for.
type ResumeBody struct {
	Approvals []DecisionBody `json:"approvals,omitempty" check:"1..1000"`
	Directive *Directive     `json:"directive,omitempty" doc:"The older form of the same."`
}

// Directive wraps decisions, as older clients send them.
type Directive struct {
	Approvals []DecisionBody `json:"approvals" check:"required 1..1000"`
}

// ApprovalList is the answer of GET /approvals.
type ApprovalList struct {
	Approvals []journal.Waiting `json:"approvals"`
}

// Approvals is the routes of decisions on tool calls.
type Approvals struct{ Runs *Runs }

// Routes are the rows of the table.
func (a *Approvals) Routes() []Route {
	return []Route{
		{Method: "GET", Path: "/approvals", Access: "agents:read or workflows:read",
			Summary:  "List what waits for a decision, oldest run first, of the agents and workflows that the token may read.",
			Endpoint: call(http.StatusOK, a.listApprovals)},
		{Method: "POST", Path: "/runs/{runId}/resume", Access: "agents:approve:" + ofOwner, Action: audit.RunResume, Target: "run:{runId}", Starts: true, Again: a.Runs.again,
			Summary: "Decide on the waiting tool calls of a run, and wait until the run ends or waits again. A decision on a call of a child run also requires agents:approve for the child's agent.",
			Errors:  []*fault.Kind{fault.RunNotSuspended, fault.ApprovalNotWaiting, fault.OutcomeUnknown, fault.CallAltered, fault.EditRefused, fault.RunConflict, fault.AgentNotFound, fault.AgentChanged, fault.ApproverRefused, fault.RunIsChild, fault.RunAborted, fault.RunFailed},
			Exists: func(r *http.Request) error {
				_, err := a.Runs.Engine.Suspended(r.Context(), r.PathValue("runId"))
				return err
			},
			Endpoint: call(http.StatusOK, a.resumeRun)},
	}
}

func (a *Approvals) listApprovals(ctx context.Context, c Call, _ struct{}) (ApprovalList, error) {
	list, err := a.Runs.Engine.Approvals(ctx, readable(c.Principal, "agents"), readable(c.Principal, "workflows"))
	return ApprovalList{Approvals: list}, err
}

type resumeInput struct {
	RunID string `path:"runId"`
	Body  ResumeBody
}

func (a *Approvals) resumeRun(ctx context.Context, c Call, in resumeInput) (RunAnswer, error) {
	bodies := in.Body.Approvals
	if in.Body.Directive != nil {
		bodies = append(bodies, in.Body.Directive.Approvals...)
	}
	if len(bodies) == 0 {
		return RunAnswer{}, fault.Invalid("The request is not valid.", fault.At("is required", "approvals"))
	}
	decisions := make([]run.Decision, len(bodies))
	for i, b := range bodies {
		decisions[i] = run.Decision(b)
	}
	if err := a.mayDecide(ctx, c.Principal, in.RunID, decisions); err != nil {
		return RunAnswer{}, err
	}
	var decided []run.Verdict
	h, unmatched, err := a.Runs.Engine.Resume(ctx, in.RunID, decisions, c.Principal.Name(), func(tx *store.Tx, made []run.Verdict, unmatched []run.Decision) error {
		decided = made
		c.Request.Did("run:"+in.RunID, nil)
		return c.Keep(tx, store.KeyRecord{Run: in.RunID, Bound: true}, unmatchedBody{decisionBodies(unmatched)})
	})
	if err != nil {
		return RunAnswer{}, err
	}
	c.weight.started(false)
	recordDecisions(c.Request, in.RunID, decided)
	var res agent.RunResult
	if c.Run.Kind == store.Workflow {
		res, err = a.Runs.outcome(ctx, in.RunID)
	} else if h == nil {
		res, err = a.Runs.Engine.Result(ctx, in.RunID)
	} else {
		res, err = h.Wait(ctx)
	}
	if err != nil {
		return RunAnswer{}, err
	}
	answer, err := answerOf(c.Principal, in.RunID, res)
	answer.Unmatched = decisionBodies(unmatched)
	return answer, err
}

// mayDecide checks that a principal may decide on calls of child runs: who may decide for the root run's agent may not thereby
// decide for every agent that it calls.
func (a *Approvals) mayDecide(ctx context.Context, p auth.Principal, runID string, decisions []run.Decision) error {
	var paths []string
	for _, d := range decisions {
		if d.SubRunToolCallID != "" {
			paths = append(paths, d.SubRunToolCallID)
		}
	}
	if paths == nil {
		return nil
	}
	owners, err := a.Runs.Engine.Askers(ctx, runID, paths)
	if err != nil {
		return err
	}
	for _, of := range owners {
		resource := "agents"
		if of.Kind == store.Workflow {
			resource = "workflows"
		}
		if err := gate.Covered(p, auth.Scope{Resource: resource, Action: "approve", Target: of.Owner}); err != nil {
			return err
		}
	}
	return nil
}

// maxDecisions is roughly how many bytes of decisions an entry of the audit chain holds. Models choose the ids of calls, so
// nothing else bounds them.
const maxDecisions = 24 << 10

// recordDecisions adds the final decisions of a request to its entry in the audit chain, so that the chain shows who decided
// even where tool events are not recorded. The entry counts the decisions that would make it too long.
func recordDecisions(q *gate.Request, runID string, decided []run.Verdict) {
	listed, size := []any{}, 0
	for _, v := range decided {
		id, err := message.Encode(v.ToolCallID)
		if size += len(id) + len(v.Reason) + 300; err != nil || size > maxDecisions {
			break
		}
		d := map[string]any{"toolCallId": v.ToolCallID, "toolName": v.ToolName, "argsDigest": v.ArgsDigest, "granted": v.Granted}
		if v.Reason != "" {
			d["reason"] = v.Reason
		}
		if v.RunID != runID {
			d["runId"] = v.RunID
		}
		listed = append(listed, d)
	}
	if len(listed) > 0 {
		q.Fact("decisions", listed)
	}
	if rest := len(decided) - len(listed); rest > 0 {
		q.Fact("decisionsOmitted", rest)
	}
}

// unmatchedBody is the part of the answer to a resumption that does not follow from the run.
type unmatchedBody struct {
	Unmatched []DecisionBody `json:"unmatched,omitempty"`
}

func decisionBodies(list []run.Decision) (bodies []DecisionBody) {
	for _, d := range list {
		bodies = append(bodies, DecisionBody(d))
	}
	return bodies
}
