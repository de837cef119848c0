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
	pageRows  = 50_000  // entries that List reads
	pageBytes = 4 << 20 // contents of entries that it returns
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
	page = []Entry{}
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	bytes := 0
	var plain, ad []byte
	n, err := l.file.Scan(ctx, store.Span{From: q.From, To: q.To, Limit: pageRows + 1, Newest: q.Newest}, func(r *store.AuditRow) error {
		if more = r.Seq; len(page) == q.Limit || bytes >= pageBytes {
			return errFull
		}
		if q.Since != 0 && r.TS < q.Since || q.Until != 0 && r.TS > q.Until {
			return nil
		}
		ad = appendBound(ad[:0], r.Seq, r.Hash)
		e := lostEntry(r)
		opened, err := open(l.keys.contents, plain[:0], r.Seal, ad)
		switch {
		case err == nil:
			plain = opened
			e, err = entryOf(r, plain)
		case slices.Contains(lost, r.Seq):
			plain, err = plain[:0], nil
		default:
			return unusable("the contents of entry %d were changed; verify the chain", r.Seq)
		}
		if err != nil || q.Action != "" && q.Action != e.Action || q.ActorID != "" && q.ActorID != e.Actor.ID {
			return err
		}
		page = append(page, e)
		bytes += len(plain)
		return nil
	})
	if errors.Is(err, errFull) || err == nil && n > pageRows {
		return page, more, nil
	}
	return page, 0, err
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
