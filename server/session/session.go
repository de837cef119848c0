// Package session holds the conversations of users with agents: records, transcripts, search, and files with a whole
// session.
package session

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/message"
	"agentd/server/tool"
	"agentd/server/transcript"
	"agentd/store"
)

// Service reads and makes sessions. Their messages are written by the runs that belong to them.
type Service struct{ sessions *store.Sessions }

// New makes a service.
func New(sessions *store.Sessions) *Service { return &Service{sessions} }

// A Record is the JSON form of a session. Times are ISO-8601.
type Record struct {
	ID        string   `json:"id"`
	UserID    string   `json:"userId"`
	AgentID   string   `json:"agentId"`
	Title     string   `json:"title,omitempty"`
	CreatedAt string   `json:"createdAt"`
	UpdatedAt string   `json:"updatedAt,omitempty"`
	ClosedAt  string   `json:"closedAt,omitempty"`
	Tags      []string `json:"tags,omitempty"`
}

// RecordOf is the JSON form of a stored session.
func RecordOf(v store.Session) Record {
	r := Record{ID: v.ID, UserID: v.User, AgentID: v.Agent, Title: v.Title, Tags: v.Tags, CreatedAt: message.Millis(v.Created)}
	if v.Updated != 0 {
		r.UpdatedAt = message.Millis(v.Updated)
	}
	if v.Closed != 0 {
		r.ClosedAt = message.Millis(v.Closed)
	}
	return r
}

// Create makes a session, with a new id if ID is empty. It calls also, unless nil, in the same transaction. Errors:
// config-invalid, session-exists.
func (s *Service) Create(ctx context.Context, v store.Session, also func(*store.Tx, store.Session) error) (store.Session, error) {
	if v.ID == "" {
		v.ID = "sess-" + id.New()
	}
	if !event.ValidID(v.ID) {
		return v, fault.Invalid("The session id is not valid.", fault.At("has 1 to 128 characters of A-Z a-z 0-9 _ -", "sessionId"))
	}
	err := s.sessions.Update(ctx, func(tx *store.Tx) error {
		v.Created = tx.Now()
		if err := s.sessions.Insert(tx, v); err != nil || also == nil {
			return err
		}
		return also(tx, v)
	})
	if errors.Is(err, store.ErrConflict) {
		return v, fault.New(fault.SessionExists, "The session %q already exists.", v.ID)
	}
	return v, err
}

// Get returns a session; session-not-found when there is none.
func (s *Service) Get(ctx context.Context, sessionID string) (store.Session, error) {
	v, err := view(ctx, s, func(tx *store.Tx) (store.Session, error) { return s.sessions.Find(tx, sessionID) })
	return v, notFound(err, "There is no session %q.", sessionID)
}

// Close closes a session, so that retention may delete it; a later message opens it again. It calls also, unless nil, in the same
// transaction. Errors: session-not-found, session-busy.
func (s *Service) Close(ctx context.Context, sessionID string, also func(*store.Tx, store.Session) error) (v store.Session, err error) {
	err = s.sessions.Update(ctx, func(tx *store.Tx) error {
		if v, err = s.sessions.Close(tx, sessionID); err != nil || also == nil {
			return err
		}
		return also(tx, v)
	})
	if errors.Is(err, store.ErrConflict) {
		return v, fault.New(fault.SessionBusy, "A run of the session %q has not ended.", sessionID).Advise("Wait for that run, or abort it first.")
	}
	return v, notFound(err, "There is no session %q.", sessionID)
}

// List returns sessions, newest first; an empty user or agent selects all.
func (s *Service) List(ctx context.Context, user, agentID string) ([]store.Session, error) {
	return view(ctx, s, func(tx *store.Tx) ([]store.Session, error) { return s.sessions.List(tx, user, agentID) })
}

// view reads from the store.
func view[T any](ctx context.Context, s *Service, read func(*store.Tx) (T, error)) (v T, err error) {
	err = s.sessions.View(ctx, func(tx *store.Tx) (err error) {
		v, err = read(tx)
		return err
	})
	return v, err
}

// notFound makes the store's ErrNotFound a fault. Other errors, and nil, stay as they are.
func notFound(err error, format, sessionID string) error {
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.SessionNotFound, format, sessionID)
	}
	return err
}

// Message is an entry of a session's transcript.
type Message struct {
	message.Message
	MessageID string       `json:"messageId"`
	Sequence  int64        `json:"sequence"`
	CreatedAt string       `json:"createdAt"`
	LeftOut   store.Status `json:"leftOut,omitempty" enum:"failed|aborted" doc:"How the run of this message ended. Later runs of the session do not see the message."`
}

// Messages returns the newest messages of a session, oldest first. Limit 0 means 1000, which is the most.
func (s *Service) Messages(ctx context.Context, sessionID string, limit int) ([]Message, error) {
	stored, err := view(ctx, s, func(tx *store.Tx) ([]store.Message, error) { return s.sessions.Messages(tx, sessionID, limit) })
	out := []Message{}
	for _, m := range stored {
		msg, _, err := transcript.Decode(m)
		if err != nil {
			return nil, err
		}
		out = append(out, Message{Message: msg, MessageID: transcript.ID(m.Run, m.Index), Sequence: m.Sequence,
			CreatedAt: message.Millis(m.At), LeftOut: m.LeftOut})
	}
	return out, err
}

// SearchSession finds the newest messages of a session that hold a text, whatever its case, newest first. It reads as much of
// the session as it needs to, a page at a time.
func (s *Service) SearchSession(ctx context.Context, sessionID, query string, limit int) ([]tool.SessionHit, error) {
	var hits []tool.SessionHit
	query = strings.ToLower(query)
	for before := int64(math.MaxInt64); len(hits) < limit; {
		page, err := view(ctx, s, func(tx *store.Tx) ([]store.Message, error) { return s.sessions.MessagesBefore(tx, sessionID, before) })
		if err != nil || len(page) == 0 {
			return hits, err
		}
		for _, m := range page {
			before = m.Sequence
			msg, _, err := transcript.Decode(m)
			if err != nil {
				return nil, err
			}
			text := msg.Content.String()
			if head, _, found := strings.Cut(strings.ToLower(text), query); found && len(hits) < limit {
				hits = append(hits, tool.SessionHit{Role: msg.Role, AgentID: msg.AgentID, Text: snippet(text, utf8.RuneCountInString(head)), At: time.UnixMilli(m.At)})
			}
		}
	}
	return hits, nil
}

// snippet is up to 500 bytes of text around its character at, cut at characters.
func snippet(text string, at int) string {
	place := 0 // in bytes: a small letter may have another length than the large one
	for i := range text {
		if place = i; at == 0 {
			break
		}
		at--
	}
	from := max(0, place-200)
	to := min(len(text), from+500)
	return strings.ToValidUTF8(text[from:to], "")
}
