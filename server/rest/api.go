package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"time"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/health"
	"agentd/server/idem"
	"agentd/server/openapi"
	"agentd/server/secret"
	"agentd/server/session"
	"agentd/server/stream"
	"agentd/server/trace"
)

// API is what the endpoints work with.
type API struct {
	Agents   *agent.Registry
	Engine   *agent.Engine
	Sessions *session.Service
	Traces   *trace.Service
	Issuer   *auth.Issuer // nil with auth.kind=none: there are no token routes
	Health   *health.Rollup
	Secrets  secret.Report
	Metrics  *metrics.Inventory // nil: no metrics route
	Streams  *stream.Service
	SSE      bool   // there are event streams
	WSPath   string // of the upgrade; empty: there is none
	Tickets  *auth.Tickets
	Keys     *idem.Keys // nil: an Idempotency-Key is not looked at
	Audit    *audit.Log // nil: nothing is recorded, and there are no audit routes
	Version  string
	BasePath string
	MaxBody  int64

	MetricsPath   string
	MetricsScoped bool // the metrics route needs admin:metrics:read

	SSESessions string // path of the session streams' parent, "/sessions"
	BufferTTL   time.Duration

	// Record writes the entry of what is done over a WebSocket.
	Record func(ctx context.Context, p auth.Principal, r audit.Record, refused error) error

	AuditCheckpoints string // the file of the chain's checkpoints

	bodies *bodies // of the requests under way; made by Mount
}

// Routes is the table.
func (a *API) Routes() []Route {
	routes := a.agentRoutes()
	routes = append(routes, a.runRoutes()...)
	routes = append(routes, a.approvalRoutes()...)
	routes = append(routes, a.sessionRoutes()...)
	routes = append(routes, a.replayRoutes()...)
	routes = append(routes, a.realtimeRoutes()...)
	if a.Issuer != nil {
		routes = append(routes, a.tokenRoutes()...)
	}
	if a.Audit != nil {
		routes = append(routes, a.auditRoutes()...)
	}
	return append(routes, a.systemRoutes()...)
}

// Document is the OpenAPI document of the table.
func (a *API) Document() []byte {
	return openapi.Document(openapi.Info{Title: "agentd", Version: a.Version, BasePath: a.BasePath, Tags: tags,
		Components:  []reflect.Type{reflect.TypeFor[event.Event](), reflect.TypeFor[agent.CallError](), reflect.TypeFor[RunInput]()},
		Description: "Hosts AI agents: durable runs, live events, sessions and tokens."}, a.operations())
}

// Markdown is the table as documentation.
func (a *API) Markdown() string { return openapi.Markdown(a.operations()) }

func (a *API) operations() []openapi.Operation {
	var ops []openapi.Operation
	for _, rt := range a.Routes() {
		op := openapi.Operation{Method: rt.Method, Path: rt.Path, Summary: rt.Summary, Tag: tag(rt.Path), Effects: rt.Effects, Keyed: a.takesKey(rt),
			Public: rt.Access.kind == public, Access: rt.Access.String(), Responses: rt.Answers}
		if rt.Endpoint.out != nil {
			out := rt.Endpoint.out
			res := openapi.Response{Status: rt.Endpoint.status, Type: out, Description: "Success."}
			if out == reflect.TypeFor[none]() {
				res.Type = nil
			}
			op.Responses = append([]openapi.Response{res}, op.Responses...)
		}
		op.Params, op.Body, op.BodyType = inputs(rt.Endpoint.in)
		if rt.Takes != nil {
			op.Body, op.BodyType = rt.Takes, ""
		}
		op.Errors = errorsOf(rt)
		if op.Keyed {
			op.Errors = append(op.Errors, fault.IdempotencyKeyRequired, fault.IdempotencyConflict, fault.IdempotencyInFlight)
		}
		ops = append(ops, op)
	}
	return ops
}

