package store

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
)

// Events returns the durable events of run n after sequence number after, at most limit of them.
func (r *Runs) Events(tx *Tx, n int64, after, limit int) ([]Event, error) {
	return events.all(tx, "WHERE key > ? AND key <= ? ORDER BY key LIMIT ?", key(n, after), key(n, maxIndex), limit)
}

// FirstEvent returns the number of the first event of run n that is kept; 0: none is.
func (r *Runs) FirstEvent(tx *Tx, n int64) (seq int, err error) {
	err = tx.row("SELECT key FROM run_events WHERE key BETWEEN ? AND ? ORDER BY key LIMIT 1", key(n, 0), key(n, maxIndex)).Scan(rowKey{nil, &seq})
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return seq, err
}

// EachOfType yields the payloads of the events of run n that have a type, in order.
func (r *Runs) EachOfType(tx *Tx, n int64, typ string, yield func(json.RawMessage) error) error {
	return tx.collect(func(s scanner) error {
		var payload json.RawMessage
		if err := s.Scan(text{&payload}); err != nil {
			return err
		}
		return yield(payload)
	}, "SELECT payload FROM run_events WHERE key BETWEEN ? AND ? AND type = ? ORDER BY key", key(n, 0), key(n, maxIndex), typ)
}

// Messages returns the transcript of run n in order, without its history.
func (r *Runs) Messages(tx *Tx, n int64) ([]Message, error) { return messages.of(tx, n) }

// Message returns one message of run n, or ErrNotFound.
func (r *Runs) Message(tx *Tx, n int64, idx int) (Message, error) {
	return messages.one(tx, "WHERE key = ?", key(n, idx))
}

const bySession = "INDEXED BY run_messages_by_session WHERE session_id = ? "

// Window is the HistoryAfter of a run whose history is not a range but the latest messages up to HistoryTo that together
// have at most so many tokens. It begins with a user message: an answer without its question says nothing, and a tool
// message without its call is not valid.
func Window(tokens int) int64 { return -1 - int64(tokens) }

// longestWindow is how many messages a window has at most.
const longestWindow = 10_000

// History returns the session messages that precede a run with these fields, in order, without those that are left out.
func (r *Runs) History(tx *Tx, session string, after, to int64) (list []Message, err error) {
	switch {
	case to <= after || to == 0:
		return nil, nil
	case after >= 0:
		return messages.all(tx, bySession+"AND sequence > ? AND sequence <= ? AND left_out IS NULL ORDER BY sequence", session, after, to)
	}
	tokens, cut := int(-1-after), 0
	err = tx.collect(func(s scanner) error {
		var m Message
		if err := s.Scan(into(tx, messages.fields, &m)...); err != nil {
			return err
		}
		if tokens -= m.Tokens; tokens < 0 {
			return errEnough
		}
		if list = append(list, m); m.Role == "user" {
			cut = len(list)
		}
		return nil
	}, messages.from+bySession+"AND sequence <= ? AND left_out IS NULL ORDER BY sequence DESC LIMIT ?", session, to, longestWindow)
	list = list[:cut]
	slices.Reverse(list)
	return list, err
}

// Steps returns the steps of run n in order.
func (r *Runs) Steps(tx *Tx, n int64) ([]Step, error) { return steps.of(tx, n) }

// Calls returns the journal of tool calls of run n in order.
func (r *Runs) Calls(tx *Tx, n int64) ([]Call, error) { return calls.of(tx, n) }

// Handoffs returns the hand-offs of run n in order.
func (r *Runs) Handoffs(tx *Tx, n int64) ([]Handoff, error) { return handoffs.of(tx, n) }

// Exchanges returns what is recorded about the model calls of run n, in the order of its steps.
func (r *Runs) Exchanges(tx *Tx, n int64) ([]Exchange, error) { return exchanges.of(tx, n) }

// Slot returns what run n keeps in a slot; nil when it keeps nothing there.
func (r *Runs) Slot(tx *Tx, n int64, slot Slot) (json.RawMessage, error) {
	s, err := slots.one(tx, "WHERE key = ?", key(n, int(slot)))
	if errors.Is(err, ErrNotFound) {
		err = nil
	}
	return s.json, err
}

// Slots returns all that run n keeps in slots.
func (r *Runs) Slots(tx *Tx, n int64) (map[Slot]json.RawMessage, error) {
	rows, err := slots.of(tx, n)
	all := make(map[Slot]json.RawMessage, len(rows))
	for _, s := range rows {
		all[Slot(s.slot)] = s.json
	}
	return all, err
}

// ReadSpill returns a result that was too large for the transcript, or ErrNotFound.
func (r *Runs) ReadSpill(ctx context.Context, runID, name string) (mediaType string, data []byte, err error) {
	s, err := view(ctx, r.db, func(tx *Tx) (Spill, error) {
		return spills.one(tx, "WHERE run = (SELECT n FROM runs WHERE id = ?) AND name = ?", runID, name)
	})
	return s.MediaType, s.Data, err
}

// Branch is a run of a tree of runs, with the number of its spans.
type Branch struct {
	N     int64
	Spans int
}

// Tree returns run n and its descendants in the order in which they were made. Of more than limit, those nearest to
// run n.
func (r *Runs) Tree(tx *Tx, n int64, limit int) ([]Branch, error) {
	return all(tx, func(b *Branch, to []any) []any { return append(to, &b.N, &b.Spans) },
		`WITH RECURSIVE tree (n) AS (SELECT ? UNION SELECT c.n FROM tree JOIN runs AS c INDEXED BY runs_by_parent ON c.parent = tree.n LIMIT ?)
		SELECT r.n, r.spans FROM tree JOIN runs AS r ON r.n = tree.n ORDER BY r.n`, n, limit)
}

// Roots returns the numbers of a session's runs that are nobody's child, in the order in which they were made: at most
// limit of those above after.
func (r *Runs) Roots(tx *Tx, session string, after int64, limit int) ([]int64, error) {
	return column[int64](tx, "SELECT n FROM runs INDEXED BY runs_by_session WHERE session_id = ? AND n > ? AND parent IS NULL ORDER BY n LIMIT ?",
		session, after, limit)
}

// FirstSince returns the number of the first of a session's latest runs that were all made at a time or after it; 0: none was.
// Only runs that are nobody's child count, and no imports.
func (r *Runs) FirstSince(tx *Tx, session string, since int64) (n int64, err error) {
	err = tx.collect(func(s scanner) error {
		var number, created int64
		if err := s.Scan(&number, &created); err != nil {
			return err
		}
		if created < since {
			return errEnough
		}
		n = number
		return nil
	}, "SELECT n, created_at FROM runs INDEXED BY runs_by_session WHERE session_id = ? AND parent IS NULL AND kind <> '"+Import+"' ORDER BY n DESC", session)
	return n, err
}

// SpansAfter returns at most limit of the batches of spans that come after one in the order of runs and, within a run, of
// writing; after the zero batch come all.
func (r *Runs) SpansAfter(tx *Tx, last SpanBatch, limit int) ([]SpanBatch, error) {
	return spans.all(tx, "WHERE key > ? ORDER BY key LIMIT ?", key(last.Run, last.First), limit)
}

// SpansFrom returns at most limit of the batches of spans of run n whose First is from or more, in the order in which they
// were written.
func (r *Runs) SpansFrom(tx *Tx, n int64, from, limit int) ([]SpanBatch, error) {
	return spans.all(tx, "WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?", key(n, from), key(n, maxIndex), limit)
}
