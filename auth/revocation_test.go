package auth_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/store/storetest"
)

// run runs the verifier in a bubble until the function that it returns is called.
func (b *bench) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want none", err)
		}
	}
}

func TestRevokeTakesEffectAtOnce(t *testing.T) {
	b := setUp(t, auth.Options{})
	id, raw := b.mint(t, 0)
	_, other := b.mint(t, 0)
	b.want(t, noIP, raw, nil)
	b.want(t, noIP, other, nil)
	var told []string
	b.OnRevoke(func(id string) {
		b.want(t, noIP, raw, fault.AuthRevoked)
		told = append(told, "first "+id)
	})
	b.OnRevoke(func(id string) { told = append(told, "second "+id) })
	if _, err := b.issuer.Revoke(t.Context(), id, nil); err != nil {
		t.Fatalf("Revoke(%s) = %v, want none", id, err)
	}
	b.want(t, noIP, raw, fault.AuthRevoked)
	b.want(t, noIP, other, nil)
	if want := []string{"first " + id, "second " + id}; !slices.Equal(told, want) {
		t.Errorf("the hooks were told %v, want %v", told, want)
	}
}

func TestRevocationElsewhereIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		stop := b.run(t)
		defer stop()
		var told []string
		b.OnRevoke(func(id string) { told = append(told, id) })
		var ids []string
		for i := range 5 {
			id, raw := b.mint(t, 0)
			b.want(t, noIP, raw, nil)
			pass(time.Duration(i) * 700 * time.Millisecond) // at different moments between two polls
			b.revokeElsewhere(t, id)
			b.want(t, noIP, raw, nil)
			pass(2 * time.Second)
			b.want(t, noIP, raw, fault.AuthRevoked)
			ids = append(ids, id)
		}
		pass(5 * time.Minute)
		if !slices.Equal(told, ids) {
			t.Errorf("the hook was told %v, want %v, each once", told, ids)
		}
	})
}

func TestRevocationsAreReadAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer // written only while the bubble's time passes
		b := setUp(t, auth.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		defer b.run(t)()
		told := false
		b.OnRevoke(func(string) { told = true })
		id, raw := b.mint(t, 0)
		b.want(t, noIP, raw, nil)
		b.revokeElsewhere(t, id)
		storetest.Behind(t, b.db.Path(), "ALTER TABLE auth_tokens RENAME TO elsewhere")
		pass(10 * time.Minute)
		if got := strings.Count(log.String(), "level=ERROR"); got != 1 || told {
			t.Fatalf("hook called: %v, errors logged: %d, want none and one:\n%s", told, got, log.String())
		}
		storetest.Behind(t, b.db.Path(), "ALTER TABLE elsewhere RENAME TO auth_tokens")
		pass(2 * time.Second)
		if !told || !strings.Contains(log.String(), "can be read again") {
			t.Errorf("hook called: %v, want true and a line in the log:\n%s", told, log.String())
		}
	})
}

// A verification that has read the record before a revocation must not make the token good again after it.
func TestRevocationBeatsVerificationsInFlight(t *testing.T) {
	b := setUp(t, auth.Options{})
	for range 25 {
		id, raw := b.mint(t, 0)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				<-start
				for {
					if _, err := b.Verify(t.Context(), noIP, raw); err != nil {
						return
					}
				}
			})
		}
		close(start)
		if _, err := b.issuer.Revoke(t.Context(), id, nil); err != nil {
			t.Fatal(err)
		}
		b.want(t, noIP, raw, fault.AuthRevoked)
		wg.Wait()
		b.want(t, noIP, raw, fault.AuthRevoked)
	}
}

func TestLastUseIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		stop := b.run(t)
		lastUsed := func(id string) int64 {
			tok, err := b.db.Tokens().Get(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return tok.LastUsed
		}
		first, raw := b.mint(t, 0)
		second, later := b.mint(t, 0)
		unused, _ := b.mint(t, 0)
		pass(5 * time.Second)
		used := time.Now().UnixMilli()
		b.want(t, noIP, raw, nil)
		if got := lastUsed(first); got != 0 {
			t.Errorf("last use = %d at once, want it written with others", got)
		}
		pass(30 * time.Second)
		if got := lastUsed(first); got != used {
			t.Errorf("last use = %d after 30 s, want %d", got, used)
		}
		used = time.Now().UnixMilli()
		b.want(t, noIP, later, nil)
		stop()
		if got := lastUsed(second); got != used {
			t.Errorf("last use = %d after the end, want %d", got, used)
		}
		if got := lastUsed(unused); got != 0 {
			t.Errorf("last use = %d of a token that was not used, want 0", got)
		}
	})
}

func TestRunOutlivesABrokenStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setUp(t, auth.Options{})
		_, raw := b.mint(t, 0)
		stop := b.run(t)
		b.want(t, noIP, raw, nil)
		defer b.blockReads()()
		pass(time.Hour)
		stop()
	})
}
