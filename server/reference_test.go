package server_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/idem"
	"agentd/server/openapi"
	"agentd/server/rest"
)

var updateReference = flag.Bool("update-reference", false, "write REFERENCE.md")

// reference is REFERENCE.md: every table of the program as documentation.
func reference() string {
	api := &rest.API{Issuer: &auth.Issuer{}, Keys: new(idem.Keys), Metrics: metrics.New(""), SSE: true, WSPath: "/ws", BasePath: "/v1", MetricsPath: "/metrics", SSESessions: "/sessions", Audit: new(audit.Log)}
	var b strings.Builder
	section := func(title, intro, body string) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s\n", title, intro, strings.TrimSpace(body))
	}
	b.WriteString("# Reference\n\nGenerated from the tables in the code: `go test ./server -run TestReference -update-reference`.\n")
	section("Routes", "Paths are below `server.basePath`, which is `/v1`.", api.Markdown())
	section("Errors", "Every error is `{error, message, hint?, issues?, ...}`. Kinds without a status end a start-up, a command or a run.",
		openapi.ErrorsMarkdown(fault.Kinds()))
	section("Configuration", "`agentd.json`: JSON with comments and trailing commas.", config.Markdown())
	events := "| Type | Kept | Answer | Fields | When |\n|---|---|---|---|---|\n"
	yes := map[bool]string{true: "yes", false: "no"}
	for _, t := range event.Catalogue() {
		events += fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", t.Name, yes[!t.Transient], yes[t.Answer], t.Fields, t.When)
	}
	section("Events", "Kept events are numbered and stored with their run; the others live in the replay buffer only. Without `agents:read` for the agent, the caller of "+
		"`POST /agents/{id}/stream` gets the events of the answer alone. To such a reader, also of a session's events, `agent.end` has `pendingApprovals` (`toolCallId` "+
		"and `toolName`) instead of `state`, and `tool.approval.requested` no `args`. No event holds the operator's system messages.", events)
	section("Metrics", "At `GET /v1/metrics`, in text format 0.0.4.", metrics.New("").Markdown())
	return b.String()
}

func TestReference(t *testing.T) {
	want := reference()
	if *updateReference {
		if err := os.WriteFile("REFERENCE.md", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile("REFERENCE.md")
	if err != nil || string(got) != want {
		t.Errorf("REFERENCE.md is not what the tables say (%v); run go test ./server -run TestReference -update-reference", err)
	}
}
