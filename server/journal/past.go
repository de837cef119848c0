package journal

import (
	"context"
	"sync"

	"agentd/server/message"
	"agentd/store"
)

// A Past is the part of its session's transcript that precedes a run. It is read when its messages are asked for first: many
// runs end without anybody having looked at it. A nil Past has no messages. It is safe for concurrent use.
type Past struct {
	runs      *store.Runs
	kept      *pasts // nil: none is kept
	session   string
	after, to int64 // as in [store.Run]

	mu       sync.Mutex // guards the fields below
	read     bool
	messages []message.Message
}

// PastOf returns what precedes a run.
func PastOf(runs *store.Runs, row *store.Run) *Past {
	if row.Session == "" || row.HistoryTo <= max(row.HistoryAfter, 0) {
		return nil
	}
	return &Past{runs: runs, session: row.Session, after: row.HistoryAfter, to: row.HistoryTo}
}

// PastOf is the function of that name for a run that moves: what it reads is kept for the next run of the session.
func (r *Reader) PastOf(row *store.Run) *Past {
	p := PastOf(r.runs, row)
	if p != nil && p.after < 0 {
		p.kept = &r.pasts
	}
	return p
}

// Anew is the same past, yet to be read.
func (p *Past) Anew() *Past {
	if p == nil {
		return nil
	}
	return &Past{runs: p.runs, kept: p.kept, session: p.session, after: p.after, to: p.to}
}

// Messages returns the messages, oldest first. It must not be called in a transaction: see [Past.In].
func (p *Past) Messages() (list []message.Message, err error) {
	if p == nil {
		return nil, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.read {
		err = p.runs.View(context.Background(), p.readLocked)
	}
	return p.messages, err
}

// In reads the messages in a transaction, so that Messages needs none.
func (p *Past) In(tx *store.Tx) error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read {
		return nil
	}
	return p.readLocked(tx)
}

func (p *Past) readLocked(tx *store.Tx) (err error) {
	if p.kept != nil {
		p.messages, err = p.kept.read(tx, p)
		p.read = err == nil
		return err
	}
	stored, err := p.runs.History(tx, p.session, p.after, p.to)
	if err != nil {
		return err
	}
	list := make([]message.Message, len(stored))
	for i, s := range stored {
		e, err := DecodeEntry(s)
		if err != nil {
			return err
		}
		list[i] = e.Message
	}
	p.messages, p.read = list, true
	return nil
}

// weight is about how many bytes of memory the messages take. Of those that are yet to be read, the number is known at most.
func (p *Past) weight() (n int) {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.read {
		most := p.to - max(p.after, 0)
		if p.after < 0 {
			most = min(most, -p.after/6) // a message has that many tokens
		}
		return 150 * int(most)
	}
	for i := range p.messages {
		n += weight(&p.messages[i])
	}
	return n
}
