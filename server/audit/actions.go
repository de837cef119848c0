package audit

// An Action names what an entry records. [Actions] declares each one.
type Action string

const (
	HTTPRequest  Action = "http:request"
	AuthGranted  Action = "auth:granted"
	AuthDenied   Action = "auth:denied" // an entry adds the code of the fault
	TokenCreate  Action = "token:create"
	TokenRevoke  Action = "token:revoke"
	TicketIssue  Action = "ticket:issue"
	SecretSet    Action = "secret:set"
	SecretRotate Action = "secret:rotate"
	SecretDelete Action = "secret:delete"
	SecretReveal Action = "secret:reveal"

	RunStart        Action = "run:start"
	RunResume       Action = "run:resume"
	RunAbort        Action = "run:abort"
	RunImport       Action = "run:import"
	WorkflowExecute Action = "workflow:execute"
	WorkflowResume  Action = "workflow:resume"
	WorkflowRetry   Action = "workflow:retry"
	WorkflowTick    Action = "workflow:tick"
	RunDelete       Action = "run:delete"
	ThreadDelete    Action = "workflow:delete"
	TriggerFire     Action = "trigger:fire"
	TriggerEnable   Action = "trigger:enable"
	TriggerDisable  Action = "trigger:disable"
	TriggerDelete   Action = "trigger:delete"
	TriggerPrune    Action = "trigger:prune"
	EventEmit       Action = "event:emit"
	NotifyRetry     Action = "notify:retry"
	NotifyTest      Action = "notify:test"
	SessionCreate   Action = "session:create"
	SessionDelete   Action = "session:delete"
	SessionClose    Action = "session:close"
	SessionExport   Action = "session:export"
	SessionImport   Action = "session:import"
	Subscribe       Action = "subscription:subscribe"
	ReplayGranted   Action = "replay:accessed"
	ReplayDenied    Action = "replay:skipped"

	ApprovalRequested Action = "tool:approval:requested"
	ApprovalGranted   Action = "tool:approval:granted"
	ApprovalDenied    Action = "tool:approval:denied"
	ToolStart         Action = "tool:execute:start"
	ToolEnd           Action = "tool:execute:end"
	ToolError         Action = "tool:execute:error"
	ToolSpill         Action = "tool:result:spill:written"
	Sanitised         Action = "delivery:commentary:sanitized"
	OutboundDenied    Action = "outbound:denied"

	ServerStart  Action = "server:start"
	ServerStop   Action = "server:stop"
	ConfigReload Action = "config:reload"
	AuditVerify  Action = "audit:verify"
	AuditExport  Action = "audit:export"
	AuditPrune   Action = "audit:prune"
	AuditAccept  Action = "audit:accept"
	AuditDamaged Action = "audit:damaged"

	RetentionRun   Action = "retention:run"
	RetentionSweep Action = "retention:sweep"

	StorageBackup  Action = "storage:backup"
	StorageRestore Action = "storage:restore"
)

// Declared is a row of the table of actions.
type Declared struct {
	Action  Action
	When    string // when an entry with this action is written
	Target  string // what the entry's target names
	Carries string // what its metadata holds, besides what its context names
}

