// Package rest is the route table, what follows from it, and one thin file of endpoints per resource.
//
// A row of the table is the only declaration of a route: the mux, the checks of its access, the OpenAPI document and
// the metric labels are taken from it.
package rest

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"agentd/auth"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/idem"
	"agentd/server/openapi"
)

// Access says who may use a route. The zero value is refused when the table is built.
type Access struct {
	kind             accessKind
	resource, action string
	param            string // path parameter with the id of the resource
	target           string // instead of a parameter: the same for all requests
	flag             string // member of the body that chooses between this and other
	other            *Access
}

type accessKind int

const (
	public accessKind = iota + 1
	scoped
	partly
	runOwner
	byFlag
	anyone
	upgrade
)

// Public routes need no token.
func Public() Access { return Access{kind: public} }

// Scope needs a scope without target, such as agents:read.
func Scope(resource, action string) Access {
	return Access{kind: scoped, resource: resource, action: action}
}

// ScopeTo needs one scope with a fixed target, such as admin:metrics:read.
func ScopeTo(resource, action, target string) Access {
	return Access{kind: scoped, resource: resource, action: action, target: target}
}

// ScopeOf needs a scope whose target is the path's parameter, such as agents:read:<id>.
func ScopeOf(resource, action, param string) Access {
	return Access{kind: scoped, resource: resource, action: action, param: param}
}

// ScopeOfSome needs a scope such as agents:read, for all targets or for at least one. The endpoint shows no more than
// what that covers.
func ScopeOfSome(resource, action string) Access {
	return Access{kind: partly, resource: resource, action: action}
}

// Owner needs the scope of the agent that the run {runId} belongs to: agents:<action>:<agentId>. An unknown run is 404
// before any scope is looked at.
func Owner(action string) Access { return Access{kind: runOwner, resource: "agents", action: action} }

// Anyone needs a principal, whatever it may do.
func Anyone() Access { return Access{kind: anyone} }

// Upgrade is for an endpoint that finds out itself who calls, after the handshake that it answers.
func Upgrade() Access { return Access{kind: upgrade} }

// ScopeByFlag needs the scope of off or, when a flag of the body is true, that of on. What is wrong with the body is told
// before who sent it is looked at.
func ScopeByFlag(off Access, flag string, on Access) Access {
	off.kind, off.flag, off.other = byFlag, flag, &on
	return off
}

// chosen is the access that an input of a route with a flag asks for.
func (a Access) chosen(in reflect.Value) Access {
	if flagOf(in, a.flag).Bool() {
		return *a.other
	}
	return a
}

// flagOf finds a flag in the body of an input. It is not valid when there is none.
func flagOf(in reflect.Value, name string) reflect.Value {
	body := in.FieldByName("Body")
	if body.IsValid() && body.Kind() == reflect.Struct {
		for f, v := range body.Fields() {
			if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key == name && v.Kind() == reflect.Bool {
				return v
			}
		}
	}
	return reflect.Value{}
}

func (a Access) required(r *http.Request) auth.Scope {
	s := auth.Scope{Resource: a.resource, Action: a.action, Target: a.target}
	if a.param != "" {
		s.Target = r.PathValue(a.param)
	}
	return s
}

// String is for documents.
func (a Access) String() string {
	switch {
	case a.kind == byFlag:
		off := a
		off.kind = scoped
		return off.String() + "; " + a.other.String() + " with " + a.flag + ": true"
	case a.kind == runOwner:
		return a.resource + ":" + a.action + ":{agentId of the run}"
	case a.kind == partly:
		return a.resource + ":" + a.action + " or " + a.resource + ":" + a.action + ":{id}"
	case a.param != "":
		return a.resource + ":" + a.action + ":{" + a.param + "}"
	case a.target != "":
		return a.resource + ":" + a.action + ":" + a.target
	case a.kind == scoped:
		return a.resource + ":" + a.action
	case a.kind == anyone:
		return "any token"
	case a.kind == upgrade:
		return "a token or a ticket, in the handshake"
	}
	return "none"
}

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
	// Exists refuses an unknown resource after the scope has been checked and before the body is read.
	Exists func(r *http.Request) error
	// Again answers a request whose key is bound to a run, in the place of the endpoint. See keyed.go.
	Again    func(w http.ResponseWriter, r *http.Request, c Call, first *idem.Answer) error
	Secret   bool // the answer holds a credential, so it is never kept, and an Idempotency-Key is not looked at
	Endpoint Endpoint
}

// Pattern is the route's pattern for http.ServeMux.
func (rt Route) Pattern(base string) string { return rt.Method + " " + base + rt.Path }

// Effects reports whether the route does something that an Idempotency-Key can keep from happening twice.
func (rt Route) Effects() bool { return rt.Method != http.MethodGet }

