// Package rest serves the HTTP API: the route table, everything derived from it, and one thin file of endpoints per resource.
//
// A row of the table is the only declaration of a route. The mux, the access checks, the OpenAPI document and the metric
// labels come from it.
package rest

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/journal"
	"agentd/server/openapi"
	"agentd/store"
)

// Access says who may use a route: one of the constants, or a scope in the form in which documents show it.
//
//	agents:read                         the scope
//	agents:read:{id}                    the scope with the parameter {id} of the path as its target
//	agents:read:{agentId of the run}    the scope of the agent that the run {runId} belongs to; an unknown run is 404 before that.
//	                                    For a run of a workflow: the workflow's, see [ofWorkflow]
//	agents:read or workflows:read       the scope for all targets or for at least one, to which the endpoint keeps
//	A; B with raw: true                 the body chooses: see [chooser]
type Access string

const (
	Public  Access = "none"
	Anyone  Access = "any token"
	Upgrade Access = "a token or a ticket, in the handshake" // which the endpoint checks
	Signed  Access = "a signature over the body"             // likewise, with [gate.Gate.Signed]

	ofOwner = "{agentId of the run}"
	orSome  = " or "
	byBody  = "; "
)

// A chooser is an input whose body chooses the scope, so that it is read first.
type chooser interface{ access() Access }

// ofWorkflow are the actions on a workflow that correspond to those on an agent.
var ofWorkflow = map[string]string{"invoke": "execute", "read": "read", "approve": "approve"}

// shown is the access as documents have it.
func (a Access) shown() string {
	verb, ofRun := strings.CutSuffix(strings.TrimPrefix(string(a), "agents:"), ":"+ofOwner)
	if !ofRun {
		return string(a)
	}
	return string(a) + " or workflows:" + ofWorkflow[verb] + ":{workflowId of the run}"
}

// scope is what a request about a run needs.
func (a Access) scope(r *http.Request, run journal.Identity) auth.Scope {
	resource, rest, _ := strings.Cut(string(a), ":")
	action, target, _ := strings.Cut(rest, ":")
	if target == ofOwner {
		target = run.Owner
		if run.Kind == store.Workflow {
			resource, action = "workflows", ofWorkflow[action]
		}
	} else if strings.HasPrefix(target, "{") {
		target = r.PathValue(strings.Trim(target, "{}"))
	}
	return auth.Scope{Resource: resource, Action: action, Target: target}
}

// form is what an access is that names a scope.
var form = regexp.MustCompile(`^[a-z]+:[a-z]+(:[a-z]+|:\{[a-zA-Z ]+\})?( or [a-z]+:[a-z]+|; [a-z:]+ with raw: true)?$`)

// Route is a row of the table.
type Route struct {
	Method  string
	Path    string // below the base path
	Access  Access
	Starts  bool // makes new work, and so is refused while the server drains
	Probe   bool // is asked for by probes, and so is not limited in rate
	Summary string
	// Action is what the route does, as the audit chain has it; routes with effects have one. See [gate.Row].
	Action, Refused audit.Action
	Target          string
	Errors          []*fault.Kind // beside those that follow from access and input
	Answers         []openapi.Response
	Takes           reflect.Type // what a JSON body is that the endpoint reads itself, for documents
	// Exists refuses an unknown resource after the scope has been checked and before the body is read. A request with a key
	// may have made what refuses it, so that is left to the endpoint.
	Exists func(r *http.Request) error
	// Again answers a request whose key is bound to a run, instead of the endpoint. See keyed.go.
	Again    func(w http.ResponseWriter, r *http.Request, c Call, first *store.KeyRecord) error
	Secret   bool // the answer holds a credential, so it is never kept, and an Idempotency-Key is not looked at
	Endpoint Endpoint
}

// Pattern is the route's pattern for http.ServeMux.
func (rt Route) Pattern(base string) string { return rt.Method + " " + base + rt.Path }

