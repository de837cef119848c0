-- Tokens know their lineage: who minted them, and which token the chain of minters begins with. A token of before counts
-- as one that the operator has made, whose root_id is NULL.
ALTER TABLE auth_tokens ADD COLUMN minter_id TEXT;
ALTER TABLE auth_tokens ADD COLUMN root_id   TEXT;
CREATE INDEX auth_tokens_minted ON auth_tokens (minter_id) WHERE minter_id IS NOT NULL;

-- How many transient events a run published between the durable event before and this one: a subscriber who gets none of
-- them is told how many they were. 0 for events that are older than this column.
ALTER TABLE run_events ADD COLUMN transient INTEGER NOT NULL DEFAULT 0;

-- The children that have not ended: a start looks for those whose parents have.
CREATE INDEX runs_open_children ON runs (parent) WHERE status IN ('pending', 'running', 'awaiting_approval') AND parent IS NOT NULL;

-- Whom the principal that made a session counts as: another joins it only with sessions:write. NULL for a session that is
-- older than this column, which nobody joins otherwise.
ALTER TABLE sessions ADD COLUMN made_by TEXT;

-- Who holds a conversation that an agent has given away: by that agent, the agents that lead to the one that answers,
-- {"desk": ["clerk"]}. NULL: nobody else does.
ALTER TABLE sessions ADD COLUMN holders TEXT;

-- Whether args_sha256 is of the canonical form of the arguments (RFC 8785), so that they can be compared with it. In rows of
-- before it is of a text that is kept nowhere.
ALTER TABLE tool_calls ADD COLUMN args_canonical INTEGER NOT NULL DEFAULT 0;

-- How the run ended whose messages stay in the session's transcript and are left out of the history of later runs: failed
-- or aborted. NULL for all others, and for runs that are older than this column.
ALTER TABLE run_messages ADD COLUMN left_out TEXT;

-- Lists by status and of sessions find what they show, however much there is of everything else.
CREATE INDEX runs_failed ON runs (status, n) WHERE status IN ('failed', 'aborted') AND parent IS NULL;
CREATE INDEX sessions_by_age ON sessions (created_at);
CREATE INDEX sessions_by_agent ON sessions (agent_id, created_at);
