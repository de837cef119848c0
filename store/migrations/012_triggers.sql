-- Triggers and the ledger of their firings.

CREATE TABLE triggers (
  n          INTEGER PRIMARY KEY,
  id         TEXT NOT NULL UNIQUE,
  kind       TEXT NOT NULL,
  spec       TEXT NOT NULL,
  schedule   TEXT NOT NULL,       -- all that its dues follow from; another one starts at the present
  cursor     INTEGER NOT NULL,    -- the last due that is accounted for
  disabled   INTEGER NOT NULL,
  reason     TEXT,                -- why it is disabled
  failures   INTEGER NOT NULL,    -- failed starts and runs in a row
  missed     INTEGER NOT NULL,    -- dues of the latest catch-up that did not fire
  last_fired INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
);

CREATE TABLE firings (
  n          INTEGER PRIMARY KEY,
  trigger_n  INTEGER NOT NULL,    -- triggers.n
  id         TEXT NOT NULL,
  slot       TEXT NOT NULL,
  emitter    TEXT NOT NULL,       -- of an event: the principal; else empty
  due        INTEGER NOT NULL,
  last_due   INTEGER,             -- of a range of missed dues; NULL: one due
  dues       INTEGER NOT NULL,
  at         INTEGER NOT NULL,
  origin     TEXT NOT NULL,
  outcome    TEXT NOT NULL,
  reason     TEXT,
  run_id     TEXT,
  fired_by   TEXT,
  open       INTEGER NOT NULL,    -- it is queued, or the end of its run is not accounted for
  attempts   INTEGER NOT NULL,    -- failed starts
  next_at    INTEGER,             -- of a queued one: not before
  carry      TEXT                 -- of a queued one: what its run is started with
);
CREATE UNIQUE INDEX firings_by_slot ON firings (trigger_n, slot, emitter);
CREATE INDEX firings_by_trigger ON firings (trigger_n, n);
CREATE INDEX firings_open ON firings (trigger_n, n) WHERE open = 1;
CREATE INDEX firings_open_all ON firings (n) WHERE open = 1;
CREATE INDEX firings_open_run ON firings (run_id) WHERE open = 1 AND run_id IS NOT NULL;
