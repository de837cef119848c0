package auth

import (
	"context"
	"time"
)

const (
	pollInterval  = 2 * time.Second // a revocation elsewhere must take effect within 5 seconds
	flushInterval = 30 * time.Second
	flushPatience = time.Second // for a turn at the store: a poll must not wait for it longer

	// pollOverlap is how far each poll reads back behind the one before. A revocation carries the time at which its
	// transaction began, and may become visible later; past a minute the cache has forgotten the token anyway.
	pollOverlap = cacheTTL

	maxUsed = 10_000
)

// OnRevoke has fn called with the id of each token that is revoked, here or by another process, after the Verifier has
// forgotten the token. It is called at least once for an id, from the goroutine of [Verifier.Revoked] or
// [Verifier.Run], so it must be quick.
func (v *Verifier) OnRevoke(fn func(id string)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.onRevoke = append(v.onRevoke, fn)
}

// Revoked forgets a token that the store has marked as revoked. From its return on the token is refused; a
// verification that has begun before may still succeed.
func (v *Verifier) Revoked(id string) {
	v.cache.evict(id)
	v.mu.Lock()
	hooks := v.onRevoke // append leaves these elements as they are
	v.mu.Unlock()
	for _, fn := range hooks {
		fn(id)
	}
}

// Run looks every 2 seconds for tokens that another process has revoked. Every 30 seconds and at the end it writes when
// tokens were last used, which is the time of their last look-up: it may be a minute behind, as long as a record is
// cached. It returns nil when ctx is done. Errors of the store are logged; times that could not be written are lost.
func (v *Verifier) Run(ctx context.Context) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	flush := time.NewTicker(flushInterval)
	defer flush.Stop()
	w := watch{since: time.Now().UnixMilli()}
	for {
		select {
		case <-poll.C:
			v.poll(ctx, &w)
		case <-flush.C:
			v.flush(ctx)
		case <-ctx.Done():
			v.flush(context.WithoutCancel(ctx))
			return nil
		}
	}
}

// A watch is how far the revocations of other processes have been read.
type watch struct {
	since   int64           // when the last poll that succeeded began, by the wall clock in milliseconds
	seen    map[string]bool // what it found: the overlap finds the same again
	failing bool
}

func (v *Verifier) poll(ctx context.Context, w *watch) {
	now := time.Now().UnixMilli()
	// The smaller of the two, so that a revocation is found too after the clock was set back.
	ids, err := v.tokens.RevokedSince(ctx, min(w.since, now)-pollOverlap.Milliseconds())
	if err != nil {
		if !w.failing && ctx.Err() == nil {
			w.failing = true
			v.log.Error("revoked tokens cannot be read", "error", err)
		}
		return
	}
	if w.failing {
		w.failing = false
		v.log.Info("revoked tokens can be read again")
	}
	seen := make(map[string]bool, len(ids))
	for _, id := range ids {
		seen[id] = true
		if !w.seen[id] {
			v.Revoked(id)
		}
	}
	w.since, w.seen = now, seen
}

// noteUse remembers a use until the next flush. When too many tokens are remembered, the use of another is not noted.
func (v *Verifier) noteUse(id string, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, known := v.used[id]; known || len(v.used) < maxUsed {
		v.used[id] = at.UnixMilli()
	}
}

func (v *Verifier) flush(ctx context.Context) {
	v.mu.Lock()
	used := v.used
	v.used = map[string]int64{}
	v.mu.Unlock()
	if len(used) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flushPatience)
	defer cancel()
	if err := v.tokens.Touch(ctx, used); err != nil {
		v.log.Warn("times of last use were not written", "tokens", len(used), "error", err)
	}
}
