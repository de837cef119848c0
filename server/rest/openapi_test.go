package rest_test

import (
	"testing"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/golden"
	"agentd/server/idem"
	"agentd/server/rest"
)

// TestDocument compares the document of all routes with the one that was last looked at: whoever changes a route
// changes what others rely on.
func TestDocument(t *testing.T) {
	api := &rest.API{Agents: &agent.Registry{}, Issuer: new(auth.Issuer), Keys: new(idem.Keys), Metrics: metrics.New(""), MetricsPath: "/metrics",
		SSE: true, WSPath: "/ws", SSESessions: "/sessions", Audit: new(audit.Log), Version: "0.0.0", BasePath: "/v1"}
	got := string(api.Document())
	if again := string(api.Document()); again != got {
		t.Error("Document() gives other bytes the second time")
	}
	golden.Check(t, "testdata/openapi.json", got)
}
