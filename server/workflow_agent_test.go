package server_test

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"agentd/server"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/workflow"
	"agentd/store"
)

// TestWorkflowAgent runs agents from the node of a workflow in Go: each once, whatever becomes of it.
func TestWorkflowAgent(t *testing.T) {
	cfg := config.Default()
	cfg.Server.Port, cfg.Auth.Kind, cfg.Audit.Enabled, cfg.Storage.Path = 0, "none", false, filepath.Join(t.TempDir(), "agentd.db")
	srv, err := server.New(server.Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	for _, reg := range testAgents(nil) {
		if err := srv.Agents().Register(reg); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(ctx *workflow.Context, state workflow.State) (workflow.Result, error) {
		said, err := ctx.Agent("echo", map[string]any{"name": state.JSON("name")})
		if err != nil {
			return workflow.Result{}, err
		}
		_, failed := ctx.Agent("fail", "x")
		return workflow.Result{Write: map[string]any{"said": said, "failed": fault.Of(failed).Kind.Code}}, nil
	}
	if err := srv.Workflows().Register(workflow.Definition{ID: "w", Channels: map[string]workflow.Channel{"name": {}, "said": {}, "failed": {}},
		Nodes: map[string]workflow.Node{"ask": {Run: ask}}, Edges: []workflow.Edge{{From: workflow.Start, To: "ask"}, {From: "ask", To: workflow.End}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer srv.Shutdown(context.Background())
	h, err := srv.Workflows().Execute(t.Context(), workflow.ExecuteRequest{WorkflowID: "w", Input: json.RawMessage(`{"name":"Ada"}`)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := h.Wait(ctx)
	for err == nil && !out.Status.Terminal() {
		out, err = h.Wait(ctx)
	}
	const want = `{"failed":"unknown","name":"Ada","said":{"echo":{"name":"Ada"}}}`
	if err != nil || out.Status != store.Completed || string(out.Output) != want {
		t.Errorf("%+v, %v, with %s; want %s", out, err, out.Output, want)
	}
}
