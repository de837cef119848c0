package rest_test

import (
	"encoding/json"
	"os"
	"strings"
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

// Every time that an answer tells as a number, it tells as text, too.
func TestTimesAreText(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Type any }
			}
		}
	}
	text, err := os.ReadFile("testdata/openapi.json")
	if err == nil {
		err = json.Unmarshal(text, &doc)
	}
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for name, schema := range doc.Components.Schemas {
		for key, p := range schema.Properties {
			base, isNano := strings.CutSuffix(key, "UnixNano")
			if p.Type != "integer" || !isNano && key != "ts" && key != "at" && !strings.HasSuffix(key, "At") || key == "brokenAt" { // which is a sequence number
				continue
			}
			found++
			if schema.Properties[base+"Iso"].Type != "string" {
				t.Errorf("%s.%s is a number, and there is no text %sIso", name, key, base)
			}
		}
	}
	if found < 6 {
		t.Errorf("the document has %d times that are numbers", found)
	}
}
