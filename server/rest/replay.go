package rest

import (
	"context"
	"net/http"

	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/openapi"
	"agentd/server/trace"
)

// ReplayBody says how recorded spans are replayed.
type ReplayBody struct {
	Raw           bool   `json:"raw,omitempty" doc:"Return everything, including what was said. Default: only public attributes."`
	FromMessageID string `json:"fromMessageId,omitempty" check:"1.." doc:"Begin with the first span that is not older than this message of the run or session."`
	Provider      string `json:"provider,omitempty" check:"1.." doc:"Among spans of model calls, only those to this provider."`
	Cursor        string `json:"cursor,omitempty" check:"1.." doc:"nextCursor of the previous page. The page shows only spans that began later; a span that was still open may be missing."`
	Limit         int    `json:"limit,omitempty" check:"1..1000" doc:"Spans in the answer. Default 1000."`
}

// Spans is the routes of recorded spans.
type Spans struct {
	Traces  *trace.Service
	Version string // of the program
}

// Routes are the rows of the table.
func (a *Spans) Routes() []Route {
	return []Route{
		replays(a, "/runs/{runId}", "run:{runId}", fault.RunNotFound, "a run and its descendants",
			func(in replayRun) (trace.Target, ReplayBody) { return trace.Target{RunID: in.RunID}, in.Body }),
		replays(a, "/sessions/{id}", "session:{id}", fault.SessionNotFound, "all runs of a session",
			func(in replaySession) (trace.Target, ReplayBody) { return trace.Target{SessionID: in.ID}, in.Body }),
		{Method: "GET", Path: "/spans/export", Access: sanitised, Action: audit.ReplayGranted, Refused: audit.ReplayDenied, Target: "spans",
			Summary:  "Export recorded spans for OpenTelemetry: of all runs, of a run and its descendants, or of a session. Only public attributes.",
			Errors:   []*fault.Kind{fault.RunNotFound, fault.SessionNotFound},
			Answers:  []openapi.Response{{Status: 200, ContentType: ndjson, Description: "OTLP in JSON: each line is an ExportTraceServiceRequest."}},
			Endpoint: streamed(a.export)},
	}
}

// SpanQuery is the query of GET /spans/export.
type SpanQuery struct {
	RunID     string `query:"runId" check:"1.." doc:"Only the spans of this run and its descendants."`
	SessionID string `query:"sessionId" check:"1.." doc:"Only the spans of this session's runs. Not together with runId."`
	Since     string `query:"since" doc:"Spans that ended since then: milliseconds since 1970, or a date such as 2026-01-31 or 2026-01-31T12:00:00Z."`
	Until     string `query:"until" doc:"Spans that ended before this time, in the same form."`
}

func (a *Spans) export(w http.ResponseWriter, r *http.Request, _ Call, in SpanQuery) error {
	sel := trace.Selection{Target: trace.Target{RunID: in.RunID, SessionID: in.SessionID}}
	issues := times(bound{"since", in.Since, &sel.Since}, bound{"until", in.Until, &sel.Until})
	if in.RunID != "" && in.SessionID != "" {
		issues = append(issues, fault.At("cannot be combined with runId", "sessionId"))
	}
	if issues != nil {
		return fault.Invalid("The request is not valid.", issues...)
	}
	if in.Until != "" && sel.Until == 0 {
		sel.Until = -1 // nothing is as old as that, and 0 is no bound
	}
	out := newDownload(w, ndjson)
	err := a.Traces.Export(r.Context(), out, sel, a.Version)
	if err == nil && !out.begun {
		_, err = out.Write(nil)
	}
	return err
}

type replayRun struct {
	RunID string `path:"runId"`
	Body  ReplayBody
}

type replaySession struct {
	ID   string `path:"id"`
	Body ReplayBody
}

func (in replayRun) access() Access     { return in.Body.access() }
func (in replaySession) access() Access { return in.Body.access() }

const (
	sanitised Access = "traces:read:sanitized"
	raw       Access = "traces:read:raw"
)

func (b *ReplayBody) access() Access {
	if b.Raw {
		return raw
	}
	return sanitised
}

func replays[In chooser](a *Spans, path, target string, missing *fault.Kind, of string, what func(In) (trace.Target, ReplayBody)) Route {
	return Route{Method: "POST", Path: path + "/replay", Access: sanitised + byBody + raw + " with raw: true",
		Action: audit.ReplayGranted, Refused: audit.ReplayDenied, Target: target, Errors: []*fault.Kind{missing},
		Summary: "Replay the recorded spans of " + of + ". A replay calls and changes nothing.",
		Endpoint: call(http.StatusOK, func(ctx context.Context, c Call, in In) (trace.Replay, error) {
			t, b := what(in)
			got, err := a.Traces.Replay(ctx, t, trace.Options{Raw: b.Raw, FromMessageID: b.FromMessageID, Provider: b.Provider, Cursor: b.Cursor, Limit: b.Limit})
			c.Request.On("", map[string]any{"mode": got.Mode, "eventCount": len(got.Events)})
			return got, err
		})}
}
