// Package auth establishes who calls and what they may do: tokens, scopes, lockout.
//
// An [Issuer] mints, lists and revokes tokens. A [Verifier] turns a token into a [Principal]. Every operation asks the
// principal's [Grant] first. Only a keyed hash of a token is stored. The stages of a verification, each with the fault
// that it returns:
//
//	in flight <= 100   overloaded
//	parse              auth-invalid
//	hash, cache  ------------------------------------> principal
//	look up            auth-invalid
//	token not locked   auth-locked-out
//	not revoked        auth-revoked
//	not expired        auth-expired
//	remember in cache -------------------------------> principal
//
// While the address is locked out, each refusal is auth-locked-out instead, with the time to wait.
package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentd/store"
)

// A Kind is how a principal was recognised. The zero Kind is nobody.
type Kind string

// The kinds of principal.
const (
	KindToken     Kind = "token"
	KindAnonymous Kind = "anonymous" // auth.kind=none
	KindOperator  Kind = "cli"       // a command that has the files of the server, and so needs no token
	KindHook      Kind = "hook"      // the sender of a request whose signature a hook has verified
)

// A Principal is who is calling. The zero value is nobody, with a grant that covers nothing.
type Principal struct {
	Kind    Kind
	TokenID string    // empty unless Kind is KindToken
	Root    string    // id of the token that its lineage begins with, which may be its own; empty as TokenID is
	Label   string    // of the token, may be empty; of an operator, the user's name; of a hook, its name
	Grant   Grant     // shared among the requests of a token: not to be changed
	Expires time.Time // zero: never
}

// Name is what records call the principal that acts: token:<id>, cli:<user>, hook:<name>, or its kind.
func (p Principal) Name() string {
	switch {
	case p.TokenID != "":
		return "token:" + p.TokenID
	case p.Kind == KindOperator, p.Kind == KindHook:
		return string(p.Kind) + ":" + p.Label
	}
	return string(p.Kind)
}

// Lineage is the name of whom the principal counts as wherever principals are compared or counted: a token counts as
// the one that its lineage begins with, because whoever holds a token holds what it has minted. All operators count as
// one: whoever has the files can act under any user's name. Records keep Name.
func (p Principal) Lineage() string {
	switch {
	case p.TokenID != "":
		return "token:" + cmp.Or(p.Root, p.TokenID)
	case p.Kind == KindHook:
		return p.Name()
	}
	return string(p.Kind)
}

// Lineages finds the [Principal.Lineage] of each name that [Principal.Name] has given, also of tokens that are revoked
// since. A trigger counts as itself, whoever fired it. Any other name is its own.
func Lineages(tokens *store.Tokens) func(ctx context.Context, names []string) ([]string, error) {
	return func(ctx context.Context, names []string) ([]string, error) {
		ids := make([]string, len(names))
		for i, name := range names {
			ids[i] = strings.TrimPrefix(name, "token:")
		}
		roots, err := tokens.Roots(ctx, ids)
		if err != nil {
			return nil, fmt.Errorf("looking up the lineage of tokens: %w", err)
		}
		lineages := slices.Clone(names)
		for i, name := range names {
			if root := roots[ids[i]]; root != "" && name != ids[i] {
				lineages[i] = "token:" + root
			} else if strings.HasPrefix(name, string(KindOperator)+":") {
				lineages[i] = string(KindOperator)
			} else {
				lineages[i], _, _ = strings.Cut(name, store.For)
			}
		}
		return lineages, nil
	}
}

// Permits reports whether the principal that a [Principal.Name] names may do something now. A token that is revoked or has
// expired may do nothing, nor may whoever else needs a token. open says that nobody does: authentication is off.
func Permits(tokens *store.Tokens, open bool) func(ctx context.Context, name string, required Scope) (bool, error) {
	return func(ctx context.Context, name string, required Scope) (bool, error) {
		id, isToken := strings.CutPrefix(name, "token:")
		if !isToken {
			return open && name == string(KindAnonymous) || strings.HasPrefix(name, string(KindOperator)+":"), nil
		}
		t, err := tokens.Get(ctx, id)
		if errors.Is(err, store.ErrNotFound) {
			return false, nil
		}
		over := t.Revoked != 0 || t.Expires != 0 && expired(time.UnixMilli(t.Expires), time.Now())
		return err == nil && !over && parseGrant(t.Scopes).Covers(required), err
	}
}

// Anonymous is the principal of every request when authentication is off. Its grant is admin:*.
func Anonymous() Principal {
	return Principal{Kind: KindAnonymous, Grant: Grant{{Resource: "admin", Action: wildcard}}}
}

// Operator is the principal of a command that acts on the server's files itself. Its grant is admin:*.
func Operator(user string) Principal {
	return Principal{Kind: KindOperator, Label: user, Grant: Grant{{Resource: "admin", Action: wildcard}}}
}

// Hook is the principal of the requests that a hook has verified. It may emit the event of the hook and nothing else.
func Hook(name, event string) Principal {
	return Principal{Kind: KindHook, Label: name, Grant: Grant{{Resource: "triggers", Action: "emit", Target: event}}}
}
