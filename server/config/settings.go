package config

// Server is the listener and what it answers.
type Server struct {
	Host                  string      `json:"host" default:"127.0.0.1" check:"host" doc:"Address to listen on. Use 0.0.0.0 only behind a reverse proxy."`
	Port                  int         `json:"port" default:"8080" check:"0..65535" doc:"Port to listen on; 0 takes a free one."`
	BasePath              string      `json:"basePath" default:"/v1" check:"basepath" doc:"Path before every route; empty for none."`
	TrustProxy            bool        `json:"trustProxy" default:"false" doc:"Take the client's address from X-Forwarded-For: the last entry."`
	TLSTerminatedUpstream bool        `json:"tlsTerminatedUpstream" default:"false" doc:"A proxy terminates TLS. This silences the warning about plain text."`
	MaxConnections        int         `json:"maxConnections" default:"0" check:"0..1000000" doc:"Connections that may be open at once, including WebSockets and event streams, and at most three quarters of them from one address. For one more, agentd closes the connection that has been idle longest, or answers 503. 0: half of the files that the process may open, at most 10000."`
	MaxPrograms           int         `json:"maxPrograms" default:"0" check:"0..100000" doc:"Programs of exec agents and tools that may run at once; others wait. 0: the smallest of a quarter of the tasks that the system has left at start (less 64), a sixteenth of the files that the process may open, and 256."`
	MaxBodyBytes          int         `json:"maxBodyBytes" default:"4194304" check:"1..1073741824" doc:"Largest request body, in bytes."`
	Socket                Socket      `json:"socket" doc:"A Unix socket to listen on instead of host and port."`
	TLS                   TLS         `json:"tls" doc:"TLS without a proxy."`
	AllowHosts            []string    `json:"allowHosts" default:"" check:"hostport" doc:"Names that the Host header may have besides loopback names and the bound host, if auth.kind is none."`
	CORS                  CORS        `json:"cors" doc:"Cross-origin requests."`
	CSRF                  CSRF        `json:"csrf" doc:"Double-submit protection of browser flows."`
	RateLimit             RateLimit   `json:"rateLimit" doc:"Requests per address."`
	Idempotency           Idempotency `json:"idempotency" doc:"The Idempotency-Key header."`
	Shutdown              Shutdown    `json:"shutdown" doc:"How the server stops."`
	Stream                Stream      `json:"stream" doc:"Delivery of events."`
	WS                    WS          `json:"ws" doc:"The WebSocket transport."`
	SSE                   SSE         `json:"sse" doc:"The Server-Sent-Events fallback."`
}

// Socket is a Unix socket; its folder must exist.
type Socket struct {
	Path string `json:"path" doc:"Path of the socket, relative to the folder of this file. Absent: listen on host and port."`
	Mode int    `json:"mode" default:"384" check:"0..511" doc:"Mode bits of the socket, in decimal: 384 is octal 0600, 432 is 0660."`
}

// TLS is a certificate in files. They are read again when they change.
type TLS struct {
	CertFile string `json:"certFile" doc:"Certificate and intermediate certificates, in PEM. Absent: plain text."`
	KeyFile  string `json:"keyFile" doc:"Private key of the certificate, in PEM."`
}

// CORS is denied unless an origin is listed.
type CORS struct {
	AllowOrigins     []string `json:"allowOrigins" default:"" check:"origin" doc:"Origins that may send requests, or * for all."`
	AllowCredentials bool     `json:"allowCredentials" default:"false" doc:"Allow cookies and other credentials. Without tokens (auth.kind none), an origin that is listed by name may always send the CSRF cookie."`
	AllowMethods     []string `json:"allowMethods" default:"GET,POST,PUT,PATCH,DELETE,OPTIONS" check:"token" doc:"Methods that a preflight allows."`
	AllowHeaders     []string `json:"allowHeaders" default:"Authorization,Content-Type,Idempotency-Key,X-CSRF-Token,Last-Event-ID" check:"token" doc:"Headers that a preflight allows."`
	MaxAgeSeconds    int      `json:"maxAgeSeconds" default:"600" check:"0..3153600000" doc:"How long a browser may cache the answer to a preflight."`
}

