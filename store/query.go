package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// Statements name the index that they need, where another one or none could seem better to SQLite: it knows no statistics
// (see migrate), and what is bounded now may have a million rows later. A test explains all statements.

// open selects the runs that have not ended and are nobody's child, as the partial index runs_open spells it.
const open = "(status = 'pending' OR status = 'running' OR status = 'awaiting_approval' OR status = 'suspended') AND parent IS NULL"

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
)

func (tx *Tx) run(query string, arg any) (*Run, error) {
	r := new(Run)
	return r, tx.row(query, arg).Scan(into(tx, runs.fields, r)...)
}

func (tx *Tx) runs(rest string, args ...any) (list []*Run, err error) {
	rows, err := runs.all(tx, rest, args...)
	for i := range rows {
		list = append(list, &rows[i])
	}
	return list, err
}

// Children returns the runs that run n called as tools, in the order in which they were made.
func (r *Runs) Children(tx *Tx, n int64) ([]*Run, error) {
	return tx.runs("INDEXED BY runs_by_parent WHERE parent = ? ORDER BY n", n)
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
	Status  Status
	Session string
	Owners  []string // any of these agents; nil for all
	Parent  int64    // only children of the run with this number; 0: only runs that are nobody's child
	Before  int64    // only runs whose number is below; 0 for all
	From    int64    // only runs whose number is not below, oldest first; 0 for all, newest first
	Limit   int      // at most 1000
}

// Import is the kind of a run that nobody ran: it holds the transcript of a session that was imported.
const Import = "import"

// List returns runs, newest first, without those of kind [Import].
func (r *Runs) List(tx *Tx, f RunFilter) ([]*Run, error) {
	f.Limit = min(cmp.Or(f.Limit, 100), 1000)
	if len(f.Owners) < 2 || f.selection().index != "runs_by_owner" {
		return f.page(tx)
	}
	// One statement would sort all runs of these owners, so read a page of each and keep the best.
	owners := slices.Clone(f.Owners)
	slices.Sort(owners)
	var runs []*Run
	for _, owner := range slices.Compact(owners) {
		f.Owners = []string{owner}
		page, err := f.page(tx)
		if err != nil {
			return nil, err
		}
		runs = append(runs, page...)
	}
	slices.SortFunc(runs, func(a, b *Run) int {
		if f.From > 0 {
			return cmp.Compare(a.N, b.N)
		}
		return cmp.Compare(b.N, a.N)
	})
	return runs[:min(len(runs), f.Limit)], nil
}

// selection finds the runs in their order by an index, or by the table itself.
func (f *RunFilter) selection() selection {
	switch {
	case f.Parent > 0:
		return selection{index: "runs_by_parent"}
	case f.Session != "":
		return selection{index: "runs_by_session"}
	case f.Status == Pending || f.Status == Running || f.Status.Parked():
		return selection{index: "runs_open", where: []string{open}}
	case f.Status == Failed || f.Status == Aborted:
		return selection{index: "runs_failed", where: []string{"status IN ('failed', 'aborted') AND parent IS NULL"}}
	case f.Owners != nil:
		return selection{index: "runs_by_owner"}
	}
	return selection{}
}

func (f *RunFilter) page(tx *Tx) ([]*Run, error) {
	s, order := f.selection(), "n DESC"
	s.and("kind <> '" + Import + "'")
	s.optional("status", string(f.Status))
	s.optional("session_id", f.Session)
	s.in("owner_id", f.Owners)
	if f.Parent > 0 {
		s.and("parent = ?", f.Parent)
	} else {
		s.and("parent IS NULL")
	}
	if f.Before > 0 {
		s.and("n < ?", f.Before)
	}
	if f.From > 0 {
		s.and("n >= ?", f.From)
		order = "n"
	}
	return tx.runs(s.by(order+" LIMIT ?"), append(s.args, f.Limit)...)
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

// in selects by a column, unless the values are nil.
func (s *selection) in(column string, values []string) {
	if values == nil {
		return
	}
	s.where = append(s.where, column+" IN ("+placeholders(len(values))+")")
	for _, v := range values {
		s.args = append(s.args, v)
	}
}

func (s *selection) by(order string) string {
	by := "NOT INDEXED"
	if s.index != "" {
		by = "INDEXED BY " + s.index
	}
	return by + " WHERE " + strings.Join(s.where, " AND ") + " ORDER BY " + order
}

// Awaiting returns the runs that wait for an approval, oldest first, at most 1000; with owners, of those only.
func (r *Runs) Awaiting(tx *Tx, owners []string) ([]*Run, error) {
	s := selection{index: "runs_open", where: []string{open, "status = 'awaiting_approval'"}}
	s.in("owner_id", owners)
	return tx.runs(s.by("n LIMIT 1000"), s.args...)
}

// Open returns the runs that have not ended and are nobody's child, oldest first; with a session, those of that session only.
func (r *Runs) Open(tx *Tx, session string) ([]*Run, error) {
	s := selection{index: "runs_open", where: []string{open}}
	s.optional("session_id", session)
	return tx.runs(s.by("n"), s.args...)
}
