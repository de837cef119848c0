package metrics

import "time"

// An Inventory is every family of this program. A field is one row of the table in [New]; whoever produces a number
// is handed the field. [Vec.With] takes label values in the order of that row.
type Inventory struct {
	*Registry

	RunsTotal          *Counters
	RunDuration        *Summary
	WALSize            *Gauge
	IdempotencyHits    *Gauge
	ReplayBufferEvents *Gauge
	InflightRuns       *Gauge
	Uptime             *Gauge
	BuildInfo          *Gauges
	ToolCalls          *Counters
	ProviderTokens     *Counters
	ProviderCost       *Counters
	RedactionDrops     *Counter
	Connections        *Gauge
	HTTPConnections    *Gauge
	HTTPRefused        *Counter
	HTTPRequests       *Counters
	HTTPDuration       *Summary
}

// New declares the families of a server of the given version that starts now. A family is declared only when this
// version has a producer for it.
func New(version string) *Inventory {
	r := new(Registry)
	in := &Inventory{
		Registry: r,

		RunsTotal: r.Counters("svc_agent_runs_total",
			"Runs of agents and workflows that ended, by status: completed, failed or aborted.", "status"),
		RunDuration: r.Summary("svc_agent_run_duration_seconds",
			"Wall-clock seconds from the start of a run to its end, time parked for approval included."),
		WALSize: r.Gauge("svc_storage_wal_size_bytes",
			"Size of the store's write-ahead log."),
		IdempotencyHits: r.Gauge("svc_idempotency_cache_hit_ratio",
			"Part of the requests with an Idempotency-Key that were answered again, from 0 to 1; refused ones do not count."),
		ReplayBufferEvents: r.Gauge("svc_replay_buffer_events",
			"Events held for replay, over all subjects."),
		InflightRuns: r.Gauge("svc_inflight_runs",
			"Runs that are running now; parked ones do not count."),
		Uptime: r.Gauge("svc_server_uptime_seconds",
			"Whole seconds since the server started."),
		BuildInfo: r.Gauges("svc_build_info",
			"Always 1; the label tells the version.", "version"),
		ToolCalls: r.Counters("svc_tool_calls_total",
			"Tool calls that ended, by tool and status.", "tool", "status"),
		ProviderTokens: r.Counters("svc_provider_tokens_total",
			"Tokens that model calls consumed, by model and direction: input or output.", "model", "direction"),
		ProviderCost: r.Counters("svc_provider_cost_usd_total",
			"Cost of model calls in US dollars, by model; calls priced in another currency do not count.", "model"),
		RedactionDrops: r.Counter("svc_redaction_drops_total",
			"Events that were delivered with commentary marked or removed."),
		Connections: r.Gauge("svc_realtime_connections",
			"WebSocket and event-stream connections that are open."),
		HTTPConnections: r.Gauge("svc_http_connections",
			"Connections that are open, WebSockets and event streams included."),
		HTTPRefused: r.Counter("svc_http_connections_refused_total",
			"Connections that were refused because server.maxConnections were open."),
		HTTPRequests: r.Counters("svc_http_requests_total",
			"Requests answered, by route pattern, method and status.", "route", "method", "status"),
		HTTPDuration: r.Summary("svc_http_request_duration_seconds",
			"Seconds from a request's arrival to the end of its answer."),
	}

	// A series that begins at zero lets an alert see the first failure as an increase.
	for _, status := range []string{"completed", "failed", "aborted"} {
		in.RunsTotal.With(status)
	}
	in.BuildInfo.With(version).Set(1)
	start := time.Now()
	in.Uptime.Sample(func() (float64, error) { return float64(time.Since(start) / time.Second), nil })
	return in
}
