package fault

import "slices"

// table holds every kind in the order of declaration; declare is its only writer, at package initialisation.
var table []*Kind

func declare(code string, status int, when, hint string) *Kind {
	k := &Kind{Code: code, Status: status, When: when, Hint: hint}
	table = append(table, k)
	return k
}

func (k *Kind) closes(code int) *Kind { k.Close = code; return k }

// Kinds returns every kind, in the order of declaration. The caller owns the slice.
func Kinds() []*Kind { return slices.Clone(table) }

// Kinds that answer a request.
var (
	ConfigInvalid = declare("config-invalid", 400,
		"A body, a query or the configuration is not valid.",
		"Correct the fields that `issues` names and send it again.").closes(4008)
	HandshakeInvalid = declare("handshake-invalid", 400,
		"The request for a WebSocket breaks a rule of the opening handshake.",
		"Use a WebSocket client, and a proxy that forwards `Upgrade` and `Connection`.")
	UpgradeRequired = declare("upgrade-required", 426,
		"The path accepts only WebSockets of version 13, and the request asks for none.",
		"Connect with a WebSocket client and the subprotocol `svc.protocol.v1`.")
	RunStateMalformed = declare("run-state-malformed", 400,
		"The run state is not JSON, or a member of it is missing, has a wrong type or occurs twice.",
		"Correct the places that `issues` names, or export the run state again.")
	RunStateVersionUnsupported = declare("run-state-version-unsupported", 400,
		"The run state, or a child run in it, has a version above `svc-run-state/1.x`.",
		"Use the version of agentd that wrote it, or a later one.")

	ExportFormat = declare("session-export-format-invalid", 400,
		"The body is not a session export, or it is incomplete.",
		"Export the session again, and send the file unchanged.")
	ExportTooNew = declare("session-export-schema-too-new", 400,
		"A newer version of agentd wrote this session export.",
		"Import it with that version or a later one.")
	ExportUnsupported = declare("session-export-schema-unsupported", 400,
		"This version of agentd does not read the version of the session export.",
		"Export the session again with a version of agentd that is at most two major versions older.")
	ExportChecksum = declare("session-export-checksum-mismatch", 400,
		"Somebody changed the session export after agentd wrote it.",
		"Export the session again, and send the file unchanged.")
	ExportEncrypted = declare("session-export-encryption-required", 400,
		"The session export is encrypted, and agentd cannot decrypt it.",
		"Decrypt it first, or export the session without encryption.")

	IdempotencyKeyRequired = declare("idempotency-key-required", 400,
		"The `Idempotency-Key` is malformed, or it is missing and `server.idempotency.requireKey` is enforce.",
		"Send an `Idempotency-Key` of 8 to 255 characters of A-Z a-z 0-9 _ - :. Use a new key for a new request, and the same key to repeat a request.")

	AuthRequired = declare("auth-required", 401,
		"The request carries no bearer token.",
		"Send `Authorization: Bearer <token>`; `agentd token create` makes a token.").closes(4001)
	AuthInvalid = declare("auth-invalid", 401,
		"The token is malformed, mistyped or unknown.",
		"Check that the whole token was copied, or create another with `agentd token create`.").closes(4002)
	AuthRevoked = declare("auth-revoked", 401,
		"The token was revoked.",
		"Create another token with `agentd token create`.").closes(4003)
	AuthExpired = declare("auth-expired", 401,
		"The token has expired.",
		"Create another token with `agentd token create`.").closes(4002)

	SignatureMissing = declare("signature-missing", 401,
		"The request to a hook lacks a header of its signature.",
		"Check that the sender signs its requests, and that `verify.scheme` of the hook is the sender's scheme.")
	SignatureMalformed = declare("signature-malformed", 401,
		"A header of the signature of a request to a hook has another form than the hook's scheme.",
		"Compare the headers that the sender documents with `verify` of the hook.")
	SignatureOld = declare("signature-old", 401,
		"The sender signed the request to a hook more than 300 s ago.",
		"Let the sender sign each attempt anew, and compare the clocks of both machines.")
	SignatureEarly = declare("signature-early", 401,
		"The signed time of the request to a hook is more than 300 s in the future.",
		"Compare the clocks of both machines.")
	SignatureWrong = declare("signature-wrong", 401,
		"No secret of the hook makes the signature of the request.",
		"Check that `verify.secretRefs` has the sender's secret, and that no proxy changes the body.")

	ScopeDenied = declare("scope-denied", 403,
		"The token's scopes do not cover this operation.",
		"Use a token with the scope that the message names: agents:invoke and workflows:execute start and abort runs, workflows:resume answers waits, agents:approve and workflows:approve decide on calls, agents:read and workflows:read show runs.").closes(4004)
	CSRFDenied = declare("csrf-denied", 403,
		"A browser sent a request without a token, and the request does not prove which page made it.",
		"Send a bearer token, or repeat the CSRF cookie in the header; a GET sets the cookie.")
	OriginDenied = declare("origin-denied", 403,
		"Without tokens (auth.kind none), the request comes from a page of another origin or uses a name that is not the server's.",
		"Add the origin to `server.cors.allowOrigins`, or switch `auth.kind` to token.")
	ScopeEscalation = declare("scope-escalation-denied", 403,
		"The request asks for a token with more scopes than the caller's own token has.",
		"Request only scopes that your token covers.")

	ApproverRefused = declare("approver-refused", 403,
		"The tool call needs the grant of another principal: the caller started the run, or has granted the call already.",
		"Let somebody with another token decide. Any approver may deny the call.")

	NotFound = declare("not-found", 404,
		"No route has this path, or no resource has this id.",
		"Check the path against `GET /openapi.json`.")
	AgentNotFound = declare("agent-not-found", 404,
		"No agent is registered under this id.",
		"List the registered agents with `GET /agents`.")
	RouteHandlerMissing = declare("route-handler-missing", 404,
		"No agent or workflow has this id.",
		"List agents with `GET /agents`, and workflows with `GET /workflows`.")
	RunNotFound = declare("run-not-found", 404,
		"No run has this id.",
		"List the runs with `GET /runs`.")
	SessionNotFound = declare("session-not-found", 404,
		"No session has this id.",
		"List the sessions with `GET /sessions`.")
	TokenNotFound = declare("token-not-found", 404,
		"No token has this id.",
		"List the tokens with `GET /tokens`.")

	MethodNotAllowed = declare("method-not-allowed", 405,
		"The path does not accept this method.",
		"Use a method that the `Allow` header lists.")

	RunAborted = declare("run-aborted", 408,
		"The run was aborted before it finished.",
		"Read `GET /runs/{runId}/events` to see what the run did before you start another.")

	TriggerNotFound = declare("trigger-not-found", 404,
		"There is no trigger with this id.",
		"List the triggers with `GET /triggers`.")
	TriggerNotFirable = declare("trigger-not-firable", 409,
		"The trigger is disabled, has expired, or is not declared any more.",
		"Enable it with `POST /triggers/{id}/enable`, or declare it in the configuration.")

	NotificationDelivered = declare("notification-delivered", 409,
		"The notification was delivered, so it is not sent again.",
		"List those that wait or are dead with `GET /notifications?state=dead`.")

	SessionBusy = declare("session-busy", 409,
		"Another run of this session has not ended.",
		"Wait for that run, or send `onBusy: \"queue\"` to queue this one.")
	SessionExists = declare("session-exists", 409,
		"A session with this id exists already.",
		"Choose another id, or omit it to let the server choose one.")
	RunNotSuspended = declare("run-not-suspended", 409,
		"The run does not wait for an approval.",
		"Read its status with `GET /runs/{runId}/state`.")
	ApprovalNotWaiting = declare("approval-not-waiting", 409,
		"None of the decisions is for a call that the run waits for.",
		"Decide on the calls that `waiting` names, or read the run's state again.")
	OutcomeUnknown = declare("outcome-unknown", 409,
		"A decision grants a tool call that may already have taken effect, and does not allow to repeat it.",
		"Find out whether the call took effect. Then deny it, or grant it with `again: true`.")
	AgentChanged = declare("agent-changed", 409,
		"The agent of the waiting run, or of one of its children, now has another kind and cannot continue the run.",
		"Restore the agent in the configuration and decide again, or abort the run.")
	RunEnding = declare("run-ending", 409,
		"The run ends after the decisions on its unknown outcomes, and agentd cannot make the granted call again.",
		"Find out whether the call took effect, and deny it (`granted: false`) with what you found as the `reason`.")
	EditRefused = declare("edit-refused", 409,
		"A decision changes the arguments of a call, and the tool, its schema, the agent's permissions or the kind of approval do not allow that. Nothing was decided.",
		"Grant or deny the call unchanged, or correct the arguments. Changes require `\"approval\": {\"edit\": true}` in the tool.")
	CallAltered = declare("call-altered", 409,
		"The stored arguments of a waiting call differ from the requested ones: somebody edited the database, or it is damaged. agentd does not make the call.",
		"Deny the call or abort the run, and find out who changed the database. The audit chain holds the digest of the requested arguments.")
	RunConflict = declare("run-conflict", 409,
		"Another request changed the run at the same moment.",
		"Read the state of the run again, then decide.")

	RunIsChild = declare("run-is-child", 409,
		"The run is a tool call of another run. While it waits, only that run can be resumed or aborted.",
		"Use the run that `rootRunId` names, and send the `subRunToolCallId` of the approval with each decision.")
	RunNotEnded = declare("run-not-ended", 409,
		"The operation requires a run that has ended.",
		"Wait until `GET /runs/{runId}/state` shows that the run has ended.")
	RunNotRecorded = declare("run-not-recorded", 409,
		"agentd did not record the run, or not from its beginning.",
		"Set `record` to true for the agent, and run it again.")

	RunStateUnfit = declare("run-state-unfit", 409,
		"The server cannot take over the run state: its status does not allow that, or the server lacks what the run needs to continue.",
		"Correct what `issues` names, in this server or where the run state comes from.")
	RunExists = declare("run-exists", 409,
		"A run with this id exists already.",
		"Use the existing run, or erase its session first.")

	IdempotencyConflict = declare("idempotency-conflict", 409,
		"The `Idempotency-Key` belongs to another caller, to another request, or to something that was erased.",
		"Use a new key for a new request. To repeat a request, send it unchanged.")
	IdempotencyInFlight = declare("idempotency-in-flight", 409,
		"The first request with this `Idempotency-Key` is in progress.",
		"Repeat the request after `Retry-After`. It then receives the answer of the first.")

	RetentionRunning = declare("retention-running", 409,
		"A sweep of retention is in progress.",
		"Wait until `GET /retention` shows that no sweep is running.")

	BodyTooLarge = declare("body-too-large", 413,
		"The body is larger than `server.maxBodyBytes`.",
		"Send less, or raise `server.maxBodyBytes`.").closes(1009)

	AuthLockedOut = declare("auth-locked-out", 429,
		"Too many logins from this address or with this token have failed.",
		"Check the token, and try again after `Retry-After`.").closes(4002)

	Internal = declare("internal", 500,
		"The server failed in an unexpected way.",
		"Look up the request id in the server's log.")
	RunFailed = declare("run-failed", 500,
		"The run ended as failed.",
		"Read the error in `GET /runs/{runId}/state`, and what led to it in `GET /runs/{runId}/events`.")

	ServerDraining = declare("server-draining", 503,
		"The server is stopping and accepts no new work.",
		"Try again after `Retry-After`.").closes(4007)
	RateLimited = declare("rate-limit-exceeded", 429,
		"The address sends more requests than `server.rateLimit` allows.",
		"Try again after `Retry-After`, or raise `server.rateLimit.perIpRequests`.").closes(4005)
	Overloaded = declare("overloaded", 503,
		"The server has more waiting work than it accepts.",
		"Try again after `Retry-After`.")
	AuditUnavailable = declare("audit-unavailable", 503,
		"The server cannot write the audit chain, and answers nothing that the chain must record. The request may have taken effect.",
		"Check free space and permissions of the folder of `audit.path`. Find out whether the request took effect, then try again.")
	AuditPayload = declare("audit-payload-serialization", 500,
		"An entry of the audit chain cannot be encoded, or is too large.",
		"Look up the request id in the server's log.")
	StorageFailed = declare("storage-failed", 503,
		"The store could not make a change durable, or does not know whether it did. The change may appear after a restart.",
		"Check free space and permissions of the data folder. Then repeat the request with the same `Idempotency-Key`, or first check whether the change is there.")
	StorageCorrupt = declare("storage-corrupt", 500,
		"A page or a row of the database is damaged: the disk is failing, or somebody changed the file.",
		"Run `agentd storage verify`, then stop the server and restore the backup.")
)

