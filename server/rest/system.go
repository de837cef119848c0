package rest

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"

	"agentd/metrics"
	"agentd/server/gate"
	"agentd/server/health"
	"agentd/server/openapi"
	"agentd/server/secret"
)

// System is the routes of the server itself.
type System struct {
	Health        *health.Rollup
	Secrets       secret.Report
	Metrics       *metrics.Inventory // nil: no metrics route
	MetricsPath   string
	MetricsScoped bool // the metrics route needs admin:metrics:read
	Document      func() []byte
}

// Routes are the rows of the table.
func (a *System) Routes() []Route {
	routes := []Route{
		{Method: "GET", Path: "/health", Access: Public, Probe: true, Summary: "Show the health of every part; 503 if one fails.",
			Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[health.Report](), Description: "All parts work, or one warns."},
				{Status: 503, Type: reflect.TypeFor[health.Report](), Description: "A part fails."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
				report, status := a.Health.Report(r.Context())
				gate.JSON(w, status, report)
				return nil
			})},
		{Method: "GET", Path: "/health/secrets", Access: "secrets:read", Summary: "Show which store of secrets is active, and why.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (secret.Report, error) { return a.Secrets, nil })},
		{Method: "GET", Path: "/openapi.json", Access: Public, Summary: "Return this API as an OpenAPI 3.1 document.",
			Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[json.RawMessage](), Description: "The document."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
				w.Header().Set("Content-Type", "application/json")
				gate.Write(w, http.StatusOK, a.Document())
				return nil
			})},
	}
	if a.Metrics == nil {
		return routes
	}
	access := Public
	if a.MetricsScoped {
		access = "admin:metrics:read"
	}
	return append(routes, Route{Method: "GET", Path: a.MetricsPath, Access: access, Probe: true, Summary: "Return the metrics in text format 0.0.4.",
		Answers: []openapi.Response{{Status: 200, ContentType: metrics.ContentType, Description: "The metrics."}},
		Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
			w.Header().Set("Content-Type", metrics.ContentType)
			gate.Write(w, http.StatusOK, a.Metrics.Text())
			return nil
		})})
}
