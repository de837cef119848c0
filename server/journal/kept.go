package journal

import (
	"sync"

	"agentd/server/message"
	"agentd/store"
)

// pasts keeps the latest window of each session that was read lately, decoded. The next run of the session then reads only
// what was added since. A window stays true until its session is erased: messages are added at the end and never changed, and
// once another run has followed, a run that was aborted cannot continue, which would bring back messages that were left out.
type pasts struct {
	mu        sync.Mutex // guards the fields below
	bySession map[string]*window
	bytes     int // of all windows
	dropped   int // how often windows were dropped
}

// window is the messages of a Past whose after is a number of tokens.
type window struct {
	after, to int64
	messages  []message.Message
	tokens    []int
	sum       int // of tokens
	bytes     int
}

const maxPasts = 16 << 20 // bytes

// take hands over the window of a session, so that only one reader adds to it, and a number for put; nil: none is kept that
// can become the one of p.
func (k *pasts) take(p *Past) (w *window, dropped int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w = k.bySession[p.session]; w == nil || w.after != p.after || w.to > p.to {
		return nil, k.dropped
	}
	k.removeLocked(p.session)
	return w, k.dropped
}

// put keeps a window, unless one was dropped since it was taken: it may be this one. Where there is no room, others go.
func (k *pasts) put(session string, w *window, dropped int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if dropped != k.dropped || w.bytes > maxPasts/8 {
		return
	}
	if newer := k.bySession[session]; newer != nil && newer.to > w.to {
		return
	}
	k.removeLocked(session)
	for other := range k.bySession {
		if k.bytes+w.bytes <= maxPasts {
			break
		}
		k.removeLocked(other)
	}
	if k.bySession == nil {
		k.bySession = map[string]*window{}
	}
	k.bySession[session] = w
	k.bytes += w.bytes
}

func (k *pasts) drop(session string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropped++
	k.removeLocked(session)
}

func (k *pasts) removeLocked(session string) {
	if w := k.bySession[session]; w != nil {
		k.bytes -= w.bytes
		delete(k.bySession, session)
	}
}

// read returns the messages of p and keeps them.
func (k *pasts) read(tx *store.Tx, p *Past) ([]message.Message, error) {
	w, dropped := k.take(p)
	from := p.after
	if w == nil {
		w = &window{after: p.after}
	} else {
		from = w.to
	}
	added, err := p.runs.History(tx, p.session, from, p.to)
	if err == nil {
		err = w.add(added)
	}
	if err != nil {
		return nil, err
	}
	w.to = p.to
	k.put(p.session, w, dropped)
	n := len(w.messages)
	return w.messages[:n:n], nil
}

// add adds messages, and drops as many of the first ones as [store.Window] says.
func (w *window) add(added []store.Message) error {
	for _, s := range added {
		e, err := DecodeEntry(s)
		if err != nil {
			return err
		}
		w.messages, w.tokens = append(w.messages, e.Message), append(w.tokens, s.Tokens)
		w.sum += s.Tokens
		w.bytes += weight(&e.Message)
	}
	n := 0
	for n < len(w.messages) && (w.sum > int(-1-w.after) || w.messages[n].Role != message.User) {
		w.sum -= w.tokens[n]
		w.bytes -= weight(&w.messages[n])
		n++
	}
	w.messages, w.tokens = w.messages[n:], w.tokens[n:]
	return nil
}
