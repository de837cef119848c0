package trace

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"agentd/server/span"
	"agentd/store"
)

// found is a span and the number of its run.
type found struct {
	span.Span
	run int64
}

func (f *found) position() position { return position{f.Start, f.ID} }

// page returns the first spans that the query asks for, one more than its limit if there is one, and how many the trees
// that it looked at have past MaxTree.
func (s *Service) page(ctx context.Context, q *query) (spans []found, omitted int, err error) {
	for root, err := range s.roots(ctx, q) {
		if err != nil {
			return nil, 0, err
		}
		w := window{query: q, need: q.Limit + 1 - len(spans)}
		if root == q.root || q.run != 0 {
			w.after = q.after
		}
		left, err := s.tree(ctx, root, &w)
		if err != nil {
			return nil, 0, err
		}
		w.cut()
		omitted += left
		if spans = append(spans, w.spans...); len(spans) > q.Limit {
			break
		}
	}
	return spans, omitted, nil
}

// tree shows a window the spans of a run and its descendants. It returns how many it has left out.
func (s *Service) tree(ctx context.Context, root int64, w *window) (omitted int, err error) {
	var branches []store.Branch
	err = s.view(ctx, func(tx *store.Tx) error {
		if branches, err = s.runs.Tree(tx, root, MaxTree); err != nil {
			return err
		}
		top, err := s.runs.Number(tx, root)
		for err == nil && top.Parent != 0 {
			top, err = s.runs.Number(tx, top.Parent)
		}
		if err == nil {
			var t span.Trace
			t, err = span.TraceOfRow(tx, s.runs, top)
			w.trace = t.TraceID
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	total, seen := 0, 0
	for _, b := range branches {
		total += b.Spans
	}
	for _, b := range branches {
		if b.Spans == 0 {
			continue
		}
		for batch, err := range s.batches(ctx, b.N) {
			if err != nil {
				return 0, err
			}
			places, err := positionsOf(batch)
			if err != nil {
				return 0, err
			}
			if seen+len(places) > MaxTree {
				return max(total-seen, len(places)), nil
			}
			seen += len(places)
			if err := w.offer(batch, places); err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}

func positionsOf(b store.SpanBatch) (places []position, err error) {
	if err := json.Unmarshal(b.Body, &places); err != nil {
		return nil, fmt.Errorf("spans %d of run %d: %w", b.First, b.Run, err)
	}
	return places, nil
}

// window keeps the first spans of a tree that a query asks for and that come after a place. It holds no more than twice
// as many as it needs.
type window struct {
	query *query
	trace string    // id of the trace that the tree belongs to; stored spans leave it out
	after *position // nil: from the beginning
	need  int
	spans []found
	last  *position // nothing from here on is needed; nil: everything is
}

func (w *window) wants(p position) bool {
	return p.Start >= w.query.from && (w.after == nil || p.compare(*w.after) > 0) && (w.last == nil || p.compare(*w.last) < 0)
}

// offer takes the wanted spans of a batch.
func (w *window) offer(b store.SpanBatch, places []position) error {
	if !slices.ContainsFunc(places, w.wants) {
		return nil
	}
	var spans []span.Span
	dec := json.NewDecoder(bytes.NewReader(b.Body))
	dec.UseNumber() // an attribute is shown as it was written
	if err := dec.Decode(&spans); err != nil {
		return fmt.Errorf("spans %d of run %d: %w", b.First, b.Run, err)
	}
	for i := range spans {
		spans[i].TraceID = w.trace
		f := found{spans[i], b.Run}
		if !w.wants(f.position()) || !w.query.takes(&f.Span) {
			continue
		}
		if w.spans = append(w.spans, f); len(w.spans) >= 2*w.need {
			w.cut()
		}
	}
	return nil
}

// cut sorts what the window holds and drops what is not needed.
func (w *window) cut() {
	slices.SortFunc(w.spans, func(a, b found) int { return a.position().compare(b.position()) })
	if len(w.spans) >= w.need {
		clear(w.spans[w.need:])
		w.spans = w.spans[:w.need]
		w.last = new(w.spans[w.need-1].position())
	}
}

// takes reports whether a span is of the wanted provider, or of none. The filter does not reveal an attribute to readers who
// may not see it.
func (q *query) takes(s *span.Span) bool {
	if q.Provider == "" || !strings.HasPrefix(s.Type, "provider.") {
		return true
	}
	return s.Attributes["provider"] == q.Provider && (q.Raw || s.Sensitivity["provider"] == "public")
}