// Actions is the table of all actions that entries have.
var Actions = []Declared{
	{HTTPRequest, "A principal made a request, whatever the outcome.", "path", "`method`, `status`, `durationMs`, `requestId`; `idempotencyKey`, `idempotencyReplayed`; `decisions`"},
	{AuthGranted, "A token authenticated a request: once an hour for each address. A ticket did: each time. A command acts without a server.", "path", "`address`, `by`, `method`, `requestId`"},
	{AuthDenied, "An authentication failed; the action ends with `:CODE`. The first of an address in a minute has its own entry, a second one counts the rest.", "path", "`address`, `method`, `requestId`, `count`"},
	{TokenCreate, "A token was created.", "`token:ID`", "`scopes`"},
	{TokenRevoke, "A token was revoked, with all that were minted with it.", "`token:ID`", "`also`, `alsoCount`"},
	{TicketIssue, "A principal got a ticket for one connection.", "`ticket`", ""},
	{SecretSet, "A command set a secret. No entry holds a value.", "`secret:KEY`", "`store`; `error` where it failed"},
	{SecretRotate, "A command replaced a secret by another.", "`secret:KEY`", "`store`; `error` where it failed"},
	{SecretDelete, "A command deleted a secret.", "`secret:KEY`", "`store`; `error` where it failed"},
	{SecretReveal, "A command showed a secret.", "`secret:KEY`", "`store`; `error` where it failed"},

	{RunStart, "A principal started a run.", "`run:ID`", "`agentId`"},
	{RunResume, "A principal decided on calls of a run. The entry of the request names the calls.", "`run:ID`", ""},
	{RunAbort, "A principal aborted a run.", "`run:ID`", "`drain`, `onPendingApprovals`; `status` of the run afterwards or, over WebSocket, `transport`"},
	{RunImport, "A principal imported a run.", "`run:ID`", "`agentId`"},
	{WorkflowExecute, "A principal began a run of a workflow.", "`run:ID`", "`workflowId`, `threadId`"},
	{WorkflowResume, "A principal answered a wait of a thread, or took up a blocked one.", "`run:ID`", "`workflowId`, `threadId`"},
	{WorkflowRetry, "A principal began another run of a thread that failed or was aborted.", "`run:ID`", "`workflowId`, `threadId`"},
	{WorkflowTick, "A principal fired the due timers of a thread.", "`workflow:ID`", "`threadId`, `fired`"},
	{RunDelete, "Retention erased a run without a session, with all runs that it called.", "`run:ID`", ""},
	{ThreadDelete, "A principal, or retention, erased a thread and its runs.", "`thread:WORKFLOW/THREAD`", ""},
	{TriggerFire, "A principal fired a trigger.", "`trigger:ID`", "`outcome`, `firingId`"},
	{TriggerEnable, "A principal enabled a trigger.", "`trigger:ID`", ""},
	{TriggerDisable, "A principal disabled a trigger.", "`trigger:ID`", ""},
	{TriggerDelete, "A principal deleted a trigger and its firings.", "`trigger:ID`", ""},
	{TriggerPrune, "A principal deleted all triggers that are disabled, or not declared any more.", "`triggers`", "`disabled`, `orphaned`, `count`"},
	{EventEmit, "A principal emitted an event, or a hook did.", "`event:NAME`", "`eventId`"},
	{NotifyRetry, "A principal had notifications sent again.", "`notifications`", "`target` or `ids`, `retried`"},
	{NotifyTest, "A principal had a test sent to receivers of notifications.", "`notifications`", "`target`"},
	{SessionCreate, "A principal created a session.", "`session:ID`", ""},
	{SessionDelete, "A principal, or retention, erased a session and its runs.", "`session:ID`", ""},
	{SessionClose, "A principal closed a session.", "`session:ID`", ""},
	{SessionExport, "A principal exported a session.", "`session:ID`", ""},
	{SessionImport, "A principal imported a session.", "`session:ID`", ""},
	{Subscribe, "A client subscribed to a subject over WebSocket, or was refused. Over SSE, the request is the record.", "subject", "`transport`, `reason`"},
	{ReplayGranted, "A principal replayed recorded spans.", "`run:ID` or `session:ID`", "`mode`, `eventCount`"},
	{ReplayDenied, "A principal lacked the scope for a replay.", "`run:ID` or `session:ID`", "`mode`, `reason`"},

	{ApprovalRequested, "A tool call waits for a decision.", "`tool:NAME`", "`toolCallId`, `stepNumber`, `argsDigest`"},
	{ApprovalGranted, "A decision granted a tool call.", "`tool:NAME`", "`toolCallId`, `stepNumber`, `argsDigest`, `askedArgsDigest` where the decision changed the arguments, `reason`, `grantedBy`"},
	{ApprovalDenied, "A decision denied a tool call.", "`tool:NAME`", "`toolCallId`, `stepNumber`, `argsDigest`, `reason`"},
	{ToolStart, "A tool call started; with `audit.toolEvents: all`.", "`tool:NAME`", "`toolCallId`, `stepNumber`, `argsDigest`"},
	{ToolEnd, "A tool call ended; with `audit.toolEvents: all`.", "`tool:NAME`", "`toolCallId`, `stepNumber`"},
	{ToolError, "A tool call failed: one that the agent may not make or, with `audit.toolEvents: all`, any.", "`tool:NAME`", "`toolCallId`, `stepNumber`, `errorKind`"},
	{ToolSpill, "A long tool result was written to the store; with `audit.toolEvents: all`.", "`tool:NAME`", "`toolCallId`, `stepNumber`, `bytes`"},
	{Sanitised, "An event was sanitised before its delivery.", "transport and event type", "`policy`, `applied`, `boundary`, `reasons`, `matchedPattern`, `sha256OfBefore`, `sha256OfAfter`"},
	{OutboundDenied, "An outgoing connection was refused.", "address", "`setting`, `reason`, `address`"},

	{ServerStart, "The server started.", "`server`", "`version`, `pid`, `configSha256`, `toolEvents`"},
	{ServerStop, "The server stopped in good order.", "`server`", ""},
	{ConfigReload, "The server took another TLS certificate.", "`server.tls`", "`certificateSha256`"},
	{AuditVerify, "A principal verified the chain through the API.", "`audit`", ""},
	{AuditExport, "A principal measured an export of the chain through the API.", "`audit`", ""},
	{AuditPrune, "A command, or retention, deleted old entries.", "`audit`", "`fromSeq`, `throughSeq`, `before`"},
	{AuditAccept, "A command accepted a break of the chain.", "`audit`", "`reason`, `brokenAt`, `broken`, `places`"},
	{RetentionRun, "A principal asked for a sweep of retention.", "`retention`", "`dryRun`"},
	{RetentionSweep, "A sweep of retention deleted something, or a rule of it failed.", "`retention`", "by rule, how much it deleted; `failed`: the rules that failed"},
	{StorageBackup, "A command makes a backup. Where it fails, a second entry follows.", "`storage`", "`file`; `error` where it failed"},
	{StorageRestore, "A command restored a backup. This is in the chain of the backup; the one that was replaced knows nothing of it.", "`storage`", "`file`, `createdAt` of the backup, `ended`: how many runs were ended, `erased`: how many sessions, threads and runs were erased again"},
	{AuditDamaged, "Entries that waited in the database were changed or are gone before they were chained. Also shown in place of an entry whose contents are lost, after the break was accepted.", "`audit`", "`fromRow`, `toRow`"},
}
