-- The file of an audit chain. Rows are added at the end and deleted at the beginning; none is ever changed.
CREATE TABLE audit_log (
	seq       INTEGER PRIMARY KEY, -- from 1, without gaps
	ts        INTEGER NOT NULL,    -- milliseconds since 1970
	prev_hash BLOB NOT NULL,       -- of the row before, 32 bytes
	hash      BLOB NOT NULL,       -- SHA-256 of the canonical entry, 32 bytes
	sealed    BLOB NOT NULL        -- nonce and ciphertext of what else the entry says
);

-- What belongs to the chain as a whole: how its rows are sealed, its keys, its tree, where it was pruned.
CREATE TABLE audit_meta (
	key   TEXT PRIMARY KEY,
	value BLOB NOT NULL
) WITHOUT ROWID;
