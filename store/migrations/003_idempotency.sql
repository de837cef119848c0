-- What requests with an Idempotency-Key were answered. A key is there from the transaction on that makes its request
-- happen. One that started or resumed a run is bound: it answers for that run, and goes no earlier than the run does.
-- A row that has neither run nor status stands for something that was erased.
CREATE TABLE idempotency_records (
  key          TEXT PRIMARY KEY,
  principal    TEXT NOT NULL,
  target       TEXT NOT NULL,            -- method and path
  fingerprint  BLOB NOT NULL,            -- SHA-256 of method, path and body
  bound        INTEGER NOT NULL,
  run_id       TEXT,                     -- the run that the answer is about
  session_id   TEXT,                     -- or the session
  status       INTEGER,                  -- of the answer; NULL: it is told anew from the run
  headers_json TEXT,
  body         BLOB,
  created_at   INTEGER NOT NULL,
  expires_at   INTEGER NOT NULL          -- does not count while the key is bound
);
CREATE INDEX idempotency_by_run ON idempotency_records (run_id) WHERE run_id IS NOT NULL;
CREATE INDEX idempotency_by_session ON idempotency_records (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX idempotency_by_expiry ON idempotency_records (expires_at) WHERE bound = 0;
