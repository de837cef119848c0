package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// Statements name the index that they need, where another one or none could seem better to SQLite: it knows no statistics
// (see migrate), and what is bounded now may have a million rows later. A test explains all statements.

// Conditions as the partial indexes spell them: open selects the runs that have not ended and are nobody's child, turns those of
// them that take turns in a session, and shown those that lists show by themselves.
const (
	open  = "(status = 'pending' OR status = 'running' OR status = 'awaiting_approval' OR status = 'suspended') AND parent IS NULL"
	turns = open + " AND session_id IS NOT NULL AND kind <> '" + Workflow + "'"
	shown = "parent IS NULL AND host IS NULL"
)

// Find returns the run with the id, or ErrNotFound.
func (r *Runs) Find(tx *Tx, id string) (*Run, error) {
	return tx.run(runByID, id)
}

// ByOrigin returns the run that was started for an origin, or ErrNotFound.
func (r *Runs) ByOrigin(tx *Tx, origin string) (*Run, error) {
	return tx.run(runByOrigin, origin)
}

// Number returns the run with the number, or ErrNotFound.
func (r *Runs) Number(tx *Tx, n int64) (*Run, error) {
	return tx.run(runByNumber, n)
}

// The statements for one run are made once: they are long, and run often.
var (
	runByID     = runs.from + "WHERE id = ?"
	runByOrigin = runs.from + "INDEXED BY runs_by_origin WHERE origin = ?"
	runByNumber = runs.from + "WHERE n = ?"
	hostRun     = runs.from + "WHERE n = coalesce((SELECT run FROM threads WHERE n = ?1), ?1)"
)

func (tx *Tx) run(query string, arg any) (*Run, error) {
	r := new(Run)
	if err := tx.row(query, arg).Scan(into(tx, runs.fields, r)...); err != nil {
		return nil, err
	}
	return r, nil
}

func (tx *Tx) runs(rest string, args ...any) (list []*Run, err error) {
	rows, err := runs.all(tx, rest, args...)
	for i := range rows {
		list = append(list, &rows[i])
	}
	return list, err
}

// ThreadID returns the id of the thread with the number, or ErrNotFound.
func (r *Runs) ThreadID(tx *Tx, n int64) (id string, err error) {
	err = tx.row("SELECT thread_id FROM threads WHERE n = ?", n).Scan(&id)
	return id, err
}

// Children returns the runs that run n called as tools, in the order in which they were made.
func (r *Runs) Children(tx *Tx, n int64) ([]*Run, error) {
	return tx.runs("INDEXED BY runs_by_parent WHERE parent = ? ORDER BY n", n)
}

// Hosted returns the runs that a thread or an agent's run hosts, see [Run.Host], and that are running, in the order in which
// they were made.
func (r *Runs) Hosted(tx *Tx, host int64) ([]*Run, error) {
	return tx.runs("INDEXED BY runs_by_host WHERE host = ? AND status = 'running' ORDER BY n", host)
}

// HostRun returns the run that waits for what a host started: the latest run of the thread with the number, or else the run
// with the number.
func (r *Runs) HostRun(tx *Tx, host int64) (*Run, error) {
	return tx.run(hostRun, host)
}

// Get is Find without a transaction of the caller's.
func (r *Runs) Get(ctx context.Context, id string) (*Run, error) {
	return view(ctx, r.db, func(tx *Tx) (*Run, error) { return r.Find(tx, id) })
}

// Version returns the version of the run with the number and the id, or ErrNotFound.
func (r *Runs) Version(ctx context.Context, n int64, id string) (int64, error) {
	return view(ctx, r.db, func(tx *Tx) (version int64, err error) {
		err = tx.row("SELECT version FROM runs WHERE n = ? AND id = ?", n, id).Scan(&version)
		return version, err
	})
}

// RunFilter selects runs; an empty field selects all.
type RunFilter struct {
	Status    Status
	Session   string
	Agents    []string // of agents' runs, those of any of these; nil for all
	Workflows []string // of workflows' runs, those of any of these; nil for all
	Parent    int64    // only those that the run with this number called or hosts; 0: only runs that are nobody's child and not hosted
	Hosted    bool     // with a session: also the hosted runs of it
	Before    int64    // only runs whose number is below; 0 for all
	From      int64    // only runs whose number is not below, oldest first; 0 for all, newest first
	Limit     int      // at most 1000
}

// Kinds of runs that are not those of an agent.
const (
	Import   = "import"   // nobody ran it: it holds the transcript of a session that was imported
	Workflow = "workflow" // it is a run of a thread
)

// List returns runs, newest first, without those of kind [Import].
func (r *Runs) List(tx *Tx, f RunFilter) ([]*Run, error) {
	f.Limit = min(cmp.Or(f.Limit, 100), 1000)
	var runs []*Run
	for _, s := range f.selections() {
		rest, args := f.page(s)
		page, err := tx.runs(rest, args...)
		if err != nil {
			return nil, err
		}
		runs = append(runs, page...)
	}
	slices.SortFunc(runs, func(a, b *Run) int {
		if f.From > 0 {
			return byNumber(a, b)
		}
		return byNumber(b, a)
	})
	return runs[:min(len(runs), f.Limit)], nil
}

