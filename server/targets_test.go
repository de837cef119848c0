package server_test

import (
	"errors"
	"fmt"
	"testing"

	"agentd/server"
	"agentd/server/fault"
	"agentd/triggers"
)

// A trigger that a Go program declares must start what exists, as one of the configuration; the start names all that do not.
func TestTriggersOfNothing(t *testing.T) {
	t.Parallel()
	srv, err := server.New(server.Options{Config: rigSettings(t, `{}`, nil)})
	if err != nil {
		t.Fatal(err)
	}
	for _, reg := range testAgents(nil) {
		if err := srv.Agents().Register(reg); err != nil {
			t.Fatal(err)
		}
	}
	for id, d := range map[string]triggers.Declaration{"a": {Agent: "echo"}, "b": {Agent: "ecko"}, "c": {Workflow: "echo"}} {
		d.Kind, d.EveryMs = triggers.IntervalKind, 60_000
		if err := srv.Triggers().Declare(id, d); err != nil {
			t.Fatal(err)
		}
	}
	_, err = srv.Start(t.Context())
	got, _ := errors.AsType[*fault.Error](err)
	const want = `[{[triggers b agent] there is no agent "ecko"} {[triggers c workflow] there is no workflow "echo"}]`
	if got == nil || got.Kind != fault.ConfigInvalid || fmt.Sprint(got.Issues) != want {
		t.Errorf("Start = %v, want config-invalid with %s", err, want)
	}
}
