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
const open = "status IN ('pending', 'running', 'awaiting_approval', 'suspended') AND parent IS NULL"

// Find returns the run with the id, or ErrNotFound.
func (r *Runs) Find(tx *Tx, id string) (*Run, error) {
	return tx.run("WHERE id = ?", id)
}

// ByOrigin returns the run that was started for an origin, or ErrNotFound.
func (r *Runs) ByOrigin(tx *Tx, origin string) (*Run, error) {
	return tx.run("INDEXED BY runs_by_origin WHERE origin = ?", origin)
}

// Number returns the run with the number, or ErrNotFound.
func (r *Runs) Number(tx *Tx, n int64) (*Run, error) {
	return tx.run("WHERE n = ?", n)
}

func (tx *Tx) run(rest string, args ...any) (*Run, error) {
	r, err := runs.one(tx, rest, args...)
	return &r, err
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

// Get is Find in a view of its own.
func (r *Runs) Get(ctx context.Context, id string) (*Run, error) {
	return view(ctx, r.db, func(tx *Tx) (*Run, error) { return r.Find(tx, id) })
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
	index, where := f.index()
	if index != "runs_by_owner" || len(f.Owners) == 1 {
		return f.page(tx, index, where)
	}
	// Each owner has a page of its own, and the best of all pages are wanted: one statement would sort all their runs.
	owners := slices.Clone(f.Owners)
	slices.Sort(owners)
	var runs []*Run
	for _, owner := range slices.Compact(owners) {
		f.Owners = []string{owner}
		page, err := f.page(tx, index, where)
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

// index is the index that finds the runs in their order, empty for the table itself, with the condition of that index.
func (f *RunFilter) index() (name, where string) {
	switch {
	case f.Parent > 0:
		return "runs_by_parent", ""
	case f.Session != "":
		return "runs_by_session", ""
	case f.Status == Pending || f.Status == Running || f.Status.Parked():
		return "runs_open", open
	case f.Status == Failed || f.Status == Aborted:
		return "runs_failed", failed
	case f.Owners != nil:
		return "runs_by_owner", ""
	}
	return "", ""
}

// failed selects the runs that did not complete and are nobody's child, as the partial index runs_failed spells it.
const failed = "status IN ('failed', 'aborted') AND parent IS NULL"

func (f *RunFilter) page(tx *Tx, index, condition string) ([]*Run, error) {
	where := []string{"kind <> '" + Import + "'"}
	var args []any
	add := func(cond string, values ...any) {
		where = append(where, cond)
		args = append(args, values...)
	}
	if condition != "" {
		add(condition)
	}
	if f.Status != "" {
		add("status = ?", string(f.Status))
	}
	if f.Session != "" {
		add("session_id = ?", f.Session)
	}
	if f.Owners != nil {
		addOwners(add, f.Owners)
	}
	if f.Parent > 0 {
		add("parent = ?", f.Parent)
	} else {
		add("parent IS NULL")
	}
	if f.Before > 0 {
		add("n < ?", f.Before)
	}
	order := "DESC"
	if f.From > 0 {
		add("n >= ?", f.From)
		order = "ASC"
	}
	by := "NOT INDEXED"
	if index != "" {
		by = "INDEXED BY " + index
	}
	return tx.runs(by+" WHERE "+strings.Join(where, " AND ")+" ORDER BY n "+order+" LIMIT ?", append(args, f.Limit)...)
}

func addOwners(add func(string, ...any), owners []string) {
	all := make([]any, len(owners))
	for i, o := range owners {
		all[i] = o
	}
	add("owner_id IN ("+placeholders(len(owners))+")", all...)
}

// Awaiting returns the runs that wait for an approval, oldest first, at most 1000; with owners, of those only.
func (r *Runs) Awaiting(tx *Tx, owners []string) ([]*Run, error) {
	query := "INDEXED BY runs_open WHERE " + open + " AND status = 'awaiting_approval'"
	var args []any
	if owners != nil {
		addOwners(func(cond string, values ...any) { query, args = query+" AND "+cond, values }, owners)
	}
	return tx.runs(query+" ORDER BY n LIMIT 1000", args...)
}

// Open returns the runs that have not ended and are nobody's child, oldest first; with a session, those of that session only.
func (r *Runs) Open(tx *Tx, session string) ([]*Run, error) {
	query := "INDEXED BY runs_open WHERE " + open
	var args []any
	if session != "" {
		query += " AND session_id = ?"
		args = append(args, session)
	}
	return tx.runs(query+" ORDER BY n", args...)
}
