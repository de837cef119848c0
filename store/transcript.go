package store

import (
	"context"
	"encoding/json"
	"errors"
)

// Events returns the durable events of run n after sequence number after, at most limit of them.
func (r *Runs) Events(tx *Tx, n int64, after, limit int) ([]Event, error) {
	return events.all(tx, "WHERE key > ? AND key <= ? ORDER BY key LIMIT ?", key(n, after), key(n, maxIndex), limit)
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

// History returns the session messages with after < sequence <= to, in order, without those that are left out.
func (r *Runs) History(tx *Tx, session string, after, to int64) ([]Message, error) {
	if to <= after {
		return nil, nil
	}
	return messages.all(tx, bySession+"AND sequence > ? AND sequence <= ? AND left_out IS NULL ORDER BY sequence", session, after, to)
}

// Window finds the latest messages of a session, without those that are left out, that together have at most so many tokens, cut so that they begin
// with a user message (an answer without its question says nothing, and a tool message without its call is not
// valid). It returns the range for [Runs.History].
func (r *Runs) Window(tx *Tx, session string, tokens int) (after, to int64, err error) {
	after = -1
	err = tx.collect(func(s scanner) error {
		var sequence int64
		var role string
		var size int
		if err := s.Scan(&sequence, &role, &size); err != nil {
			return err
		}
		to = max(to, sequence)
		if tokens -= size; tokens < 0 {
			return errEnough
		}
		if role == "user" {
			after = sequence - 1
		}
		return nil
	}, "SELECT sequence, role, tokens FROM run_messages "+bySession+"AND left_out IS NULL ORDER BY sequence DESC LIMIT 10000", session)
	if after < 0 {
		after = to
	}
	return after, to, err
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

// SpansFrom returns at most limit of the batches of spans of run n whose First is from or more, in the order in which they
// were written.
func (r *Runs) SpansFrom(tx *Tx, n int64, from, limit int) ([]SpanBatch, error) {
	return spans.all(tx, "WHERE key BETWEEN ? AND ? ORDER BY key LIMIT ?", key(n, from), key(n, maxIndex), limit)
}
