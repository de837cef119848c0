package trace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"agentd/server/fault"
	"agentd/server/span"
	"agentd/server/transcript"
	"agentd/store"
)

// position is a span's place in the order of its tree.
type position struct {
	start int64
	id    string
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.start, q.start), cmp.Compare(p.id, q.id))
}

// query is what a replay looks for, checked against the store.
type query struct {
	run      int64 // number of the run that is the target; 0: the session is
	session  string
	raw      bool
	provider string
	limit    int
	from     int64     // nanoseconds; only spans that begin then or later
	root     int64     // the tree that the cursor is in; 0: there is no cursor
	after    *position // the cursor's; nil: there is none
}

func (s *Service) prepare(ctx context.Context, t Target, o Options) (*query, error) {
	q := &query{session: t.SessionID, raw: o.Raw, provider: o.Provider, limit: o.Limit}
	if q.limit <= 0 || q.limit > MaxPage {
		q.limit = MaxPage
	}
	err := s.runs.View(ctx, func(tx *store.Tx) error {
		if t.SessionID != "" {
			_, err := s.sessions.Find(tx, t.SessionID)
			return err
		}
		run, err := s.runs.Find(tx, t.RunID)
		q.run = run.N
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound(t)
	}
	if err != nil {
		return nil, err
	}
	var issues []fault.Issue
	if o.FromMessageID != "" {
		known, err := s.seekMessage(ctx, q, o.FromMessageID)
		if err != nil {
			return nil, err
		}
		if !known {
			issues = append(issues, fault.At("is not a message of this "+t.noun(), "fromMessageId"))
		}
	}
	if o.Cursor != "" {
		known, err := s.seekSpan(ctx, q, o.Cursor)
		if err != nil {
			return nil, err
		}
		if !known {
			issues = append(issues, fault.At("is not a span of this "+t.noun(), "cursor"))
		}
	}
	if issues != nil {
		return nil, fault.Invalid("The request is not valid.", issues...)
	}
	return q, nil
}

func (t Target) noun() string {
	if t.SessionID != "" {
		return "session"
	}
	return "run"
}

// seekMessage makes the query begin at the time of a message.
func (s *Service) seekMessage(ctx context.Context, q *query, id string) (known bool, err error) {
	run, index, ok := transcript.ParseID(id)
	if !ok {
		return false, nil
	}
	var m store.Message
	err = s.runs.View(ctx, func(tx *store.Tx) error {
		if _, err := s.treeOf(tx, q, run); err != nil {
			return err
		}
		m, err = s.runs.Message(tx, run, index)
		return err
	})
	q.from = m.At * int64(time.Millisecond)
	return !errors.Is(err, store.ErrNotFound), other(err)
}

// seekSpan makes the query go on after a span.
func (s *Service) seekSpan(ctx context.Context, q *query, id string) (known bool, err error) {
	run, ok := span.RunOf(id)
	if !ok {
		return false, nil
	}
	err = s.runs.View(ctx, func(tx *store.Tx) error {
		q.root, err = s.treeOf(tx, q, run)
		return err
	})
	if err != nil {
		return false, other(err)
	}
	for batch, err := range s.batches(ctx, run) {
		if err != nil {
			return false, err
		}
		if !bytes.Contains(batch.Body, []byte(id)) { // much faster than to decode it
			continue
		}
		heads, err := headsOf(batch)
		if err != nil {
			return false, err
		}
		for _, h := range heads {
			if h.ID == id {
				q.after = &position{h.Start, h.ID}
				return true, nil
			}
		}
	}
	return false, nil
}

// other is err unless it says that there is no such row.
func other(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// treeOf is the root of the tree of the query's that a run is in, or ErrNotFound. It ends, since a child is made after
// its parent and so has a higher number.
func (s *Service) treeOf(tx *store.Tx, q *query, n int64) (int64, error) {
	for {
		run, err := s.runs.Number(tx, n)
		switch {
		case err != nil:
			return 0, err
		case n == q.run || q.run == 0 && run.Parent == 0 && run.Session == q.session:
			return n, nil
		case run.Parent == 0 || run.Parent >= n:
			return 0, store.ErrNotFound
		}
		n = run.Parent
	}
}

// rootsAtOnce and batchesAtOnce are how many rows are read in one go, between which others have the connection.
const (
	rootsAtOnce   = 100
	batchesAtOnce = 64
)

// roots yields the trees of the query, from that of the cursor.
func (s *Service) roots(ctx context.Context, q *query) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		if q.run != 0 {
			yield(q.run, nil)
			return
		}
		after := q.root - 1
		for {
			var list []int64
			err := s.view(ctx, func(tx *store.Tx) (err error) {
				list, err = s.runs.Roots(tx, q.session, after, rootsAtOnce)
				return err
			})
			if err != nil {
				yield(0, err)
				return
			}
			for _, n := range list {
				if !yield(n, nil) {
					return
				}
				after = n
			}
			if len(list) < rootsAtOnce {
				return
			}
		}
	}
}

// batches yields the spans of a run in the order in which they were written.
func (s *Service) batches(ctx context.Context, run int64) iter.Seq2[store.SpanBatch, error] {
	return func(yield func(store.SpanBatch, error) bool) {
		for from := 0; ; {
			var list []store.SpanBatch
			err := s.view(ctx, func(tx *store.Tx) (err error) {
				list, err = s.runs.SpansFrom(tx, run, from, batchesAtOnce)
				return err
			})
			if err != nil {
				yield(store.SpanBatch{}, err)
				return
			}
			for _, b := range list {
				if !yield(b, nil) {
					return
				}
				from = b.First + 1
			}
			if len(list) < batchesAtOnce {
				return
			}
		}
	}
}

// view is a View that a caller who has left does not begin.
func (s *Service) view(ctx context.Context, fn func(*store.Tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.runs.View(ctx, fn)
}
