-- What a run is started for, once: of several starts with the same origin, the first one counts.
ALTER TABLE runs ADD COLUMN origin TEXT;
CREATE UNIQUE INDEX runs_by_origin ON runs (origin) WHERE origin IS NOT NULL;

-- The time at which a run that waits is looked at next: when it is to move again, or the first of its approvals expires.
CREATE TABLE timers (
  run INTEGER PRIMARY KEY,               -- runs.n
  due INTEGER NOT NULL
);
CREATE INDEX timers_by_due ON timers (due);
INSERT INTO timers (run, due) SELECT n, 1 FROM runs WHERE status = 'awaiting_approval' AND parent IS NULL;

-- A run can also wait for a time alone: suspended.
DROP INDEX runs_open;
CREATE INDEX runs_open ON runs (session_id, n)
  WHERE status IN ('pending', 'running', 'awaiting_approval', 'suspended') AND parent IS NULL;
DROP INDEX runs_open_children;
CREATE INDEX runs_open_children ON runs (parent)
  WHERE status IN ('pending', 'running', 'awaiting_approval', 'suspended') AND parent IS NOT NULL;
