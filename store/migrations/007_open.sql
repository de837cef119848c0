-- The condition of runs_open is spelled so that writing a run compares the status: for a list of more than two values, SQLite
-- builds a table each time.
DROP INDEX runs_open;
CREATE INDEX runs_open ON runs (session_id, n)
  WHERE (status = 'pending' OR status = 'running' OR status = 'awaiting_approval' OR status = 'suspended') AND parent IS NULL;
