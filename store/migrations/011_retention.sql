-- Retention finds what is old without reading what is not.
CREATE INDEX spans_by_age ON spans (at);
CREATE INDEX runs_ended ON runs (finished_at)
  WHERE finished_at IS NOT NULL AND session_id IS NULL AND parent IS NULL AND host IS NULL AND kind <> 'workflow';
