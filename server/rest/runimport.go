package rest

import (
	"cmp"
	"context"
	"net/http"
	"reflect"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/runstate"
	"agentd/server/takeover"
	"agentd/store"
)

// RunImport is the result of the import of a run.
type RunImport struct {
	RunID     string       `json:"runId"`
	Status    store.Status `json:"status" enum:"awaiting_approval|completed|failed|aborted"`
	SessionID string       `json:"sessionId,omitempty"`
	Children  int          `json:"children" doc:"Imported child runs, at all depths."`
	Warnings  []string     `json:"warnings" doc:"What the import omits from the state, and why."`
}

// runImportOf is the wire form of what an import made.
func runImportOf(v takeover.Imported) RunImport { return RunImport(v) }

func (a *Runs) importRoute() Route {
	return Route{Method: "POST", Path: "/runs/import", Access: "runs:import", Action: audit.RunImport, Target: "run", Starts: true, Takes: reflect.TypeFor[runstate.State](),
		Summary: "Take over a run that has ended or waits for approvals, from its state (`svc-run-state` 1.x). The token also needs agents:invoke for the state's agent, for the agents of its child runs, and for the agents that waiting calls would call.",
		Errors: []*fault.Kind{fault.RunStateMalformed, fault.RunStateVersionUnsupported, fault.RunStateUnfit, fault.RunExists, fault.SessionExists,
			fault.SessionBusy, fault.Overloaded},
		Endpoint: call(http.StatusCreated, a.importRun)}
}

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
			return c.Key.Keep(tx, store.KeyRecord{Run: v.RunID, Session: v.SessionID, Status: http.StatusCreated}, runImportOf(v))
		}})
	if err == nil {
		c.Request.Concerns(made.RunID, made.SessionID)
		c.Request.Did("run:"+made.RunID, map[string]any{"agentId": st.AgentID})
	}
	return runImportOf(made), err
}