// Call is what an endpoint knows beside its input.
type Call struct {
	Principal auth.Principal
	Run       agent.Identity // where the scope is that of its owner
	Key       *idem.Claim    // of a request with an Idempotency-Key; else nil, whose methods do nothing
	Request   *gate.Request  // to be told what its entry in the audit chain is to say

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

// streamed makes an endpoint that writes its answer itself, once its input is read and checked. An error after the
// first byte breaks the connection.
func streamed[In any](fn func(w http.ResponseWriter, r *http.Request, c Call, in In) error) Endpoint {
	return Endpoint{in: reflect.TypeFor[In](), status: http.StatusOK,
		answer: func(w http.ResponseWriter, r *http.Request, c Call, in any) error { return fn(w, r, c, in.(In)) }}
}

// Mount puts the table's routes behind a gate, each with its checks. It panics on a row that is not sound, since that is
// a programmer's mistake.
func (a *API) Mount(g *gate.Gate) {
	a.bodies = newBodies()
	for _, rt := range a.Routes {
		if err := rt.check(); err != nil {
			panic(fmt.Sprintf("rest: %s %s: %v", rt.Method, rt.Path, err))
		}
		g.Handle(gate.Row{Pattern: rt.Pattern(a.Base), Public: rt.Access.kind == public, Probe: rt.Probe, Upgrade: rt.Access.kind == upgrade,
			Ticketed: slices.Contains(queryNames(rt.Endpoint.in), gate.TicketParameter), Late: rt.Access.kind == byFlag,
			Action: rt.Action, Refused: rt.Refused, Target: rt.Target,
			Serve: func(w http.ResponseWriter, r *http.Request) error { return a.serve(w, r, g, rt) }})
	}
}

func (rt Route) check() error {
	switch {
	case rt.Access.kind == 0:
		return fmt.Errorf("it does not say who may use it")
	case rt.Endpoint.answer == nil:
		return fmt.Errorf("it has no endpoint")
	case rt.Secret && rt.Again != nil:
		return fmt.Errorf("an answer that is not kept cannot be repeated")
	case rt.Effects() && (rt.Action == "" || rt.Target == ""):
		return fmt.Errorf("it has an effect that the audit chain cannot name")
	case rt.Access.param != "" && !strings.Contains(rt.Path, "{"+rt.Access.param+"}"):
		return fmt.Errorf("its path has no {%s}", rt.Access.param)
	case rt.Access.kind == byFlag && !flagOf(reflect.Zero(rt.Endpoint.in), rt.Access.flag).IsValid():
		return fmt.Errorf("its body has no flag %s", rt.Access.flag)
	}
	return nil
}

// serve checks one request: draining, run and scope, existence; then it reads the input, which the endpoint answers
// unless the request's key has an answer already. Where the scope depends on the body, the input is read before the scope
// is checked.
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
	c.weight = &weight{all: a.bodies}
	defer c.weight.done()
	var body []byte
	early := rt.Access.kind == byFlag
	var err error
	if early {
		body, err = a.readEarly(w, r, in.Interface(), c.weight)
		rt.Access = rt.Access.chosen(in.Elem())
		q.Details(map[string]any{"mode": rt.Access.target})
	}
	if err == nil {
		err = a.admit(r, rt.Access, &c)
	}
	if err != nil {
		return err
	}
	key, keyErr := a.readKey(w, r, rt)
	var missing error
	if rt.Exists != nil {
		if missing = rt.Exists(r); missing != nil && key == "" {
			return missing
		}
	}
	if !early {
		var err error
		if body, err = a.read(w, r, a.MaxBody, in.Interface(), c.weight); err != nil && missing != nil {
			return missing
		} else if err != nil {
			return err
		}
	}
	answer := func(w http.ResponseWriter, c Call) error { return rt.Endpoint.answer(w, r, c, in.Elem().Interface()) }
	switch {
	case keyErr != nil:
		return keyErr
	case key == "":
		return answer(w, c)
	}
	return a.keyed(w, r, rt, c, keyedRequest{key, body, missing, answer})
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

// strangerBody is how many bytes of a body are read for a caller whose token was refused.
const strangerBody = 64 << 10

// readEarly reads the input of a caller who may yet be refused. What is wrong with it comes before the refusal, which
// comes before everything else.
func (a *API) readEarly(w http.ResponseWriter, r *http.Request, in any, wt *weight) (body []byte, err error) {
	refused, limit := gate.Of(r).Refused, a.MaxBody
	if refused != nil {
		limit = min(limit, strangerBody)
	}
	body, err = a.read(w, r, limit, in, wt)
	if refused != nil && !fault.Is(err, fault.ConfigInvalid) {
		return nil, refused
	}
	return body, err
}

// admit checks who calls. It finds the run of a route that is for its owner.
func (a *API) admit(r *http.Request, access Access, c *Call) error {
	switch access.kind {
	case scoped, byFlag:
		return gate.Covered(c.Principal, access.required(r))
	case partly:
		if all, ids := c.Principal.Grant.Targets(access.resource, access.action); !all && len(ids) == 0 {
			return gate.Covered(c.Principal, access.required(r))
		}
	case runOwner:
		run, err := a.Engine.Identify(r.Context(), r.PathValue("runId"))
		if err != nil {
			return err
		}
		c.Run = run
		return gate.Covered(c.Principal, auth.Scope{Resource: access.resource, Action: access.action, Target: run.Owner})
	}
	return nil
}
