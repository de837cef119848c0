package rest_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"agentd/metrics"
	"agentd/server/agent"
	"agentd/server/gate"
	"agentd/server/golden"
	"agentd/server/rest"
)

// TestDocument compares the document of all routes with the one that was last looked at: whoever changes a route
// changes what others rely on.
func TestDocument(t *testing.T) {
	runs := &rest.Runs{SSE: true, Base: "/v1"}
	api := &rest.API{Base: "/v1", Version: "0.0.0", Keys: new(gate.Keys)}
	api.Add(&rest.Agents{Registry: &agent.Registry{}, Runs: runs}, &rest.Workflows{Runs: runs}, runs, &rest.Approvals{Runs: runs}, &rest.Sessions{Runs: runs, Events: "/sessions"}, &rest.Notifications{}, &rest.Spans{}, &rest.Triggers{}, &rest.Hooks{},
		&rest.Realtime{Path: "/ws"}, &rest.Tokens{}, &rest.Audit{}, &rest.Retention{}, &rest.System{Metrics: metrics.New(""), MetricsPath: "/metrics"})
	got := string(api.Document())
	if again := string(api.Document()); again != got {
		t.Error("Document() gives other bytes the second time")
	}
	golden.Check(t, "testdata/openapi.json", got)
	ids := map[string]bool{}
	for line := range strings.Lines(got) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), `"operationId": `); ok && ids[id] {
			t.Errorf("two operations have the id %s", id)
		} else if ok {
			ids[id] = true
		}
	}
	if len(ids) != len(api.Routes) {
		t.Errorf("%d operations have %d ids", len(api.Routes), len(ids))
	}
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
