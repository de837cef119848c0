package gate_test

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/gate"
)

// A refusal because the server stops is no error of the server.
func TestRefusalWhileDrainingIsNoError(t *testing.T) {
	var log bytes.Buffer
	g := gate.New(gate.Options{BasePath: "/v1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for kind, level := range map[*fault.Kind]string{fault.ServerDraining: "level=INFO", fault.StorageFailed: "level=ERROR"} {
		log.Reset()
		g.Fail(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/agents/a/run", nil), fault.New(kind, "no"))
		if !strings.Contains(log.String(), level) {
			t.Errorf("%s is logged as %q, want %s", kind.Code, log.String(), level)
		}
	}
}
