package agent

import (
	"context"
	"errors"

	"agentd/server/message"
	"agentd/store"
)

// A past is the part of a session's transcript that precedes a run, as it was at one moment. It is read beside the
// writer, which others wait for; the transaction that uses it checks that the session has not gone on since.
type past struct {
	mark      store.Mark
	after, to int64
	messages  []message.Message
	holders   []string // the agents to which the run's agent has given the conversation away
}

const defaultHistory = 8000 // tokens

// errGoneOn says that a session has gone on since its past was read.
var errGoneOn = errors.New("the session has gone on")

// pastReads is how often a start reads a past beside the writer before it does so in its transaction.
const pastReads = 3

// readPast reads what precedes a run of the session now.
func (e *Engine) readPast(tx *store.Tx, session string, reg *Registration) (*past, error) {
	tokens := defaultHistory
	if reg.LLM != nil {
		tokens = reg.LLM.HistoryTokens
	}
	p := &past{}
	var err error
	if p.mark, err = e.opts.Sessions.Mark(tx, session); err != nil {
		return nil, err
	}
	p.holders = p.mark.Holders(reg.ID)
	if p.after, p.to, err = e.opts.Runs.Window(tx, session, tokens); err != nil {
		return nil, err
	}
	stored, err := e.opts.Runs.History(tx, session, p.after, p.to)
	for _, s := range stored {
		m, err := decodeMessage(s)
		if err != nil {
			return nil, err
		}
		p.messages = append(p.messages, m.msg)
	}
	return p, err
}

// pastOf is readPast in a snapshot of its own; nil when the session does not exist.
func (e *Engine) pastOf(ctx context.Context, session string, reg *Registration) (p *past, err error) {
	err = e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
		p, err = e.readPast(tx, session, reg)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return p, err
}

// precede makes a past the history of the run. In a transaction it is checked; without one, nothing can have come between.
func (m *move) precede(p *past) {
	m.row.HistoryAfter, m.row.HistoryTo, m.seed = p.after, p.to, p.messages
	if len(p.holders) > 0 || m.slots[store.HoldersSlot] != nil { // an earlier past may have had some
		m.holders(p.holders)
	}
}

// isNow checks that the session is as it was when its past was read, and errGoneOn says that it is not. A session that
// did not exist has no past.
func (p *past) isNow(tx *store.Tx, sessions *store.Sessions, session string) error {
	mark, err := sessions.Mark(tx, session)
	switch {
	case err != nil:
		return err
	case p == nil && mark == (store.Mark{}), p != nil && mark == p.mark:
		return nil
	}
	return errGoneOn
}
