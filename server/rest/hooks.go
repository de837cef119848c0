package rest

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/openapi"
	"agentd/server/webhook"
	"agentd/triggers"
)

// A Hook takes webhooks in.
type Hook struct {
	Event    string   // that a request emits
	Headers  []string // of the request, which reach the event
	Verifier *webhook.Verifier
}

// Hooks is the route of the webhooks that other systems send.
type Hooks struct {
	Hooks  map[string]Hook // by name
	Engine *triggers.Engine
	Signed func(*http.Request, func() (auth.Principal, error)) error // see [gate.Gate.Signed]
}

type hookInput struct {
	Name string `path:"name" doc:"Name of the hook."`
	Body []byte
}

// Routes are the rows of the table.
func (a *Hooks) Routes() []Route {
	return []Route{{Method: "POST", Path: "/hooks/{name}", Access: Signed, Action: audit.EventEmit, Target: "hook:{name}", Starts: true, Takes: reflect.TypeFor[json.RawMessage](),
		Summary: "Take a webhook: the configuration says which event it emits and how its sender signs it. The answer is that of POST /events/{name}; an event that comes again fires nothing.",
		Exists: func(r *http.Request) error {
			if name := r.PathValue("name"); a.Hooks[name].Verifier == nil {
				return fault.New(fault.NotFound, "There is no hook %q.", clip(name)).Advise("Compare the path with the names in `hooks` of the configuration.")
			}
			return nil
		},
		Errors:  []*fault.Kind{fault.NotFound},
		Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[triggers.Emitted](), Description: "All firings are durable."}},
		Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, c Call, in hookInput) error {
			answer, err := a.receive(r, c, in)
			if err == nil {
				gate.JSON(w, http.StatusOK, answer)
			}
			return err
		})}}
}

func (a *Hooks) receive(r *http.Request, c Call, in hookInput) (answer triggers.Emitted, err error) {
	h := a.Hooks[in.Name]
	ev := triggers.Event{Name: h.Event, Headers: map[string]string{}}
	if err := a.Signed(r, func() (p auth.Principal, err error) {
		ev.ID, err = h.Verifier.Verify(r.Header, in.Body)
		return auth.Hook(in.Name, h.Event), err
	}); err != nil {
		return answer, err
	}
	c.Principal = c.Request.Principal
	ev.Data = json.RawMessage(in.Body)
	for _, name := range h.Headers {
		if values := r.Header.Values(name); len(values) > 0 {
			ev.Headers[name] = strings.Join(values, ", ")
		}
	}
	return emit(r.Context(), a.Engine, c, ev)
}
