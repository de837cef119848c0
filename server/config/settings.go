package config

// Server is the listener and what it answers.
type Server struct {
	Host                  string      `json:"host" default:"127.0.0.1" check:"host" doc:"Address to listen on. Use 0.0.0.0 only behind a reverse proxy."`
	Port                  int         `json:"port" default:"8080" check:"0..65535" doc:"Port to listen on; 0 takes a free one."`
	BasePath              string      `json:"basePath" default:"/v1" check:"basepath" doc:"Path before every route; empty for none."`
	TrustProxy            bool        `json:"trustProxy" default:"false" doc:"Believe X-Forwarded-For: the client is the first untrusted hop from the right."`
	TLSTerminatedUpstream bool        `json:"tlsTerminatedUpstream" default:"false" doc:"A proxy in front speaks TLS; silences the warning about plain text."`
	MaxConnections        int         `json:"maxConnections" default:"0" check:"0..1000000" doc:"Connections that may be open at once, WebSockets and event streams included, three quarters of them of one address; for one more, the one that is idle longest is closed, or it gets 503. 0: half of the files that the process may have open, at most 10000."`
	MaxPrograms           int         `json:"maxPrograms" default:"0" check:"0..100000" doc:"Programs of exec agents and tools that may run at once; others wait. 0: a quarter of the tasks that the system has left at the start but for 64, a sixteenth of the files that the process may have open, at most 256."`
	MaxBodyBytes          int         `json:"maxBodyBytes" default:"4194304" check:"1..1073741824" doc:"Largest request body, in bytes."`
	Socket                Socket      `json:"socket" doc:"A Unix socket to listen on instead of host and port."`
	TLS                   TLS         `json:"tls" doc:"Speak TLS without a proxy."`
	AllowHosts            []string    `json:"allowHosts" default:"" check:"hostport" doc:"Names that the Host header may have besides loopback and the bound host, when auth.kind is none."`
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
	Path string `json:"path" doc:"Path of the socket, relative to the folder of this file; absent: listen on host and port."`
	Mode int    `json:"mode" default:"384" check:"0..511" doc:"Mode bits of the socket; decimal, 384 is octal 0600, 432 is 0660."`
}

// TLS is a certificate in files. They are read again when they change.
type TLS struct {
	CertFile string `json:"certFile" doc:"Certificate and those between it and the root, in PEM; absent: plain text."`
	KeyFile  string `json:"keyFile" doc:"Its private key, in PEM."`
}

// CORS is denied unless an origin is listed.
type CORS struct {
	AllowOrigins     []string `json:"allowOrigins" default:"" check:"origin" doc:"Origins that may call, or * for all."`
	AllowCredentials bool     `json:"allowCredentials" default:"false" doc:"Allow cookies and other credentials. Without tokens (auth.kind none) an origin listed by name always may send the CSRF cookie."`
	AllowMethods     []string `json:"allowMethods" default:"GET,POST,PUT,PATCH,DELETE,OPTIONS" check:"token" doc:"Methods that a preflight allows."`
	AllowHeaders     []string `json:"allowHeaders" default:"Authorization,Content-Type,Idempotency-Key,X-CSRF-Token,Last-Event-ID" check:"token" doc:"Headers that a preflight allows."`
	MaxAgeSeconds    int      `json:"maxAgeSeconds" default:"600" check:"0..3153600000" doc:"How long a browser keeps a preflight's answer."`
}

// CSRF is the double-submit protection; requests with a bearer token are exempt.
type CSRF struct {
	Enabled     bool     `json:"enabled" default:"true" doc:"Protect browser flows; bearer requests are exempt."`
	CookieName  string   `json:"cookieName" default:"svc_csrf" check:"token" doc:"Name of the cookie."`
	HeaderName  string   `json:"headerName" default:"X-CSRF-Token" check:"token" doc:"Name of the header."`
	SafeMethods []string `json:"safeMethods" default:"GET,HEAD,OPTIONS" check:"token" doc:"Methods that need no proof."`
}

