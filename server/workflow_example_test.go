package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"agentd/server"
	"agentd/server/config"
	"agentd/server/workflow"
)

// A workflow in Go: two nodes run side by side, a third one waits for a message. The thread survives a restart of the
// server at any point.
func ExampleServer_Workflows() {
	order := workflow.Definition{
		ID:       "order",
		Channels: map[string]workflow.Channel{"customer": {}, "items": workflow.List(), "sent": {}},
		Nodes: map[string]workflow.Node{
			"pick": {Run: func(*workflow.Context, workflow.State) (workflow.Result, error) {
				return workflow.Result{Write: map[string]any{"items": []string{"lamp", "bulb"}}}, nil
			}},
			"gift": {Run: func(*workflow.Context, workflow.State) (workflow.Result, error) {
				return workflow.Result{Write: map[string]any{"items": "card"}}, nil
			}},
			"send": {Run: func(ctx *workflow.Context, state workflow.State) (workflow.Result, error) {
				var items []string
				if err := state.Decode("items", &items); err != nil {
					return workflow.Result{}, err
				}
				label, err := ctx.Step("label", func() (any, error) { return fmt.Sprintf("%d items for %s", len(items), state.Text("customer")), nil })
				if err != nil {
					return workflow.Result{}, err
				}
				ctx.AwaitExternal("courier")
				return workflow.Result{Write: map[string]any{"sent": label}}, nil
			}},
		},
		Edges: []workflow.Edge{{From: workflow.Start, To: "pick"}, {From: workflow.Start, To: "gift"}, {From: "pick", To: "send"}, {From: "send", To: workflow.End}},
	}

	dir, err := os.MkdirTemp("", "agentd")
	check(err)
	defer os.RemoveAll(dir)
	cfg := config.Default()
	cfg.Server.Port, cfg.Auth.Kind, cfg.Audit.Enabled, cfg.Storage.Path = 0, "none", false, filepath.Join(dir, "agentd.db")
	srv, err := server.New(server.Options{Config: cfg})
	check(err)
	check(srv.Workflows().Register(order))
	ctx := context.Background()
	_, err = srv.Start(ctx)
	check(err)
	defer srv.Shutdown(ctx)

	h, err := srv.Workflows().Execute(ctx, workflow.ExecuteRequest{WorkflowID: "order", ThreadID: "o-1", Input: json.RawMessage(`{"customer":"Ada"}`)})
	check(err)
	out, err := h.Wait(ctx) // until the run ends or waits
	check(err)
	fmt.Println(out.Status, out.PendingPauses[0].Name)

	h, err = srv.Workflows().Resume(ctx, workflow.ResumeRequest{WorkflowID: "order", ThreadID: "o-1", Name: "courier"})
	check(err)
	for !out.Status.Terminal() {
		out, err = h.Wait(ctx)
		check(err)
	}
	fmt.Println(out.Status, string(out.Output))
	// Output:
	// suspended courier
	// completed {"customer":"Ada","items":["lamp","bulb","card"],"sent":"3 items for Ada"}
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}
