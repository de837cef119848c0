package auth_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/store"
	"agentd/store/storetest"
)

var (
	pepper = []byte("a pepper, 32 bytes long at least, 0123456789")
	admin  = auth.Anonymous()
	envs   = []string{"live", "test", "local"}
	noIP   netip.Addr
)

// A bench is a verifier and an issuer over one store.
type bench struct {
	*auth.Verifier
	issuer *auth.Issuer
	db     *store.DB
}

// setUp opens a store and what works on it. Of opts, what is not set gets the defaults of these tests.
func setUp(t testing.TB, opts auth.Options) *bench {
	t.Helper()
	db := storetest.Open(t)
	opts.Tokens, opts.Pepper, opts.Prefix = db.Tokens(), pepper, "svc"
	if opts.Envs == nil {
		opts.Envs = envs
	}
	v, err := auth.NewVerifier(opts)
	if err != nil {
		t.Fatalf("NewVerifier() = %v, want none", err)
	}
	return &bench{v, v.Issuer(), db}
}

// mint makes a token with the scope agents:read.
func (b *bench) mint(t testing.TB, expiresIn time.Duration) (id string, raw auth.Raw) {
	t.Helper()
	tok, raw, err := b.issuer.Mint(t.Context(), admin, auth.MintRequest{Scopes: []string{"agents:read"}, ExpiresIn: expiresIn})
	if err != nil {
		t.Fatalf("Mint() = %v, want none", err)
	}
	return tok.ID, raw
}

// revokeElsewhere revokes a token as another process does: nobody tells the verifier.
func (b *bench) revokeElsewhere(t testing.TB, id string) {
	t.Helper()
	if _, err := b.db.Tokens().Revoke(t.Context(), id, nil); err != nil {
		t.Fatalf("Revoke(%s) = %v, want none", id, err)
	}
}

// want verifies a token and checks the kind of the answer; nil is success.
func (b *bench) want(t testing.TB, ip netip.Addr, raw auth.Raw, kind *fault.Kind) *fault.Error {
	t.Helper()
	p, err := b.Verify(t.Context(), ip, raw)
	if kind == nil {
		if err != nil || p.Kind != auth.KindToken || p.TokenID == "" {
			t.Fatalf("Verify(%v) = %+v, %v, want a token's principal", ip, p, err)
		}
		return nil
	}
	if !fault.Is(err, kind) {
		t.Fatalf("Verify(%v) = %v, want %s", ip, err, kind.Code)
	}
	if p.Kind != "" || p.Grant != nil {
		t.Fatalf("Verify(%v) = %+v with an error, want nobody", ip, p)
	}
	return fault.Of(err)
}

// ip is the n-th of many addresses.
func ip(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// pass lets time pass in a bubble, and waits until all that it set off is done.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// blockReads keeps every read of the store waiting until the function that it returns is called. It needs a bubble.
func (b *bench) blockReads() (release func()) {
	free := make(chan struct{})
	var wg sync.WaitGroup
	for range 64 { // more than the store has connections: the rest waits for one
		wg.Go(func() {
			b.db.View(context.Background(), func(*store.Tx) error { <-free; return nil })
		})
	}
	synctest.Wait()
	return func() { close(free); wg.Wait() }
}

// garbage is well-formed for no server.
const garbage auth.Raw = "garbage"

// unknown returns a well-formed token that nobody has stored.
func unknown(t testing.TB) auth.Raw {
	t.Helper()
	raw, err := auth.Mint("svc", "live")
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
