package store

import (
	"context"
	"encoding/json"
)

// Token is the record of a bearer token. The token itself is never stored, only its keyed hash.
type Token struct {
	ID       string
	Hash     string // lowercase hex HMAC-SHA256 of the raw token
	Label    string // empty: none
	Scopes   []string
	Created  int64
	Expires  int64 // 0: never
	Revoked  int64 // 0: not
	LastUsed int64 // 0: never
}

// Tokens is the repository of bearer tokens.
type Tokens struct{ db *DB }

// Tokens gives access to bearer tokens.
func (db *DB) Tokens() *Tokens { return &Tokens{db} }

// Insert adds a token.
func (t *Tokens) Insert(ctx context.Context, v Token) error {
	scopes, err := json.Marshal(v.Scopes)
	if err != nil {
		return err
	}
	return t.db.Update(ctx, func(tx *Tx) error {
		_, err := tx.exec("INSERT INTO auth_tokens (id, hash_hex, label, scopes_json, created_at, expires_at) VALUES (?,?,?,?,?,?)",
			v.ID, v.Hash, null(v.Label), string(scopes), v.Created, null(v.Expires))
		return err
	})
}

const tokenColumns = `id, hash_hex, coalesce(label, ''), scopes_json, created_at, coalesce(expires_at, 0), coalesce(revoked_at, 0),
	coalesce(last_used_at, 0)`

func scanToken(s scanner) (Token, error) {
	var v Token
	var scopes string
	err := s.Scan(&v.ID, &v.Hash, &v.Label, &scopes, &v.Created, &v.Expires, &v.Revoked, &v.LastUsed)
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

// Revoke marks a token as revoked; ErrNotFound when there is none. One that is revoked already keeps its time.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	return t.db.Update(ctx, func(tx *Tx) error {
		n, err := tx.exec("UPDATE auth_tokens SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?", tx.Now(), id)
		if err == nil && n == 0 {
			err = ErrNotFound
		}
		return err
	})
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