// RateLimit is a sliding window per address and, where that is set, one per token.
type RateLimit struct {
	Enabled          bool   `json:"enabled" default:"true" doc:"Limit requests per address."`
	Window           Millis `json:"windowMs" default:"60000" check:"1.." doc:"Length of the sliding window."`
	PerIPRequests    int    `json:"perIpRequests" default:"60" check:"1.." doc:"Requests per address and window."`
	PerTokenRequests int    `json:"perTokenRequests" check:"0..1000000" doc:"Requests per token and window, all that descend from one token together; they do not count for their address then. 0 or absent: they count for their address."`
}

// Idempotency is about the Idempotency-Key header.
type Idempotency struct {
	Enabled              bool   `json:"enabled" default:"true" doc:"Honour Idempotency-Key."`
	RequireKey           string `json:"requireKey" default:"warn" enum:"off|warn|enforce" doc:"What a side-effecting request without a key gets: nothing, a header, or 400."`
	TTLSeconds           int    `json:"ttlSeconds" default:"86400" check:"1..3153600000" doc:"How long an answer is kept."`
	CheckBodyFingerprint bool   `json:"checkBodyFingerprint" default:"true" doc:"Refuse a key that comes back with another body."`
	LRUCacheSize         int    `json:"lruCacheSize" default:"1000" check:"1..1000000" doc:"Answers kept in memory."`
}

// Shutdown is how the server stops.
type Shutdown struct {
	DrainTimeout Millis `json:"drainTimeoutMs" default:"30000" check:"1.." doc:"How long running work may finish before it is cancelled."`
}

// Stream is the delivery of events.
type Stream struct {
	ReplayBuffer            ReplayBuffer `json:"replayBuffer" doc:"Events kept for listeners that come back."`
	PerConnectionQueueLimit int          `json:"perConnectionQueueLimit" default:"1000" check:"1..1000000" doc:"Frames that may wait for a slow listener; the byte limit is 1024 times that."`
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
	TicketTTL              Millis                 `json:"ticketTtlMs" default:"300000" check:"1.." doc:"How long a browser ticket is good."`
	CommentarySanitization CommentarySanitization `json:"commentarySanitization" doc:"Orchestration text inside answers."`
}

// CommentarySanitization treats orchestration events that a model writes into its text.
type CommentarySanitization struct {
	Policy        string   `json:"policy" default:"wrap" enum:"wrap|strip|pass-through" doc:"Mark it, remove it, or leave it."`
	ApplyToEvents []string `json:"applyToEvents" default:"tool.execute.end,tool.execute.error,text.delta" check:"nonempty" doc:"Event types that are treated."`
}

// SSE is the Server-Sent-Events fallback.
type SSE struct {
	Enabled   bool   `json:"enabled" default:"true" doc:"Serve Server-Sent Events."`
	Path      string `json:"path" default:"/sessions" check:"path" doc:"Path before /{id}/events, below server.basePath."`
	KeepAlive Millis `json:"keepAliveMs" default:"15000" check:"1.." doc:"Silence after which a comment is sent."`
}

// Storage is the database.
type Storage struct {
	Path       string            `json:"path" default:"./.graphorin/data.db" check:"1.." doc:"The database file, relative to the folder of this file."`
	Durability string            `json:"durability" default:"full" enum:"full|normal" doc:"full: what was acknowledged survives a power cut; normal: only a crash of the process."`
	Encryption StorageEncryption `json:"encryption" doc:"Encryption at rest."`
}

// StorageEncryption asks for encryption at rest.
type StorageEncryption struct {
	Enabled       bool `json:"enabled" default:"false" doc:"Encrypt the database file."`
	PassphraseRef Ref  `json:"passphraseRef" check:"ref" doc:"The passphrase."`
}

// Retention is what the sweep deletes.
type Retention struct {
	Enabled     bool `json:"enabled" default:"true" doc:"Sweep at start and then once an hour."`
	Idempotency bool `json:"idempotency" default:"true" doc:"Delete expired idempotency records."`
}

