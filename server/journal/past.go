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

func (p *Past) readLocked(tx *store.Tx) error {
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
