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
	RequestMalformed = declare("request-malformed", 400,
		"What was sent is no valid HTTP request.",
		"Send HTTP/1.1 with one `Host` field and header fields of valid names and values.")
	HandshakeInvalid = declare("handshake-invalid", 400,
		"A request for a WebSocket breaks a rule of the opening handshake.",
		"Use a WebSocket client, and a proxy that passes `Upgrade` and `Connection` on.")
	UpgradeRequired = declare("upgrade-required", 426,
		"The path is for WebSockets, and the request asks for none of version 13.",
		"Connect with a WebSocket client and the subprotocol `svc.protocol.v1`.")
	RunStateMalformed = declare("run-state-malformed", 400,
		"A run state is not one: it is no JSON, or a member is missing, of a wrong type or there twice.",
		"Correct the places that `issues` names, or export the run state again.")
	RunStateVersionUnsupported = declare("run-state-version-unsupported", 400,
		"A run state, or a child run in it, has a label above `svc-run-state/1.x`.",
		"Use the version of the program that wrote it, or a later one.")

	ExportFormat = declare("session-export-format-invalid", 400,
		"What is to be imported is no session export, or not a whole one.",
		"Export the session again, and send the file as it is.")
	ExportTooNew = declare("session-export-schema-too-new", 400,
		"A newer version of the program wrote this session export.",
		"Import it with that version or a later one.")
	ExportUnsupported = declare("session-export-schema-unsupported", 400,
		"The session export has a version that this program does not read.",
		"Export the session again with a version of the program that is at most two major versions older.")
	ExportChecksum = declare("session-export-checksum-mismatch", 400,
		"The session export was changed after it was written.",
		"Export the session again, and send the file as it is.")
	ExportEncrypted = declare("session-export-encryption-required", 400,
		"The session export is encrypted, and this program cannot decrypt it.",
		"Decrypt it first, or export the session without encryption.")

	IdempotencyKeyRequired = declare("idempotency-key-required", 400,
		"The Idempotency-Key is malformed, or there is none and `server.idempotency.requireKey` is enforce.",
		"Send an `Idempotency-Key` of 8 to 255 characters of A-Z a-z 0-9 _ - :, a new one for each request but the same for its repetition.")

	AuthRequired = declare("auth-required", 401,
		"The request carries no bearer token.",
		"Send `Authorization: Bearer <token>`; `agentd token create` makes one.").closes(4001)
	AuthInvalid = declare("auth-invalid", 401,
		"The token is malformed, mistyped or unknown.",
		"Check that the whole token was copied, or create another with `agentd token create`.").closes(4002)
	AuthRevoked = declare("auth-revoked", 401,
		"The token was revoked.",
		"Create another token with `agentd token create`.").closes(4003)
	AuthExpired = declare("auth-expired", 401,
		"The token's time is over.",
		"Create another token with `agentd token create`.").closes(4002)

	ScopeDenied = declare("scope-denied", 403,
		"The token's scopes do not cover this operation.",
		"Use a token with the scope that the message names: agents:invoke starts and aborts, agents:approve decides, agents:read shows.").closes(4004)
	CSRFDenied = declare("csrf-denied", 403,
		"A browser sent a request without a token that does not prove which page made it.",
		"Send a bearer token, or repeat the CSRF cookie in the header; a GET sets the cookie.")
	OriginDenied = declare("origin-denied", 403,
		"With auth.kind=none: a web page of another origin, or a name that is not the server's, was used.",
		"Add the origin to `server.cors.allowOrigins`, or switch `auth.kind` to token.")
	ScopeEscalation = declare("scope-escalation-denied", 403,
		"A token was to be minted with scopes beyond its minter's own.",
		"Request only scopes that your own token covers.")

	ApproverRefused = declare("approver-refused", 403,
		"The tool call needs the word of another principal: not of the one that started the run, or of one that has granted it already.",
		"Let somebody with another token decide; anybody may deny.")

	NotFound = declare("not-found", 404,
		"No route has this path, or no resource has this id.",
		"Check the path against `GET /openapi.json`.")
	AgentNotFound = declare("agent-not-found", 404,
		"No agent is registered under this id.",
		"List the registered agents with `GET /agents`.")
	RouteHandlerMissing = declare("route-handler-missing", 404,
		"No agent or workflow under this id can be started.",
		"List what can be started with `GET /agents` or `GET /workflows`.")
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
		"The path exists, but not with this method.",
		"Use one of the methods in the `Allow` header.")

	RunAborted = declare("run-aborted", 408,
		"The run was aborted before it finished.",
		"Read `GET /runs/{runId}/events` for how far it came before you start another.")

	SessionBusy = declare("session-busy", 409,
		"Another run of this session has not ended.",
		"Wait for that run, or send `onBusy: \"queue\"` to wait your turn.")
	SessionExists = declare("session-exists", 409,
		"A session with this id exists already.",
		"Choose another id, or leave it out to have one made.")
	RunNotSuspended = declare("run-not-suspended", 409,
		"The run is not waiting for an approval.",
		"Read its status with `GET /runs/{runId}/state`.")
	ApprovalNotWaiting = declare("approval-not-waiting", 409,
		"None of the decisions is for a call that the run waits for.",
		"Decide on the calls that `waiting` names, or read the run's state again.")
	OutcomeUnknown = declare("outcome-unknown", 409,
		"A tool call that may have happened already was granted without leave to make it again.",
		"Find out whether it happened; then deny it, or grant it with `again: true`.")
	AgentChanged = declare("agent-changed", 409,
		"The agent of a run that waits, or of a child of it, is of another kind now and cannot go on with what the run has left.",
		"Put the agent back as it was in the configuration and decide again, or abort the run.")
	RunEnding = declare("run-ending", 409,
		"The run ends once its unknown outcomes are decided, and the call that was granted cannot be made again.",
		"Find out what became of the call, and deny it (`granted: false`) with what you know as the `reason`.")
	EditRefused = declare("edit-refused", 409,
		"A decision gives a call other arguments, and the tool, its schema, the agent's permissions or the kind of the approval do not allow that. Nothing was decided.",
		"Grant or deny the call as it is, or correct the arguments; a tool whose arguments may be changed says `\"approval\": {\"edit\": true}`.")
	CallAltered = declare("call-altered", 409,
		"What is stored of a call that waits is not what was asked for: its database was edited, or is damaged. The call is not made.",
		"Deny the call or abort the run, and find out who changed the database; the audit chain has the digest of what was asked for.")
	RunConflict = declare("run-conflict", 409,
		"Somebody else moved the run on at the same moment.",
		"Read its state again and decide anew.")

	RunIsChild = declare("run-is-child", 409,
		"The run is a tool call of another run, which alone can be resumed or aborted while it waits.",
		"Use the run that `rootRunId` names; decisions carry the `subRunToolCallId` of the pending approval.")
	RunNotEnded = declare("run-not-ended", 409,
		"What was asked for exists only of runs that have ended.",
		"Wait until the run has ended; `GET /runs/{runId}/state` tells.")
	RunNotRecorded = declare("run-not-recorded", 409,
		"The run was not recorded, or not from its beginning.",
		"Set `record` to true for its agent, and run it again.")

	RunStateUnfit = declare("run-state-unfit", 409,
		"A run state cannot be taken over as it is: for its status, or because this server lacks what it needs to go on.",
		"Correct what `issues` names, here or where the run state comes from.")
	RunExists = declare("run-exists", 409,
		"A run with this id exists already.",
		"Use the run that is there, or erase its session first.")

	IdempotencyConflict = declare("idempotency-conflict", 409,
		"The Idempotency-Key was used by somebody else, for another request, or for what has been erased.",
		"Use a new key for a new request; to repeat one, send it as it was.")
	IdempotencyInFlight = declare("idempotency-in-flight", 409,
		"The first request with this Idempotency-Key is under way.",
		"Send it again after `Retry-After`; it is then answered like the first.")

	BodyTooLarge = declare("body-too-large", 413,
		"The body is larger than server.maxBodyBytes.",
		"Send less, or raise `server.maxBodyBytes`.").closes(1009)

	HeaderTooLarge = declare("header-too-large", 431,
		"The request line and the header fields have more than about 64 KiB.",
		"Send fewer or shorter header fields, and what is long in the body.")

	AuthLockedOut = declare("auth-locked-out", 429,
		"Too many failed authentications from this address or for this token.",
		"Wait as long as `Retry-After` says, and check the token.").closes(4002)

	Internal = declare("internal", 500,
		"Something failed that the server did not expect.",
		"Look up the request id in the server's log.")
	RunFailed = declare("run-failed", 500,
		"The run ended as failed.",
		"Read `GET /runs/{runId}/state` for the error, and its events for what led to it.")

	TransferCoding = declare("transfer-coding-unsupported", 501,
		"The body comes in a transfer coding other than `chunked`.",
		"Send the body with `Content-Length`, or in chunks.")
	HTTPVersion = declare("http-version-unsupported", 505,
		"The request is of a version of HTTP other than 1.0 and 1.1.",
		"Use HTTP/1.1.")

	ServerDraining = declare("server-draining", 503,
		"The server is stopping and takes no new work.",
		"Try again after `Retry-After`.").closes(4007)
	RateLimited = declare("rate-limit-exceeded", 429,
		"More requests come from the address than `server.rateLimit` allows.",
		"Try again after `Retry-After`, or raise `server.rateLimit.perIpRequests`.").closes(4005)
	Overloaded = declare("overloaded", 503,
		"More work is waiting than the server accepts.",
		"Try again after `Retry-After`.")
	AuditUnavailable = declare("audit-unavailable", 503,
		"The audit chain cannot be written, so nothing is answered that it must record; the request may have had its effect.",
		"Check free space and permissions of the folder of `audit.path`, then ask how things stand and try again.")
	AuditPayload = declare("audit-payload-serialization", 500,
		"Something to be recorded in the audit chain does not encode or is too large.",
		"Look up the request id in the server's log.")
	StorageFailed = declare("storage-failed", 503,
		"The store could not make a change durable, or cannot tell whether it did: the change may be there after a restart.",
		"Check free space and permissions of the data folder, then send it again with the same `Idempotency-Key`, or look first whether it is there.")
	StorageCorrupt = declare("storage-corrupt", 500,
		"A page or a row of the database is not as the program wrote it: the medium is failing, or somebody changed the file.",
		"Run `agentd storage verify`, then stop the server and restore the backup.")
)

