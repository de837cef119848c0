package store

// Branch is a run of a tree of runs, with the number of its spans.
type Branch struct {
	N     int64
	Spans int
}

// Tree returns run n and its descendants in the order in which they were made. Of more than limit, those nearest to
// run n.
func (r *Runs) Tree(tx *Tx, n int64, limit int) ([]Branch, error) {
	var out []Branch
	err := tx.collect(func(s scanner) error {
		var b Branch
		err := s.Scan(&b.N, &b.Spans)
		out = append(out, b)
		return err
	}, `WITH RECURSIVE tree (n) AS (SELECT ? UNION SELECT c.n FROM tree JOIN runs AS c INDEXED BY runs_by_parent ON c.parent = tree.n LIMIT ?)
		SELECT r.n, r.spans FROM tree JOIN runs AS r ON r.n = tree.n ORDER BY r.n`, n, limit)
	return out, err
}

// Roots returns the numbers of a session's runs that are nobody's child, in the order in which they were made: at most
// limit of those above after.
func (r *Runs) Roots(tx *Tx, session string, after int64, limit int) ([]int64, error) {
	var out []int64
	err := tx.collect(func(s scanner) error {
		var n int64
		err := s.Scan(&n)
		out = append(out, n)
		return err
	}, "SELECT n FROM runs INDEXED BY runs_by_session WHERE session_id = ? AND n > ? AND parent IS NULL ORDER BY n LIMIT ?", session, after, limit)
	return out, err
}

// SpansFrom is [Runs.Spans] for at most limit batches whose First is from or more.
func (r *Runs) SpansFrom(tx *Tx, n int64, from, limit int) ([]SpanBatch, error) {
	return tx.spans("key BETWEEN ? AND ? ORDER BY key LIMIT ?", key(n, from), key(n, maxIndex), limit)
}

func (tx *Tx) spans(query string, args ...any) ([]SpanBatch, error) {
	var out []SpanBatch
	err := tx.collect(func(s scanner) error {
		var b SpanBatch
		var k int64
		var body string
		err := s.Scan(&k, &b.At, &body)
		b.Run, b.First, b.Body = k>>24, index(k), []byte(body)
		out = append(out, b)
		return err
	}, "SELECT key, at, body FROM spans WHERE "+query, args...)
	return out, err
}
