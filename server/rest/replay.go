package rest

import (
	"context"
	"net/http"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/trace"
)

// ReplayBody says how recorded spans are replayed.
type ReplayBody struct {
	Raw           bool   `json:"raw,omitempty" doc:"Everything, with what was said in the spans. Default: only what is public."`
	FromMessageID string `json:"fromMessageId,omitempty" check:"1.." doc:"Begin with the first span that is not older than this message of the run or session."`
	Provider      string `json:"provider,omitempty" check:"1.." doc:"Of the spans of model calls, only those to this provider."`
	Cursor        string `json:"cursor,omitempty" check:"1.." doc:"nextCursor of the page before. Only spans that began after that one: of a run that has not ended, others may have come before it since."`
	Limit         int    `json:"limit,omitempty" check:"1..1000" doc:"Spans in the answer. Default 1000."`
}

// Spans is the routes of recorded spans.
type Spans struct{ Traces *trace.Service }

// Routes are the rows of the table.
func (a *Spans) Routes() []Route {
	access := ScopeByFlag(ScopeTo("traces", "read", "sanitized"), "raw", ScopeTo("traces", "read", "raw"))
	return []Route{
		{Method: "POST", Path: "/runs/{runId}/replay", Access: access, Action: audit.ReplayGranted, Target: "run:{runId}", Refused: audit.ReplayDenied,
			Summary: "Replay the recorded spans of a run and its descendants. A replay calls and changes nothing.",
			Errors:  []*fault.Kind{fault.RunNotFound},
			Endpoint: call(http.StatusOK, func(ctx context.Context, c Call, in struct {
				RunID string `path:"runId"`
				Body  ReplayBody
			}) (trace.Replay, error) {
				return a.replay(ctx, c, trace.Target{RunID: in.RunID}, in.Body)
			})},
		{Method: "POST", Path: "/sessions/{id}/replay", Access: access, Action: audit.ReplayGranted, Target: "session:{id}", Refused: audit.ReplayDenied,
			Summary: "Replay the recorded spans of all runs of a session. A replay calls and changes nothing.",
			Errors:  []*fault.Kind{fault.SessionNotFound},
			Endpoint: call(http.StatusOK, func(ctx context.Context, c Call, in struct {
				ID   string `path:"id"`
				Body ReplayBody
			}) (trace.Replay, error) {
				return a.replay(ctx, c, trace.Target{SessionID: in.ID}, in.Body)
			})},
	}
}

// replay answers both routes.
func (a *Spans) replay(ctx context.Context, c Call, target trace.Target, b ReplayBody) (trace.Replay, error) {
	got, err := a.Traces.Replay(ctx, target, trace.Options{Raw: b.Raw, FromMessageID: b.FromMessageID, Provider: b.Provider, Cursor: b.Cursor, Limit: b.Limit})
	c.Request.Details(map[string]any{"mode": got.Mode, "eventCount": len(got.Events)})
	return got, err
}
