-- Runs that are tool calls of other runs, hand-offs, spans and recordings of model calls.

ALTER TABLE runs ADD COLUMN parent      INTEGER;             -- n of the run that called this one as a tool
ALTER TABLE runs ADD COLUMN parent_call INTEGER;             -- index of that call in the parent's journal
ALTER TABLE runs ADD COLUMN started_by  TEXT;                -- the principal that started it
ALTER TABLE runs ADD COLUMN spans       INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL;

-- A child moves and waits as a part of its parent, so only roots are open by themselves.
DROP INDEX runs_open;
CREATE INDEX runs_open ON runs (session_id, n)
  WHERE status IN ('pending', 'running', 'awaiting_approval') AND parent IS NULL;

ALTER TABLE tool_calls ADD COLUMN child TEXT;                -- id of the run that the call is

-- Hand-offs; the key's index is that of the call in the journal.
CREATE TABLE handoffs (
  key        INTEGER PRIMARY KEY,
  session_id TEXT,
  at         INTEGER NOT NULL,
  body       TEXT NOT NULL               -- the record as run states show it
);
CREATE INDEX handoffs_by_session ON handoffs (session_id, key) WHERE session_id IS NOT NULL;

-- Spans, a batch for each commit that ended some; the key's index is that of the first span in its run.
CREATE TABLE spans (
  key        INTEGER PRIMARY KEY,
  session_id TEXT,
  at         INTEGER NOT NULL,
  body       TEXT NOT NULL               -- a JSON array
);
CREATE INDEX spans_by_session ON spans (session_id, key) WHERE session_id IS NOT NULL;

-- What the transcript does not tell about the model calls of a recorded run; the key's index is the step.
CREATE TABLE run_exchanges (
  key  INTEGER PRIMARY KEY,
  body TEXT NOT NULL
);
