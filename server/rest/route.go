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
	"strings"

	"agentd/auth"
	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/openapi"
)

// Access says who may use a route. The zero value is refused when the table is built.
type Access struct {
	kind             accessKind
	resource, action string
	param            string // path parameter with the id of the resource
	target           string // instead of a parameter: the same for all requests
}

type accessKind int

const (
	public accessKind = iota + 1
	scoped
	partly
	runOwner
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
	}
	return "none"
}

// Route is a row of the table.
type Route struct {
	Method  string
	Path    string // below the base path
	Access  Access
	Effects bool // changes something; false: only reads
	Starts  bool // makes new work, and so is refused while the server drains
	Summary string
	Errors  []*fault.Kind // beside those that follow from access and input
	Answers []openapi.Response
	// Exists refuses an unknown resource after the scope has been checked and before the body is read.
	Exists   func(r *http.Request) error
	Endpoint Endpoint
}

// Pattern is the route's pattern for http.ServeMux.
func (rt Route) Pattern(base string) string { return rt.Method + " " + base + rt.Path }

// Call is what an endpoint knows beside its input.
type Call struct {
	Principal auth.Principal
	Run       agent.Identity // of routes with {runId}
}

// Endpoint answers a route's requests.
type Endpoint struct {
	in, out reflect.Type
	status  int
	serve   func(w http.ResponseWriter, r *http.Request, c Call) error
}

// none is the output of an endpoint that answers 204.
type none struct{}

// call makes an endpoint of a function from a typed input to a typed output. The input is a struct whose fields come
// from the path (`path:"id"`), the query (`query:"limit"`) and, in a field Body, from the JSON body. It is read whole
// and checked before fn is called. A Body of type []byte takes what is sent as it is; its tag `content` names the media
// type for documents.
func call[In, Out any](status int, fn func(ctx context.Context, c Call, in In) (Out, error)) Endpoint {
	return Endpoint{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), status: status,
		serve: func(w http.ResponseWriter, r *http.Request, c Call) error {
			var in In
			if err := read(w, r, &in); err != nil {
				return err
			}
			out, err := fn(r.Context(), c, in)
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
		serve: func(w http.ResponseWriter, r *http.Request, c Call) error {
			var in In
			if err := read(w, r, &in); err != nil {
				return err
			}
			return fn(w, r, c, in)
		}}
}

// Mount puts the table's routes on a mux, each behind its checks. It panics on a row that is not sound, since that is
// a programmer's mistake.
func (a *API) Mount(mux *http.ServeMux, g *gate.Gate, base string) {
	for _, rt := range a.Routes() {
		if err := rt.check(); err != nil {
			panic(fmt.Sprintf("rest: %s %s: %v", rt.Method, rt.Path, err))
		}
		if rt.Access.kind == public {
			g.Public(rt.Pattern(base))
		}
		mux.HandleFunc(rt.Pattern(base), func(w http.ResponseWriter, r *http.Request) {
			if err := a.serve(w, r, g, rt); err != nil {
				g.Fail(w, r, err)
			}
		})
	}
}

func (rt Route) check() error {
	switch {
	case rt.Access.kind == 0:
		return fmt.Errorf("it says not who may use it")
	case rt.Endpoint.serve == nil:
		return fmt.Errorf("it has no endpoint")
	case rt.Effects != (rt.Method != http.MethodGet):
		return fmt.Errorf("%s and Effects=%v do not go together", rt.Method, rt.Effects)
	case rt.Access.param != "" && !strings.Contains(rt.Path, "{"+rt.Access.param+"}"):
		return fmt.Errorf("its path has no {%s}", rt.Access.param)
	}
	return nil
}

// serve checks one request: draining, run and scope, existence; then the endpoint reads its input and answers.
func (a *API) serve(w http.ResponseWriter, r *http.Request, g *gate.Gate, rt Route) error {
	if rt.Starts {
		if err := g.Draining(); err != nil {
			return err
		}
	}
	c := Call{Principal: gate.Of(r).Principal}
	switch rt.Access.kind {
	case scoped:
		if err := gate.Covered(c.Principal, rt.Access.required(r)); err != nil {
			return err
		}
	case partly:
		if all, ids := c.Principal.Grant.Targets(rt.Access.resource, rt.Access.action); !all && len(ids) == 0 {
			return gate.Covered(c.Principal, rt.Access.required(r))
		}
	case runOwner:
		run, err := a.Engine.Identify(r.Context(), r.PathValue("runId"))
		if err != nil {
			return err
		}
		required := auth.Scope{Resource: rt.Access.resource, Action: rt.Access.action, Target: run.Owner}
		if err := gate.Covered(c.Principal, required); err != nil {
			return err
		}
		c.Run = run
	}
	if rt.Exists != nil {
		if err := rt.Exists(r); err != nil {
			return err
		}
	}
	r.Body = http.MaxBytesReader(w, r.Body, a.MaxBody)
	return rt.Endpoint.serve(w, r, c)
}
