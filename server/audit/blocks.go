package audit

import (
	"bytes"
	"context"
	"hash/maphash"
	"sync"
)

// blockSize is how many entries make a block, by their numbers. Entries are searched for block by block, and blocks that are
// known to hold none of those wanted are left out. Times need not ascend, since the clock may be set back, so the earliest and
// the latest of each block are kept. Contents are sealed, so an index in the file would reveal them: which actions and actors a
// block has is known only in memory, after it was read once.
const blockSize = 1024

// blocks is what is known of the blocks that are full, whose entries never change.
type blocks struct {
	mu       sync.Mutex // guards the field below
	byNumber map[int64]block
}

type block struct {
	timed            bool // the times are known
	earliest, latest int64
	opened           bool // the sets are known
	actions, actors  set
}

// set is of texts. It may seem to hold one that it does not.
type set uint64

var seed = maphash.MakeSeed()

func (s *set) add(text []byte)       { *s |= 1 << (maphash.Bytes(seed, text) % 64) }
func (s set) holds(text string) bool { return s&(1<<(maphash.String(seed, text)%64)) != 0 }

func (k *blocks) get(n int64) block {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.byNumber[n]
}

// learn adds what is known of a block, and returns all of it.
func (k *blocks) learn(n int64, found block) block {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byNumber == nil {
		k.byNumber = map[int64]block{}
	}
	b := k.byNumber[n]
	if found.timed {
		b.timed, b.earliest, b.latest = true, found.earliest, found.latest
	}
	if found.opened {
		b.opened, b.actions, b.actors = true, found.actions, found.actors
	}
	k.byNumber[n] = b
	return b
}

// may reports whether a block may have entries that a query selects. The last entry of the chain has the number last.
func (l *Log) may(ctx context.Context, n, last int64, q *Query) (bool, error) {
	if (n+1)*blockSize > last+1 { // it is not full
		return true, nil
	}
	b := l.blocks.get(n)
	if q.Since == 0 && q.Until == 0 {
		return b.may(q), nil
	}
	if !b.timed {
		earliest, latest, err := l.file.Times(ctx, n*blockSize, (n+1)*blockSize-1)
		if err != nil {
			return false, err
		}
		b = l.blocks.learn(n, block{timed: true, earliest: earliest, latest: latest})
	}
	return (q.Since == 0 || b.latest >= q.Since) && (q.Until == 0 || b.earliest <= q.Until) && b.may(q), nil
}

func (b *block) may(q *Query) bool {
	return !b.opened || (q.Action == "" || b.actions.holds(q.Action)) && (q.ActorID == "" || b.actors.holds(q.ActorID))
}

// heads returns the action and the actor's id at the beginning of contents; ok is false where one of them has an escape.
func (c contents) heads() (action, actor []byte, ok bool) {
	action, rest, found := cutText(c, `{"action":"`)
	if found {
		actor, _, found = cutText(rest, `,"actor":{"id":"`)
	}
	return action, actor, found
}

func cutText(c []byte, before string) (text, rest []byte, ok bool) {
	c, ok = bytes.CutPrefix(c, []byte(before))
	if !ok {
		return nil, nil, false
	}
	text, rest, ok = bytes.Cut(c, []byte(`"`))
	return text, rest, ok && !bytes.Contains(text, []byte(`\`))
}