// Audit is the tamper-evident chain.
type Audit struct {
	Enabled       bool   `json:"enabled" default:"false" doc:"Record every request of a principal in the chain."`
	Path          string `json:"path" doc:"The chain's file, relative to the folder of this file; absent: audit.db beside storage.path."`
	PassphraseRef Ref    `json:"passphraseRef" check:"ref" doc:"The passphrase; absent: that of storage.encryption."`
	Cipher        string `json:"cipher" default:"chacha20" enum:"chacha20|aes256gcm" doc:"How what the entries say is encrypted: XChaCha20-Poly1305 or AES-256-GCM, under a key that Argon2id makes of the passphrase."`
	ToolEvents    string `json:"toolEvents" default:"security" enum:"security|all|off" doc:"Tool events that are recorded too."`
	Wait          string `json:"wait" default:"all" enum:"all|writes" doc:"all: no answer leaves before its entry is durable; writes: the entry of a read may follow within one batch."`

	Checkpoint AuditCheckpoint `json:"checkpoint" doc:"Signed heads of the chain."`
}

// AuditCheckpoint is where signed heads of the chain go, and how often.
type AuditCheckpoint struct {
	Path     string `json:"path" doc:"The file they are appended to, relative to the folder of this file; absent: the chain's path with .checkpoints. Best kept where only appending is possible."`
	Interval Millis `json:"intervalMs" default:"60000" check:"1000.." doc:"At most so long after an entry."`
	Entries  int    `json:"entries" default:"10000" check:"1.." doc:"At most after so many entries, about."`
}

// Secrets is where references of the scheme ref: look.
type Secrets struct {
	Source string `json:"source" default:"auto" check:"stores" doc:"The store of secrets: keyring, encrypted-file or env, or several, separated by commas, of which the first that is available is used. auto is the encrypted file where the environment has its passphrase, else the environment. This build has no keyring."`
	Strict bool   `json:"strict" default:"false" doc:"Fail instead of falling back to another store."`
	Path   string `json:"path" doc:"The encrypted file, relative to the folder of this file; absent: secrets.kse beside storage.path."`
}

// Outbound is about the connections that the server makes. Where to, the other sections name.
type Outbound struct {
	AllowPrivate []string `json:"allowPrivate" default:"" check:"host" doc:"Names of hosts that may be inside, with a private, loopback, unique local or carrier's address. A URL that has such an address itself, or localhost, needs no mention here."`
}

// Auth is who may call.
type Auth struct {
	Kind                  string   `json:"kind" default:"token" enum:"token|none" doc:"none lets everybody in as administrator: trusted loopback only."`
	PepperRef             Ref      `json:"pepperRef" check:"ref" doc:"The secret that tokens are hashed with; needed when kind is token."`
	TokenPrefix           string   `json:"tokenPrefix" default:"svc" check:"tokenprefix" doc:"First part of a token."`
	TokenEnvironments     []string `json:"tokenEnvironments" default:"live,test,local" enum:"live|test|local" check:"1.." doc:"Environments whose tokens are accepted."`
	PerIPFailureThreshold int      `json:"perIpFailureThreshold" default:"5" check:"1.." doc:"Failed authentications after which an address is locked out."`
	PerIPLockout          Millis   `json:"perIpLockoutMs" default:"300000" check:"1.." doc:"How long it is locked out."`
}

// Observability is the log.
type Observability struct {
	Logger string `json:"logger" default:"json" enum:"json|pretty|silent" doc:"Form of the log."`
}

// Hardening is what the process does to itself at start.
type Hardening struct {
	ApplyOnStart bool `json:"applyOnStart" default:"true" doc:"Apply this section at start, and keep other programs of the same user from reading the process's memory and environment; that takes core dumps away, too, and debuggers except root's."`
	RefuseRoot   bool `json:"refuseRoot" default:"false" doc:"Refuse to run as root, instead of a warning."`
	Umask        int  `json:"umask" default:"63" check:"0..511" doc:"Mode bits that new files do not get; decimal, 63 is octal 077."`
}

// Metrics is the endpoint in text exposition format.
type Metrics struct {
	Enabled     bool   `json:"enabled" default:"true" doc:"Serve metrics."`
	Path        string `json:"path" default:"/metrics" check:"path" doc:"Path, below server.basePath."`
	RequireAuth bool   `json:"requireAuth" default:"false" doc:"Ask for the scope admin:metrics:read."`
}

// Health is when the health report warns.
type Health struct {
	WALWarnThresholdBytes int `json:"walWarnThresholdBytes" default:"52428800" check:"1.." doc:"Size of the write-ahead log above which storage warns."`
}
