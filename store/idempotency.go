package store

import (
	"context"
	"encoding/json"
)

// KeyRecord is what is known about a request that carried a key.
type KeyRecord struct {
	Key         string
	Principal   string
	Target      string // method and path
	Fingerprint []byte // of method, path and body

	// Bound says that the key answers for Run: it does not expire while the run exists.
	Bound   bool
	Run     string // that the answer is about; empty: none
	Session string // that the answer is about; empty: none

	Status  int             // of the answer; 0: it is made anew from the run or, without a run, was erased
	Headers json.RawMessage // of the answer, name to values; nil: none
	Body    []byte

	Expires int64 // milliseconds since 1970
}

// Live reports whether the record still counts at a time in milliseconds since 1970.
func (r *KeyRecord) Live(now int64) bool { return r.Bound || r.Expires > now }

// Erased reports whether the run or session of the answer was erased, and the answer with it.
func (r *KeyRecord) Erased() bool { return r.Status == 0 && r.Run == "" }

// Keys is the repository of requests that carried a key.
type Keys struct{ access }

// Keys gives access to requests that carried a key.
func (db *DB) Keys() *Keys { return &Keys{access{db}} }

var keys = declare("idempotency_records", `key, principal, target, fingerprint, bound, run_id, session_id, status, headers_json, body,
	expires_at`, "created_at", func(r *KeyRecord, to []any) []any {
	return append(to, &r.Key, &r.Principal, &r.Target, &r.Fingerprint, &r.Bound, opt(&r.Run), opt(&r.Session), opt(&r.Status), text{&r.Headers},
		&r.Body, &r.Expires)
})

// Get returns the record of a key, also one that has expired, or ErrNotFound.
func (k *Keys) Get(ctx context.Context, key string) (*KeyRecord, error) {
	return view(ctx, k.db, func(tx *Tx) (*KeyRecord, error) {
		r, err := keys.one(tx, "WHERE key = ?", key)
		return &r, err
	})
}

var putKey = keys.into +
	onConflict("key", "principal, target, fingerprint, bound, run_id, session_id, status, headers_json, body, created_at, expires_at") + " WHERE bound = 0 AND expires_at <= excluded.created_at"

// Put writes a record in the place of one that has expired. ErrConflict when the key has one that has not.
func (k *Keys) Put(tx *Tx, r *KeyRecord) error {
	changed, err := tx.exec(putKey, keys.values(tx, r, []any{tx.Now()})...)
	if err == nil && changed == 0 {
		err = ErrConflict
	}
	return err
}

// PutAbout is Put for an answer that is written after its run or session: nothing is kept, and the error is
// ErrNotFound, when that run or session has been erased meanwhile.
func (k *Keys) PutAbout(tx *Tx, r *KeyRecord) error {
	var n int
	if err := tx.row(`SELECT (? = '' OR EXISTS (SELECT 1 FROM runs WHERE id = ?))
		AND (? = '' OR EXISTS (SELECT 1 FROM sessions WHERE id = ?))`,
		r.Run, r.Run, r.Session, r.Session).Scan(&n); err != nil {
		return err
	}
	if n == 0 {
		return ErrNotFound
	}
	return k.Put(tx, r)
}

// eraseKeys empties the records about sessions and runs, but for their keys. They stay until they expire, so that their
// requests are not made again.
func eraseKeys(tx *Tx, sessions []string, runs []*Run) error {
	const erase = `UPDATE idempotency_records SET target = '', fingerprint = x'', bound = 0, run_id = NULL, session_id = NULL, status = NULL,
		headers_json = NULL, body = NULL WHERE `
	for _, run := range runs {
		if _, err := tx.exec(erase+"run_id = ?", run.ID); err != nil {
			return err
		}
	}
	for _, id := range sessions {
		if _, err := tx.exec(erase+"session_id = ?", id); err != nil {
			return err
		}
	}
	return nil
}
