-- Entries of the audit chain that were committed with what they record, until they are chained. The last row always stays,
-- so that its number is not used again.
CREATE TABLE audit_outbox (
	id     INTEGER PRIMARY KEY, -- from 1, without gaps, in the order of the commits
	sealed BLOB NOT NULL        -- nonce and ciphertext of the entries
);
