package store

import (
	"errors"
	"maps"
	"slices"
)

// An erasure is what is erased together: no run goes without what it called and hosts, and no thread without all its runs and
// the sessions that belong to it.
type erasure struct {
	db       *DB
	tx       *Tx
	runs     []*Run
	known    map[int64]bool // the numbers of the runs
	threads  map[int64]bool
	sessions map[string]bool
}

func (a access) newErasure(tx *Tx) *erasure {
	return &erasure{db: a.db, tx: tx, known: map[int64]bool{}, threads: map[int64]bool{}, sessions: map[string]bool{}}
}

// Erase deletes a session and every row that belongs to it: its runs, their events, messages, journals and results, and the
// threads that are linked to it, whole and with what they host. It returns the runs that it erased. ErrNotFound when there is
// no such session; ErrConflict when one of the runs, or the host of one, is running. SQLite overwrites the rows where they lie;
// see [DB.Checkpoint] for the log. Of rows that it has moved to another page before, the unused part of the first page can hold
// copies until SQLite writes there again.
func (s *Sessions) Erase(tx *Tx, id string) ([]*Run, error) {
	if _, err := s.Find(tx, id); err != nil {
		return nil, err
	}
	e := s.newErasure(tx)
	if err := e.session(id); err != nil {
		return nil, err
	}
	return e.finish(Running)
}

// Erase deletes thread n and every row that belongs to it and to what it hosts, also in sessions that stay. It returns the runs
// that it erased. ErrNotFound when there is no such thread; ErrConflict when one of the runs is running or pending, or its
// host is running. For the freed space see [Sessions.Erase].
func (t *Threads) Erase(tx *Tx, n int64) ([]*Run, error) {
	th, err := t.Number(tx, n)
	if err != nil {
		return nil, err
	}
	e := t.newErasure(tx)
	if err := e.thread(th.N); err != nil {
		return nil, err
	}
	return e.finish(Running, Pending)
}

// Erase deletes a run that no other one called or hosts, with all runs that it called and hosts and every row that belongs to them.
// It returns the runs that it erased. ErrNotFound when there is no such run; ErrConflict when one of them is running or pending.
func (r *Runs) Erase(tx *Tx, id string) ([]*Run, error) {
	run, err := r.Find(tx, id)
	if err != nil {
		return nil, err
	}
	e := r.newErasure(tx)
	if err := e.run(run); err != nil {
		return nil, err
	}
	return e.finish(Running, Pending)
}

// maxFolded is how many runs one call of [Threads.FoldHosted] looks at together, and about how many it erases.
const maxFolded = 256

// ofFolded selects the runs that a thread hosts and whose steps are folded: those that ended before the oldest step that is kept.
// Of a thread that it hosts, it selects the latest run, which stands for all of them.
const ofFolded = `INDEXED BY runs_by_host WHERE host = ? AND n > ? AND status IN ('completed', 'failed', 'aborted')
	AND finished_at < (SELECT at FROM thread_steps WHERE key BETWEEN ? AND ? ORDER BY key LIMIT 1)
	AND (kind <> 'workflow' OR n = (SELECT run FROM threads WHERE threads.n = coalesce(runs.thread, runs.n)))
	ORDER BY n LIMIT ?`

// FoldHosted erases the runs that thread n hosted for steps that are folded, the oldest first, each with all that it called and
// hosts. It leaves the runs whose id or origin keep names, and those with a part of the transcript of a session that stays and does
// not belong to the thread. It returns the runs that it erased, and whether there may be more.
func (t *Threads) FoldHosted(tx *Tx, n int64, keep map[string]bool) (erased []*Run, more bool, err error) {
	own, err := column[string](tx, ownSessions, n)
	for last := int64(0); err == nil; {
		var page []*Run
		page, err = tx.runs(ofFolded, n, last, key(n, 0), key(n, maxIndex), maxFolded)
		for _, run := range page {
			if last = run.N; keep[run.ID] || keep[run.Origin] {
				continue
			}
			e := t.newErasure(tx)
			if err = e.run(run); err == nil && !slices.ContainsFunc(e.runs, func(r *Run) bool { return e.needs(r, own) }) {
				erased, err = append(erased, e.runs...), e.delete()
			}
			if err != nil || len(erased) >= maxFolded {
				return erased, true, err
			}
		}
		if len(page) < maxFolded {
			break
		}
	}
	return erased, false, err
}

