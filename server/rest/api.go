package rest

import (
	"reflect"
	"slices"
	"strings"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/journal"
	"agentd/server/openapi"
)

// API is the table of routes, and what the way to its endpoints needs.
type API struct {
	Routes  []Route
	Base    string // the path before those of the routes
	Version string
	MaxBody int64
	Engine  *agent.Engine // to find the runs that paths name
	Keys    *gate.Keys    // nil: an Idempotency-Key is not looked at

	bodies *bodies // of the requests under way; made by Mount
	// unsigned is for bodies whose signature is not checked yet. Anybody can send them, so they take nothing from the others.
	unsigned *bodies
}

// Add appends the rows of resources to the table.
func (a *API) Add(resources ...interface{ Routes() []Route }) {
	for _, r := range resources {
		a.Routes = append(a.Routes, r.Routes()...)
	}
}

// Document is the OpenAPI document of the table.
func (a *API) Document() []byte {
	return openapi.Document(openapi.Info{Title: "agentd", Version: a.Version, BasePath: a.Base, Tags: tags,
		Components:  []reflect.Type{reflect.TypeFor[event.Event](), reflect.TypeFor[journal.CallError](), reflect.TypeFor[RunInput]()},
		Description: "Hosts AI agents: durable runs, live events, sessions and tokens."}, a.operations())
}

// Markdown is the table as documentation.
func (a *API) Markdown() string { return openapi.Markdown(a.operations()) }

func (a *API) operations() []openapi.Operation {
	var ops []openapi.Operation
	for _, rt := range a.Routes {
		op := openapi.Operation{Method: rt.Method, Path: rt.Path, Summary: rt.Summary, Tag: tag(rt.Path), Effects: rt.Effects(), Keyed: a.takesKey(rt),
			Public: rt.Access == Public || rt.Access == Signed, Access: rt.Access.shown(), Responses: rt.Answers}
		if rt.Endpoint.out != nil {
			out := rt.Endpoint.out
			res := openapi.Response{Status: rt.Endpoint.status, Type: out, Description: "Success."}
			if out == reflect.TypeFor[none]() {
				res.Type = nil
			}
			op.Responses = append([]openapi.Response{res}, op.Responses...)
		}
		op.Input, op.Body = rt.Endpoint.in, rt.Takes
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
	switch rt.Access {
	case Public, Upgrade:
	case Signed:
		kinds = append(kinds, fault.SignatureMissing, fault.SignatureMalformed, fault.SignatureOld, fault.SignatureEarly, fault.SignatureWrong, fault.AuthLockedOut,
			fault.Overloaded, fault.AuditUnavailable)
	default:
		kinds = append(kinds, fault.AuthRequired, fault.AuthInvalid, fault.AuthRevoked, fault.AuthExpired, fault.AuthLockedOut, fault.Overloaded,
			fault.AuditUnavailable)
		if rt.Access != Anyone {
			kinds = append(kinds, fault.ScopeDenied)
		}
	}
	if !rt.Probe {
		kinds = append(kinds, fault.RateLimited)
	}
	if rt.Access != Public && rt.Access != Signed && rt.Effects() {
		kinds = append(kinds, fault.CSRFDenied)
	}
	if strings.HasSuffix(string(rt.Access), ofOwner) {
		kinds = append(kinds, fault.RunNotFound)
	}
	if rt.Effects() {
		kinds = append(kinds, fault.BodyTooLarge, fault.StorageFailed)
	}
	if rt.Starts {
		kinds = append(kinds, fault.ServerDraining)
	}
	for _, k := range rt.Errors {
		if !slices.Contains(kinds, k) {
			kinds = append(kinds, k)
		}
	}
	if rt.Access != Public {
		kinds = append(kinds, fault.StorageCorrupt)
	}
	return append(kinds, fault.Internal)
}

// tags say what the routes with a first segment are about.
var tags = map[string]string{
	"agents":    "The registered agents, and how to run them.",
	"workflows": "Workflows, and their threads.",
	"runs":      "Runs: their state and events, and decisions on them.",
	"approvals": "What waits for a person.",
	"sessions":  "Conversations: transcripts, exports and events.",
	"session":   "Tickets for connections that cannot carry a token.",
	"tokens":    "Bearer tokens.",
	"audit":     "The audit chain.",
	"retention": "What sweeps delete, and when.",
	"triggers":  "What starts runs at a time or upon an event, and the ledger of its firings.",
	"hooks":     "Webhooks of other systems.",
	"events":    "Events of any subject, and events for triggers.",
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
