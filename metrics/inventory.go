package metrics

import "time"

// An Inventory is every family of this program. A field is one row of the table in [New]; whoever produces a number
// is handed the field. [Vec.With] takes label values in the order of that row.
type Inventory struct {
	*Registry

	RunsTotal, ToolCalls, ProviderTokens, ProviderCost     *Counters
	RedactionDrops, HTTPRefused                            *Counter
	BuildInfo                                              *Gauges
	WALSize, IdempotencyHits, ReplayBufferEvents           *Gauge
	InflightRuns, Uptime, Connections                      *Gauge
	HTTPConnections, Programs, ProgramsWaiting             *Gauge
	HTTPRequests                                           *Counters
	TriggerFires                                           *Counters
	RunDuration, HTTPDuration                              *Summary
	WorkflowSteps                                          *Counter
	WorkflowTasks                                          *Counters
	WorkflowTaskDuration, WorkflowLateness                 *Summary
	WorkflowBlocked                                        *Gauge
	RetentionDeleted, RetentionErrors                      *Counters
	RetentionLast                                          *Gauge
	RunsByAgent                                            *Counters
	HTTPLatency, RunLatency, ToolLatency, CommitLatency    *Histogram
	ProviderLatency                                        *Histograms
	Changes, CommitFailures                                *Counter
	TriggersOverdue, ApprovalsPending, DiskFree            *Gauge
	NotifyAttempts                                         *Counters
	NotifyDead                                             *Counter
	NotifyWaiting                                          *Gauge
	AuditEntries, AuditFailures                            *Counter
	AuditDenials, AuditVerifications                       *Counters
	AuditDuration                                          *Summary
	AuditWritable, AuditWhole, AuditChain, AuditCheckpoint *Gauge
	AuditCheckpointAge, AuditUncovered, AuditLag           *Gauge
}