// CSRF is the double-submit protection; requests with a bearer token are exempt.
type CSRF struct {
	Enabled     bool     `json:"enabled" default:"true" doc:"Protect requests of browsers. Requests with a bearer token are exempt."`
	CookieName  string   `json:"cookieName" default:"svc_csrf" check:"token" doc:"Name of the cookie."`
	HeaderName  string   `json:"headerName" default:"X-CSRF-Token" check:"token" doc:"Name of the header."`
	SafeMethods []string `json:"safeMethods" default:"GET,HEAD,OPTIONS" check:"token" doc:"Methods that need no proof."`
}

// RateLimit is a sliding window per address and, where that is set, one per token.
type RateLimit struct {
	Enabled          bool   `json:"enabled" default:"true" doc:"Limit requests per address."`
	Window           Millis `json:"windowMs" default:"60000" check:"1.." doc:"Length of the sliding window."`
	PerIPRequests    int    `json:"perIpRequests" default:"60" check:"1.." doc:"Requests per address and window."`
	PerTokenRequests int    `json:"perTokenRequests" check:"0..1000000" doc:"Requests per lineage of tokens and window; they then do not count for their address. 0 or absent: they count for their address."`
}

// Idempotency is about the Idempotency-Key header.
type Idempotency struct {
	Enabled              bool   `json:"enabled" default:"true" doc:"Honour the header Idempotency-Key."`
	RequireKey           string `json:"requireKey" default:"warn" enum:"off|warn|enforce" doc:"What a request with effects and without a key receives: nothing, a warning header, or 400."`
	TTLSeconds           int    `json:"ttlSeconds" default:"86400" check:"1..3153600000" doc:"How long agentd keeps an answer."`
	CheckBodyFingerprint bool   `json:"checkBodyFingerprint" default:"true" doc:"Refuse a key that returns with another body."`
	LRUCacheSize         int    `json:"lruCacheSize" default:"1000" check:"1..1000000" doc:"Answers kept in memory."`
}

// Shutdown is how the server stops.
type Shutdown struct {
	DrainTimeout Millis `json:"drainTimeoutMs" default:"30000" check:"1.." doc:"How long running work may continue before agentd cancels it."`
}

// Stream is the delivery of events.
type Stream struct {
	ReplayBuffer            ReplayBuffer `json:"replayBuffer" doc:"Events kept for subscribers that reconnect."`
	PerConnectionQueueLimit int          `json:"perConnectionQueueLimit" default:"1000" check:"1..1000000" doc:"Frames that may wait for a slow subscriber. The limit in bytes is 1024 times that."`
}

// ReplayBuffer is what a subject keeps in memory.
type ReplayBuffer struct {
	MaxEvents            int `json:"maxEvents" default:"1000" check:"1..1000000" doc:"Events per subject."`
	TTLSeconds           int `json:"ttlSeconds" default:"300" check:"1..3153600000" doc:"How long an event is kept."`
	PruneIntervalSeconds int `json:"pruneIntervalSeconds" default:"60" check:"1..3153600000" doc:"How often old events are dropped."`
}

// WS is the WebSocket transport.
type WS struct {
	Enabled                bool                   `json:"enabled" default:"true" doc:"Serve WebSocket."`
	Path                   string                 `json:"path" default:"/ws" check:"path" doc:"Path of the upgrade, below server.basePath."`
	TicketTTL              Millis                 `json:"ticketTtlMs" default:"300000" check:"1.." doc:"How long a browser's ticket is valid."`
	CommentarySanitization CommentarySanitization `json:"commentarySanitization" doc:"Orchestration text within answers."`
}

// CommentarySanitization treats orchestration events that a model writes into its text.
type CommentarySanitization struct {
	Policy        string   `json:"policy" default:"wrap" enum:"wrap|strip|pass-through" doc:"Whether to mark, remove or pass on the text."`
	ApplyToEvents []string `json:"applyToEvents" default:"tool.execute.end,tool.execute.error,text.delta" check:"nonempty" doc:"Types of events that the policy applies to."`
}

