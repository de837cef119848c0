package auth_test

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/auth"
	"agentd/server/fault"
)

func TestMintKeepsWhatItWasAskedFor(t *testing.T) {
	b := setUp(t, auth.Options{})
	before := time.Now().UnixMilli()
	tok, raw, err := b.issuer.Mint(t.Context(), auth.Principal{Grant: grant(t, "agents:invoke", "tokens:create")}, auth.MintRequest{
		Label: "ci", Scopes: []string{"agents:invoke:a", "agents:invoke:*"}, Env: "test", ExpiresIn: time.Hour,
	})
	if err != nil {
		t.Fatalf("Mint() = %v, want none", err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7`).MatchString(tok.ID) || tok.Label != "ci" ||
		!slices.Equal(tok.Scopes, []string{"agents:invoke:a", "agents:invoke:*"}) ||
		tok.Created < before || tok.Created > before+60_000 || tok.Expires != tok.Created+3_600_000 {
		t.Errorf("Mint() = %+v, want what was asked for", tok)
	}
	if want := auth.Hash(pepper, raw); tok.Hash != want || !strings.HasPrefix(string(raw), "svc_test_v1_") {
		t.Errorf("Mint() = %+v, want a token of environment test with the hash %s", tok, want)
	}
	got, err := b.db.Tokens().Get(t.Context(), tok.ID)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(tok) {
		t.Errorf("Get(%s) = %+v, %v, want %+v", tok.ID, got, err, tok)
	}
}

func TestMintRefuses(t *testing.T) {
	many := slices.Repeat([]string{"agents:read"}, 257)
	for _, tc := range []struct {
		name   string
		envs   []string
		minter string
		req    auth.MintRequest
		kind   *fault.Kind // nil: minted
		issues string
		extra  string
	}{
		{name: "all of one's own", minter: "tokens:create agents:read", req: auth.MintRequest{Scopes: []string{"agents:read", "tokens:create"}}},
		{name: "part of one's own", minter: "agents:invoke", req: auth.MintRequest{Scopes: []string{"agents:invoke:a"}}},
		{name: "anything for an admin", minter: "admin:*", req: auth.MintRequest{Scopes: []string{"admin:*", "x:y:z"}}},
		{name: "what coverage covers", minter: "traces:read", req: auth.MintRequest{Scopes: []string{"traces:read:raw"}}},
		{name: "the most", minter: "admin:*", req: auth.MintRequest{Scopes: many[:256], Label: strings.Repeat("l", 256)}},

		{name: "environment before scopes", minter: "agents:read", req: auth.MintRequest{Scopes: []string{"nope"}, Env: "prod"},
			kind: fault.ConfigInvalid, issues: "[env]", extra: "map[allowed:[live test local]]"},
		{name: "no live", envs: []string{"test"}, minter: "admin:*", req: auth.MintRequest{Scopes: []string{"a:b"}},
			kind: fault.ConfigInvalid, issues: "[env]", extra: "map[allowed:[test]]"},
		{name: "no live, but named", envs: []string{"test"}, minter: "admin:*", req: auth.MintRequest{Scopes: []string{"a:b"}, Env: "test"}},
		{name: "any environment", envs: []string{}, minter: "admin:*", req: auth.MintRequest{Scopes: []string{"a:b"}, Env: "prod-9"}},
		{name: "any, so live", envs: []string{}, minter: "admin:*", req: auth.MintRequest{Scopes: []string{"a:b"}}},
		{name: "any, but not of this form", envs: []string{}, minter: "admin:*", req: auth.MintRequest{Scopes: []string{"a:b"}, Env: "a_b"},
			kind: fault.ConfigInvalid, issues: "[env]"},

		{name: "syntax before escalation", minter: "agents:read", req: auth.MintRequest{Scopes: []string{"a:b", "agents", "agents:read", "a:b:c:d"}},
			kind: fault.ConfigInvalid, issues: "[scopes 1] [scopes 3]"},

		{name: "escalation", minter: "tokens:create", req: auth.MintRequest{Scopes: []string{"tokens:create", "admin:*", "agents:read"}},
			kind: fault.ScopeEscalation, extra: "map[denied:[admin:* agents:read]]"},
		{name: "one target to all", minter: "agents:invoke:foo", req: auth.MintRequest{Scopes: []string{"agents:invoke", "agents:invoke:*", "agents:invoke:foo"}},
			kind: fault.ScopeEscalation, extra: "map[denied:[agents:invoke agents:invoke:*]]"},
		{name: "nobody", req: auth.MintRequest{Scopes: []string{"agents:read"}},
			kind: fault.ScopeEscalation, extra: "map[denied:[agents:read]]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := setUp(t, auth.Options{Envs: tc.envs})
			tok, raw, err := b.issuer.Mint(t.Context(), auth.Principal{Grant: grant(t, strings.Fields(tc.minter)...)}, tc.req)
			if tc.kind == nil {
				if err != nil {
					t.Fatalf("Mint(%+v) = %v, want none", tc.req, err)
				}
				b.want(t, noIP, raw, nil)
				return
			}
			if !fault.Is(err, tc.kind) || raw != "" || tok.ID != "" {
				t.Fatalf("Mint(%+v) = %+v, %v, want %s", tc.req, tok, err, tc.kind.Code)
			}
			e := fault.Of(err)
			var paths []string
			for _, is := range e.Issues {
				paths = append(paths, fmt.Sprint(is.Path))
			}
			if got := strings.Join(paths, " "); got != tc.issues {
				t.Errorf("Mint(%+v) has issues at %s, want %s", tc.req, got, tc.issues)
			}
			if got := fmt.Sprint(e.Extra); got != cmp.Or(tc.extra, "map[]") {
				t.Errorf("Mint(%+v) has the extra %s, want %s", tc.req, got, tc.extra)
			}
			if toks, err := b.issuer.List(t.Context(), true); err != nil || len(toks) != 0 {
				t.Errorf("List() = %v, %v after a refusal, want none", toks, err)
			}
		})
	}
}

func TestListAndRevoke(t *testing.T) {
	b := setUp(t, auth.Options{})
	list := func(revoked bool) (ids []string) {
		toks, err := b.issuer.List(t.Context(), revoked)
		if err != nil {
			t.Fatalf("List(%v) = %v, want none", revoked, err)
		}
		for _, tok := range toks {
			ids = append(ids, tok.ID)
		}
		return ids
	}
	var ids []string
	for range 3 {
		id, _ := b.mint(t, 0)
		ids = append(ids, id)
	}
	for range 2 { // again has no effect and is no error
		if _, err := b.issuer.Revoke(t.Context(), ids[1], nil); err != nil {
			t.Errorf("Revoke(%s) = %v, want none", ids[1], err)
		}
	}
	if got, want := list(false), []string{ids[0], ids[2]}; !slices.Equal(got, want) {
		t.Errorf("List(false) = %v, want %v", got, want)
	}
	if got := list(true); !slices.Equal(got, ids) {
		t.Errorf("List(true) = %v, want %v", got, ids)
	}
	if _, err := b.issuer.Revoke(t.Context(), "nope", nil); !fault.Is(err, fault.TokenNotFound) {
		t.Errorf("Revoke(nope) = %v, want token-not-found", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	b.db.Close()
	if _, err := b.issuer.Revoke(gone, ids[0], nil); err == nil || fault.Is(err, fault.TokenNotFound) {
		t.Errorf("Revoke(no store) = %v, want another error", err)
	}
	if _, _, err := b.issuer.Mint(gone, admin, auth.MintRequest{Scopes: []string{"a:b"}}); err == nil {
		t.Errorf("Mint(no store) = %v, want an error", err)
	}
}
