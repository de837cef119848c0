package session

import (
	"context"
	"errors"
	"io"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/message"
	"agentd/store"
)

// ImportOptions say what becomes of a file that is imported.
type ImportOptions struct {
	As    string // the session's new id; empty: the one in the file
	Maker string // whom the principal that imports counts as
	// Also is written in the transaction that makes the session; its error keeps the session from being made.
	Also func(*store.Tx, Imported) error
}

// Imported is what an import made.
type Imported struct {
	Session  store.Session
	Messages int
	Handoffs int
	Warnings []string // what of the file is not in the session, and why; not nil
}

// Import makes a session of a file that [Service.Export] or a program like it wrote, of at most [MaxImport] bytes. The
// whole file is checked before anything is stored, and all of it is stored in one transaction. Times and sequences stay
// as they are; ids of messages and hand-offs are made anew. The messages belong to a run of kind import, which has
// ended; later runs of the session have them as history.
//
// Calls that the file leaves unanswered in the end, because their run had not ended, are told as aborted.
//
// Memory is at most five hundred bytes for each byte of the file, of which parts of messages that hold nothing need most.
//
// Errors: config-invalid for As; session-exists; session-export-format-invalid with every problem, up to 20, and the
// line that it is in; session-export-schema-too-new, -schema-unsupported, -checksum-mismatch, -encryption-required;
// body-too-large; those of r and of the store.
func (s *Service) Import(ctx context.Context, r io.Reader, o ImportOptions) (Imported, error) {
	if o.As != "" && !event.ValidID(o.As) {
		return Imported{}, fault.Invalid("The session id is not valid.", fault.At("has 1 to 128 characters of A-Z a-z 0-9 _ -", "as"))
	}
	a, err := readArchive(r)
	if err != nil {
		return Imported{}, err
	}
	if o.As != "" {
		a.session.ID = o.As
	}
	usage, err := message.Encode(message.Usage{})
	if err != nil {
		return Imported{}, err
	}
	a.session.Maker = o.Maker
	v := a.session
	run := store.Run{ID: id.New(), Kind: store.Import, Owner: v.Agent, Current: v.Agent, Session: v.ID, User: v.User, Status: store.Completed,
		Messages: len(a.messages), InputForm: "messages", Usage: usage, Models: []byte("{}")}
	made := Imported{Session: v, Messages: len(a.messages), Handoffs: len(a.handoffs), Warnings: a.warnings}
	err = s.sessions.Update(ctx, func(tx *store.Tx) error {
		run.Created, run.Started, run.Finished = tx.Now(), tx.Now(), tx.Now()
		if err := s.sessions.Restore(tx, v, run, a.messages, a.handoffs); err != nil || o.Also == nil {
			return err
		}
		return o.Also(tx, made)
	})
	if errors.Is(err, store.ErrConflict) {
		return Imported{}, fault.New(fault.SessionExists, "A session %q exists already.", v.ID)
	}
	return made, err
}
