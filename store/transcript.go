package store

import (
	"context"
	"encoding/json"
)

// Events returns the durable events of run n after sequence number after, at most limit of them.
func (r *Runs) Events(tx *Tx, n int64, after, limit int) ([]Event, error) {
	var events []Event
	err := tx.collect(func(s scanner) error {
		var e Event
		var k int64
		var payload string
		err := s.Scan(&k, &e.Type, &e.At, &e.Message, &payload, &e.Transient)
		e.Seq, e.Payload = index(k), json.RawMessage(payload)
		events = append(events, e)
		return err
	}, "SELECT key, type, at, coalesce(message, -1), payload, transient FROM run_events WHERE key > ? AND key <= ? ORDER BY key LIMIT ?",
		key(n, after), key(n, maxIndex), limit)
	return events, err
}

const messageColumns = "key, coalesce(sequence, 0), session_id IS NULL, role, tokens, at, body, coalesce(left_out, '')"

func scanMessage(s scanner) (Message, error) {
	var m Message
	var k int64
	var body string
	err := s.Scan(&k, &m.Sequence, &m.Private, &m.Role, &m.Tokens, &m.At, &body, &m.LeftOut)
	m.Run, m.Index, m.Body = k>>24, index(k), json.RawMessage(body)
	return m, err
}

func (tx *Tx) messages(query string, args ...any) ([]Message, error) {
	return tx.messagesFrom("run_messages WHERE "+query, args...)
}

func (tx *Tx) sessionMessages(query string, args ...any) ([]Message, error) {
	return tx.messagesFrom("run_messages INDEXED BY run_messages_by_session WHERE "+query, args...)
}

func (tx *Tx) messagesFrom(query string, args ...any) ([]Message, error) {
	var out []Message
	err := tx.collect(func(s scanner) error {
		m, err := scanMessage(s)
		out = append(out, m)
		return err
	}, "SELECT "+messageColumns+" FROM "+query, args...)
	return out, err
}

// Messages returns the transcript of run n in order, without its history.
func (r *Runs) Messages(tx *Tx, n int64) ([]Message, error) {
	return tx.messages("key BETWEEN ? AND ? ORDER BY key", key(n, 0), key(n, maxIndex))
}

// Message returns one message of run n, or ErrNotFound.
func (r *Runs) Message(tx *Tx, n int64, idx int) (Message, error) {
	return scanMessage(tx.row("SELECT "+messageColumns+" FROM run_messages WHERE key = ?", key(n, idx)))
}

// History returns the session messages with after < sequence <= to, in order, without those that are left out.
func (r *Runs) History(tx *Tx, session string, after, to int64) ([]Message, error) {
	if to <= after {
		return nil, nil
	}
	return tx.sessionMessages("session_id = ? AND sequence > ? AND sequence <= ? AND left_out IS NULL ORDER BY sequence", session, after, to)
}

// Window finds the latest messages of a session, without those that are left out, that together have at most so many tokens, cut so that they begin
// with a user message (an answer without its question says nothing, and a tool message without its call is not
// valid). It returns the range for [Runs.History].
func (r *Runs) Window(tx *Tx, session string, tokens int) (after, to int64, err error) {
	rows, err := tx.query("SELECT sequence, role, tokens FROM run_messages INDEXED BY run_messages_by_session WHERE session_id = ? AND left_out IS NULL ORDER BY sequence DESC LIMIT 10000", session)
	if err != nil {
		return 0, 0, err
	}
	defer rows.Close()
	after = -1
	for rows.Next() {
		var sequence int64
		var role string
		var size int
		if err := (checked{rows}).Scan(&sequence, &role, &size); err != nil {
			return 0, 0, err
		}
		if to == 0 {
			to = sequence
		}
		if tokens -= size; tokens < 0 {
			break
		}
		if role == "user" {
			after = sequence - 1
		}
	}
	if after < 0 {
		after = to
	}
	return after, to, rows.Err()
}

// Steps returns the steps of run n in order.
func (r *Runs) Steps(tx *Tx, n int64) ([]Step, error) {
	var steps []Step
	err := tx.collect(func(s scanner) error {
		var st Step
		var k int64
		var usage string
		err := s.Scan(&k, &st.Agent, &st.Model, &usage, &st.Started, &st.Ended, &st.Resumed)
		if st.Number = index(k); usage != "" {
			st.Usage = json.RawMessage(usage)
		}
		steps = append(steps, st)
		return err
	}, `SELECT key, agent_id, coalesce(model, ''), coalesce(usage_json, ''), started_at, coalesce(ended_at, 0), resumed
		FROM run_steps
		WHERE key BETWEEN ? AND ? ORDER BY key`, key(n, 0), key(n, maxIndex))
	return steps, err
}