// Kinds that end a start-up or a command.
var (
	PepperMissing = declare("pre-bind-pepper-missing", 0,
		"Token authentication is on, but `auth.pepperRef` is absent or has no value.",
		"Set `auth.pepperRef`; `agentd init` creates a pepper file.")
	PepperWeak = declare("pre-bind-pepper-weak", 0,
		"The pepper is shorter than 32 bytes or has too little variety.",
		"Create another with `head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n'`.")
	SecretUnresolvable = declare("pre-bind-secret-unresolvable", 0,
		"A secret reference in the configuration has no value.",
		"Set the variable or create the file that the reference names.")
	SecretRefInvalid = declare("secret-ref-invalid", 0,
		"A text is not a valid secret reference. `kind` says why.",
		"Write a reference such as `env:NAME`, `file:path`, `encrypted-file:path#KEY` or `ref:KEY`.")
	ResolutionFailed = declare("resolution-failed", 0,
		"A secret reference has no value, or a store of secrets cannot be read.",
		"Check what the message names; `agentd secrets doctor` checks every reference.")
	LiteralForbidden = declare("literal-secrets-forbidden", 0,
		"A reference has the scheme `literal:`, which is not allowed here.",
		"Use `env:` or `file:` instead.")
	SecretAccessDenied = declare("secret-access-denied", 0,
		"The active store of secrets is read-only.",
		"Set AGENTD_MASTER_PASSPHRASE, so that agentd keeps secrets in an encrypted file.")
	StrictSecretsUnavailable = declare("strict-secrets-unavailable", 0,
		"None of the permitted stores of secrets is available.",
		"Make one available as the message says, or change `secrets.source` or `secrets.strict`.")
	MissingPeerDependency = declare("missing-peer-dependency", 0,
		"A reference needs a keyring or a vault, which agentd does not support.",
		"Use `env:`, `file:`, `encrypted-file:` or `ref:` instead.")
	EncryptionRequired = declare("pre-bind-encryption-required", 0,
		"Encryption is on, but there is no passphrase reference.",
		"Set the `passphraseRef` beside it, or switch encryption off.")
	EncryptionUnsupported = declare("pre-bind-encryption-peer-missing", 0,
		"The configuration asks for an encryption that agentd does not support.",
		"Switch `storage.encryption.enabled` off and encrypt the disk instead.")
	AuditPassphrase = declare("audit-passphrase-wrong", 0,
		"The audit chain has another passphrase.",
		"Set `audit.passphraseRef` to the passphrase of this chain, or `audit.path` to another file.")
	AuditUnusable = declare("audit-unusable", 0,
		"The file of the audit chain or of its checkpoints is damaged, or was created with other settings.",
		"Verify the chain with `agentd audit verify`, or start a new one with another `audit.path`.")
	AuditWhole = declare("audit-whole", 0,
		"The audit chain has no break to accept.",
		"Verify the chain with `agentd audit verify`.")
	MigrationFailed = declare("migration-failed", 0,
		"The migration to this version's schema failed. The database is unchanged.",
		"Check free space and permissions. If the file is damaged, restore the backup.")
	SchemaNewer = declare("schema-newer", 0,
		"A newer version of agentd wrote this database.",
		"Use that version or a later one. Downgrades are not possible.")
	SchemaBehind = declare("schema-behind", 0,
		"The database has an older schema, and a read-only command does not migrate it.",
		"Copy the database, then run `agentd migrate`.")
	SchemaChanged = declare("schema-changed", 0,
		"A table, index, trigger or view of the database is missing, was changed, or does not belong to agentd.",
		"Restore the backup. To keep the data instead, undo the change that the message names with the `sqlite3` program.")
	StoreLocked = declare("store-locked", 0,
		"Another process holds this database.",
		"Stop that process, or use another `storage.path`.")
	StoreUnusable = declare("store-unusable", 0,
		"The database file cannot be opened or is damaged.",
		"Check the path and its permissions. If the file is damaged, restore the backup.")
	BackupInvalid = declare("backup-invalid", 0,
		"The file is not a backup, or it was cut or changed. Nothing was changed.",
		"Use another backup. `sha256sum` shows whether a copy of this one is the same.")
	BackupPepper = declare("backup-other-pepper", 0,
		"The backup was made with another pepper, so none of its tokens would be valid. Nothing was changed.",
		"Set `auth.pepperRef` to the pepper of that time, or add --accept-new-pepper and create new tokens.")
	RestoreIncomplete = declare("restore-incomplete", 0,
		"A restore was interrupted while it exchanged the files of the storage.",
		"Run `agentd storage restore FILE` again: it finishes the restore.")
	BindFailed = declare("bind-failed", 0,
		"The server could not listen on the address.",
		"Choose another `server.port`, or stop the program that listens there.")
	DoubleStart = declare("lifecycle-double-start", 0,
		"Start was called on a running server.",
		"Stop it first.")
	NotStarted = declare("lifecycle-not-started", 0,
		"Shutdown was called on a server that does not run.",
		"Wait until Start has returned.")
	ShutdownTimeout = declare("shutdown-timeout", 0,
		"The server stopped before the run ended.",
		"Read `GET /runs/{runId}/events` to see what the run did, or raise `server.shutdown.drainTimeoutMs`.")
	TLSUnusable = declare("pre-bind-tls-unusable", 0,
		"The certificate or the key of `server.tls` cannot be read, or they do not match.",
		"Correct `server.tls`, or remove it and use a proxy that terminates TLS.")
	RefuseRoot = declare("refuse-to-run-as-root", 0,
		"The process runs as root, and `hardening.refuseRoot` is true.",
		"Run it as another user, or set `hardening.refuseRoot` to false.")
	DuplicateID = declare("duplicate-id", 0,
		"Two registrations have the same id.",
		"Give one of them another id.")
	Usage = declare("usage", 0,
		"The command line is not valid.",
		"Run `agentd help`.")
	ServerUnreachable = declare("server-unreachable", 0,
		"The server that holds the database does not answer.",
		"Check that the server runs, and that AGENTD_TOKEN holds a token for it.")

	CassetteInvalid = declare("cassette-invalid", 0,
		"The file is not a recording of a run, or it is damaged.",
		"Write the recording again with `agentd runs cassette`.")
	CassetteTooNew = declare("cassette-schema-too-new", 0,
		"A newer version of agentd wrote this recording.",
		"Use that version or a later one.")
	CassetteUnsupported = declare("cassette-schema-unsupported", 0,
		"agentd no longer reads this version of recordings.",
		"Record the run again with this version.")
	CassetteCursorViolation = declare("cassette-cursor-violation", 0,
		"The lines of the recording are out of order: a step goes backwards, or a call occurs twice.",
		"Write the recording again with `agentd runs cassette`.")
	CassetteChecksum = declare("cassette-checksum-mismatch", 0,
		"Somebody changed the recording after agentd wrote it.",
		"Write the recording again with `agentd runs cassette`.")

	EvidenceIncomplete = declare("evidence-incomplete", 0,
		"There is no audit chain, or it lacks entries that a bundle of evidence about the run needs.",
		"Before runs that need evidence, set `audit.enabled` to true, and `audit.toolEvents` to security or all.")
	EvidenceUncovered = declare("evidence-uncovered", 0,
		"No signed checkpoint covers the entries about the run yet.",
		"Wait for `audit.checkpoint.intervalMs` and try again. A server also signs a checkpoint when it stops.")
)