// Effects reports whether the route does something that an Idempotency-Key can keep from happening twice.
func (rt Route) Effects() bool { return rt.Method != http.MethodGet }

// Call is what an endpoint gets along with its input.
type Call struct {
	Principal auth.Principal
	Run       journal.Identity // where the scope is that of its owner
	Key       *gate.Claim      // of a request with an Idempotency-Key; else nil, whose methods do nothing
	Request   *gate.Request    // receives what the endpoint adds to the entries in the audit chain

	weight *weight // of its body; given back when the request ends, or before if it waits for something
}

// Endpoint answers a route's requests, once their input is read and checked.
type Endpoint struct {
	in, out reflect.Type
	status  int
	answer  func(w http.ResponseWriter, r *http.Request, c Call, in any) error
}

// none is the output of an endpoint that answers 204.
type none struct{}

// call makes an endpoint of a function from a typed input to a typed output. The input is a struct whose fields come
// from the path (`path:"id"`), the query (`query:"limit"`) and, in a field Body, from the JSON body. It is read whole
// and checked before fn is called. A Body of type []byte takes what is sent as it is; its tag `content` names the media
// type for documents.
func call[In, Out any](status int, fn func(ctx context.Context, c Call, in In) (Out, error)) Endpoint {
	return Endpoint{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), status: status,
		answer: func(w http.ResponseWriter, r *http.Request, c Call, in any) error {
			out, err := fn(r.Context(), c, in.(In))
			if err != nil {
				return err
			}
			if status == http.StatusNoContent {
				w.WriteHeader(status)
				return nil
			}
			gate.JSON(w, status, out)
			return nil
		}}
}

// encoded is call for a function that returns the JSON of Out itself.
func encoded[In, Out any](fn func(ctx context.Context, c Call, in In) ([]byte, error)) Endpoint {
	return Endpoint{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), status: http.StatusOK,
		answer: func(w http.ResponseWriter, r *http.Request, c Call, in any) error {
			body, err := fn(r.Context(), c, in.(In))
			if err != nil {
				return err
			}
			w.Header().Set("Content-Type", "application/json")
			gate.Write(w, http.StatusOK, body)
			return nil
		}}
}

// streamed makes an endpoint that writes its answer itself, once its input is read and checked. An error after the
// first byte breaks the connection.
func streamed[In any](fn func(w http.ResponseWriter, r *http.Request, c Call, in In) error) Endpoint {
	return Endpoint{in: reflect.TypeFor[In](), status: http.StatusOK,
		answer: func(w http.ResponseWriter, r *http.Request, c Call, in any) error { return fn(w, r, c, in.(In)) }}
}

// Mount puts the table's routes behind a gate, each with its checks. It panics on a row that is not sound, since that is
// a programmer's mistake.
func (a *API) Mount(g *gate.Gate) {
	a.bodies, a.unsigned = newBodies(), newBodies()
	for _, rt := range a.Routes {
		if err := rt.check(); err != nil {
			panic(fmt.Sprintf("rest: %s %s: %v", rt.Method, rt.Path, err))
		}
		g.Handle(gate.Row{Pattern: rt.Pattern(a.Base), Public: rt.Access == Public, Probe: rt.Probe, Upgrade: rt.Access == Upgrade, Signed: rt.Access == Signed,
			Ticketed: slices.Contains(queryNames(rt.Endpoint.in), gate.TicketParameter),
			Action:   rt.Action, Refused: rt.Refused, Target: rt.Target,
			Serve: func(w http.ResponseWriter, r *http.Request) error { return a.serve(w, r, g, rt) }})
	}
}

