package auth

import (
	"container/list"
	"testing"
	"time"
)

// No test from outside can revoke a token between the read of its record and the moment when it is remembered.
func TestCacheDropsWhatWasReadBeforeAnEviction(t *testing.T) {
	c := cache{byHash: map[digest]*list.Element{}}
	now := time.Now()
	early := c.currentEpoch()
	c.evict("a")
	c.put(digest{1}, Principal{TokenID: "a"}, now, early)
	if p, ok := c.get(digest{1}, now); ok {
		t.Errorf("get() = %+v, want nothing of what an earlier epoch has read", p)
	}
	c.put(digest{1}, Principal{TokenID: "a"}, now, c.currentEpoch())
	if p, ok := c.get(digest{1}, now); !ok || p.TokenID != "a" {
		t.Errorf("get() = %+v, %v, want what this epoch has read", p, ok)
	}
}