// Kinds that end a start-up or a command.
var (
	PepperMissing = declare("pre-bind-pepper-missing", 0,
		"Token authentication is on, but auth.pepperRef is absent or resolves to nothing.",
		"Set `auth.pepperRef`; `agentd init` makes a pepper file.")
	PepperWeak = declare("pre-bind-pepper-weak", 0,
		"The pepper is shorter than 32 bytes or has too little variety.",
		"Make another with `head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n'`.")
	SecretUnresolvable = declare("pre-bind-secret-unresolvable", 0,
		"A secret reference of the configuration gives no value.",
		"Set the variable or create the file that the reference names.")
	SecretRefInvalid = declare("secret-ref-invalid", 0,
		"A text that should be a secret reference is none; `kind` tells how.",
		"Write a reference such as `env:NAME`, `file:path`, `encrypted-file:path#KEY` or `ref:KEY`.")
	ResolutionFailed = declare("resolution-failed", 0,
		"A secret reference gives no value, or a store of secrets cannot be read.",
		"Check what the message names; `agentd secrets doctor` checks every reference.")
	LiteralForbidden = declare("literal-secrets-forbidden", 0,
		"A reference of the scheme literal: is used where it is not allowed.",
		"Use `env:` or `file:` instead.")
	SecretAccessDenied = declare("secret-access-denied", 0,
		"The active store of secrets cannot be changed.",
		"Set AGENTD_MASTER_PASSPHRASE, so that secrets are kept in an encrypted file.")
	StrictSecretsUnavailable = declare("strict-secrets-unavailable", 0,
		"No store of secrets that may be active is available.",
		"Make it available as the message says, or change `secrets.source` or `secrets.strict`.")
	MissingPeerDependency = declare("missing-peer-dependency", 0,
		"A reference needs something that this build does not have: a keyring, or an adapter of a vault.",
		"Use `env:`, `file:`, `encrypted-file:` or `ref:` instead.")
	EncryptionRequired = declare("pre-bind-encryption-required", 0,
		"Encryption is switched on, but no passphrase reference is given.",
		"Set the `passphraseRef` beside it, or switch it off.")
	EncryptionUnsupported = declare("pre-bind-encryption-peer-missing", 0,
		"The configuration asks for an encryption that this build does not have.",
		"Switch `storage.encryption.enabled` off and encrypt the disk instead.")
	AuditPassphrase = declare("audit-passphrase-wrong", 0,
		"The passphrase is not the one that the audit chain was made with.",
		"Set `audit.passphraseRef` to the passphrase of this chain, or `audit.path` to another file.")
	AuditUnusable = declare("audit-unusable", 0,
		"The file of the audit chain or of its checkpoints is damaged, or is not used as it was made.",
		"Verify it with `agentd audit verify`; start a new chain with another `audit.path`.")
	AuditWhole = declare("audit-whole", 0,
		"A break of the audit chain was to be accepted, and there is none.",
		"Verify the chain with `agentd audit verify`.")
	MigrationFailed = declare("migration-failed", 0,
		"The database could not be brought to this version's schema; it is unchanged.",
		"Check free space and permissions; restore the backup if the file is damaged.")
	SchemaNewer = declare("schema-newer", 0,
		"A newer version of the program wrote this database.",
		"Use that version or a later one; there is no downgrade.")
	SchemaBehind = declare("schema-behind", 0,
		"The database has an older schema, and a read-only command does not migrate.",
		"Make a copy of the database, then run `agentd migrate`.")
	SchemaChanged = declare("schema-changed", 0,
		"A table, index, trigger or view of the database is not one that the program made, was changed or is missing.",
		"Look at what the message names, then restore the backup; to keep the data, undo the change with the `sqlite3` program.")
	StoreLocked = declare("store-locked", 0,
		"Another process holds this database.",
		"Stop that process, or use another `storage.path`.")
	StoreUnusable = declare("store-unusable", 0,
		"The database file cannot be opened or is damaged.",
		"Check the path and its permissions; restore the backup if the file is damaged.")
	BindFailed = declare("bind-failed", 0,
		"The listener could not be bound.",
		"Choose another `server.port`, or stop what listens there.")
	DoubleStart = declare("lifecycle-double-start", 0,
		"Start was called on a server that is already started.",
		"Stop it first.")
	NotStarted = declare("lifecycle-not-started", 0,
		"Shutdown was called on a server that is not started.",
		"Wait until Start has returned.")
	ShutdownTimeout = declare("shutdown-timeout", 0,
		"The server stopped before a run had ended.",
		"Raise `server.shutdown.drainTimeoutMs`; `GET /runs/{runId}/events` shows what the run has done already.")
	TLSUnusable = declare("pre-bind-tls-unusable", 0,
		"The certificate or the key of server.tls cannot be read, or they do not belong together.",
		"Correct `server.tls`, or leave it out and put a proxy in front that speaks TLS.")
	RefuseRoot = declare("refuse-to-run-as-root", 0,
		"The process runs as root and hardening.refuseRoot is true.",
		"Run it as another user, or set `hardening.refuseRoot` to false.")
	DuplicateID = declare("duplicate-id", 0,
		"Two things are registered under one id.",
		"Give one of them another id.")
	Usage = declare("usage", 0,
		"The command line is not one that the program knows.",
		"Run `agentd help`.")
	ServerUnreachable = declare("server-unreachable", 0,
		"The server that holds the database does not answer.",
		"Check that it runs, and that AGENTD_TOKEN holds a token for it.")

	CassetteInvalid = declare("cassette-invalid", 0,
		"The file is not a recording of a run, or is damaged.",
		"Write it again with `agentd runs cassette`.")
	CassetteTooNew = declare("cassette-schema-too-new", 0,
		"A newer version of the program wrote this recording.",
		"Use that version or a later one.")
	CassetteUnsupported = declare("cassette-schema-unsupported", 0,
		"The recording is of a version that is no longer read.",
		"Record the run again with this version.")
	CassetteCursorViolation = declare("cassette-cursor-violation", 0,
		"The lines of the recording are not in order: a step goes backwards, or a call is told twice.",
		"Write it again with `agentd runs cassette`.")
	CassetteChecksum = declare("cassette-checksum-mismatch", 0,
		"The recording was changed after it was written.",
		"Write it again with `agentd runs cassette`.")

	EvidenceIncomplete = declare("evidence-incomplete", 0,
		"There is no audit chain, or it does not have all that a bundle of evidence about the run needs.",
		"Switch `audit.enabled` on, with `audit.toolEvents` security or all, before the runs that need evidence.")
	EvidenceUncovered = declare("evidence-uncovered", 0,
		"No signed checkpoint covers what the audit chain has about the run yet.",
		"Wait for `audit.checkpoint.intervalMs` and try again; a server that stops makes a checkpoint too.")
)