func (rt Route) check() error {
	switch {
	case rt.Access != Public && rt.Access != Anyone && rt.Access != Upgrade && rt.Access != Signed && !form.MatchString(string(rt.Access)):
		return fmt.Errorf("it does not say who may use it")
	case rt.Endpoint.answer == nil:
		return fmt.Errorf("it has no endpoint")
	case rt.Secret && rt.Again != nil:
		return fmt.Errorf("an answer that is not kept cannot be repeated")
	case rt.Effects() && (rt.Action == "" || rt.Target == ""):
		return fmt.Errorf("it has an effect that the audit chain cannot name")
	case strings.HasSuffix(string(rt.Access), ":{id}") && !strings.Contains(string(rt.Access), orSome) && !strings.Contains(rt.Path, "{id}"):
		return fmt.Errorf("its path has no {id}")
	case strings.Contains(string(rt.Access), byBody) != rt.Endpoint.in.Implements(reflect.TypeFor[chooser]()):
		return fmt.Errorf("its body does not choose the scope")
	}
	return nil
}

// serve checks one request: draining, run and scope, existence; then it reads the input, which the endpoint answers unless the
// request's key has an answer already. Where the body chooses the scope, the scope is checked once the input is read.
func (a *API) serve(w http.ResponseWriter, r *http.Request, g *gate.Gate, rt Route) error {
	q := gate.Of(r)
	c, in := Call{Principal: q.Principal, Request: q}, reflect.New(rt.Endpoint.in)
	if q.Principal.Kind != "" { // whatever becomes of the request
		a.concerns(r.Context(), c, r.PathValue("runId"), rt.session(r))
	}
	if rt.Starts {
		if err := g.Draining(); err != nil {
			return err
		}
	}
	if err := a.admit(r, rt.Access, &c); err != nil {
		return err
	}
	key, keyErr := a.readKey(w, r, rt)
	if rt.Exists != nil && key == "" {
		if err := rt.Exists(r); err != nil {
			return err
		}
	}
	c.weight = &weight{all: a.bodies}
	if rt.Access == Signed {
		c.weight.all = a.unsigned
	}
	defer c.weight.done()
	body, err := a.read(w, r, a.MaxBody, in.Interface(), c.weight)
	if err != nil {
		return err
	}
	input := in.Elem().Interface()
	if chosen, ok := input.(chooser); ok {
		access := chosen.access()
		q.On("", map[string]any{"mode": access.scope(r, c.Run).Target})
		if err := a.admit(r, access, &c); err != nil {
			return err
		}
	}
	switch {
	case keyErr != nil:
		return keyErr
	case key == "":
		return rt.Endpoint.answer(w, r, c, input)
	}
	return a.keyed(w, r, rt, c, key, body, input)
}

// session is the id of the session that the path of a request names, or empty.
func (rt Route) session(r *http.Request) string {
	if strings.HasPrefix(rt.Path, "/sessions/{id}") {
		return r.PathValue("id")
	}
	return ""
}

// concerns says in the audit chain that a request is about a session or about a run, if there is such a run.
func (a *API) concerns(ctx context.Context, c Call, runID, sessionID string) {
	if runID != "" {
		if run, err := a.Engine.Identify(ctx, runID); err == nil {
			c.Request.Concerns(run.ID, run.Session)
		}
	} else if sessionID != "" {
		c.Request.Concerns("", sessionID)
	}
}

// admit checks the scope. For a route whose scope belongs to the owner of a run, it finds the run.
func (a *API) admit(r *http.Request, access Access, c *Call) error {
	text, other, some := strings.Cut(string(access), orSome)
	switch {
	case access == Public || access == Anyone || access == Upgrade || access == Signed || strings.Contains(text, byBody):
		return nil
	case some:
		for _, one := range []string{text, other} {
			s := Access(one).scope(r, c.Run)
			if all, ids := c.Principal.Grant.Targets(s.Resource, s.Action); all || len(ids) > 0 {
				return nil
			}
		}
	case strings.HasSuffix(text, ofOwner):
		run, err := a.Engine.Identify(r.Context(), r.PathValue("runId"))
		if err != nil {
			return err
		}
		c.Run = run
	}
	return gate.Covered(c.Principal, Access(text).scope(r, c.Run))
}
