package store

import (
	"encoding/json"
	"errors"
)

// Thread is the row of a thread: one instance of a workflow. A thread has many runs over time, of which only the latest can be
// open.
type Thread struct {
	N        int64 // the number of its first run
	Workflow string
	ID       string
	Run      int64 // number of its latest run
	Version  int64 // of the row; 0 before it is written
	Step     int   // how many steps it has taken, in all its runs
	Tasks    int   // the next task has this id
	Base     int   // its state is its values and what the steps after this one wrote
	Folded   int   // the steps up to this one are deleted, see [Threads.Fold]
	Handled  bool  // the workflow's onError was used in the latest run

	Digest    []byte // of the definition that it runs under; nil: none
	Pin       string // empty: none
	Host      int64  // see [Run.Host]; the same for all its runs
	Session   string // empty: none
	User      string // empty: none
	StartedBy string // empty: unknown
	Blocked   string // why it does not continue when its time has come; empty: it does

	// Input is that of the latest run. Only a change that is new or fresh writes it, and only [Threads.Load] reads it.
	Input json.RawMessage

	Created int64
	Updated int64
}

// ThreadValue is the base of one key of a thread's state, as of a step.
type ThreadValue struct {
	Key   string
	Step  int
	Value json.RawMessage
}

// ThreadStep is one step of a thread. Events and Spans are how many its run had before the step.
type ThreadStep struct {
	Step   int // from 1
	Run    int64
	Events int
	Spans  int
	Task   int
	Node   string
	Status string
	At     int64
	Body   json.RawMessage // what it wrote
}

// ThreadTask is an open task of a thread.
type ThreadTask struct {
	ID   int
	Body json.RawMessage
}

// ThreadAnswer is an answer to a wait that the thread has not reached.
type ThreadAnswer struct {
	Seq   int
	Name  string
	Value json.RawMessage
}

// ThreadChange is what one commit of a thread makes durable: all of it or nothing. Thread is the row after the change, but
// with the version that it must have now; 0 makes a new thread.
type ThreadChange struct {
	Thread  Thread
	Status  Status         // of its latest run, after the change
	Was     Status         // and before it
	Fresh   bool           // the thread begins anew: its values, tasks and answers of before are deleted first
	Values  []ThreadValue  // each takes the place of the one with its key
	Steps   []ThreadStep   // new ones
	Tasks   []ThreadTask   // each takes the place of the one with its id
	Ended   []int          // ids of tasks to delete
	Answers []ThreadAnswer // new ones
	Used    []int          // Seq of answers to delete
}

// Threads is the repository of threads and all that belongs to them.
type Threads struct{ access }

// Threads gives access to threads.
func (db *DB) Threads() *Threads { return &Threads{access{db}} }

var threads = declare("threads", `n, workflow_id, thread_id, version, run, step, tasks, base, folded, handled, digest, pin, host, session_id, user_id,
	started_by, blocked, created_at, updated_at`, "status", func(t *Thread, to []any) []any {
	return append(to, &t.N, &t.Workflow, &t.ID, &t.Version, &t.Run, &t.Step, &t.Tasks, &t.Base, &t.Folded, &t.Handled, blob{&t.Digest}, opt(&t.Pin),
		opt(&t.Host), opt(&t.Session), opt(&t.User), opt(&t.StartedBy), opt(&t.Blocked), &t.Created, &t.Updated)
})

var threadValues = declare("thread_values", "name, step, json", "thread", func(v *ThreadValue, to []any) []any {
	return append(to, &v.Key, &v.Step, text{&v.Value})
}).replacing("thread, name", "step, json")

var threadSteps = declare("thread_steps", "key, run, events, spans, task, node, status, at, body", "", func(s *ThreadStep, to []any) []any {
	return append(to, rowKey{nil, &s.Step}, &s.Run, &s.Events, &s.Spans, &s.Task, &s.Node, &s.Status, &s.At, text{&s.Body})
})