// errorsOf adds to a row's own errors those that follow from its access.
func errorsOf(rt Route) []*fault.Kind {
	kinds := []*fault.Kind{fault.OriginDenied, fault.ConfigInvalid}
	if rt.Access.kind != public && rt.Access.kind != upgrade {
		kinds = append(kinds, fault.AuthRequired, fault.AuthInvalid, fault.AuthRevoked, fault.AuthExpired, fault.AuthLockedOut, fault.Overloaded,
			fault.AuditUnavailable)
		if rt.Access.kind != anyone {
			kinds = append(kinds, fault.ScopeDenied)
		}
	}
	if !rt.Probe {
		kinds = append(kinds, fault.RateLimited)
	}
	if rt.Access.kind != public && rt.Effects {
		kinds = append(kinds, fault.CSRFDenied)
	}
	if rt.Access.kind == runOwner {
		kinds = append(kinds, fault.RunNotFound)
	}
	if rt.Effects {
		kinds = append(kinds, fault.BodyTooLarge, fault.StorageFailed)
	}
	if rt.Starts {
		kinds = append(kinds, fault.ServerDraining)
	}
	for _, k := range rt.Errors {
		if !has(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	if rt.Access.kind != public {
		kinds = append(kinds, fault.StorageCorrupt)
	}
	return append(kinds, fault.Internal)
}

func has(kinds []*fault.Kind, k *fault.Kind) bool {
	for _, have := range kinds {
		if have == k {
			return true
		}
	}
	return false
}

// inputs describes an input struct. The body's media type is empty for JSON.
func inputs(t reflect.Type) (params []openapi.Param, body reflect.Type, media string) {
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case f.Tag.Get("path") != "":
			params = append(params, openapi.Param{In: "path", Name: f.Tag.Get("path"), Type: f.Type, Required: true, Doc: f.Tag.Get("doc")})
		case f.Tag.Get("query") != "":
			params = append(params, openapi.Param{In: "query", Name: f.Tag.Get("query"), Type: f.Type, Doc: f.Tag.Get("doc")})
		case f.Name == "Body":
			body, media = f.Type, f.Tag.Get("content")
		}
	}
	return params, body, media
}

// tags say what the routes with a first segment are about.
var tags = map[string]string{
	"agents":    "The registered agents, and how to run them.",
	"runs":      "Runs: their state and events, and decisions on them.",
	"approvals": "What waits for a person.",
	"sessions":  "Conversations: transcripts, exports and events.",
	"session":   "Tickets for connections that cannot carry a token.",
	"tokens":    "Bearer tokens.",
	"audit":     "The audit chain.",
	"health":    "How the server is.",
	"openapi":   "This document.",
	"metrics":   "Figures in the text exposition format.",
	"ws":        "The WebSocket transport.",
	"system":    "Routes whose paths the configuration sets.",
}

// tag is the first segment of a path, or system where the configuration has chosen that.
func tag(path string) string {
	name, _, _ := strings.Cut(path[1:], "/")
	name, _, _ = strings.Cut(name, ".")
	if tags[name] == "" {
		return "system"
	}
	return name
}

func (a *API) systemRoutes() []Route {
	routes := []Route{
		{Method: "GET", Path: "/health", Access: Public(), Probe: true, Summary: "Show the health of every part; 503 if one fails.",
			Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[health.Report](), Description: "All parts work, or one warns."},
				{Status: 503, Type: reflect.TypeFor[health.Report](), Description: "A part fails."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
				report, status := a.Health.Report(r.Context())
				gate.JSON(w, status, report)
				return nil
			})},
		{Method: "GET", Path: "/health/secrets", Access: Scope("secrets", "read"), Summary: "Show which store of secrets is active, and why.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (secret.Report, error) { return a.Secrets, nil })},
		{Method: "GET", Path: "/openapi.json", Access: Public(), Summary: "Return this API as an OpenAPI 3.1 document.",
			Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[json.RawMessage](), Description: "The document."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
				w.Header().Set("Content-Type", "application/json")
				_, err := w.Write(a.Document())
				return ignore(err)
			})},
	}
	if a.Metrics == nil {
		return routes
	}
	access := Public()
	if a.MetricsScoped {
		access = ScopeTo("admin", "metrics", "read")
	}
	return append(routes, Route{Method: "GET", Path: a.MetricsPath, Access: access, Probe: true, Summary: "Return the metrics in text format 0.0.4.",
		Answers: []openapi.Response{{Status: 200, ContentType: metrics.ContentType, Description: "The metrics."}},
		Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
			w.Header().Set("Content-Type", metrics.ContentType)
			_, err := w.Write(a.Metrics.Text())
			return ignore(err)
		})})
}

// ignore drops the error of writing to a client, which has left.
func ignore(error) error { return nil }
