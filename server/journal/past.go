package journal

import (
	"context"
	"errors"

	"agentd/server/message"
	"agentd/store"
)

// A Past is the part of a session's transcript that precedes a run, as it was at one moment. It is read beside the
// writer, which others wait for; the transaction that uses it checks that nothing was added to the session since.
type Past struct {
	Mark      store.Mark
	After, To int64 // numbers of runs: those after the first, up to the second
	Messages  []message.Message
}

// ErrMovedOn says that something was added to a session since its past was read.
var ErrMovedOn = errors.New("the session has moved on")

// ReadPast reads what precedes a run of the session now, at most so many estimated tokens.
func (r *Reader) ReadPast(tx *store.Tx, session string, tokens int) (p *Past, err error) {
	p = &Past{}
	if p.Mark, err = r.sessions.Mark(tx, session); err != nil {
		return nil, err
	}
	if p.After, p.To, err = r.runs.Window(tx, session, tokens); err != nil {
		return nil, err
	}
	stored, err := r.runs.History(tx, session, p.After, p.To)
	for _, s := range stored {
		m, err := DecodeEntry(s)
		if err != nil {
			return nil, err
		}
		p.Messages = append(p.Messages, m.Message)
	}
	return p, err
}

// PastOf is ReadPast in a snapshot of its own; nil when the session does not exist.
func (r *Reader) PastOf(ctx context.Context, session string, tokens int) (p *Past, err error) {
	err = r.runs.Snapshot(ctx, func(tx *store.Tx) error {
		p, err = r.ReadPast(tx, session, tokens)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return p, err
}

// IsNow checks that the session is as it was when its past was read; ErrMovedOn says that it is not. A session that did
// not exist has no past.
func (r *Reader) IsNow(tx *store.Tx, session string, p *Past) error {
	mark, err := r.sessions.Mark(tx, session)
	switch {
	case err != nil:
		return err
	case p == nil && mark == (store.Mark{}), p != nil && mark == p.Mark:
		return nil
	}
	return ErrMovedOn
}
