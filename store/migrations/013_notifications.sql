-- What is told to the outside, and where that stands.

CREATE TABLE notifications (
  n          INTEGER PRIMARY KEY,
  id         TEXT NOT NULL UNIQUE, -- the same in each attempt
  target     TEXT NOT NULL,
  sequence   INTEGER NOT NULL,     -- among those of the target
  type       TEXT NOT NULL,
  body       TEXT NOT NULL,
  at         INTEGER NOT NULL,
  state      TEXT NOT NULL,        -- waiting, delivered or dead
  attempts   INTEGER NOT NULL,
  began      INTEGER,              -- when the first attempt ended
  due        INTEGER,              -- the next attempt comes no earlier
  status     INTEGER NOT NULL      -- of the last answer; 0: there was none
);
CREATE INDEX notifications_untried ON notifications (target, n) WHERE state = 'waiting' AND attempts = 0;
CREATE INDEX notifications_retries ON notifications (target, due, n) WHERE state = 'waiting' AND attempts > 0;
CREATE INDEX notifications_waiting ON notifications (n) WHERE state = 'waiting';

CREATE TABLE notify_targets (
  id         TEXT PRIMARY KEY,
  sequence   INTEGER NOT NULL,     -- of the latest notification
  disabled   INTEGER NOT NULL,
  failures   INTEGER NOT NULL,     -- in a row
  probe      INTEGER               -- the next probe comes no earlier
) WITHOUT ROWID;