var threadTasks = declare("thread_tasks", "key, body", "", func(t *ThreadTask, to []any) []any {
	return append(to, rowKey{nil, &t.ID}, text{&t.Body})
}).replacing("key", "body")

var threadAnswers = declare("thread_answers", "key, name, json", "", func(a *ThreadAnswer, to []any) []any {
	return append(to, rowKey{nil, &a.Seq}, &a.Name, text{&a.Value})
})

// Apply writes a change. When the thread has another version than the change expects, or the id of a new one is taken in its
// workflow, nothing is written and the error is ErrConflict. It leaves c as it is. The run with the number of a new thread
// becomes its first.
func (t *Threads) Apply(tx *Tx, c *ThreadChange) error {
	n := c.Thread.N
	if err := putThread(tx, c); err != nil {
		return err
	}
	if c.Fresh {
		if err := eraseOwned(tx, n, ofThread, ofThreadKey, "thread_values", "thread_tasks", "thread_answers"); err != nil {
			return err
		}
	}
	if c.Fresh || c.Thread.Version == 0 {
		if err := tx.put(1, "INSERT INTO thread_inputs (thread, json) VALUES (?,?)"+onConflict("thread", "json"), n, string(c.Thread.Input)); err != nil {
			return err
		}
	}
	for i := range c.Values {
		if _, err := threadValues.insert(tx, &c.Values[i], n); err != nil {
			return err
		}
	}
	for _, gone := range []struct {
		query string
		ids   []int
	}{{"DELETE FROM thread_tasks WHERE key = ?", c.Ended}, {"DELETE FROM thread_answers WHERE key = ?", c.Used}} {
		for _, id := range gone.ids {
			if _, err := tx.exec(gone.query, key(n, id)); err != nil {
				return err
			}
		}
	}
	return errors.Join(threadSteps.add(tx, n, c.Steps), threadTasks.add(tx, n, c.Tasks), threadAnswers.add(tx, n, c.Answers))
}

const (
	// moveThread is what most changes do to the row of a thread. It leaves alone what is part of an index, but for the status
	// where that changes, and finds no row when a column that replaceThread writes is another one.
	moveThread    = "UPDATE threads SET " + movedColumns + sameThread
	moveStatus    = "UPDATE threads SET status = ?, " + movedColumns + sameThread
	sameThread    = " WHERE run = ? AND digest IS ? AND pin IS ? AND session_id IS ? AND user_id IS ? AND started_by IS ? AND blocked IS ? AND " + thisVersion
	replaceThread = "UPDATE threads SET status = ?, " + movedColumns + ", run = ?, digest = ?, pin = ?, session_id = ?, user_id = ?, started_by = ?, blocked = ? WHERE " + thisVersion
	movedColumns  = "version = version + 1, step = ?, tasks = ?, base = ?, folded = ?, handled = ?, updated_at = ?"
	thisVersion   = "n = ? AND version = ?"
)

func putThread(tx *Tx, c *ThreadChange) error {
	t := &c.Thread
	if t.Version == 0 {
		row := *t
		row.Version = 1
		_, err := threads.insert(tx, &row, &c.Status)
		return err
	}
	args := []any{&c.Status, &t.Step, &t.Tasks, &t.Base, &t.Folded, &t.Handled, &t.Updated, &t.Run, blob{&t.Digest}, opt(&t.Pin), opt(&t.Session), opt(&t.User),
		opt(&t.StartedBy), opt(&t.Blocked), &t.N, &t.Version}
	move, moved := moveStatus, args
	if c.Status == c.Was {
		move, moved = moveThread, args[1:]
	}
	if changed, err := tx.exec(move, moved...); err != nil || changed == 1 {
		return err
	}
	changed, err := tx.exec(replaceThread, args...)
	if err == nil && changed == 0 {
		err = ErrConflict
	}
	return err
}