// Codes that a failed or aborted run carries in its error.
var (
	StopCondition = declare("stop-condition", 0,
		"The run reached its step limit without finishing.",
		"Raise `maxSteps`, or make the task smaller.")
	MultipleHandoffs = declare("multiple-handoffs-in-step", 0,
		"The model handed the conversation over to several agents at once.",
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
		"The run used up its budget of tokens, cost, tool calls or time.",
		"Raise the `budget`, or make the task smaller.")
	BudgetUnpriced = declare("budget-unpriced", 0,
		"The run has a cost budget, but its model has no price.",
		"Add the model to the provider's `prices`.")
	AgentExited = declare("agent-exited", 0,
		"The agent's program ended without a result.",
		"Read the exit status and the standard error in the message.")
	AgentProtocol = declare("agent-protocol", 0,
		"The agent's program or server answered something that is not its protocol.",
		"Compare what it sends with the protocol of its kind.")
	AgentUnreachable = declare("agent-unreachable", 0,
		"The agent's program or server could not be reached.",
		"Check the command or the url of the agent.")
	AgentTimeout = declare("agent-timeout", 0,
		"The agent took longer than its timeoutMs.",
		"Raise `timeoutMs`, or make the task smaller.")
	OutboundDenied = declare("outbound-denied", 0,
		"A connection was to be made to a host that the configuration does not name, or to an address that its host should not have.",
		"Check the address in the configuration and its DNS; `outbound.allowPrivate` names hosts that may be inside.")
	OutputTooLarge = declare("output-too-large", 0,
		"The agent wrote more than its maxOutputBytes.",
		"Raise `maxOutputBytes`, or make the agent write less.")
	AgentPanic = declare("agent-panic", 0,
		"The agent's code panicked.",
		"Look up the run id in the server's log.")
	ServerRestarted = declare("server-restarted", 0,
		"The server stopped during the run, and its agent cannot go on from where it was.",
		"Read `GET /runs/{runId}/events` for what it has done already before you start another.")
	CrashLoop = declare("crash-loop", 0,
		"The server crashed too often while the run did not get any further.",
		"Find out what makes the server stop; `GET /runs/{runId}/events` shows what the run has done already.")

	RateLimit      = declare("rate-limit", 0, "The model provider refused the call: too many requests.", "Wait, or add a fallback.")
	Capacity       = declare("capacity", 0, "The model provider has no capacity.", "Wait, or add a fallback.")
	ContextLength  = declare("context-length", 0, "The conversation is longer than the model takes.", "Lower `historyTokens`, or use a model with a larger window.")
	Transient      = declare("transient", 0, "The model provider failed or could not be reached.", "Try again, or add a fallback.")
	InvalidRequest = declare("invalid-request", 0, "The model provider refused the request as wrong.", "Check the model's name and options.")
	Unauthorized   = declare("unauthorized", 0, "The model provider refused the credentials.", "Check `apiKeyRef`.")
	ContentFilter  = declare("content-filter", 0, "The model provider's filter stopped the answer.", "Change the input.")
	Unknown        = declare("unknown", 0, "The run failed in a way that nobody classified.", "Read the message.")
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