// Codes that a failed or aborted run carries in its error.
var (
	StopCondition = declare("stop-condition", 0,
		"The run reached its step limit without finishing.",
		"Raise `maxSteps`, or make the task smaller.")
	MultipleHandoffs = declare("multiple-handoffs-in-step", 0,
		"The model handed the conversation to several agents at once.",
		"Say in `instructions` when to hand over, or declare fewer `handoffs`.")
	OutputInvalid = declare("output-validation-failed", 0,
		"The model's answer does not match the declared output schema.",
		"Simplify the schema, or use a model that supports structured output.")
	NoProviderCompleted = declare("no-provider-completed", 0,
		"No model finished its answer.",
		"Check the provider, and add a fallback.")
	IncompleteToolCall = declare("incomplete-tool-call", 0,
		"The model's answer was cut off inside a tool call.",
		"Raise `maxOutputTokens`.")
	BudgetExceeded = declare("budget-exceeded", 0,
		"The run exceeded its budget of tokens, cost, tool calls or time.",
		"Raise the `budget`, or make the task smaller.")
	BudgetUnpriced = declare("budget-unpriced", 0,
		"The run has a cost budget, but its model has no price.",
		"Add the model to the provider's `prices`.")
	AgentExited = declare("agent-exited", 0,
		"The agent's program ended without a result.",
		"Read the exit status and the standard error in the message.")
	AgentProtocol = declare("agent-protocol", 0,
		"The agent's program or server broke the protocol of its kind.",
		"Compare its output with `agentd help protocols`.")
	AgentUnreachable = declare("agent-unreachable", 0,
		"The agent's program or server could not be reached.",
		"Check the `command` or the `url` of the agent.")
	AgentTimeout = declare("agent-timeout", 0,
		"The agent took longer than its `timeoutMs`.",
		"Raise `timeoutMs`, or make the task smaller.")
	OutboundDenied = declare("outbound-denied", 0,
		"agentd refused to connect to a host that the configuration does not name, or to an address that the host must not have.",
		"Check the address in the configuration and its DNS. Hosts with private addresses belong in `outbound.allowPrivate`.")
	OutputTooLarge = declare("output-too-large", 0,
		"The agent wrote more than its `maxOutputBytes`.",
		"Raise `maxOutputBytes`, or make the agent write less.")
	AgentPanic = declare("agent-panic", 0,
		"The agent's code panicked.",
		"Look up the run id in the server's log.")
	ServerRestarted = declare("server-restarted", 0,
		"The server stopped during the run, and the agent cannot continue it.",
		"Read `GET /runs/{runId}/events` to see what the run did before you start another.")
	Restored = declare("restored", 0,
		"The storage was restored from a backup that was made during the run. The run may have done more after the backup.",
		"Find out what the run has done since the backup before you start another.")
	CallTooDeep = declare("call-too-deep", 0,
		"Agents and workflows call each other more levels deep than agentd allows.",
		"Look for agents and workflows that call each other without end, or let the caller do part of the work itself.")
	CrashLoop = declare("crash-loop", 0,
		"The server crashed too often while the run made no progress.",
		"Find out why the server crashes. `GET /runs/{runId}/events` shows what the run did.")

	RateLimit      = declare("rate-limit", 0, "The model provider refused the call: too many requests.", "Wait, or add a fallback.")
	Capacity       = declare("capacity", 0, "The model provider has no capacity.", "Wait, or add a fallback.")
	ContextLength  = declare("context-length", 0, "The conversation is longer than the model accepts.", "Lower `historyTokens`, or use a model with a larger window.")
	Transient      = declare("transient", 0, "The model provider failed or could not be reached.", "Try again, or add a fallback.")
	InvalidRequest = declare("invalid-request", 0, "The model provider rejected the request as invalid.", "Check the model's name and options.")
	Unauthorized   = declare("unauthorized", 0, "The model provider rejected the credentials.", "Check `apiKeyRef`.")
	ContentFilter  = declare("content-filter", 0, "The model provider's filter stopped the answer.", "Change the input.")
	Unknown        = declare("unknown", 0, "The run failed for an unclassified reason.", "Read the message.")
)

// ByCode finds a kind by its code; nil if there is none.
func ByCode(code string) *Kind {
	for _, k := range table {
		if k.Code == code {
			return k
		}
	}
	return nil
}
