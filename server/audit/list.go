package audit

import (
	"context"
	"errors"
	"iter"
	"slices"

	"agentd/server/fault"
	"agentd/store"
)

// Query selects entries.
type Query struct {
	From, To     int64 // sequence numbers, both included; 0: no bound; To below 0: none
	Since, Until int64 // times, both included; 0: no bound; Until below 0: none
	Action       string
	ActorID      string
	Newest       bool // begin at the end
	Limit        int  // of entries; 100 when 0
}

// Limits of one page. List ends a page early when it reaches one of them, and returns where the next page begins.
const (
	pageRows  = blockSize // entries that List looks for others in, and the rest of a block
	pageBytes = 4 << 20   // contents of entries that it returns
)

// List returns a page of the entries, in ascending order unless the newest are wanted first. More is the sequence number
// at which the next page begins, as From or, for the newest first, as To; 0: there are no more. The contents must be open.
func (l *Log) List(ctx context.Context, q Query) (page []Entry, more int64, err error) {
	if l.keys == nil {
		return nil, 0, sealed()
	}
	if err := l.settle(ctx); err != nil {
		return nil, 0, err
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	first, last, err := l.file.Ends(ctx)
	if err != nil {
		return nil, 0, err
	}
	from, to := max(q.From, first), last
	if q.To != 0 {
		to = min(q.To, last)
	}
	s := search{log: l, q: &q, page: []Entry{}}
	l.mu.Lock()
	s.lost = l.lost
	l.mu.Unlock()
	for looked := 0; from <= to; {
		at := from
		if q.Newest {
			at = to
		}
		n := at / blockSize
		lo, hi := max(from, n*blockSize), min(to, (n+1)*blockSize-1)
		may, err := l.may(ctx, n, last, &q)
		switch {
		case err != nil:
			return nil, 0, err
		case may && looked >= pageRows:
			return s.page, at, nil
		case may:
			s.read, s.count = block{opened: true}, 0
			rows, err := l.file.Scan(ctx, store.Span{From: lo, To: hi, Newest: q.Newest}, s.take)
			if errors.Is(err, errFull) {
				return s.page, s.more, nil
			}
			if err != nil {
				return s.page, 0, err
			}
			if s.count == blockSize {
				l.blocks.learn(n, s.read)
			}
			looked += rows
		}
		if q.Newest {
			to = lo - 1
		} else {
			from = hi + 1
		}
	}
	return s.page, 0, nil
}

// A search collects a page.
type search struct {
	log  *Log
	q    *Query
	lost []int64

	page  []Entry
	more  int64 // where the next page begins, when this one is full
	bytes int

	read      block // what its entries so far hold
	count     int   // of those
	plain, ad []byte
}

// take adds the entry of a row to the page, if it is selected.
func (s *search) take(r *store.AuditRow) error {
	q := s.q
	if s.more = r.Seq; len(s.page) == q.Limit || s.bytes >= pageBytes {
		return errFull
	}
	if q.Since != 0 && r.TS < q.Since || q.Until != 0 && r.TS > q.Until {
		return nil
	}
	s.ad = appendBound(s.ad[:0], r.Seq, r.Hash)
	e := lostEntry(r)
	opened, err := open(s.log.keys.contents, s.plain[:0], r.Seal, s.ad)
	switch {
	case err == nil:
		s.plain = opened
		if action, actor, ok := contents(opened).heads(); ok {
			s.note(action, actor)
			if q.Action != "" && q.Action != string(action) || q.ActorID != "" && q.ActorID != string(actor) {
				return nil
			}
			e, err = entryOf(r, opened)
			break
		}
		if e, err = entryOf(r, opened); err == nil {
			s.note([]byte(e.Action), []byte(e.Actor.ID))
		}
	case slices.Contains(s.lost, r.Seq):
		s.plain, err = s.plain[:0], nil
		s.note([]byte(e.Action), []byte(e.Actor.ID))
	default:
		return unusable("the contents of entry %d were changed; verify the chain", r.Seq)
	}
	if err != nil || q.Action != "" && q.Action != e.Action || q.ActorID != "" && q.ActorID != e.Actor.ID {
		return err
	}
	s.page = append(s.page, e)
	s.bytes += len(s.plain)
	return nil
}

func (s *search) note(action, actor []byte) {
	s.count++
	s.read.actions.add(action)
	s.read.actors.add(actor)
}

var errFull = errors.New("audit: the page is full")

func sealed() error {
	return fault.New(fault.EncryptionRequired, "The entries are encrypted, and there is no passphrase.").
		Advise("Set `audit.passphraseRef` in the configuration. Verifying the links needs no passphrase.")
}

// Entries yields all entries that a query selects. It reads them in pages of the query's limit, and no statement is open while
// it yields. An error is the last thing it yields.
func (l *Log) Entries(ctx context.Context, q Query) iter.Seq2[*Entry, error] {
	return func(yield func(*Entry, error) bool) {
		for more := int64(1); more != 0; {
			var page []Entry
			var err error
			if page, more, err = l.List(ctx, q); err != nil {
				yield(nil, err)
				return
			}
			for i := range page {
				if !yield(&page[i], nil) {
					return
				}
			}
			if q.Newest {
				q.To = more
			} else {
				q.From = more
			}
		}
	}
}
