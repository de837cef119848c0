package store

import "context"

// Space is how a database file uses its pages.
type Space struct {
	PageSize   int64 `json:"pageSize"`
	Pages      int64 `json:"pages"`
	FreePages  int64 `json:"freePages"`  // of them; they are used again before the file grows
	Returnable bool  `json:"returnable"` // Compact can give free pages back; a file that was made without that cannot
}

// Space reads how the file uses its pages.
func (db *DB) Space(ctx context.Context) (s Space, err error) {
	err = db.View(ctx, func(tx *Tx) (err error) {
		s, err = space(tx)
		return err
	})
	return s, err
}

func space(tx *Tx) (s Space, err error) {
	var mode int
	err = tx.row("SELECT page_size, page_count, freelist_count, auto_vacuum FROM pragma_page_size, pragma_page_count, pragma_freelist_count, pragma_auto_vacuum").
		Scan(&s.PageSize, &s.Pages, &s.FreePages, &mode)
	s.Returnable = mode == 2
	return s, err
}

// Compact folds the log into the file and gives free pages back to the file system, if the file can do that. Beside another
// process it leaves the log to that one, whose next checkpoint makes the file shorter, and gives back a few pages at a time.
func (db *DB) Compact(ctx context.Context) (before, after Space, err error) {
	err = db.writer.between(ctx, func(tx *Tx) (err error) {
		fold, step := func() error { _, err := checkpoint(tx); return err }, "PRAGMA incremental_vacuum(1000)"
		if db.opts.Beside {
			fold, step = func() error { return nil }, "PRAGMA incremental_vacuum(50)"
		}
		if err = fold(); err == nil {
			before, err = space(tx)
		}
		after = before
		for last := int64(-1); err == nil && before.Returnable && after.FreePages > 0 && after.FreePages != last; {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			last = after.FreePages
			// It returns a row without columns for each page that it gives back.
			if err = tx.collect(func(scanner) error { return nil }, step); err == nil {
				after, err = space(tx)
			}
		}
		if err == nil {
			err = fold()
		}
		return err
	})
	return before, after, err
}

// Compact is [DB.Compact].
func (a *Audit) Compact(ctx context.Context) (before, after Space, err error) {
	return a.db.Compact(ctx)
}

// Space is [DB.Space].
func (a *Audit) Space(ctx context.Context) (Space, error) { return a.db.Space(ctx) }

// WALSize is [DB.WALSize].
func (a *Audit) WALSize() int64 { return a.db.WALSize() }