// New declares the families of a server of the given version that starts now. A family is declared only when this
// version has a producer for it.
func New(version string) *Inventory {
	r := new(Registry)
	in := &Inventory{
		Registry: r,

		RunsTotal: r.Counters("svc_agent_runs_total",
			"Finished runs of agents and workflows, by status: completed, failed or aborted.", "status"),
		RunDuration: r.Summary("svc_agent_run_duration_seconds",
			"Wall-clock seconds from the start of a run to its end, including the time that it waited for approval."),
		WALSize: r.Gauge("svc_storage_wal_size_bytes",
			"Size of the store's write-ahead log."),
		IdempotencyHits: r.Gauge("svc_idempotency_cache_hit_ratio",
			"Fraction of requests with an Idempotency-Key that received an earlier answer, from 0 to 1; refused requests do not count."),
		ReplayBufferEvents: r.Gauge("svc_replay_buffer_events",
			"Events in the replay buffers of all subjects."),
		InflightRuns: r.Gauge("svc_inflight_runs",
			"Runs in progress; waiting runs do not count."),
		Uptime: r.Gauge("svc_server_uptime_seconds",
			"Whole seconds since the server started."),
		BuildInfo: r.Gauges("svc_build_info",
			"Always 1; the label holds the version.", "version"),
		ToolCalls: r.Counters("svc_tool_calls_total",
			"Finished tool calls, by tool and status.", "tool", "status"),
		ProviderTokens: r.Counters("svc_provider_tokens_total",
			"Tokens of model calls, by model and direction: input or output.", "model", "direction"),
		ProviderCost: r.Counters("svc_provider_cost_usd_total",
			"Cost of model calls in US dollars, by model; calls with prices in another currency do not count.", "model"),
		RedactionDrops: r.Counter("svc_redaction_drops_total",
			"Delivered events in which commentary was marked or removed."),
		Connections: r.Gauge("svc_realtime_connections",
			"Open WebSocket and event-stream connections."),
		HTTPConnections: r.Gauge("svc_http_connections",
			"Open connections, including WebSockets and event streams."),
		Programs: r.Gauge("svc_programs",
			"Running programs of exec agents and tools."),
		ProgramsWaiting: r.Gauge("svc_programs_waiting",
			"Programs that wait for another one to end, because server.maxPrograms are running."),
		HTTPRefused: r.Counter("svc_http_connections_refused_total",
			"Connections refused because server.maxConnections were open."),
		HTTPRequests: r.Counters("svc_http_requests_total",
			"Answered requests, by route pattern, method and status.", "route", "method", "status"),
		HTTPDuration: r.Summary("svc_http_request_duration_seconds",
			"Seconds from a request's arrival to the end of its answer."),

		TriggerFires: r.Counters("svc_triggers_fires_total",
			"Firings of triggers whose run has completed (success), or that failed or whose run did not complete (error); beyond 1000 triggers, all count as other.", "trigger_id", "status"),

		WorkflowSteps: r.Counter("svc_workflow_steps_total",
			"Durable steps of threads of workflows."),
		WorkflowTasks: r.Counters("svc_workflow_tasks_total",
			"Ended tasks of threads, by kind of node and status: completed, failed or withdrawn.", "kind", "status"),
		WorkflowTaskDuration: r.Summary("svc_workflow_task_duration_seconds",
			"Seconds from the begin of a task to its end, including the time that it waited."),
		WorkflowLateness: r.Summary("svc_workflow_wake_lateness_seconds",
			"Seconds from the time at which a thread was due to the moment at which it continued."),
		WorkflowBlocked: r.Gauge("svc_workflow_threads_blocked",
			"Threads that are due and cannot continue before somebody resumes them, at most 1000."),

		RetentionDeleted: r.Counters("svc_retention_deleted_total",
			"What sweeps of retention have deleted, by rule: batches of spans, records, threads, sessions, runs or entries.", "rule"),
		RetentionErrors: r.Counters("svc_retention_errors_total",
			"Rules of retention that failed in a sweep, by rule.", "rule"),
		RetentionLast: r.Gauge("svc_retention_last_sweep_timestamp_seconds",
			"When the latest sweep of retention ended, in seconds since 1970; 0 before the first."),

		RunsByAgent: r.Counters("svc_agent_runs_by_agent_total",
			"Finished runs of agents, by agent and status; past 1000 agents the label is other.", "agent", "status"),
		RunLatency: r.Histogram("svc_agent_run_latency_seconds",
			"Wall-clock seconds from the start of a run to its end, as in svc_agent_run_duration_seconds."),
		HTTPLatency: r.Histogram("svc_http_request_latency_seconds",
			"Seconds from a request's arrival to the end of its answer, as in svc_http_request_duration_seconds."),
		ToolLatency: r.Histogram("svc_tool_call_latency_seconds",
			"Seconds that tool calls took."),
		ProviderLatency: r.Histograms("svc_provider_call_latency_seconds",
			"Seconds that model calls took, by model, including failed calls.", "model"),
		ApprovalsPending: r.Gauge("svc_approvals_pending",
			"Runs that have stopped for a decision, at most 10000."),
		TriggersOverdue: r.Gauge("svc_triggers_overdue_seconds",
			"How long the trigger that waits longest has been due; 0 if none is."),
		NotifyAttempts: r.Counters("svc_notify_attempts_total",
			"Attempts to deliver a notification, by target and outcome: success or error.", "target", "outcome"),
		NotifyDead: r.Counter("svc_notify_dead_total",
			"Notifications that agentd does not try to deliver any more."),
		NotifyWaiting: r.Gauge("svc_notify_waiting",
			"Notifications that wait for their delivery, at most 101000."),
		DiskFree: r.Gauge("svc_storage_free_bytes",
			"Free space of the file system of the store."),
		CommitLatency: r.Histogram("svc_storage_commit_latency_seconds",
			"Seconds that transactions of the store took, including their writes."),
		Changes: r.Counter("svc_storage_changes_total",
			"Changes in committed transactions of the store. Divided by the count of svc_storage_commit_latency_seconds, it gives the changes per transaction."),
		CommitFailures: r.Counter("svc_storage_commit_failures_total",
			"Failed transactions of the store."),

		AuditEntries: r.Counter("svc_audit_entries_total",
			"Entries that this process has appended to the audit chain. Divided by the count of svc_audit_append_duration_seconds, it gives the entries per append."),
		AuditFailures: r.Counter("svc_audit_append_failures_total",
			"Failed appends to the audit chain; the requests that waited for one received audit-unavailable."),
		AuditDuration: r.Summary("svc_audit_append_duration_seconds",
			"Seconds until an append to the audit chain was durable, including failed appends."),
		AuditWritable: r.Gauge("svc_audit_writable",
			"1, or 0 from a failed append to the audit chain until the next successful one."),
		AuditWhole: r.Gauge("svc_audit_whole",
			"1, or 0 while the audit chain is known to be cut or changed and nobody has accepted that; then the server signs no checkpoint."),
		AuditChain: r.Gauge("svc_audit_chain_entries",
			"Sequence number of the last entry of the audit chain."),
		AuditCheckpoint: r.Gauge("svc_audit_checkpoint_entries",
			"Sequence number of the last entry that a signed checkpoint covers."),
		AuditCheckpointAge: r.Gauge("svc_audit_checkpoint_age_seconds",
			"Seconds since the latest checkpoint; the server signs none without new entries."),
		AuditUncovered: r.Gauge("svc_audit_uncovered_seconds",
			"Age in seconds of the oldest entry that no checkpoint covers; 0 if all are covered."),
		AuditLag: r.Gauge("svc_audit_lag_seconds",
			"How long the oldest entry has waited in the database to be chained; 0 if none waits."),
		AuditDenials: r.Counters("svc_audit_denials_total",
			"Recorded failed logins, by entry: own, or shared with others of the same minute.", "entry"),
		AuditVerifications: r.Counters("svc_audit_verifications_total",
			"Verifications of the audit chain, by result: whole, broken or error.", "result"),
	}

	// A series that begins at zero lets an alert see the first failure as an increase.
	for _, status := range []string{"completed", "failed", "aborted"} {
		in.RunsTotal.With(status)
	}
	for _, entry := range []string{"own", "shared"} {
		in.AuditDenials.With(entry)
	}
	for _, result := range []string{"whole", "broken", "error"} {
		in.AuditVerifications.With(result)
	}
	in.BuildInfo.With(version).Set(1)
	start := time.Now()
	in.Uptime.Sample(func() (float64, error) { return float64(time.Since(start) / time.Second), nil })
	return in
}