// SSE is the Server-Sent-Events fallback.
type SSE struct {
	Enabled   bool   `json:"enabled" default:"true" doc:"Serve Server-Sent Events."`
	Path      string `json:"path" default:"/sessions" check:"path" doc:"Path before /{id}/events, below server.basePath."`
	KeepAlive Millis `json:"keepAliveMs" default:"15000" check:"1.." doc:"Silence after which agentd sends a comment."`
}

// Storage is the database.
type Storage struct {
	Path       string            `json:"path" default:"./.graphorin/data.db" check:"1.." doc:"The database file, relative to the folder of this file."`
	Durability string            `json:"durability" default:"full" enum:"full|normal" doc:"full: acknowledged changes survive a power cut. normal: they survive a crash of the process."`
	Encryption StorageEncryption `json:"encryption" doc:"Encryption at rest."`
}

// StorageEncryption asks for encryption at rest.
type StorageEncryption struct {
	Enabled       bool `json:"enabled" default:"false" doc:"Encrypt the database file."`
	PassphraseRef Ref  `json:"passphraseRef" check:"ref" doc:"The passphrase."`
}

// Retention is what the sweep deletes.
type Retention struct {
	Enabled             bool   `json:"enabled" default:"true" doc:"Sweep at start and then in each interval. false: only a request sweeps."`
	Interval            Millis `json:"intervalMs" default:"21600000" check:"1000.." doc:"Time from one sweep to the next."`
	SpansDays           int    `json:"spansDays" default:"30" check:"1..36500" doc:"Delete spans that are older than this many days, if their run has ended."`
	NotificationsDays   int    `json:"notificationsDays" default:"7" check:"1..36500" doc:"Delete delivered notifications that are older than this many days."`
	DeadDays            int    `json:"deadNotificationsDays" default:"30" check:"1..36500" doc:"Delete notifications that are older than this many days and could not be delivered."`
	FiringsDays         int    `json:"firingsDays" default:"90" check:"1..36500" doc:"Delete firings of triggers that are older than this many days, but for the latest of each trigger."`
	Idempotency         bool   `json:"idempotency" default:"true" doc:"Delete expired idempotency records."`
	SessionsDays        int    `json:"sessionsDays" check:"1..36500" doc:"Delete sessions without a message for this many days, with their runs. Absent: keep them."`
	SessionsClosedOnly  bool   `json:"sessionsClosedOnly" default:"true" doc:"With sessionsDays: only closed sessions."`
	WorkflowThreadsDays int    `json:"workflowThreadsDays" check:"1..36500" doc:"Delete threads of workflows that ended this many days ago. Absent: keep them."`
	RunsDays            int    `json:"runsDays" check:"1..36500" doc:"Delete runs without a session that ended this many days ago. Absent: keep them."`
	AuditDays           int    `json:"auditDays" check:"1..36500" doc:"Prune entries of the audit chain that are older than this many days. Absent: keep them."`
}

// Audit is the tamper-evident chain.
type Audit struct {
	Enabled       bool   `json:"enabled" default:"false" doc:"Record every request of a principal in the audit chain."`
	Path          string `json:"path" doc:"The chain's file, relative to the folder of this file. Absent: audit.db beside storage.path."`
	PassphraseRef Ref    `json:"passphraseRef" check:"ref" doc:"The passphrase. Absent: that of storage.encryption."`
	Cipher        string `json:"cipher" default:"chacha20" enum:"chacha20|aes256gcm" doc:"Cipher for the contents of entries: XChaCha20-Poly1305 or AES-256-GCM, with a key that Argon2id derives from the passphrase."`
	ToolEvents    string `json:"toolEvents" default:"security" enum:"security|all|off" doc:"Tool events that the chain also records."`
	Wait          string `json:"wait" default:"all" enum:"all|writes" doc:"all: no answer leaves before its entry is durable. writes: the entry of a read may follow within 50 ms."`

	Checkpoint AuditCheckpoint `json:"checkpoint" doc:"Signed heads of the chain."`
}

