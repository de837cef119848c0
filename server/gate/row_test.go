package gate_test

import (
	"net/http"

	"agentd/server/gate"
)

// handle adds a route without any of a row's settings.
func handle(g *gate.Gate, pattern string, h http.HandlerFunc) { g.Handle(row(pattern, h)) }

func row(pattern string, h http.HandlerFunc) gate.Row {
	return gate.Row{Pattern: pattern, Serve: func(w http.ResponseWriter, r *http.Request) error {
		h(w, r)
		return nil
	}}
}
