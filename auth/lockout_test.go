package auth_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/fault"
)

// fail lets an address fail n times.
func (b *bench) fail(t *testing.T, from netip.Addr, n int) {
	t.Helper()
	for range n {
		b.want(t, from, garbage, fault.AuthInvalid)
	}
}

// wantLocked checks that an address is locked out, and for how long; and that a token which is good passes all the same.
func (b *bench) wantLocked(t *testing.T, from netip.Addr, good auth.Raw, left time.Duration) {
	t.Helper()
	for _, bad := range []auth.Raw{garbage, unknown(t)} {
		if e := b.want(t, from, bad, fault.AuthLockedOut); e.RetryAfter != left {
			t.Fatalf("Verify(%v) asks to wait %v, want %v", from, e.RetryAfter, left)
		}
	}
	if good != garbage {
		b.want(t, from, good, nil)
	}
}

func TestLockoutOfAnAddress(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, b *bench, good auth.Raw)
	}{
		{"the threshold-th failure answers for itself, the next is locked out", func(t *testing.T, b *bench, good auth.Raw) {
			b.fail(t, ip(1), 5)
			b.wantLocked(t, ip(1), garbage, 5*time.Minute)
			b.wantLocked(t, ip(1), good, 5*time.Minute)
			b.want(t, ip(2), good, nil)
		}},
		{"malformed, unknown, revoked and expired count", func(t *testing.T, b *bench, good auth.Raw) {
			id, revoked := b.mint(t, 0)
			b.revokeElsewhere(t, id)
			_, expired := b.mint(t, time.Millisecond)
			pass(time.Millisecond)
			b.want(t, ip(1), garbage, fault.AuthInvalid)
			b.want(t, ip(1), unknown(t), fault.AuthInvalid)
			b.want(t, ip(1), revoked, fault.AuthRevoked)
			b.want(t, ip(1), expired, fault.AuthExpired)
			b.want(t, ip(1), "", fault.AuthInvalid)
			b.wantLocked(t, ip(1), good, 5*time.Minute)
		}},
		{"expired out of the cache counts", func(t *testing.T, b *bench, good auth.Raw) {
			_, brief := b.mint(t, 10*time.Second)
			b.want(t, ip(1), brief, nil)
			pass(10 * time.Second)
			for range 5 {
				b.want(t, ip(1), brief, fault.AuthExpired)
			}
			b.wantLocked(t, ip(1), good, 5*time.Minute)
		}},
		{"a warm token passes", func(t *testing.T, b *bench, good auth.Raw) {
			b.want(t, ip(1), good, nil)
			b.fail(t, ip(1), 5)
			b.wantLocked(t, ip(1), good, 5*time.Minute)
		}},
		{"a success does not reset the count", func(t *testing.T, b *bench, good auth.Raw) {
			b.fail(t, ip(1), 4)
			b.want(t, ip(1), good, nil)
			b.fail(t, ip(1), 1)
			b.wantLocked(t, ip(1), good, 5*time.Minute)
		}},
		{"each failure prolongs the window", func(t *testing.T, b *bench, good auth.Raw) {
			for range 5 {
				b.fail(t, ip(1), 1)
				pass(time.Minute)
			}
			b.wantLocked(t, ip(1), good, 4*time.Minute)
		}},
		{"more than a minute of silence ends the window", func(t *testing.T, b *bench, good auth.Raw) {
			b.fail(t, ip(1), 4)
			pass(time.Minute + 1)
			b.fail(t, ip(1), 4)
			b.want(t, ip(1), good, nil)
			b.fail(t, ip(1), 1)
			b.wantLocked(t, ip(1), good, 5*time.Minute)
		}},
		{"attempts during a lockout do not prolong it", func(t *testing.T, b *bench, good auth.Raw) {
			b.fail(t, ip(1), 5)
			pass(3 * time.Minute)
			for range 20 {
				b.wantLocked(t, ip(1), garbage, 2*time.Minute)
			}
			pass(2*time.Minute - 1)
			b.wantLocked(t, ip(1), good, 1)
			pass(1)
			b.want(t, ip(1), good, nil)
		}},
		{"nor does a failure that was in flight when it began", func(t *testing.T, b *bench, good auth.Raw) {
			release := b.blockReads()
			late := make(chan error, 1)
			go func() {
				_, err := b.Verify(t.Context(), ip(1), unknown(t))
				late <- err
			}()
			synctest.Wait()
			b.fail(t, ip(1), 5)
			pass(time.Minute)
			release()
			if err := <-late; !fault.Is(err, fault.AuthInvalid) {
				t.Fatalf("Verify(in flight) = %v, want auth-invalid", err)
			}
			b.wantLocked(t, ip(1), good, 4*time.Minute)
		}},
		{"after a lockout the count starts anew", func(t *testing.T, b *bench, good auth.Raw) {
			b.fail(t, ip(1), 5)
			pass(5 * time.Minute)
			b.fail(t, ip(1), 4)
			b.want(t, ip(1), good, nil)
			b.fail(t, ip(1), 1)
			b.wantLocked(t, ip(1), good, 5*time.Minute)
		}},
		{"an address that is not known is not counted", func(t *testing.T, b *bench, good auth.Raw) {
			b.fail(t, noIP, 100)
			b.want(t, noIP, good, nil)
		}},
		{"IPv6 addresses of one /64 are one client", func(t *testing.T, b *bench, good auth.Raw) {
			for i := range 5 {
				b.fail(t, netip.MustParseAddr(fmt.Sprintf("2001:db8::%d%%eth%d", i, i)), 1)
			}
			b.wantLocked(t, netip.MustParseAddr("2001:db8::ffff:1"), good, 5*time.Minute)
			b.want(t, netip.MustParseAddr("2001:db8:0:1::1"), good, nil)
		}},
		{"an address is the same in its IPv6 form", func(t *testing.T, b *bench, good auth.Raw) {
			b.fail(t, netip.AddrFrom16(ip(1).As16()), 5)
			b.wantLocked(t, ip(1), good, 5*time.Minute)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setUp(t, auth.Options{})
				_, good := b.mint(t, 0)
				tc.run(t, b, good)
			})
		})
	}
}

func TestLockoutOfAnAddressAsConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{PerIPFailureThreshold: 2, PerIPLockout: 10 * time.Second})
		_, good := b.mint(t, 0)
		b.fail(t, ip(1), 2)
		b.wantLocked(t, ip(1), good, 10*time.Second)
		pass(10 * time.Second)
		b.want(t, ip(1), good, nil)
	})
}

// wantEnded checks that a token is locked out for good.
func (b *bench) wantEnded(t *testing.T, from netip.Addr, bad auth.Raw) {
	t.Helper()
	if e := b.want(t, from, bad, fault.AuthLockedOut); e.RetryAfter != 0 {
		t.Fatalf("Verify(%v) asks to wait %v, want no time", from, e.RetryAfter)
	}
}

func TestLockoutOfAToken(t *testing.T) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, b *bench, bad auth.Raw, kind *fault.Kind)
	}{
		{"the threshold-th failure answers for itself, the next is refused for good", func(t *testing.T, b *bench, bad auth.Raw, kind *fault.Kind) {
			for range 10 {
				b.want(t, noIP, bad, kind)
			}
			b.wantEnded(t, noIP, bad)
			pass(1000 * time.Hour)
			b.wantEnded(t, noIP, bad)
		}},
		{"addresses count together, and the lockout is no failure of theirs", func(t *testing.T, b *bench, bad auth.Raw, kind *fault.Kind) {
			for i := range 10 {
				b.want(t, ip(i), bad, kind)
			}
			_, good := b.mint(t, 0)
			for range 20 {
				b.wantEnded(t, ip(99), bad)
			}
			b.want(t, ip(99), good, nil)
		}},
		{"each failure prolongs the window", func(t *testing.T, b *bench, bad auth.Raw, kind *fault.Kind) {
			for range 10 {
				b.want(t, noIP, bad, kind)
				pass(5 * time.Minute)
			}
			b.wantEnded(t, noIP, bad)
		}},
		{"more than five minutes of silence end the window", func(t *testing.T, b *bench, bad auth.Raw, kind *fault.Kind) {
			for range 9 {
				b.want(t, noIP, bad, kind)
			}
			pass(5*time.Minute + 1)
			for range 10 {
				b.want(t, noIP, bad, kind)
			}
			b.wantEnded(t, noIP, bad)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setUp(t, auth.Options{})
				id, revoked := b.mint(t, 0)
				b.revokeElsewhere(t, id)
				tc.run(t, b, revoked, fault.AuthRevoked)
			})
			synctest.Test(t, func(t *testing.T) {
				b := setUp(t, auth.Options{})
				_, expired := b.mint(t, time.Millisecond)
				pass(time.Millisecond)
				tc.run(t, b, expired, fault.AuthExpired)
			})
		})
	}
}

