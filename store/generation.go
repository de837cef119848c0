package store

import (
	"runtime"
	"sync"

	"agentd/server/fault"
)

// watch notices commits. Callers that ask at the same moment share one statement, on one connection for as long as the
// database is open: SQLite counts what others have committed for each connection.
type watch struct {
	lead sync.Mutex // guards c
	c    *conn      // nil: the database is closed

	mu   sync.Mutex // guards next
	next *look      // has not begun, so that whoever asks now may join; nil: none
}

type look struct {
	done       chan struct{}
	generation int64
	err        error
}

// Generation returns a number that is another than before once anything was committed to the file, by this process or by
// another one. It may be compared as long as the database is open.
func (r *Runs) Generation() (int64, error) {
	l, first := r.db.watch.join()
	if first {
		runtime.Gosched() // lets callers that are about to ask join
		r.db.look(l)
	}
	<-l.done
	return l.generation, l.err
}

func (w *watch) join() (l *look, first bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if first = w.next == nil; first {
		w.next = &look{done: make(chan struct{})}
	}
	return w.next, first
}

func (db *DB) look(l *look) {
	w := &db.watch
	w.lead.Lock()
	defer w.lead.Unlock()
	defer close(l.done)
	w.mu.Lock()
	w.next = nil
	w.mu.Unlock()
	if l.err = fault.New(fault.StorageFailed, "The store is closed."); w.c != nil {
		l.err = db.met((&Tx{c: w.c}).row("PRAGMA data_version").Scan(&l.generation))
	}
}

func (w *watch) close() (err error) {
	w.lead.Lock()
	defer w.lead.Unlock()
	if w.c != nil {
		err, w.c = w.c.close(), nil
	}
	return err
}
