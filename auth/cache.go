package auth

import (
	"maps"
	"sync"
	"time"
)

const (
	maxCached = 1024
	// cacheTTL bounds how long a record is trusted without a look-up, even if revocations cannot be read.
	cacheTTL = time.Minute
)

// A cache remembers the principals of tokens that were found good, by the token's hash. When it is full, it begins anew.
//
// A principal that was read before a revocation must not be put in after it. So a look-up takes the epoch before it
// reads, each eviction begins another epoch, and put drops what an earlier one has read.
type cache struct {
	mu     sync.Mutex // guards the rest
	byHash map[digest]cached
	epoch  uint64
}

type cached struct {
	principal Principal
	until     time.Time
}

// get returns the principal of a token whose record is not stale and that has not expired. Staleness goes by the
// monotonic clock; expiry by the wall clock, as without a cache. Otherwise it returns the epoch, for put.
func (c *cache) get(hash digest, now time.Time) (p Principal, epoch uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byHash[hash]
	if ok && now.Before(e.until) && !expired(e.principal.Expires, now) {
		return e.principal, c.epoch, true
	}
	return Principal{}, c.epoch, false
}

// put remembers a principal that was read in the given epoch.
func (c *cache) put(hash digest, p Principal, now time.Time, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	if c.byHash == nil || len(c.byHash) >= maxCached {
		c.byHash = map[digest]cached{}
	}
	c.byHash[hash] = cached{p, now.Add(cacheTTL)}
}

// evict forgets a token by its id.
func (c *cache) evict(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	maps.DeleteFunc(c.byHash, func(_ digest, e cached) bool { return e.principal.TokenID == id })
}

// expired compares wall clocks, because at has no monotonic reading.
func expired(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
