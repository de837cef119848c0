package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
)

// Session is a conversation of a user with an agent.
type Session struct {
	ID      string
	User    string
	Agent   string
	Title   string // empty: none
	Maker   string // auth.Principal.Lineage of the principal that made it; empty: unknown
	Tags    []string
	Created int64
	Updated int64 // 0: never
	Closed  int64 // 0: open
	Thread  int64 // number of the thread that it belongs to; 0: none

	Sequence int64  // of its latest message
	holders  string // see Holders
}

// Sessions is the repository of sessions.
type Sessions struct{ access }

// Sessions gives access to sessions.
func (db *DB) Sessions() *Sessions { return &Sessions{access{db}} }

// Checkpoint is [DB.Checkpoint].
func (s *Sessions) Checkpoint(ctx context.Context) (bool, error) { return s.db.Checkpoint(ctx) }

var sessions = declare("sessions", `id, user_id, agent_id, title, tags_json, created_at, updated_at, closed_at,
	made_by, sequence, holders, thread`, "", func(s *Session, to []any) []any {
	return append(to, &s.ID, &s.User, &s.Agent, opt(&s.Title), list{&s.Tags}, &s.Created, opt(&s.Updated), opt(&s.Closed), opt(&s.Maker),
		&s.Sequence, opt(&s.holders), opt(&s.Thread))
})

// Insert adds a session; ErrConflict when its id is taken.
func (s *Sessions) Insert(tx *Tx, v Session) error {
	_, err := sessions.insert(tx, &v)
	return err
}

// Find returns the session with the id, or ErrNotFound.
func (s *Sessions) Find(tx *Tx, id string) (Session, error) {
	return sessions.one(tx, "WHERE id = ?", id)
}

// Close marks a session as closed, and returns it. A later message opens it again. The error is ErrNotFound, or ErrConflict when
// a run of the session or a thread that is linked to it has not ended.
func (s *Sessions) Close(tx *Tx, id string) (v Session, err error) {
	if v, err = s.Find(tx, id); err != nil {
		return v, err
	}
	open, err := s.db.Runs().Open(tx, id)
	if err != nil {
		return v, err
	}
	n := len(open)
	if n == 0 {
		err = tx.row("SELECT count(*) FROM threads INDEXED BY threads_by_session WHERE session_id = ? AND status NOT IN ('completed', 'failed', 'aborted')", id).Scan(&n)
	}
	switch {
	case err != nil:
		return v, err
	case n > 0:
		return v, ErrConflict
	case v.Closed == 0:
		v.Closed = tx.Now()
		err = tx.put(1, "UPDATE sessions SET closed_at = ? WHERE id = ?", v.Closed, id)
	}
	return v, err
}

// Holders are the agents to which the conversation of an agent is given away, see [Sessions.Hold]; nil: it is not.
func (v *Session) Holders(agent string) []string {
	var all map[string][]string
	json.Unmarshal([]byte(v.holders), &all) //nolint:errcheck // ours, or empty; a damaged one holds nothing
	return all[agent]
}

// Hold notes the agents to which an agent of a session has given the conversation: from the one that it was given
// to down to the one that answers; none: the agent itself answers. It is a part of the session's row and goes with it;
// archives do not carry it, so that a session that was imported begins with its own agent.
func (s *Sessions) Hold(tx *Tx, session, agent string, path []string) error {
	v, err := s.Find(tx, session)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	all := map[string][]string{}
	json.Unmarshal([]byte(v.holders), &all) //nolint:errcheck // as above
	if delete(all, agent); len(path) > 0 {
		all[agent] = path
	}
	var kept any
	if len(all) > 0 {
		b, err := json.Marshal(all)
		if err != nil {
			return err
		}
		kept = string(b)
	}
	return tx.put(1, "UPDATE sessions SET holders = ? WHERE id = ?", kept, session)
}

// List returns sessions, newest first, at most 1000; an empty user or agent selects all.
func (s *Sessions) List(tx *Tx, user, agent string) ([]Session, error) {
	sel := selection{index: "sessions_by_age", where: []string{"1"}}
	switch {
	case user != "" && agent != "":
		sel.index = "sessions_by_user_and_agent"
	case agent != "":
		sel.index = "sessions_by_agent"
	case user != "":
		sel.index = "sessions_by_user"
	}
	sel.optional("agent_id", agent)
	sel.optional("user_id", user)
	return sessions.all(tx, sel.by("created_at DESC, id DESC LIMIT 1000"), sel.args...)
}

// Messages returns the newest messages of a session, in order; limit 0 means 1000, which is the most.
func (s *Sessions) Messages(tx *Tx, session string, limit int) ([]Message, error) {
	limit = min(cmp.Or(limit, 1000), 1000)
	return messages.all(tx, "WHERE key IN (SELECT key FROM run_messages "+bySession+"ORDER BY sequence DESC LIMIT ?) ORDER BY sequence", session, limit)
}

// Handoffs returns the newest hand-offs of a session, in order, at most 1000.
func (s *Sessions) Handoffs(tx *Tx, session string) ([]Handoff, error) {
	return handoffs.all(tx, "WHERE key IN (SELECT key FROM handoffs INDEXED BY handoffs_by_session WHERE session_id = ? ORDER BY key DESC LIMIT 1000) ORDER BY key", session)
}
