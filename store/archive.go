package store

// Outline is what a copy of a session is made of, without the contents. Messages and hand-offs never change, so a copy
// that keeps to its outline is that of one moment, however long it takes.
type Outline struct {
	Session  Session
	To       int64    // sequence of the latest message
	Messages int      // how many there are up to it
	Handoffs []int64  // keys, ascending
	Agents   []string // ids, ascending: the session's, those that said something, and both sides of each hand-off
}

// Outline returns what belongs to a session, or ErrNotFound. It is of one moment when tx is a snapshot.
func (s *Sessions) Outline(tx *Tx, id string) (o Outline, err error) {
	if o.Session, err = s.Find(tx, id); err != nil {
		return o, err
	}
	err = tx.row("SELECT count(*), coalesce(max(sequence), 0) FROM run_messages "+bySession, id).Scan(&o.Messages, &o.To)
	if err != nil {
		return o, err
	}
	if o.Handoffs, err = column[int64](tx, "SELECT key FROM handoffs INDEXED BY handoffs_by_session WHERE session_id = ? ORDER BY key", id); err != nil {
		return o, err
	}
	o.Agents, err = column[string](tx, `SELECT agent FROM (
		SELECT agent_id AS agent FROM sessions WHERE id = ?1
		UNION SELECT json_extract(body, '$.agentId') FROM run_messages INDEXED BY run_messages_by_session WHERE session_id = ?1 AND role = 'assistant'
		UNION SELECT json_extract(body, '$.fromAgentId') FROM handoffs INDEXED BY handoffs_by_session WHERE session_id = ?1
		UNION SELECT json_extract(body, '$.toAgentId') FROM handoffs INDEXED BY handoffs_by_session WHERE session_id = ?1
	) WHERE agent <> '' ORDER BY agent`, id)
	return o, err
}

// Pages are so small that one of them keeps neither memory nor a read connection for long.
const (
	pageRows  = 500
	pageBytes = 1 << 20
)

// MessagePage returns the messages of a session with after < sequence <= to in order: as many as make a page, none
// when there are no more.
func (s *Sessions) MessagePage(tx *Tx, session string, after, to int64) ([]Message, error) {
	return page(tx, &messages, sizeOfMessage, bySession+"AND sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?", session, after, to, pageRows)
}

// MessagesBefore returns the messages of a session with sequence < before, newest first: as many as make a page, none when
// there are no more.
func (s *Sessions) MessagesBefore(tx *Tx, session string, before int64) ([]Message, error) {
	return page(tx, &messages, sizeOfMessage, bySession+"AND sequence < ? ORDER BY sequence DESC LIMIT ?", session, before, pageRows)
}

func sizeOfMessage(m *Message) int { return len(m.Body) }

// HandoffPage returns the hand-offs of a session with from <= key, in order: as many as make a page, none when there are
// no more.
func (s *Sessions) HandoffPage(tx *Tx, session string, from int64) ([]Handoff, error) {
	return page(tx, &handoffs, func(h *Handoff) int { return len(h.Body) },
		"INDEXED BY handoffs_by_session WHERE session_id = ? AND key >= ? ORDER BY key LIMIT ?", session, from, pageRows)
}

// Key is what the hand-offs of a session are ordered by.
func (h Handoff) Key() int64 { return key(h.Run, h.Index) }

// page is table.all, but ends with the row with which the sizes have reached pageBytes.
func page[T any](tx *Tx, t *table[T], size func(*T) int, rest string, args ...any) (list []T, err error) {
	left := pageBytes
	err = tx.collect(func(s scanner) error {
		var v T
		err := s.Scan(into(tx, t.fields, &v)...)
		list = append(list, v)
		if left -= size(&v); err == nil && left <= 0 {
			err = errEnough
		}
		return err
	}, t.from+rest, args...)
	return list, err
}

// Restore adds a session with all its fields as they are, and a run that has ended and holds its messages, with the
// sequences that they have, and its hand-offs. ErrConflict when the session's or the run's id is taken.
func (s *Sessions) Restore(tx *Tx, v Session, run Run, msgs []Message, given []Handoff) error {
	if len(msgs) > 0 {
		v.Sequence = msgs[len(msgs)-1].Sequence
	}
	if _, err := sessions.insert(tx, &v); err != nil {
		return err
	}
	n, err := putRun(tx, &run)
	if err != nil {
		return err
	}
	if err := messages.add(tx, n, msgs, v.ID); err != nil {
		return err
	}
	return handoffs.add(tx, n, given, v.ID)
}
