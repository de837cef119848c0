package store

import (
	"cmp"
	"encoding/json"
	"slices"
)

// Find returns the thread of a workflow with the id, or ErrNotFound.
func (t *Threads) Find(tx *Tx, workflow, id string) (Thread, error) {
	return threads.one(tx, "WHERE workflow_id = ? AND thread_id = ?", workflow, id)
}

// Number returns the thread with the number, or ErrNotFound.
func (t *Threads) Number(tx *Tx, n int64) (Thread, error) {
	return threads.one(tx, "WHERE n = ?", n)
}

// Load returns what the state of a thread consists of: the bases of its keys, the steps after [Thread.Base] in order, the open
// tasks and the answers in the order of their numbers. It sets the thread's Input.
func (t *Threads) Load(tx *Tx, th *Thread) (values []ThreadValue, steps []ThreadStep, tasks []ThreadTask, answers []ThreadAnswer, err error) {
	err = tx.row("SELECT json FROM thread_inputs WHERE thread = ?", th.N).Scan(text{&th.Input})
	if err == nil {
		values, err = threadValues.all(tx, "WHERE thread = ? ORDER BY name", th.N)
	}
	if err == nil {
		steps, err = threadSteps.all(tx, "WHERE key > ? AND key <= ? ORDER BY key", key(th.N, th.Base), key(th.N, maxIndex))
	}
	if err == nil {
		tasks, err = threadTasks.of(tx, th.N)
	}
	if err == nil {
		answers, err = threadAnswers.of(tx, th.N)
	}
	return values, steps, tasks, answers, err
}

// Steps returns steps of thread n, newest first: at most limit of those before a step; 0: of all.
func (t *Threads) Steps(tx *Tx, n int64, before, limit int) ([]ThreadStep, error) {
	last := min(cmp.Or(before, maxIndex+1), maxIndex+1) - 1 // what is more would be a key of another thread
	return threadSteps.all(tx, "WHERE key BETWEEN ? AND ? ORDER BY key DESC LIMIT ?", key(n, 0), key(n, last), limit)
}

// A Definition is what a workflow does, under its digest.
type Definition struct {
	Digest []byte
	Body   json.RawMessage
}

// Define keeps the definitions of workflows, so that threads can begin to run under them. Of others it keeps those that threads
// run under.
func (t *Threads) Define(tx *Tx, all []Definition) error {
	_, err := tx.exec(`DELETE FROM workflow_definitions
		WHERE NOT EXISTS (SELECT 1 FROM threads INDEXED BY threads_by_digest WHERE threads.digest = workflow_definitions.digest)`)
	for i := range all {
		if err == nil {
			_, err = tx.exec("INSERT INTO workflow_definitions (digest, body) VALUES (?,?) ON CONFLICT (digest) DO NOTHING", &all[i].Digest, text{&all[i].Body})
		}
	}
	return err
}

// Definition returns the definition with a digest, or ErrNotFound.
func (t *Threads) Definition(tx *Tx, digest []byte) (body json.RawMessage, err error) {
	return body, tx.row("SELECT body FROM workflow_definitions WHERE digest = ?", digest).Scan(text{&body})
}

// Fold deletes the steps of thread n up to one, and the events and spans that their runs had before that one.
// [Thread.Base] must not be below it.
func (t *Threads) Fold(tx *Tx, n int64, upTo int) error {
	type place struct {
		run           int64
		events, spans int
	}
	first, last := key(n, 0), key(n, upTo)
	places, err := all(tx, func(p *place, to []any) []any { return append(to, &p.run, &p.events, &p.spans) },
		"SELECT run, max(events), max(spans) FROM thread_steps WHERE key BETWEEN ? AND ? GROUP BY run", first, last)
	for _, p := range places {
		if err == nil {
			_, err = tx.exec("DELETE FROM run_events WHERE key BETWEEN ? AND ?", key(p.run, 0), key(p.run, p.events))
		}
		if err == nil {
			_, err = tx.exec("DELETE FROM spans WHERE key >= ? AND key < ?", key(p.run, 0), key(p.run, p.spans))
		}
	}
	if err == nil {
		_, err = tx.exec("DELETE FROM thread_steps WHERE key BETWEEN ? AND ?", first, last)
	}
	return err
}

// Blocked returns how many threads do not continue when their time comes, of at most 1000.
func (t *Threads) Blocked(tx *Tx) (n int, err error) {
	return n, tx.row("SELECT count(*) FROM (SELECT n FROM threads INDEXED BY threads_blocked WHERE blocked IS NOT NULL LIMIT 1000)").Scan(&n)
}

// Unblock makes the threads of a workflow due that are blocked for a reason.
func (t *Threads) Unblock(tx *Tx, workflow, reason string) error {
	_, err := tx.exec(`INSERT INTO timers (run, due) SELECT run, ? FROM threads INDEXED BY threads_blocked WHERE blocked = ? AND workflow_id = ?
		ON CONFLICT (run) DO UPDATE SET due = excluded.due`, tx.Now(), reason, workflow)
	return err
}

// ThreadFilter selects threads of a workflow that nothing hosts; an empty field selects all.
type ThreadFilter struct {
	Workflow string
	Status   Status // of the latest run
	Session  string
	Blocked  bool
	Before   int64 // only threads whose number is below; 0 for all
	Limit    int
}

// ThreadRow is a thread as lists show it, with how its latest run stands.
type ThreadRow struct {
	Thread
	RunID  string
	Status Status
	Error  json.RawMessage // nil: none
}

// List returns threads, newest first.
func (t *Threads) List(tx *Tx, f ThreadFilter) (rows []ThreadRow, err error) {
	var found []Thread
	for _, s := range f.selections() {
		page, err := threads.all(tx, s.by("n DESC LIMIT ?"), append(s.args, f.Limit)...)
		if err != nil {
			return nil, err
		}
		found = append(found, page...)
	}
	slices.SortFunc(found, func(a, b Thread) int { return cmp.Compare(b.N, a.N) })
	for _, th := range found[:min(len(found), f.Limit)] {
		row := ThreadRow{Thread: th}
		if err := tx.row("SELECT id, status, error_json FROM runs WHERE n = ?", th.Run).Scan(&row.RunID, &row.Status, text{&row.Error}); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// selections find the threads, each those of an index in its order.
func (f *ThreadFilter) selections() (all []selection) {
	s := selection{where: []string{"host IS NULL"}}
	s.and("workflow_id = ?", f.Workflow)
	if f.Before > 0 {
		s.and("n < ?", f.Before)
	}
	s.optional("session_id", f.Session)
	if f.Blocked {
		s.and("blocked IS NOT NULL")
	}
	statuses := []Status{f.Status}
	switch {
	case f.Session != "":
		s.index = "threads_by_session"
	case f.Blocked:
		s.index = "threads_blocked"
	default:
		if s.index = "threads_by_status"; f.Status == "" { // each that a run of a workflow can have
			statuses = []Status{Running, Awaiting, Suspended, Completed, Failed, Aborted}
		}
	}
	for _, status := range statuses {
		of := selection{index: s.index, where: slices.Clone(s.where), args: slices.Clone(s.args)}
		of.optional("status", string(status))
		all = append(all, of)
	}
	return all
}