// selections find the runs, each those of an index, or of the table itself, in their order.
func (f *RunFilter) selections() (all []selection) {
	s := selection{where: []string{shown}}
	switch {
	case f.Parent > 0:
		all = []selection{{index: "runs_by_parent"}, {index: "runs_by_host"}}
		all[0].and("parent = ?", f.Parent)
		all[1].and("host = (SELECT coalesce(thread, n) FROM runs WHERE n = ?)", f.Parent)
		for i := range all {
			all[i].owners(f.Agents, f.Workflows)
		}
		return all
	case f.Session != "":
		if s.index = "runs_by_session"; f.Hosted {
			s.where = []string{"parent IS NULL"}
		}
	case f.Status == Pending || f.Status == Running || f.Status.Parked():
		s = selection{index: "runs_open", where: []string{open, "host IS NULL"}}
	case f.Status == Failed || f.Status == Aborted:
		s = selection{index: "runs_failed", where: []string{"status IN ('failed', 'aborted')", shown}}
	case f.Agents != nil:
		if f.Workflows == nil {
			all = append(all, selection{index: "runs_of_workflows", where: []string{ofKind[1], shown}})
		}
		for i, ids := range [][]string{f.Agents, f.Workflows} {
			ids = slices.Clone(ids)
			slices.Sort(ids)
			for _, id := range slices.Compact(ids) {
				of := selection{index: "runs_by_owner", where: []string{shown, ofKind[i]}}
				of.and("owner_id = ?", id)
				all = append(all, of)
			}
		}
		return all
	}
	s.owners(f.Agents, f.Workflows)
	return []selection{s}
}

// page is the rest of the statement of a selection, and its arguments.
func (f *RunFilter) page(s selection) (string, []any) {
	order := "n DESC"
	s.and("kind <> '" + Import + "'")
	s.optional("status", string(f.Status))
	s.optional("session_id", f.Session)
	if f.Before > 0 {
		s.and("n < ?", f.Before)
	}
	if f.From > 0 {
		s.and("n >= ?", f.From)
		order = "n"
	}
	return s.by(order + " LIMIT ?"), append(s.args, f.Limit)
}

// A selection is the rest of a SELECT statement: rows that meet all conditions, found by an index. A condition of a partial
// index is spelled as the index spells it.
type selection struct {
	index string // empty: the table itself
	where []string
	args  []any
}

func (s *selection) and(condition string, args ...any) {
	s.where, s.args = append(s.where, condition), append(s.args, args...)
}

// optional selects by a column, unless the value is empty.
func (s *selection) optional(column, value string) {
	if value != "" {
		s.and(column+" = ?", value)
	}
}

// ofKind selects the runs of agents, and those of workflows.
var ofKind = [2]string{"kind <> '" + Workflow + "'", "kind = '" + Workflow + "'"}

// owners selects the runs of these agents and workflows; nil are all of the kind.
func (s *selection) owners(agents, workflows []string) {
	var kinds []string
	for i, ids := range [][]string{agents, workflows} {
		kind := ofKind[i]
		if ids != nil {
			kind += " AND owner_id IN (" + placeholders(len(ids)) + ")"
		}
		for _, id := range ids {
			s.args = append(s.args, id)
		}
		kinds = append(kinds, kind)
	}
	if agents != nil || workflows != nil {
		s.where = append(s.where, "("+strings.Join(kinds, " OR ")+")")
	}
}

func (s *selection) by(order string) string {
	by := "NOT INDEXED"
	if s.index != "" {
		by = "INDEXED BY " + s.index
	}
	return by + " WHERE " + strings.Join(s.where, " AND ") + " ORDER BY " + order
}

// Awaiting returns the runs that wait for an approval and that lists show by themselves, also those of which another part moves,
// oldest first, at most 1000: those of these agents and workflows; nil are all of the kind.
func (r *Runs) Awaiting(tx *Tx, agents, workflows []string) (list []*Run, err error) {
	for _, waits := range []string{"status = 'awaiting_approval'", movesAndWaits} {
		s := selection{index: "runs_open", where: []string{open, "host IS NULL", waits}}
		s.owners(agents, workflows)
		runs, err := tx.runs(s.by("n LIMIT 1000"), s.args...)
		if err != nil {
			return nil, err
		}
		list = append(list, runs...)
	}
	slices.SortFunc(list, byNumber)
	return list[:min(len(list), 1000)], nil
}

// movesAndWaits selects the runs that move and keep approvals in their slot. How many runs move is bounded.
var movesAndWaits = fmt.Sprintf(`status = 'running' AND slots & %d <> 0
	AND (SELECT json FROM run_slots WHERE key = runs.n << 24 | %d) NOT IN ('[]', 'null')`, 1<<PendingSlot, PendingSlot)

func byNumber(a, b *Run) int { return cmp.Compare(a.N, b.N) }

// Open returns the runs that have not ended and are nobody's child, oldest first. With a session, they are those that take
// turns in it, which runs of workflows do not; without, those that a start of the server looks at: not those that only wait
// for a time, and not the dormant ones.
func (r *Runs) Open(tx *Tx, session string) (list []*Run, err error) {
	if session != "" {
		return tx.runs("INDEXED BY runs_turns WHERE "+turns+" AND session_id = ? ORDER BY n", session)
	}
	for _, status := range []Status{Pending, Running, Awaiting} {
		runs, err := tx.runs("INDEXED BY runs_open WHERE "+open+" AND status = ? AND (status <> 'running' OR slots & ? = 0) ORDER BY n", status, 1<<DormantSlot)
		if err != nil {
			return nil, err
		}
		list = append(list, runs...)
	}
	slices.SortFunc(list, byNumber)
	return list, nil
}
