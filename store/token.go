package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
)

// Token is the record of a bearer token. The token itself is never stored, only its keyed hash.
type Token struct {
	ID       string
	Hash     string // lowercase hex HMAC-SHA256 of the raw token
	Label    string // empty: none
	Scopes   []string
	Minter   string // id of the token that minted it; empty: the operator made it
	Root     string // id of the token that its lineage begins with; empty in Insert: its own
	Created  int64
	Expires  int64 // 0: never
	Revoked  int64 // 0: not
	LastUsed int64 // 0: never
}

// Tokens is the repository of bearer tokens.
type Tokens struct{ db *DB }

// Tokens gives access to bearer tokens.
func (db *DB) Tokens() *Tokens { return &Tokens{db} }

// Insert adds a token. The error is ErrConflict when its minter is revoked, or not there.
func (t *Tokens) Insert(ctx context.Context, v Token) error {
	scopes, err := json.Marshal(v.Scopes)
	if err != nil {
		return err
	}
	return t.db.Update(ctx, func(tx *Tx) error {
		n, err := tx.exec(`INSERT INTO auth_tokens (id, hash_hex, label, scopes_json, created_at, expires_at, minter_id, root_id)
			SELECT ?,?,?,?,?,?,?,? WHERE ? = '' OR EXISTS (SELECT 1 FROM auth_tokens WHERE id = ? AND revoked_at IS NULL)`,
			v.ID, v.Hash, null(v.Label), string(scopes), v.Created, null(v.Expires), null(v.Minter), null(v.Root), v.Minter, v.Minter)
		if err == nil && n == 0 {
			err = ErrConflict
		}
		return err
	})
}

const tokenColumns = `id, hash_hex, coalesce(label, ''), scopes_json, created_at, coalesce(expires_at, 0), coalesce(revoked_at, 0),
	coalesce(last_used_at, 0), coalesce(minter_id, ''), coalesce(root_id, id)`

func scanToken(s scanner) (Token, error) {
	var v Token
	var scopes string
	err := s.Scan(&v.ID, &v.Hash, &v.Label, &scopes, &v.Created, &v.Expires, &v.Revoked, &v.LastUsed, &v.Minter, &v.Root)
	if err == nil {
		err = json.Unmarshal([]byte(scopes), &v.Scopes)
	}
	return v, err
}

// ByHash returns the token with the hash, or ErrNotFound.
func (t *Tokens) ByHash(ctx context.Context, hash string) (v Token, err error) {
	err = t.db.View(ctx, func(tx *Tx) error {
		v, err = scanToken(tx.row("SELECT "+tokenColumns+" FROM auth_tokens WHERE hash_hex = ?", hash))
		return err
	})
	return v, err
}

// Get returns the token with the id, or ErrNotFound.
func (t *Tokens) Get(ctx context.Context, id string) (v Token, err error) {
	err = t.db.View(ctx, func(tx *Tx) error {
		v, err = scanToken(tx.row("SELECT "+tokenColumns+" FROM auth_tokens WHERE id = ?", id))
		return err
	})
	return v, err
}

// List returns the tokens in the order of their creation, revoked ones only when asked for.
func (t *Tokens) List(ctx context.Context, revoked bool) (out []Token, err error) {
	err = t.db.View(ctx, func(tx *Tx) error {
		out = nil
		return tx.collect(func(s scanner) error {
			v, err := scanToken(s)
			out = append(out, v)
			return err
		}, "SELECT "+tokenColumns+" FROM auth_tokens WHERE revoked_at IS NULL OR ? ORDER BY created_at, id", revoked)
	})
	return out, err
}

// Revoke marks a token as revoked and with it every token that descends from it by minting. It returns the ids of those
// that were not revoked before, in no order; ErrNotFound when there is no such token.
func (t *Tokens) Revoke(ctx context.Context, id string) (ids []string, err error) {
	err = t.db.Update(ctx, func(tx *Tx) error {
		if _, err := scanToken(tx.row("SELECT "+tokenColumns+" FROM auth_tokens WHERE id = ?", id)); err != nil {
			return err
		}
		ids = nil
		err := tx.collect(func(s scanner) error {
			var id string
			err := s.Scan(&id)
			ids = append(ids, id)
			return err
		}, `WITH RECURSIVE line (id) AS (VALUES (?) UNION SELECT t.id FROM line CROSS JOIN auth_tokens t INDEXED BY auth_tokens_minted ON t.minter_id = line.id)
			SELECT t.id FROM line CROSS JOIN auth_tokens t ON t.id = line.id WHERE t.revoked_at IS NULL`, id)
		for _, id := range ids {
			if err == nil {
				_, err = tx.exec("UPDATE auth_tokens SET revoked_at = ? WHERE id = ?", tx.Now(), id)
			}
		}
		return err
	})
	return ids, err
}

// Roots returns the root of each of the tokens, by their ids; tokens that are not there are left out.
func (t *Tokens) Roots(ctx context.Context, ids []string) (map[string]string, error) {
	roots := make(map[string]string, len(ids))
	err := t.db.View(ctx, func(tx *Tx) error {
		for _, id := range ids {
			var root string
			err := tx.row("SELECT coalesce(root_id, id) FROM auth_tokens WHERE id = ?", id).Scan(&root)
			if err == nil {
				roots[id] = root
			} else if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		}
		return nil
	})
	return roots, err
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
func (t *Tokens) RevokedSince(ctx context.Context, at int64) (ids []string, err error) {
	err = t.db.View(ctx, func(tx *Tx) error {
		ids = nil
		return tx.collect(func(s scanner) error {
			var id string
			err := s.Scan(&id)
			ids = append(ids, id)
			return err
		}, "SELECT id FROM auth_tokens WHERE revoked_at IS NOT NULL AND revoked_at >= ?", at)
	})
	return ids, err
}
