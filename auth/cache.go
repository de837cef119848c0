package auth

import (
	"container/list"
	"sync"
	"time"
)

const (
	maxCached = 1024
	// cacheTTL bounds how long a record is trusted without a look-up, even if revocations cannot be read.
	cacheTTL = time.Minute
)

// A cache remembers the principals of tokens that were found good, by the token's hash. When it is full, the one that
// was not asked for longest makes room.
//
// A principal that was read before a revocation must not be put in after it. So a look-up takes the epoch before it
// reads, each eviction begins another epoch, and put drops what an earlier one has read.
type cache struct {
	mu     sync.Mutex // guards the rest: byHash and recent hold the same elements
	byHash map[digest]*list.Element
	recent list.List // of *cached; the one used last is in front
	epoch  uint64
}

type cached struct {
	hash      digest
	principal Principal
	until     time.Time
}

// get returns the principal of a token whose record is not stale and that has not expired. Staleness goes by the
// monotonic clock; expiry by the wall clock, as without a cache.
func (c *cache) get(hash digest, now time.Time) (Principal, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.byHash[hash]
	if el == nil {
		return Principal{}, false
	}
	e := el.Value.(*cached)
	if !now.Before(e.until) || expired(e.principal.Expires, now) {
		c.drop(el)
		return Principal{}, false
	}
	c.recent.MoveToFront(el)
	return e.principal, true
}

func (c *cache) currentEpoch() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

// put remembers a principal that was read in the given epoch.
func (c *cache) put(hash digest, p Principal, now time.Time, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	if el := c.byHash[hash]; el != nil {
		c.drop(el)
	}
	if len(c.byHash) >= maxCached {
		c.drop(c.recent.Back())
	}
	c.byHash[hash] = c.recent.PushFront(&cached{hash, p, now.Add(cacheTTL)})
}

// evict forgets a token by its id.
func (c *cache) evict(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for el := c.recent.Front(); el != nil; {
		next := el.Next()
		if el.Value.(*cached).principal.TokenID == id {
			c.drop(el)
		}
		el = next
	}
}

func (c *cache) drop(el *list.Element) {
	c.recent.Remove(el)
	delete(c.byHash, el.Value.(*cached).hash)
}

// expired compares wall clocks, because at has no monotonic reading.
func expired(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
