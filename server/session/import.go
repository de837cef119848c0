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

// ImportOptions say what Import makes of a file.
type ImportOptions struct {
	As    string // the session's new id; empty: the one in the file
	Maker string // whom the importing principal counts as
	// Also is called in the transaction that makes the session. If it fails, there is no session.
	Also func(*store.Tx, Imported) error
}

// Imported is what an import made.
type Imported struct {
	Session  store.Session
	Messages int
	Handoffs int
	Warnings []string // what Import left out or changed; not nil
}

// Import makes a session of a file that [Service.Export] or a compatible program wrote, of at most [MaxImport] bytes. It
// checks the whole file before it stores anything, and stores all of it in one transaction. Times and sequences stay as
// they are; messages and hand-offs get new ids. The messages belong to a run of kind import, which has ended; later runs
// of the session see them as history.
//
// Import records calls that are unanswered at the end of the file as aborted.
//
// Memory is at most five hundred bytes for each byte of the file; empty parts of messages need most.
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
		return Imported{}, fault.New(fault.SessionExists, "The session %q already exists.", v.ID)
	}
	return made, err
}
