package store

import (
	"cmp"
	"context"
	"errors"
)

// Token is the record of a bearer token. The token itself is never stored, only its keyed hash.
type Token struct {
	ID       string
	Hash     string // lowercase hex HMAC-SHA256 of the raw token
	Label    string // empty: none
	Scopes   []string
	Minter   string // id of the token that minted it; empty: the operator made it
	Root     string // id of the token that its lineage begins with; empty: its own
	Created  int64
	Expires  int64 // 0: never
	Revoked  int64 // 0: not
	LastUsed int64 // 0: never
}

// Tokens is the repository of bearer tokens.
type Tokens struct{ db *DB }

// Tokens gives access to bearer tokens.
func (db *DB) Tokens() *Tokens { return &Tokens{db} }

var tokens = declare("auth_tokens", `id, hash_hex, label, scopes_json, created_at, expires_at, revoked_at, last_used_at, minter_id,
	root_id`, "", func(t *Token, to []any) []any {
	return append(to, &t.ID, &t.Hash, opt(&t.Label), list{&t.Scopes}, &t.Created, opt(&t.Expires), opt(&t.Revoked), opt(&t.LastUsed),
		opt(&t.Minter), opt(&t.Root))
})

// Insert adds a token. The error is ErrConflict when its minter is revoked, or not there. also, if not nil, is written in the
// same transaction.
func (t *Tokens) Insert(ctx context.Context, v Token, also func(*Tx, Token) error) error {
	return t.db.Update(ctx, func(tx *Tx) error {
		if v.Minter != "" {
			switch minter, err := tokens.one(tx, "WHERE id = ?", v.Minter); {
			case errors.Is(err, ErrNotFound), err == nil && minter.Revoked != 0:
				return ErrConflict
			case err != nil:
				return err
			}
		}
		_, err := tokens.insert(tx, &v)
		if err == nil && also != nil {
			err = also(tx, v)
		}
		return err
	})
}

// ByHash returns the token with the hash, or ErrNotFound.
func (t *Tokens) ByHash(ctx context.Context, hash string) (Token, error) {
	return t.get(ctx, "WHERE hash_hex = ?", hash)
}

// Get returns the token with the id, or ErrNotFound.
func (t *Tokens) Get(ctx context.Context, id string) (Token, error) {
	return t.get(ctx, "WHERE id = ?", id)
}

func (t *Tokens) get(ctx context.Context, where, value string) (Token, error) {
	return view(ctx, t.db, func(tx *Tx) (Token, error) { return tokens.one(tx, where, value) })
}

// List returns the tokens in the order of their creation, revoked ones only when asked for.
func (t *Tokens) List(ctx context.Context, revoked bool) ([]Token, error) {
	return view(ctx, t.db, func(tx *Tx) ([]Token, error) {
		return tokens.all(tx, "WHERE revoked_at IS NULL OR ? ORDER BY created_at, id", revoked)
	})
}

// Revoke marks a token as revoked and with it every token that descends from it by minting. It returns the ids of those
// that were not revoked before, in no order; ErrNotFound when there is no such token. also, if not nil, gets them, and is
// written in the same transaction.
func (t *Tokens) Revoke(ctx context.Context, id string, also func(*Tx, []string) error) (ids []string, err error) {
	err = t.db.Update(ctx, func(tx *Tx) error {
		if _, err := tokens.one(tx, "WHERE id = ?", id); err != nil {
			return err
		}
		ids, err = column[string](tx, `WITH RECURSIVE line (id) AS (
			VALUES (?) UNION SELECT t.id FROM line CROSS JOIN auth_tokens t INDEXED BY auth_tokens_minted ON t.minter_id = line.id)
			SELECT t.id FROM line CROSS JOIN auth_tokens t ON t.id = line.id WHERE t.revoked_at IS NULL`, id)
		for _, id := range ids {
			if err == nil {
				_, err = tx.exec("UPDATE auth_tokens SET revoked_at = ? WHERE id = ?", tx.Now(), id)
			}
		}
		if err == nil && also != nil {
			err = also(tx, ids)
		}
		return err
	})
	return ids, err
}

// Roots returns the root of each of the tokens, by their ids; tokens that are not there are left out.
func (t *Tokens) Roots(ctx context.Context, ids []string) (map[string]string, error) {
	roots := make(map[string]string, len(ids))
	for _, id := range ids {
		v, err := t.Get(ctx, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		if err == nil {
			roots[id] = cmp.Or(v.Root, id)
		}
	}
	return roots, nil
}

// Touch notes when tokens were last used.
func (t *Tokens) Touch(ctx context.Context, used map[string]int64) error {
	return t.db.Update(ctx, func(tx *Tx) error {
		for id, at := range used {
			if _, err := tx.exec("UPDATE auth_tokens SET last_used_at = ? WHERE id = ?", at, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// RevokedSince returns the ids of the tokens that were revoked at or after the given time, so that a process notices
// what another one revoked.
func (t *Tokens) RevokedSince(ctx context.Context, at int64) ([]string, error) {
	return view(ctx, t.db, func(tx *Tx) ([]string, error) {
		return column[string](tx, "SELECT id FROM auth_tokens WHERE revoked_at IS NOT NULL AND revoked_at >= ?", at)
	})
}