func TestUnknownTokensLockNoTokenOut(t *testing.T) {
	b := setUp(t, auth.Options{})
	raw := unknown(t)
	for range 50 {
		b.want(t, noIP, raw, fault.AuthInvalid)
		b.want(t, noIP, garbage, fault.AuthInvalid)
	}
}

const maxAddresses = 10_000

// However many addresses fail after it, one that is locked out stays so; the oldest count makes room.
func TestTooManyAddressesDropTheOldestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		_, good := b.mint(t, 0)
		b.fail(t, ip(0), 5)
		b.fail(t, ip(1), 4)
		for i := 2; i < 5*maxAddresses; i++ {
			b.fail(t, ip(i), 1)
		}
		b.wantLocked(t, ip(0), good, 5*time.Minute)
		b.fail(t, ip(1), 1) // the four before are forgotten
		b.want(t, ip(1), good, nil)
		b.fail(t, ip(5*maxAddresses-1), 4) // the latest is not
		b.wantLocked(t, ip(5*maxAddresses-1), good, 5*time.Minute)
	})
}

// Only lockouts drive lockouts out, and not before they take half of the room; then the oldest goes, and those who have
// failed once are still counted.
func TestTooManyLockedAddressesDropTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{PerIPFailureThreshold: 2})
		_, good := b.mint(t, 0)
		for i := range maxAddresses/2 + 1 {
			b.fail(t, ip(i), 2)
		}
		for i := range maxAddresses/2 - 1 {
			b.fail(t, ip(maxAddresses+i), 1)
		}
		b.wantLocked(t, ip(0), good, 5*time.Minute)
		b.fail(t, ip(maxAddresses-1), 1)
		b.want(t, ip(0), good, nil)
		b.wantLocked(t, ip(1), good, 5*time.Minute)
		b.fail(t, ip(maxAddresses), 1)
		b.wantLocked(t, ip(maxAddresses), good, 5*time.Minute)
	})
}

// What is remembered of 100 000 addresses takes no more memory than what is of 10 000.
func TestLockoutMemoryIsBounded(t *testing.T) {
	b := setUp(t, auth.Options{})
	heap := func(from, to int) uint64 {
		for i := from; i < to; i++ {
			b.Verify(t.Context(), ip(i), garbage) //nolint:errcheck // it fails
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	few := heap(0, maxAddresses)
	if many := heap(maxAddresses, 10*maxAddresses); many > few+2<<20 {
		t.Errorf("after 100000 addresses there are %d bytes, want about the %d of 10000", many, few)
	}
}

func TestTooManyAddressesDropWhatHasRunOutFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		_, good := b.mint(t, 0)
		b.fail(t, ip(0), 5)
		for i := 1; i < maxAddresses; i++ {
			b.fail(t, ip(i), 1)
		}
		pass(2 * time.Minute) // the windows have run out, the lockout has not
		for i := range maxAddresses - 1 {
			b.fail(t, ip(maxAddresses+i), 1)
		}
		b.wantLocked(t, ip(0), good, 3*time.Minute)
	})
}
