package rest

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
	"agentd/triggers"
)

// TriggerList is the answer of GET /triggers.
type TriggerList struct {
	Triggers []triggers.State `json:"triggers"`
}

// TriggerAnswer is the answer of GET /triggers/{id}.
type TriggerAnswer struct {
	Trigger triggers.State `json:"trigger"`
}

// TriggerChanged is the answer to a request that enables or disables a trigger.
type TriggerChanged struct {
	OK      bool           `json:"ok"`
	Trigger triggers.State `json:"trigger"`
}

// TriggerFired is the answer of POST /triggers/{id}/fire.
type TriggerFired struct {
	OK       bool   `json:"ok"`
	Fired    string `json:"fired" doc:"Id of the trigger."`
	FiringID string `json:"firingId" doc:"Id of the firing in the ledger."`
	Outcome  string `json:"outcome" enum:"fired|queued|skipped|failed" doc:"fired: a run began. queued: it begins when the run before it has ended. skipped: a run is in progress, or the queue is full. failed: no run could begin."`
	Reason   string `json:"reason,omitempty" doc:"Why no run began."`
	RunID    string `json:"runId,omitempty" doc:"The run that began."`
}

// TriggerRemoved is the answer of DELETE /triggers/{id}.
type TriggerRemoved struct {
	OK      bool   `json:"ok"`
	Removed string `json:"removed"`
}

// PruneBody says which triggers to delete.
type PruneBody struct {
	Disabled *bool `json:"disabled,omitempty" doc:"Delete the triggers that are disabled. Default: true."`
	Orphaned bool  `json:"orphaned,omitempty" doc:"Delete the triggers that are not declared any more."`
}

// TriggersPruned is the answer of POST /triggers/prune.
type TriggersPruned struct {
	OK       bool     `json:"ok"`
	Removed  []string `json:"removed" doc:"Ids of the triggers."`
	Count    int      `json:"count"`
	Disabled bool     `json:"disabled" doc:"As asked for, or by default."`
	Orphaned bool     `json:"orphaned"`
}

// FiringList is the answer of GET /triggers/{id}/firings.
type FiringList struct {
	Firings    []triggers.Firing `json:"firings"`
	NextCursor string            `json:"nextCursor,omitempty" doc:"Send it as cursor for the next page. Absent on the last page."`
}

// DueList is the answer of GET /triggers/{id}/next.
type DueList struct {
	Dues []string `json:"dues" doc:"Times in UTC. Jitter, which moves the start of a firing, is not in them."`
}

// EmitBody is an event.
type EmitBody struct {
	ID   string          `json:"id,omitempty" check:"1..256" doc:"Id of the event. A trigger fires once for an id and the principal that emits it, as long as the ledger keeps the firing. Default: the server chooses one."`
	Data json.RawMessage `json:"data,omitempty" doc:"What expressions of triggers read as event. Default: null."`
}

type triggerInput struct {
	ID string `path:"id" doc:"The trigger's id."`
}

// Triggers is the routes of triggers and events.
type Triggers struct{ Engine *triggers.Engine }

// Routes are the rows of the table.
func (a *Triggers) Routes() []Route {
	row := func(rt Route) Route {
		rt.Path = "/triggers/{id}" + rt.Path
		if rt.Action != "" {
			rt.Target = "trigger:{id}"
		}
		rt.Errors = append([]*fault.Kind{fault.TriggerNotFound}, rt.Errors...)
		return rt
	}
	return []Route{
		{Method: "GET", Path: "/triggers", Access: "triggers:read", Summary: "List the triggers.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (TriggerList, error) {
				return TriggerList{a.Engine.List()}, nil
			})},
		row(Route{Method: "GET", Access: "triggers:read:{id}", Summary: "Show a trigger.",
			Endpoint: call(http.StatusOK, func(_ context.Context, _ Call, in triggerInput) (TriggerAnswer, error) {
				s, err := a.Engine.Get(in.ID)
				return TriggerAnswer{s}, err
			})}),
		row(Route{Method: "POST", Path: "/fire", Access: "triggers:fire:{id}", Action: audit.TriggerFire, Starts: true,
			Summary: "Fire a trigger now, beside its schedule. The answer comes once the firing is durable; a body is ignored.",
			Errors:  []*fault.Kind{fault.TriggerNotFirable, fault.Overloaded}, Endpoint: call(http.StatusOK, a.fire)}),
		row(Route{Method: "POST", Path: "/disable", Access: "triggers:disable:{id}", Action: audit.TriggerDisable,
			Summary: "Disable a trigger. It stays disabled after a restart. Firings in its queue wait until it is enabled.", Endpoint: call(http.StatusOK, a.switched(true))}),
		row(Route{Method: "POST", Path: "/enable", Access: "triggers:disable:{id}", Action: audit.TriggerEnable,
			Summary: "Enable a trigger. Dues from the time when it was disabled do not fire.", Endpoint: call(http.StatusOK, a.switched(false))}),
		row(Route{Method: "DELETE", Access: "triggers:disable:{id}", Action: audit.TriggerDelete,
			Summary: "Delete a trigger with its firings. One that is still declared is back after the next start, as if new.", Endpoint: call(http.StatusOK, a.remove)}),
		row(Route{Method: "GET", Path: "/firings", Access: "triggers:read:{id}", Summary: "List the firings of a trigger, newest first.", Endpoint: call(http.StatusOK, a.firings)}),
		row(Route{Method: "GET", Path: "/next", Access: "triggers:read:{id}", Summary: "List the next dues of a trigger.", Endpoint: call(http.StatusOK, a.next)}),
		{Method: "POST", Path: "/triggers/prune", Access: "triggers:disable", Action: audit.TriggerPrune, Target: "triggers",
			Summary: "Delete all triggers that are disabled, or not declared any more.", Endpoint: call(http.StatusOK, a.prune)},
		{Method: "POST", Path: "/events/{name}", Access: "triggers:emit:{name}", Action: audit.EventEmit, Target: "event:{name}", Starts: true,
			Summary: "Emit an event. The answer comes once all firings are durable.", Errors: []*fault.Kind{fault.Overloaded},
			Endpoint: call(http.StatusOK, a.emit)},
	}
}