// AuditCheckpoint is where signed heads of the chain go, and how often.
type AuditCheckpoint struct {
	Path     string `json:"path" doc:"The file of checkpoints, relative to the folder of this file. Absent: the chain's path with .checkpoints. Choose a place that only permits appending, if possible."`
	Interval Millis `json:"intervalMs" default:"60000" check:"1000.." doc:"Longest time from an entry to the next checkpoint."`
	Entries  int    `json:"entries" default:"10000" check:"1.." doc:"Approximate number of entries after which a checkpoint follows."`
}

// Secrets is where references of the scheme ref: look.
type Secrets struct {
	Source string `json:"source" default:"auto" check:"stores" doc:"The store of secrets: encrypted-file or env, or several, separated by commas; agentd uses the first available one. auto: the encrypted file if the environment has its passphrase, otherwise the environment. A keyring is not supported."`
	Strict bool   `json:"strict" default:"false" doc:"Fail instead of falling back to another store."`
	Path   string `json:"path" doc:"The encrypted file, relative to the folder of this file. Absent: secrets.kse beside storage.path."`
}

// Outbound is about the connections that the server makes. Where to, the other sections name.
type Outbound struct {
	AllowPrivate []string `json:"allowPrivate" default:"" check:"host" doc:"Names of hosts that may have a private, loopback, unique local or carrier-grade NAT address. A URL with such an address, or with localhost, need not be listed."`
}

// Auth is who may call.
type Auth struct {
	Kind                  string   `json:"kind" default:"token" enum:"token|none" doc:"none accepts every caller as administrator: for trusted loopback only."`
	PepperRef             Ref      `json:"pepperRef" check:"ref" doc:"The secret that tokens are hashed with. Required if kind is token."`
	TokenPrefix           string   `json:"tokenPrefix" default:"svc" check:"tokenprefix" doc:"First part of a token."`
	TokenEnvironments     []string `json:"tokenEnvironments" default:"live,test,local" enum:"live|test|local" check:"1.." doc:"Environments whose tokens agentd accepts."`
	PerIPFailureThreshold int      `json:"perIpFailureThreshold" default:"5" check:"1.." doc:"Number of failed logins after which an address is locked out."`
	PerIPLockout          Millis   `json:"perIpLockoutMs" default:"300000" check:"1.." doc:"How long an address is locked out."`
}

// Observability is the log.
type Observability struct {
	Logger string `json:"logger" default:"json" enum:"json|pretty|silent" doc:"Format of the log."`
}

// Hardening is what the process does to itself at start.
type Hardening struct {
	ApplyOnStart bool `json:"applyOnStart" default:"true" doc:"Apply this section at start, and keep other programs of the same user from reading the process's memory and environment. This also disables core dumps, and debuggers except root's."`
	RefuseRoot   bool `json:"refuseRoot" default:"false" doc:"Refuse to run as root, instead of warning."`
	Umask        int  `json:"umask" default:"63" check:"0..511" doc:"Mode bits that new files do not receive, in decimal: 63 is octal 077."`
}

// Metrics is the endpoint in text exposition format.
type Metrics struct {
	Enabled     bool   `json:"enabled" default:"true" doc:"Serve metrics."`
	Path        string `json:"path" default:"/metrics" check:"path" doc:"Path, below server.basePath."`
	RequireAuth bool   `json:"requireAuth" default:"false" doc:"Require the scope admin:metrics:read."`
}

// Health is when the health report warns.
type Health struct {
	WALWarnThresholdBytes  int `json:"walWarnThresholdBytes" default:"52428800" check:"1.." doc:"Size of the write-ahead log above which health warns."`
	DiskWarnThresholdBytes int `json:"diskWarnThresholdBytes" default:"536870912" check:"0.." doc:"Free space of the file system of storage.path below which health warns. 0: never."`
}
