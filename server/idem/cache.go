package idem

import (
	"container/list"
	"sync"

	"agentd/store"
)

// maxCachedBody is the largest answer that is kept in memory too.
const maxCachedBody = 16 << 10

// A cache remembers records that were read, by their keys. When it is full, the one that was not asked for longest makes
// room.
//
// A record that was read before an erasure must not be put in after it. So a look-up takes the epoch before it reads,
// each erasure begins another one, and put drops what an earlier one has read.
type cache struct {
	size int

	mu     sync.Mutex // guards the rest: byKey and recent hold the same elements
	byKey  map[string]*list.Element
	recent list.List // of *store.KeyRecord; the one used last is in front
	epoch  uint64
}

// get returns the record of a key, nil when it is not there, and the epoch.
func (c *cache) get(key string) (*store.KeyRecord, uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.byKey[key]
	if el == nil {
		return nil, c.epoch
	}
	c.recent.MoveToFront(el)
	return el.Value.(*store.KeyRecord), c.epoch
}

// put remembers a record that was read in an epoch. It is not changed any more.
func (c *cache) put(r *store.KeyRecord, epoch uint64) {
	if len(r.Body) > maxCachedBody {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.epoch {
		return
	}
	if el := c.byKey[r.Key]; el != nil {
		c.recent.Remove(el)
	} else if len(c.byKey) >= c.size {
		oldest := c.recent.Remove(c.recent.Back()).(*store.KeyRecord)
		delete(c.byKey, oldest.Key)
	}
	if c.byKey == nil {
		c.byKey = map[string]*list.Element{}
	}
	c.byKey[r.Key] = c.recent.PushFront(r)
}

// clear forgets all, what is being read included.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	clear(c.byKey)
	c.recent.Init()
}