func (a *Triggers) fire(ctx context.Context, c Call, in triggerInput) (TriggerFired, error) {
	answer := func(f triggers.Firing) TriggerFired {
		return TriggerFired{OK: true, Fired: in.ID, FiringID: f.ID, Outcome: f.Outcome, Reason: f.Reason, RunID: f.RunID}
	}
	f, err := a.Engine.Fire(ctx, triggers.FireRequest{ID: in.ID, By: c.Principal.Name(), Also: func(tx *store.Tx, f triggers.Firing) error {
		c.Request.Concerns(f.RunID, "")
		c.Request.Did("trigger:"+in.ID, map[string]any{"outcome": f.Outcome, "firingId": f.ID})
		return c.Keep(tx, store.KeyRecord{Run: f.RunID, Bound: f.RunID != "", Status: http.StatusOK}, answer(f))
	}})
	return answer(f), err
}

// switched is the endpoint that disables a trigger, or enables it.
func (a *Triggers) switched(disabled bool) func(context.Context, Call, triggerInput) (TriggerChanged, error) {
	return func(ctx context.Context, c Call, in triggerInput) (TriggerChanged, error) {
		s, err := a.Engine.SetDisabled(ctx, in.ID, disabled, func(tx *store.Tx, s triggers.State) error {
			return c.Keep(tx, store.KeyRecord{Status: http.StatusOK}, TriggerChanged{true, s})
		})
		return TriggerChanged{true, s}, err
	}
}

func (a *Triggers) remove(ctx context.Context, c Call, in triggerInput) (TriggerRemoved, error) {
	answer := TriggerRemoved{true, in.ID}
	return answer, a.Engine.Remove(ctx, in.ID, func(tx *store.Tx) error { return c.Keep(tx, store.KeyRecord{Status: http.StatusOK}, answer) })
}

func (a *Triggers) prune(ctx context.Context, c Call, in struct{ Body PruneBody }) (answer TriggersPruned, err error) {
	disabled, orphaned := in.Body.Disabled == nil || *in.Body.Disabled, in.Body.Orphaned
	_, err = a.Engine.Prune(ctx, disabled, orphaned, func(tx *store.Tx, p triggers.Pruned) error {
		all := slices.Sorted(slices.Values(slices.Concat(p.Disabled, p.Orphaned)))
		answer = TriggersPruned{OK: true, Removed: append([]string{}, all...), Count: len(all), Disabled: disabled, Orphaned: orphaned}
		c.Request.On("", map[string]any{"disabled": disabled, "orphaned": orphaned, "count": len(all)})
		return c.Keep(tx, store.KeyRecord{Status: http.StatusOK}, answer)
	})
	return answer, err
}

func (a *Triggers) firings(ctx context.Context, _ Call, in struct {
	triggerInput
	Limit  int    `query:"limit" check:"1..1000" doc:"Default 100."`
	Cursor string `query:"cursor" check:"1.." doc:"nextCursor of the previous page."`
}) (FiringList, error) {
	before, err := before(in.Cursor)
	if err != nil {
		return FiringList{}, err
	}
	list, next, err := a.Engine.Firings(ctx, in.ID, before, cmp.Or(in.Limit, 100))
	return FiringList{Firings: list, NextCursor: nextCursor(next)}, err
}

func (a *Triggers) next(_ context.Context, _ Call, in struct {
	triggerInput
	N int `query:"n" check:"1..1000" doc:"Default 10."`
}) (DueList, error) {
	dues, err := a.Engine.Next(in.ID, cmp.Or(in.N, 10))
	list := DueList{Dues: []string{}}
	for _, due := range dues {
		list.Dues = append(list.Dues, message.Millis(due.UnixMilli()))
	}
	return list, err
}

func (a *Triggers) emit(ctx context.Context, c Call, in struct {
	Name string `path:"name" doc:"Name of the event."`
	Body EmitBody
}) (triggers.Emitted, error) {
	return emit(ctx, a.Engine, c, triggers.Event{Name: in.Name, ID: cmp.Or(in.Body.ID, c.Key.ID()), Data: in.Body.Data})
}

// emit emits an event for the principal of a call. The event's id, not a transaction, keeps it from firing twice. It is in the audit
// chain with its first firings. A client that leaves does not keep the triggers from firing.
func emit(ctx context.Context, engine *triggers.Engine, c Call, ev triggers.Event) (triggers.Emitted, error) {
	did := func(id string) { c.Request.Did("event:"+ev.Name, map[string]any{"eventId": id}) }
	ev.By, ev.Emitter = c.Principal.Name(), c.Principal.Lineage()
	ev.Also = func(tx *store.Tx, id string) error {
		did(id)
		return c.Request.Commit(tx, 0)
	}
	e, err := engine.Emit(context.WithoutCancel(ctx), ev)
	if err == nil {
		did(e.ID)
	}
	return e, err
}
