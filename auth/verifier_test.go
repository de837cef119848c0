package auth_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/store"
)

func TestVerify(t *testing.T) {
	b := setUp(t, auth.Options{})
	tok, raw, err := b.issuer.Mint(t.Context(), admin, auth.MintRequest{
		Label: "ci", Scopes: []string{"agents:read", "agents:invoke:clerk"}, Env: "test", ExpiresIn: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, round := range []string{"cold", "warm"} {
		p, err := b.Verify(t.Context(), ip(1), raw)
		if err != nil || p.Kind != auth.KindToken || p.TokenID != tok.ID || p.Label != "ci" || p.Expires.UnixMilli() != tok.Expires {
			t.Errorf("Verify(%s) = %+v, %v, want the principal of %+v", round, p, err, tok)
		}
		if !p.Grant.Covers(scope(t, "agents:invoke:clerk")) || p.Grant.Covers(scope(t, "agents:invoke:other")) {
			t.Errorf("Verify(%s) has the grant %v, want %v", round, p.Grant, tok.Scopes)
		}
	}
	id, raw := b.mint(t, 0)
	if p, err := b.Verify(t.Context(), ip(1), raw); err != nil || p.TokenID != id || !p.Expires.IsZero() {
		t.Errorf("Verify(without expiry) = %+v, %v, want a principal that does not expire", p, err)
	}
}

func TestAnonymous(t *testing.T) {
	p := auth.Anonymous()
	if p.Kind != auth.KindAnonymous || p.TokenID != "" || !p.Grant.Covers(scope(t, "secrets:read")) || !p.Grant.Covers(scope(t, "admin:*")) {
		t.Errorf("Anonymous() = %+v, want one with admin:* and no token", p)
	}
}

func TestVerifyRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		_, brief := b.mint(t, time.Minute)
		revokedID, revoked := b.mint(t, 0)
		b.revokeElsewhere(t, revokedID)
		pass(time.Minute - time.Millisecond)
		b.want(t, noIP, brief, nil)
		pass(time.Millisecond)
		otherPepper, err := auth.NewVerifier(auth.Options{Tokens: b.db.Tokens(), Pepper: []byte(strings.ToUpper(string(pepper))), Prefix: "svc"})
		if err != nil {
			t.Fatal(err)
		}
		_, peppered, err := otherPepper.Issuer().Mint(t.Context(), admin, auth.MintRequest{Scopes: []string{"agents:read"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name string
			raw  auth.Raw
			want *fault.Kind
		}{
			{"nothing", "", fault.AuthInvalid},
			{"garbage", garbage, fault.AuthInvalid},
			{"of another server", zeros, fault.AuthInvalid},
			{"unknown", unknown(t), fault.AuthInvalid},
			{"hashed with another pepper", peppered, fault.AuthInvalid},
			{"revoked", revoked, fault.AuthRevoked},
			{"expired", brief, fault.AuthExpired},
		} {
			for range 2 {
				e := b.want(t, noIP, tc.raw, tc.want)
				if n := len(tc.raw); n > 20 && strings.Contains(e.Error(), string(tc.raw[n-20:])) {
					t.Errorf("Verify(%s) = %v, which shows the token", tc.name, e)
				}
			}
		}
	})
}

func TestStoredScopesThatDoNotParsePermitNothing(t *testing.T) {
	b := setUp(t, auth.Options{})
	raw := unknown(t)
	err := b.db.Tokens().Insert(t.Context(), store.Token{
		ID: "t1", Hash: auth.Hash(pepper, raw), Scopes: []string{"*", "admin", "agents:read", ""}, Created: 1,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, err := b.Verify(t.Context(), noIP, raw)
	if err != nil || len(p.Grant) != 1 || !p.Grant.Covers(scope(t, "agents:read")) {
		t.Errorf("Verify() = %+v, %v, want a grant of agents:read alone", p, err)
	}
}

func TestWarmVerificationReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		_, warm := b.mint(t, 0)
		_, cold := b.mint(t, 0)
		b.want(t, noIP, warm, nil)
		defer b.blockReads()()

		b.want(t, noIP, warm, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Verify(ctx, noIP, cold); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Verify(cold) = %v while the store is blocked, want that it waited", err)
		}
	})
}

func TestRecordIsTrustedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		id, raw := b.mint(t, 0)
		b.want(t, noIP, raw, nil)
		b.revokeElsewhere(t, id)
		pass(time.Minute - time.Millisecond)
		b.want(t, noIP, raw, nil)
		pass(time.Millisecond)
		b.want(t, noIP, raw, fault.AuthRevoked)
	})
}

func TestRefusalIsNotRemembered(t *testing.T) {
	b := setUp(t, auth.Options{})
	raw := unknown(t)
	b.want(t, noIP, raw, fault.AuthInvalid)
	err := b.db.Tokens().Insert(t.Context(), store.Token{ID: "t1", Hash: auth.Hash(pepper, raw), Created: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.want(t, noIP, raw, nil)
}

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1024
		b := setUp(t, auth.Options{})
		raws := make([]auth.Raw, size+1)
		var wg sync.WaitGroup
		for i := range raws {
			wg.Go(func() { _, raws[i] = b.mint(t, 0) })
		}
		wg.Wait()
		for _, raw := range raws[:size] {
			b.want(t, noIP, raw, nil)
		}
		b.want(t, noIP, raws[0], nil)
		b.want(t, noIP, raws[size], nil) // for which the others go
		defer b.blockReads()()
		for i, raw := range raws {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, err := b.Verify(ctx, noIP, raw)
			cancel()
			if warm := err == nil; warm != (i == size) {
				t.Errorf("Verify(token %d) = %v, want only the last one warm", i, err)
			}
		}
	})
}

func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		_, raw := b.mint(t, 0)
		release := b.blockReads()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := b.Verify(t.Context(), ip(1), raw); err != nil {
					t.Errorf("Verify(one of 100 in flight) = %v, want none", err)
				}
			})
		}
		synctest.Wait()
		for range 10 { // more than an address may fail
			if e := b.want(t, ip(1), raw, fault.Overloaded); e.RetryAfter != time.Second {
				t.Errorf("Verify(101st in flight) asks to wait %v, want 1s", e.RetryAfter)
			}
		}
		release()
		wg.Wait()
		b.want(t, ip(1), raw, nil)
	})
}

func TestErrorsOfTheStoreAreNoFailures(t *testing.T) {
	b := setUp(t, auth.Options{})
	_, raw := b.mint(t, 0)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	closed := setUp(t, auth.Options{})
	closed.db.Close()
	for range 10 {
		if _, err := closed.Verify(gone, ip(1), raw); err == nil || fault.Of(err).Kind != fault.Internal {
			t.Fatalf("Verify(no store) = %v, want an error that is nobody's fault", err)
		}
	}
	b.want(t, ip(1), raw, nil)
}

func BenchmarkVerifyWarm(b *testing.B) {
	bench := setUp(b, auth.Options{})
	_, raw := bench.mint(b, 0)
	bench.want(b, ip(1), raw, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := bench.Verify(b.Context(), ip(1), raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerifyWarmParallel(b *testing.B) {
	bench := setUp(b, auth.Options{})
	_, raw := bench.mint(b, 0)
	bench.want(b, ip(1), raw, nil)
	addr := netip.MustParseAddr("2001:db8::1")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := bench.Verify(context.Background(), addr, raw); err != nil {
				b.Error(err)
			}
		}
	})
}