// Calls returns the journal of tool calls of run n in order.
func (r *Runs) Calls(tx *Tx, n int64) ([]Call, error) {
	var calls []Call
	err := tx.collect(func(s scanner) error {
		var c Call
		var k int64
		var decision string
		err := s.Scan(&k, &c.Step, &c.Origin, &c.ID, &c.Name, &c.Phase, &c.Reason, &c.ArgsHash, &c.Asked, &c.Answered, &c.Attempts,
			&c.Claimed, &c.Settled, &decision, &c.Reported, &c.Child, &c.Canonical)
		if c.Index = index(k); decision != "" {
			c.Decision = json.RawMessage(decision)
		}
		calls = append(calls, c)
		return err
	}, `SELECT key, step, origin, call_id, name, phase, coalesce(reason, ''), args_sha256, asked, coalesce(answered, -1), attempts, claimed_at,
		coalesce(settled_at, 0), coalesce(decision_json, ''), reported, coalesce(child, ''), args_canonical FROM tool_calls WHERE key BETWEEN ? AND ? ORDER BY key`, key(n, 0), key(n, maxIndex))
	return calls, err
}

// Slot returns what run n keeps in a slot; nil when it keeps nothing there.
func (r *Runs) Slot(tx *Tx, n int64, slot Slot) (json.RawMessage, error) {
	var text string
	switch err := translate(tx.row("SELECT json FROM run_slots WHERE key = ?", key(n, int(slot))).Scan(&text)); err {
	case nil:
		return json.RawMessage(text), nil
	case ErrNotFound:
		return nil, nil
	default:
		return nil, err
	}
}

// Slots returns all that run n keeps in slots.
func (r *Runs) Slots(tx *Tx, n int64) (map[Slot]json.RawMessage, error) {
	slots := map[Slot]json.RawMessage{}
	err := tx.collect(func(s scanner) error {
		var k int64
		var text string
		err := s.Scan(&k, &text)
		slots[Slot(index(k))] = json.RawMessage(text)
		return err
	}, "SELECT key, json FROM run_slots WHERE key BETWEEN ? AND ?", key(n, 0), key(n, maxIndex))
	return slots, err
}

// ReadSpill returns a result that was too large for the transcript, or ErrNotFound.
func (r *Runs) ReadSpill(ctx context.Context, runID, name string) (mediaType string, data []byte, err error) {
	err = r.db.View(ctx, func(tx *Tx) error {
		return tx.row("SELECT media_type, data FROM run_spills WHERE run = (SELECT n FROM runs WHERE id = ?) AND name = ?",
			runID, name).Scan(&mediaType, &data)
	})
	return mediaType, data, err
}

// Handoffs returns the hand-offs of run n in order.
func (r *Runs) Handoffs(tx *Tx, n int64) ([]Handoff, error) {
	return tx.handoffs("key BETWEEN ? AND ? ORDER BY key", key(n, 0), key(n, maxIndex))
}

const handoffColumns = "key, at, body"

func scanHandoff(s scanner) (Handoff, error) {
	var h Handoff
	var k int64
	var body string
	err := s.Scan(&k, &h.At, &body)
	h.Run, h.Index, h.Body = k>>24, index(k), json.RawMessage(body)
	return h, err
}

func (tx *Tx) handoffs(query string, args ...any) ([]Handoff, error) {
	var out []Handoff
	err := tx.collect(func(s scanner) error {
		h, err := scanHandoff(s)
		out = append(out, h)
		return err
	}, "SELECT "+handoffColumns+" FROM handoffs WHERE "+query, args...)
	return out, err
}

// Spans returns the batches of spans of run n in the order in which they were written.
func (r *Runs) Spans(tx *Tx, n int64) ([]SpanBatch, error) {
	return tx.spans("key BETWEEN ? AND ? ORDER BY key", key(n, 0), key(n, maxIndex))
}

// Exchanges returns what is recorded about the model calls of run n, in the order of its steps.
func (r *Runs) Exchanges(tx *Tx, n int64) ([]Exchange, error) {
	var out []Exchange
	err := tx.collect(func(s scanner) error {
		var x Exchange
		var k int64
		var body string
		err := s.Scan(&k, &body)
		x.Step, x.Body = index(k), json.RawMessage(body)
		out = append(out, x)
		return err
	}, "SELECT key, body FROM run_exchanges WHERE key BETWEEN ? AND ? ORDER BY key", key(n, 0), key(n, maxIndex))
	return out, err
}

// EachOfType yields the payloads of the events of run n that have a type, in order.
func (r *Runs) EachOfType(tx *Tx, n int64, typ string, yield func(json.RawMessage) error) error {
	return tx.collect(func(s scanner) error {
		var payload string
		if err := s.Scan(&payload); err != nil {
			return err
		}
		return yield(json.RawMessage(payload))
	}, "SELECT payload FROM run_events WHERE key BETWEEN ? AND ? AND type = ? ORDER BY key", key(n, 0), key(n, maxIndex), typ)
}
