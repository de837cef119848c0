package auth

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"agentd/server/fault"
	"agentd/server/id"
	"agentd/store"
)

const defaultEnv = "live"

// An Issuer mints, lists and revokes tokens. It is safe for concurrent use.
type Issuer struct{ v *Verifier }

// Issuer returns the Issuer of the tokens that v recognises.
func (v *Verifier) Issuer() *Issuer { return &Issuer{v} }

// A MintRequest says which token to make.
type MintRequest struct {
	Label     string // may be empty
	Scopes    []string
	Env       string        // empty: live
	ExpiresIn time.Duration // 0: never
	// Also is written in the transaction that makes the token; its error prevents that. Nil: nothing is.
	Also func(*store.Tx, store.Token) error
}

// Mint makes a token that its minter may have made: each of its scopes is covered by the minter's grant, and it expires
// when its minter does, unless the request says earlier. It belongs to its minter's lineage; one that no token has minted
// begins its own. The raw token exists nowhere else afterwards. The checks, of which the first that fails answers with all
// that it found:
//
//	environment config-invalid with issues and, when only some are allowed, these as "allowed"
//	scopes      config-invalid with an issue for each that does not parse
//	attenuation scope-escalation-denied with the scopes that are not covered as "denied"
//	minter      auth-revoked when it was revoked meanwhile
func (s *Issuer) Mint(ctx context.Context, minter Principal, req MintRequest) (store.Token, Raw, error) {
	env := cmp.Or(req.Env, defaultEnv)
	if err := s.checkEnv(req.Env, env); err != nil {
		return store.Token{}, "", err
	}
	if err := checkScopes(minter.Grant, req.Scopes); err != nil {
		return store.Token{}, "", err
	}
	raw, err := Mint(s.v.prefix, env)
	if err != nil {
		return store.Token{}, "", err
	}
	now, hash := time.Now(), s.v.hasher.sum(raw)
	t := store.Token{
		ID:      id.New(),
		Hash:    hex.EncodeToString(hash[:]),
		Label:   req.Label,
		Scopes:  slices.Clone(req.Scopes),
		Minter:  minter.TokenID,
		Created: now.UnixMilli(),
	}
	t.Root = cmp.Or(minter.Root, minter.TokenID, t.ID)
	if req.ExpiresIn != 0 {
		t.Expires = now.Add(req.ExpiresIn).UnixMilli()
	}
	if last := minter.Expires; !last.IsZero() && (t.Expires == 0 || last.UnixMilli() < t.Expires) {
		t.Expires = last.UnixMilli()
	}
	switch err := s.v.tokens.Insert(ctx, t, req.Also); {
	case errors.Is(err, store.ErrConflict):
		return store.Token{}, "", fault.New(fault.AuthRevoked, "The token was revoked.")
	case err != nil:
		return store.Token{}, "", fmt.Errorf("keeping a token: %w", err)
	}
	return t, raw, nil
}

func (s *Issuer) checkEnv(asked, env string) error {
	if envAllowed(env, s.v.envs) {
		return nil
	}
	if len(s.v.envs) == 0 {
		return fault.Invalid("The environment of the token is not valid.",
			fault.At("is not a lower-case letter and up to 15 of a-z 0-9 and -", "env"))
	}
	message := "is not an environment of this server"
	if asked == "" {
		message = "is needed, because this server has no environment " + defaultEnv
	}
	return fault.Invalid("The environment of the token is not allowed.", fault.At(message, "env")).
		With("allowed", slices.Clone(s.v.envs))
}

func checkScopes(minter Grant, texts []string) error {
	var issues []fault.Issue
	var denied []string
	for i, text := range texts {
		switch scope, err := ParseScope(text); {
		case err != nil:
			issues = append(issues, fault.At(err.Error(), "scopes", i))
		case !minter.Covers(scope):
			denied = append(denied, text)
		}
	}
	if issues != nil {
		return fault.Invalid("A scope of the token is not valid.", issues...)
	}
	if denied != nil {
		return fault.New(fault.ScopeEscalation, "The request asks for scopes that the caller's token does not have.").
			With("denied", denied)
	}
	return nil
}

// List returns the tokens in the order of their creation, revoked ones only when asked for. Their hashes are not for
// showing.
func (s *Issuer) List(ctx context.Context, revoked bool) ([]store.Token, error) {
	return s.v.tokens.List(ctx, revoked)
}

// Revoke ends a token for good, and with it every token that it has minted, those that these have minted, and so on:
// whoever held the token may hold them. It returns the ids of the others that it has ended. A token that is revoked
// already stays so. also, if not nil, gets them, and is written in the same transaction. The error is token-not-found when
// there is none with the id.
func (s *Issuer) Revoke(ctx context.Context, id string, also func(tx *store.Tx, others []string) error) (others []string, err error) {
	_, err = s.v.tokens.Revoke(ctx, id, func(tx *store.Tx, ended []string) error {
		others = slices.DeleteFunc(ended, func(other string) bool { return other == id })
		if also == nil {
			return nil
		}
		return also(tx, others)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, fault.New(fault.TokenNotFound, "There is no token %.80q.", id)
	}
	if err != nil {
		return nil, fmt.Errorf("revoking a token: %w", err)
	}
	for _, id := range append([]string{id}, others...) {
		s.v.Revoked(id)
	}
	return others, nil
}
