package trace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"agentd/server/fault"
	"agentd/server/span"
	"agentd/server/transcript"
	"agentd/store"
)

// position is a span's place in the order of its tree: the part of a span that is read of those that are not on the page.
type position struct {
	Start int64  `json:"startUnixNano"`
	ID    string `json:"id"`
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.Start, q.Start), cmp.Compare(p.ID, q.ID))
}

// query is what a replay looks for, checked against the store.
type query struct {
	Options
	run     int64 // number of the run that is the target; 0: the session is
	session string
	from    int64     // nanoseconds; only spans that begin then or later
	root    int64     // the tree that the cursor is in; 0: there is no cursor
	after   *position // the cursor's; nil: there is none
}

func (s *Service) prepare(ctx context.Context, t Target, o Options) (*query, error) {
	q := &query{session: t.SessionID, Options: o}
	if q.Limit <= 0 || q.Limit > MaxPage {
		q.Limit = MaxPage
	}
	err := s.view(ctx, func(tx *store.Tx) error {
		if t.SessionID != "" {
			_, err := s.sessions.Find(tx, t.SessionID)
			return err
		}
		run, err := s.runs.Find(tx, t.RunID)
		if err == nil {
			q.run = run.N
		}
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFound(t)
	}
	if err != nil {
		return nil, err
	}
	var issues []fault.Issue
	for _, start := range []struct {
		id, name, what string
		seek           func(context.Context, *query, string) error
	}{
		{o.FromMessageID, "fromMessageId", "message", s.seekMessage},
		{o.Cursor, "cursor", "span", s.seekSpan},
	} {
		if start.id == "" {
			continue
		}
		err := start.seek(ctx, q, start.id)
		if errors.Is(err, store.ErrNotFound) {
			issues = append(issues, fault.At("is not a "+start.what+" of this "+t.noun(), start.name))
		} else if err != nil {
			return nil, err
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

// seekMessage makes the query begin at the time of a message; ErrNotFound when the target has no such message.
func (s *Service) seekMessage(ctx context.Context, q *query, id string) error {
	run, index, ok := transcript.ParseID(id)
	if !ok {
		return store.ErrNotFound
	}
	return s.view(ctx, func(tx *store.Tx) error {
		if _, err := s.treeOf(tx, q, run); err != nil {
			return err
		}
		m, err := s.runs.Message(tx, run, index)
		q.from = m.At * int64(time.Millisecond)
		return err
	})
}

// seekSpan makes the query continue after a span; ErrNotFound when the target has no such span.
func (s *Service) seekSpan(ctx context.Context, q *query, id string) error {
	run, ok := span.RunOf(id)
	if !ok {
		return store.ErrNotFound
	}
	err := s.view(ctx, func(tx *store.Tx) (err error) {
		q.root, err = s.treeOf(tx, q, run)
		return err
	})
	if err != nil {
		return err
	}
	for batch, err := range s.batches(ctx, run) {
		if err != nil {
			return err
		}
		if !bytes.Contains(batch.Body, []byte(id)) { // much faster than to decode it
			continue
		}
		places, err := positionsOf(batch)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(places, func(p position) bool { return p.ID == id }); i >= 0 {
			q.after = &places[i]
			return nil
		}
	}
	return store.ErrNotFound
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

// rowsAtOnce is how many rows are read in one go, between which others have the connection.
const rowsAtOnce = 64

// rows yields rows that next reads, up to rowsAtOnce after the last one; the first time, after the zero row.
func rows[T any](ctx context.Context, s *Service, next func(tx *store.Tx, last T) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var last T
		for {
			var list []T
			err := s.view(ctx, func(tx *store.Tx) (err error) {
				list, err = next(tx, last)
				return err
			})
			if err != nil {
				yield(last, err)
				return
			}
			for _, last = range list {
				if !yield(last, nil) {
					return
				}
			}
			if len(list) < rowsAtOnce {
				return
			}
		}
	}
}

// roots yields the trees of the query, from that of the cursor.
func (s *Service) roots(ctx context.Context, q *query) iter.Seq2[int64, error] {
	if q.run != 0 {
		return func(yield func(int64, error) bool) { yield(q.run, nil) }
	}
	return rows(ctx, s, func(tx *store.Tx, last int64) ([]int64, error) {
		return s.runs.Roots(tx, q.session, max(last, q.root-1), rowsAtOnce)
	})
}

// batches yields the spans of a run in the order in which they were written.
func (s *Service) batches(ctx context.Context, run int64) iter.Seq2[store.SpanBatch, error] {
	return rows(ctx, s, func(tx *store.Tx, last store.SpanBatch) ([]store.SpanBatch, error) {
		from := 0
		if last.Body != nil {
			from = last.First + 1
		}
		return s.runs.SpansFrom(tx, run, from, rowsAtOnce)
	})
}

// selected yields the batches that may have spans of a selection.
func (s *Service) selected(ctx context.Context, sel Selection) (iter.Seq2[store.SpanBatch, error], error) {
	if sel.Target == (Target{}) {
		return rows(ctx, s, func(tx *store.Tx, last store.SpanBatch) ([]store.SpanBatch, error) {
			return s.runs.SpansAfter(tx, last, rowsAtOnce)
		}), nil
	}
	q, err := s.prepare(ctx, sel.Target, Options{})
	if err != nil {
		return nil, err
	}
	return func(yield func(store.SpanBatch, error) bool) {
		for root, err := range s.roots(ctx, q) {
			var branches []store.Branch
			if err == nil {
				err = s.view(ctx, func(tx *store.Tx) (err error) {
					branches, err = s.runs.Tree(tx, root, MaxTree)
					return err
				})
			}
			if err != nil {
				yield(store.SpanBatch{}, err)
				return
			}
			for _, b := range branches {
				for batch, err := range s.batches(ctx, b.N) {
					if !yield(batch, err) || err != nil {
						return
					}
				}
			}
		}
	}, nil
}

// view is a View that a caller who has left does not begin.
func (s *Service) view(ctx context.Context, fn func(*store.Tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return s.runs.View(ctx, fn)
}
