package store

import "context"

// Outline is what a copy of a session is made of, without the contents. Messages and hand-offs never change, so a copy
// that keeps to its outline is that of one moment, however long it takes.
type Outline struct {
	Session  Session
	To       int64    // sequence of the latest message
	Messages int      // how many there are up to it
	Handoffs []int64  // keys, ascending
	Agents   []string // ids, ascending: the session's, those that said something, and both sides of each hand-off
}

// Snapshot is [DB.Snapshot].
func (s *Sessions) Snapshot(ctx context.Context, fn func(*Tx) error) error {
	return s.db.Snapshot(ctx, fn)
}

// Outline tells what belongs to a session, or ErrNotFound. It is of one moment when tx is a snapshot.
func (s *Sessions) Outline(tx *Tx, id string) (o Outline, err error) {
	if o.Session, err = s.Find(tx, id); err != nil {
		return o, err
	}
	err = tx.row("SELECT count(*), coalesce(max(sequence), 0) FROM run_messages INDEXED BY run_messages_by_session WHERE session_id = ?", id).Scan(&o.Messages, &o.To)
	if err != nil {
		return o, err
	}
	err = tx.collect(func(sc scanner) error {
		var k int64
		err := sc.Scan(&k)
		o.Handoffs = append(o.Handoffs, k)
		return err
	}, "SELECT key FROM handoffs INDEXED BY handoffs_by_session WHERE session_id = ? ORDER BY key", id)
	if err != nil {
		return o, err
	}
	err = tx.collect(func(sc scanner) error {
		var agent string
		err := sc.Scan(&agent)
		o.Agents = append(o.Agents, agent)
		return err
	}, `SELECT agent FROM (
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
	return tx.messagePage("session_id = ? AND sequence > ? AND sequence <= ? ORDER BY sequence", session, after, to)
}

// MessagesBefore returns the messages of a session with sequence < before, newest first: as many as make a page, none when
// there are no more.
func (s *Sessions) MessagesBefore(tx *Tx, session string, before int64) ([]Message, error) {
	return tx.messagePage("session_id = ? AND sequence < ? ORDER BY sequence DESC", session, before)
}

func (tx *Tx) messagePage(query string, args ...any) (page []Message, err error) {
	err = tx.page(func(sc scanner) (int, error) {
		m, err := scanMessage(sc)
		page = append(page, m)
		return len(m.Body), err
	}, "SELECT "+messageColumns+" FROM run_messages INDEXED BY run_messages_by_session WHERE "+query+" LIMIT ?", append(args, pageRows)...)
	return page, err
}

// HandoffPage returns the hand-offs of a session with from <= key, in order: as many as make a page, none when there are
// no more.
func (s *Sessions) HandoffPage(tx *Tx, session string, from int64) ([]Handoff, error) {
	var page []Handoff
	err := tx.page(func(sc scanner) (int, error) {
		h, err := scanHandoff(sc)
		page = append(page, h)
		return len(h.Body), err
	}, "SELECT "+handoffColumns+" FROM handoffs INDEXED BY handoffs_by_session WHERE session_id = ? AND key >= ? ORDER BY key LIMIT ?", session, from, pageRows)
	return page, err
}

// Key is what the hand-offs of a session are ordered by.
func (h Handoff) Key() int64 { return key(h.Run, h.Index) }

// page is collect, but ends once the sizes that scan returns have reached pageBytes.
func (tx *Tx) page(scan func(scanner) (int, error), query string, args ...any) error {
	rows, err := tx.query(query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for left := pageBytes; left > 0 && rows.Next(); {
		size, err := scan(checked{rows})
		if err != nil {
			return err
		}
		left -= size
	}
	return rows.Err()
}

// Restore adds a session with all its fields as they are, and a run that has ended and holds its messages, with the
// sequences that they have, and its hand-offs. ErrConflict when the session's or the run's id is taken.
func (s *Sessions) Restore(tx *Tx, v Session, run Run, messages []Message, handoffs []Handoff) error {
	if err := s.Insert(tx, v); err != nil {
		return err
	}
	var latest int64
	if len(messages) > 0 {
		latest = messages[len(messages)-1].Sequence
	}
	if _, err := tx.exec("UPDATE sessions SET updated_at = ?, closed_at = ?, sequence = ? WHERE id = ?", null(v.Updated), null(v.Closed), latest, v.ID); err != nil {
		return err
	}
	n, err := putRun(tx, &run)
	if err != nil {
		return translate(err)
	}
	for i := range messages {
		m := &messages[i]
		if err := putMessage(tx, n, m, v.ID, m.Sequence); err != nil {
			return translate(err)
		}
	}
	return putTraces(tx, n, &Change{Run: run, Handoffs: handoffs})
}
