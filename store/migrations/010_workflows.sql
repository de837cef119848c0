-- Threads of workflows: durable step graphs. A thread has many runs over time, of which at most one has not ended. Its n is the
-- n of its first run. The key of a row of a thread is the thread's n << 24 | index.

ALTER TABLE runs ADD COLUMN thread INTEGER;                  -- threads.n; NULL for a run that is no workflow's
-- For a run that a task of a thread starts: the thread's n. For a workflow that an agent calls as a tool: n of the agent's run.
-- Unlike a child, a hosted run moves by itself.
ALTER TABLE runs ADD COLUMN host   INTEGER;
CREATE INDEX runs_by_host ON runs (host, n) WHERE host IS NOT NULL;
-- The later runs of a thread; the first one has the thread's own number.
CREATE INDEX runs_by_thread ON runs (thread, n) WHERE thread <> n;
-- The runs of all workflows that lists show, however many runs of agents there are.
CREATE INDEX runs_of_workflows ON runs (n) WHERE kind = 'workflow' AND parent IS NULL AND host IS NULL;

-- Many threads may sleep, so what is open is found by its status, and the turns of a session without the workflows that
-- are linked to it.
DROP INDEX runs_open;
CREATE INDEX runs_open ON runs (status, n)
  WHERE (status = 'pending' OR status = 'running' OR status = 'awaiting_approval' OR status = 'suspended') AND parent IS NULL;
CREATE INDEX runs_turns ON runs (session_id, n)
  WHERE (status = 'pending' OR status = 'running' OR status = 'awaiting_approval' OR status = 'suspended') AND parent IS NULL
    AND session_id IS NOT NULL AND kind <> 'workflow';

-- Lists show neither children nor hosted runs.
DROP INDEX runs_by_owner;
CREATE INDEX runs_by_owner ON runs (owner_id, n) WHERE parent IS NULL AND host IS NULL;
DROP INDEX runs_failed;
CREATE INDEX runs_failed ON runs (status, n) WHERE status IN ('failed', 'aborted') AND parent IS NULL AND host IS NULL;

-- The thread that a session belongs to: its agents take turns in it, and it is erased with the thread.
ALTER TABLE sessions ADD COLUMN thread INTEGER;
CREATE INDEX sessions_by_thread ON sessions (thread) WHERE thread IS NOT NULL;

CREATE TABLE threads (
  n           INTEGER PRIMARY KEY,       -- runs.n of its first run
  workflow_id TEXT NOT NULL,
  thread_id   TEXT NOT NULL,
  run         INTEGER NOT NULL,          -- n of its latest run
  status      TEXT NOT NULL,             -- of its latest run
  version     INTEGER NOT NULL,          -- grows with every write; compare-and-set
  step        INTEGER NOT NULL,          -- how many steps it has taken, in all its runs
  tasks       INTEGER NOT NULL,          -- the next task has this id
  base        INTEGER NOT NULL,          -- its state is its values and what the steps after this one wrote
  folded      INTEGER NOT NULL,          -- the steps up to this one are deleted
  handled     INTEGER NOT NULL,          -- whether the latest run has used the workflow's onError
  digest      BLOB,                      -- of the definition that it runs under
  pin         TEXT,
  host        INTEGER,                   -- runs.host of its runs
  session_id  TEXT,
  user_id     TEXT,
  started_by  TEXT,
  blocked     TEXT,                      -- why it does not continue when its time has come
  created_at  INTEGER NOT NULL,
  updated_at  INTEGER NOT NULL,
  UNIQUE (workflow_id, thread_id)
);
CREATE INDEX threads_by_status ON threads (workflow_id, status, n) WHERE host IS NULL;
CREATE INDEX threads_by_session ON threads (session_id, n) WHERE session_id IS NOT NULL;
CREATE INDEX threads_by_host ON threads (host, n) WHERE host IS NOT NULL;
CREATE INDEX threads_by_digest ON threads (digest) WHERE digest IS NOT NULL;
CREATE INDEX threads_blocked ON threads (n) WHERE blocked IS NOT NULL;

-- Apart from the thread's row, which every step writes.
CREATE TABLE thread_inputs (
  thread INTEGER PRIMARY KEY,
  json   TEXT NOT NULL
);

-- The base of one key of the state, as of a step.
CREATE TABLE thread_values (
  thread INTEGER NOT NULL,
  name   TEXT NOT NULL,
  step   INTEGER NOT NULL,
  json   TEXT NOT NULL,
  UNIQUE (thread, name)
);

-- What a step wrote; the key's index is the step.
CREATE TABLE thread_steps (
  key    INTEGER PRIMARY KEY,
  run    INTEGER NOT NULL,               -- n of the run that took it
  events INTEGER NOT NULL,               -- of that run, when the step was committed
  spans  INTEGER NOT NULL,
  task   INTEGER NOT NULL,
  node   TEXT NOT NULL,
  status TEXT NOT NULL,
  at     INTEGER NOT NULL,
  body   TEXT NOT NULL
);

-- The frontier: tasks that are open; the key's index is the task's id.
CREATE TABLE thread_tasks (
  key  INTEGER PRIMARY KEY,
  body TEXT NOT NULL
);

-- Answers to waits that are not reached yet, in order.
CREATE TABLE thread_answers (
  key  INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  json TEXT NOT NULL
);

-- The definitions that threads run under.
CREATE TABLE workflow_definitions (
  digest BLOB NOT NULL UNIQUE,           -- SHA-256 of the body
  body   TEXT NOT NULL
);