// needs reports whether a run has not ended, since an abort has not reached it yet, or holds a part of the transcript of a session
// that is neither erased nor own.
func (e *erasure) needs(run *Run, own []string) bool {
	speaks := run.Session != "" && run.Parent == 0 && run.Kind != Workflow
	return !run.Status.Terminal() || speaks && !e.sessions[run.Session] && !slices.Contains(own, run.Session)
}

const ownSessions = "SELECT id FROM sessions INDEXED BY sessions_by_thread WHERE thread = ?"

func (e *erasure) session(id string) error {
	if e.sessions[id] {
		return nil
	}
	e.sessions[id] = true
	return e.add("INDEXED BY runs_by_session WHERE session_id = ?", id)
}

func (e *erasure) thread(n int64) error {
	if e.threads[n] {
		return nil
	}
	e.threads[n] = true
	sessions, err := column[string](e.tx, ownSessions, n)
	for _, id := range sessions {
		if err == nil {
			err = e.session(id)
		}
	}
	if err == nil {
		err = e.add("WHERE n = ?", n) // the first one; its number is the thread's, and so is the host of what the thread hosts
	}
	if err == nil {
		err = e.add("INDEXED BY runs_by_thread WHERE thread = ? AND thread <> n", n)
	}
	return err
}

// add adds the runs that the rest of a SELECT statement selects, and what goes with them.
func (e *erasure) add(rest string, args ...any) error {
	runs, err := e.tx.runs(rest, args...)
	for _, run := range runs {
		if err == nil {
			err = e.run(run)
		}
	}
	return err
}

func (e *erasure) run(run *Run) (err error) {
	if e.known[run.N] {
		return nil
	}
	e.known[run.N], e.runs = true, append(e.runs, run)
	if run.Thread != 0 {
		err = e.thread(run.Thread)
	}
	for _, below := range []string{"INDEXED BY runs_by_parent WHERE parent = ?", "INDEXED BY runs_by_host WHERE host = ?"} {
		if err == nil {
			err = e.add(below, run.N)
		}
	}
	if err == nil && run.Calls > 0 {
		from, to := calledRange(run.ID)
		err = e.add(calledBy, from, to)
	}
	return err
}

// finish deletes what was added, unless a run has one of these statuses.
func (e *erasure) finish(busy ...Status) ([]*Run, error) {
	for _, run := range e.runs {
		if slices.Contains(busy, run.Status) {
			return nil, ErrConflict
		}
	}
	for _, run := range e.runs {
		if err := e.leave(run); err != nil {
			return nil, err
		}
	}
	return e.runs, e.delete()
}

// delete deletes what was added.
func (e *erasure) delete() error {
	for _, run := range e.runs {
		if err := eraseOwned(e.tx, run.N, ofRun, ofRunKey); err != nil {
			return err
		}
	}
	for n := range e.threads {
		if err := eraseOwned(e.tx, n, ofThread, ofThreadKey); err != nil {
			return err
		}
	}
	sessions := slices.Sorted(maps.Keys(e.sessions))
	if err := eraseKeys(e.tx, sessions, e.runs); err != nil {
		return err
	}
	for _, id := range sessions {
		if _, err := e.tx.exec("DELETE FROM sessions WHERE id = ?", id); err != nil {
			return err
		}
	}
	return nil
}

// leave has the host of a run look at what it waits for, if the host stays, or the run that called it; ErrConflict when the host
// is running.
func (e *erasure) leave(run *Run) error {
	if run.Host == 0 {
		return e.db.Runs().Rouse(e.tx, run)
	}
	if e.known[run.Host] {
		return nil
	}
	host, err := e.tx.run(hostRun, run.Host)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return err
	case host.Status == Running:
		return ErrConflict
	case host.Status.Parked():
		return e.db.Runs().Hasten(e.tx, host.N, e.tx.Now())
	}
	return nil
}
