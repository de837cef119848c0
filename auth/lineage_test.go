package auth_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/fault"
)

// child has the holder of a token mint another one.
func (b *bench) child(t testing.TB, minter auth.Raw, expiresIn time.Duration) (auth.Principal, auth.Raw) {
	t.Helper()
	p, err := b.Verify(t.Context(), noIP, minter)
	if err != nil {
		t.Fatalf("Verify() = %v, want a minter", err)
	}
	tok, raw, err := b.issuer.Mint(t.Context(), p, auth.MintRequest{Scopes: []string{"agents:read"}, ExpiresIn: expiresIn})
	if err != nil {
		t.Fatalf("Mint() = %v, want none", err)
	}
	made, err := b.Verify(t.Context(), noIP, raw)
	if err != nil || made.TokenID != tok.ID {
		t.Fatalf("Verify() = %+v, %v, want the token %s", made, err, tok.ID)
	}
	return made, raw
}

// A token that expires cannot mint one that outlives it.
func TestMintedTokenExpiresWithItsMinter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		_, raw := b.mint(t, time.Hour)
		p, err := b.Verify(t.Context(), noIP, raw)
		if err != nil {
			t.Fatal(err)
		}
		for asked, want := range map[time.Duration]time.Time{
			0:              p.Expires, // not said: the minter's
			2 * time.Hour:  p.Expires,
			10 * time.Hour: p.Expires,
			time.Minute:    time.Now().Add(time.Minute),
		} {
			made, _ := b.child(t, raw, asked)
			if !made.Expires.Equal(want.Truncate(time.Millisecond)) {
				t.Errorf("Mint(%v) by a token that expires at %v expires at %v, want %v", asked, p.Expires, made.Expires, want)
			}
		}
		_, forever := b.mint(t, 0)
		if made, _ := b.child(t, forever, 0); !made.Expires.IsZero() {
			t.Errorf("Mint(0) by a token that never expires expires at %v, want never", made.Expires)
		}
		_, grandchild := b.child(t, raw, 0)
		last, _ := b.child(t, grandchild, 9*time.Hour)
		if !last.Expires.Equal(p.Expires) {
			t.Errorf("Mint(9h) by a minted token expires at %v, want %v", last.Expires, p.Expires)
		}
	})
}

// A lineage counts as one principal, and its records name each token.
func TestLineage(t *testing.T) {
	b := setUp(t, auth.Options{})
	id, raw := b.mint(t, 0)
	root, err := b.Verify(t.Context(), noIP, raw)
	if err != nil || root.Root != id || root.Lineage() != "token:"+id || root.Name() != "token:"+id {
		t.Fatalf("Verify() = %+v, %v, want its own root", root, err)
	}
	child, childRaw := b.child(t, raw, 0)
	grandchild, _ := b.child(t, childRaw, 0)
	for _, p := range []auth.Principal{child, grandchild} {
		if p.Lineage() != root.Lineage() || p.Name() != "token:"+p.TokenID || p.Name() == root.Name() {
			t.Errorf("%+v has the lineage %s and the name %s, want the lineage %s and a name of its own", p, p.Lineage(), p.Name(), root.Lineage())
		}
	}
	_, otherRaw := b.mint(t, 0)
	if other, _ := b.child(t, otherRaw, 0); other.Lineage() == root.Lineage() {
		t.Errorf("Lineage() = %s for two roots, want two", other.Lineage())
	}
	if a := auth.Anonymous(); a.Lineage() != "anonymous" || a.Name() != "anonymous" || (auth.Principal{}).Lineage() != "" {
		t.Errorf("Lineage() = %s, Name() = %s of anonymous, and %q of nobody", a.Lineage(), a.Name(), (auth.Principal{}).Lineage())
	}
	for open, want := range map[bool]string{false: "false true false true", true: "true true false true"} {
		permits := auth.Permits(b.db.Tokens(), open)
		var got []string
		for _, name := range []string{"anonymous", "cli:root", "token:gone", root.Name()} {
			may, err := permits(t.Context(), name, root.Grant[0])
			if got = append(got, fmt.Sprint(may)); err != nil {
				t.Errorf("Permits(%s) = %v", name, err)
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("Permits, open %v: %s, want %s", open, got, want)
		}
	}
	names := []string{root.Name(), grandchild.Name(), "cli", "token:gone"}
	got, err := auth.Lineages(b.db.Tokens())(t.Context(), names)
	if want := []string{root.Lineage(), root.Lineage(), "cli", "token:gone"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Lineages(%v) = %v, %v, want %v", names, got, err, want)
	}
	toks, err := b.issuer.List(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, tok := range toks {
		if tok.ID == grandchild.TokenID && (tok.Minter != child.TokenID || tok.Root != id) {
			t.Errorf("List() shows %+v, want it minted by %s in the lineage of %s", tok, child.TokenID, id)
		}
	}
}

// Revoking a token revokes what was minted from it.
func TestRevocationEndsALineage(t *testing.T) {
	b := setUp(t, auth.Options{})
	rootID, root := b.mint(t, 0)
	child, childRaw := b.child(t, root, 0)
	grandchild, grandRaw := b.child(t, childRaw, 0)
	sibling, siblingRaw := b.child(t, root, 0)
	var told []string
	b.OnRevoke(func(id string) { told = append(told, id) })
	others, err := b.issuer.Revoke(t.Context(), child.TokenID, nil)
	if want := []string{grandchild.TokenID}; err != nil || !slices.Equal(others, want) {
		t.Fatalf("Revoke() = %v, %v, want %v", others, err, want)
	}
	if want := []string{child.TokenID, grandchild.TokenID}; !slices.Equal(told, want) {
		t.Errorf("OnRevoke told of %v, want %v", told, want)
	}
	b.want(t, noIP, childRaw, fault.AuthRevoked)
	b.want(t, noIP, grandRaw, fault.AuthRevoked)
	b.want(t, noIP, siblingRaw, nil)
	b.want(t, noIP, root, nil)
	if _, _, err := b.issuer.Mint(t.Context(), child, auth.MintRequest{Scopes: []string{"agents:read"}}); !fault.Is(err, fault.AuthRevoked) {
		t.Errorf("Mint() by a token that was revoked meanwhile = %v, want auth-revoked", err)
	}
	if others, err := b.issuer.Revoke(t.Context(), rootID, nil); err != nil || !slices.Equal(others, []string{sibling.TokenID}) {
		t.Errorf("Revoke(root) = %v, %v, want the sibling only", others, err)
	}
}
