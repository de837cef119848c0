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
	Unready       func() string // starting, draining, or empty: the checks decide
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
		{Method: "GET", Path: "/health/live", Access: Public, Probe: true, Summary: "Answer as long as the process serves requests. It runs no check.",
			Endpoint: call(http.StatusOK, func(context.Context, Call, struct{}) (Liveness, error) { return Liveness{"live"}, nil })},
		{Method: "GET", Path: "/health/ready", Access: Public, Probe: true, Summary: "Show whether the server takes new work; 503 if it starts or drains, or if a part fails.",
			Answers: []openapi.Response{{Status: 200, Type: reflect.TypeFor[Readiness](), Description: "The server is ready."},
				{Status: 503, Type: reflect.TypeFor[Readiness](), Description: "It is not."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
				found, status := a.ready(r.Context())
				gate.JSON(w, status, found)
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

// Liveness is the answer of a process that serves requests.
type Liveness struct {
	Status string `json:"status" enum:"live"`
}

// Readiness says whether a server takes new work.
type Readiness struct {
	Status  string   `json:"status" enum:"ready|starting|draining|failing"`
	Failing []string `json:"failing,omitempty" doc:"The checks that fail: see GET /health."`
}

func (a *System) ready(ctx context.Context) (Readiness, int) {
	if why := a.Unready(); why != "" {
		return Readiness{Status: why}, http.StatusServiceUnavailable
	}
	report, status := a.Health.Report(ctx)
	if status != http.StatusOK {
		return Readiness{Status: "failing", Failing: report.Failing}, status
	}
	return Readiness{Status: "ready"}, status
}
