-- Times are milliseconds since 1970, written by the program. Columns named *_json hold JSON text.
-- A `key` is run number << 24 | index.

CREATE TABLE auth_tokens (
  id           TEXT PRIMARY KEY,
  hash_hex     TEXT NOT NULL UNIQUE,     -- HMAC-SHA256 of the raw token, keyed by the pepper
  label        TEXT,
  scopes_json  TEXT NOT NULL,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER,
  revoked_at   INTEGER,
  last_used_at INTEGER
) WITHOUT ROWID;

CREATE INDEX auth_tokens_revoked ON auth_tokens (revoked_at) WHERE revoked_at IS NOT NULL;

CREATE TABLE sessions (
  id         TEXT PRIMARY KEY,
  user_id    TEXT NOT NULL,
  agent_id   TEXT NOT NULL,
  title      TEXT,
  tags_json  TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER,
  closed_at  INTEGER,
  sequence   INTEGER NOT NULL DEFAULT 0  -- of the latest message
) WITHOUT ROWID;
CREATE INDEX sessions_by_user ON sessions (user_id, created_at);

CREATE TABLE runs (
  n             INTEGER PRIMARY KEY,     -- order of creation
  id            TEXT NOT NULL UNIQUE,
  kind          TEXT NOT NULL,           -- agent
  owner_id      TEXT NOT NULL,           -- the agent that was called
  current_id    TEXT NOT NULL,           -- the agent that drives the next step
  session_id    TEXT,
  user_id       TEXT,
  status        TEXT NOT NULL,           -- pending, running, awaiting_approval, completed, failed, aborted
  version       INTEGER NOT NULL,        -- grows with every write; compare-and-set
  attempt       INTEGER NOT NULL,        -- how often a start of the server took the run up
  step          INTEGER NOT NULL,
  events        INTEGER NOT NULL,        -- how many there are of each kind of row
  messages      INTEGER NOT NULL,
  calls         INTEGER NOT NULL,
  slots         INTEGER NOT NULL,        -- bit i is set when slot i holds something
  history_after INTEGER NOT NULL,        -- the run's history: session messages with history_after < sequence <= history_to
  history_to    INTEGER NOT NULL,
  input_form    TEXT NOT NULL,           -- text, json or messages: how the first messages tell the input
  usage_json    TEXT NOT NULL,
  models_json   TEXT NOT NULL,           -- usage by model
  error_json    TEXT,
  created_at    INTEGER NOT NULL,
  started_at    INTEGER,
  finished_at   INTEGER
);
CREATE INDEX runs_by_session ON runs (session_id, n) WHERE session_id IS NOT NULL;
CREATE INDEX runs_by_owner ON runs (owner_id, n);
CREATE INDEX runs_open ON runs (session_id, n) WHERE status IN ('pending', 'running', 'awaiting_approval');

-- What a run keeps once and may replace: slot 1 its output, 2 its agent's checkpoint,
-- 3 its pending approvals, 4 its input while it waits for its turn.
CREATE TABLE run_slots (
  key  INTEGER PRIMARY KEY,
  json TEXT NOT NULL
);

-- Durable events. What a message also holds is not kept twice: message is the index of the one to take it from.
CREATE TABLE run_events (
  key     INTEGER PRIMARY KEY,
  type    TEXT NOT NULL,
  at      INTEGER NOT NULL,
  message INTEGER,
  payload TEXT NOT NULL
);

-- The transcript, once. A tool message's body is the outcome of its call.
CREATE TABLE run_messages (
  key        INTEGER PRIMARY KEY,
  session_id TEXT,
  sequence   INTEGER,
  role       TEXT NOT NULL,
  tokens     INTEGER NOT NULL,           -- an estimate
  at         INTEGER NOT NULL,
  body       TEXT NOT NULL
);
CREATE UNIQUE INDEX run_messages_by_session ON run_messages (session_id, sequence) WHERE session_id IS NOT NULL;

CREATE TABLE run_steps (
  key        INTEGER PRIMARY KEY,
  agent_id   TEXT NOT NULL,
  model      TEXT,
  usage_json TEXT,
  started_at INTEGER NOT NULL,
  ended_at   INTEGER,
  resumed    INTEGER NOT NULL            -- whether it runs what a person allowed, without a model call
);

-- The journal of tool calls: claim (the row), dispatch, settle.
CREATE TABLE tool_calls (
  key           INTEGER PRIMARY KEY,
  step          INTEGER NOT NULL,        -- in which it is settled; a resumption moves it on
  origin        INTEGER NOT NULL,        -- in which the model asked for it
  call_id       TEXT NOT NULL,
  name          TEXT NOT NULL,
  phase         TEXT NOT NULL,           -- awaiting, dispatching, done
  reason        TEXT,                    -- why it waits
  args_sha256   BLOB NOT NULL,
  asked         INTEGER NOT NULL,        -- index of the assistant message that holds the arguments
  answered      INTEGER,                 -- index of the tool message that holds the outcome
  attempts      INTEGER NOT NULL,
  claimed_at    INTEGER NOT NULL,
  settled_at    INTEGER,
  decision_json TEXT,                    -- who granted or denied it, when and why
  reported      INTEGER NOT NULL         -- whether the event that tells of the outcome is written
);

-- Results that were too large for the transcript.
CREATE TABLE run_spills (
  run        INTEGER NOT NULL,
  name       TEXT NOT NULL,
  media_type TEXT NOT NULL,
  data       BLOB NOT NULL,
  UNIQUE (run, name)
);
