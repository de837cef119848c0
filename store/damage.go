package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"agentd/server/fault"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// translate turns the driver's errors into this package's, where a caller can act on them. It leaves its own results as
// they are.
func translate(err error) error {
	if err == nil { // before anything is allocated
		return nil
	}
	var se *sqlite.Error
	switch {
	case errors.Is(err, ErrConflict), fault.Is(err, fault.StorageFailed), fault.Is(err, fault.StorageCorrupt):
		return err
	case !errors.As(err, &se):
		_, known := errors.AsType[*fault.Error](err)
		_, cut := errors.AsType[*json.SyntaxError](err)
		_, other := errors.AsType[*json.UnmarshalTypeError](err)
		if !known && (cut || other) {
			return Damaged(err)
		}
		return err
	}
	switch code := se.Code(); {
	case code == sqlite3.SQLITE_CONSTRAINT_UNIQUE || code == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return fmt.Errorf("%w: %w", ErrConflict, err)
	case code&0xff == sqlite3.SQLITE_BUSY || code&0xff == sqlite3.SQLITE_LOCKED:
		return fault.New(fault.StorageFailed, "The store could not write: another process is writing.").Because(err)
	case damaged(code):
		return Damaged(err)
	case spoils(code):
		return fault.New(fault.StorageFailed, "The store could not write: %s.", reason(code)).Because(err)
	}
	return err
}

// spoils reports whether an error of this primary code says that the file system failed, after which the connection
// must not be used again: pages that failed to be synced may be lost without notice on a second try.
func spoils(code int) bool {
	switch code & 0xff {
	case sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN:
		return true
	}
	return damaged(code)
}

func reason(code int) string {
	switch code & 0xff {
	case sqlite3.SQLITE_FULL:
		return "the disk is full"
	case sqlite3.SQLITE_READONLY:
		return "the data folder is read-only"
	}
	return "the disk answered with an error"
}

// damaged reports whether an error of this code says that the file holds something that no SQLite has written there, or
// that the medium does not give back what it holds.
func damaged(code int) bool {
	switch code {
	case sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_DATA, sqlite3.SQLITE_IOERR_CORRUPTFS:
		return true
	}
	return code&0xff == sqlite3.SQLITE_CORRUPT || code&0xff == sqlite3.SQLITE_NOTADB
}

// Damaged is the error of something in the database that is not as the program wrote it.
func Damaged(because error) *fault.Error {
	return fault.New(fault.StorageCorrupt, "The database is damaged.").Because(because)
}

// met remembers the first error that says that the database is damaged, and returns err.
func (db *DB) met(err error) error {
	f, ok := errors.AsType[*fault.Error](err)
	if ok && f.Kind == fault.StorageCorrupt && db.damage.CompareAndSwap(nil, f) {
		db.opts.Logger.Error("the database is damaged", "path", db.opts.Path, "error", err, "cause", errors.Unwrap(f))
	}
	return err
}

// abandoned refuses a path where a log stands without the database that it belongs to. A new database there would take
// the place of one that was moved or emptied, and SQLite would delete the log.
func abandoned(path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() > 0 || err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil // whoever opens it finds what is wrong
	}
	if log, err := os.Stat(path + "-wal"); err == nil && log.Size() > 0 {
		return fault.New(fault.StorageCorrupt, "The database %s is missing or empty, but its log %s-wal holds %d bytes.", path, path, log.Size()).
			Advise("Restore the database file, or move the log away and restore the backup. Nothing was changed.")
	}
	return nil
}

// Damage is one thing that is wrong with a database.
type Damage struct {
	Place   string `json:"place"` // the database, or a table and column
	Message string `json:"message"`
}

// maxDamage is how many things [DB.Verify] finds.
const maxDamage = 100

// Verify reads the whole database and returns what is wrong with it, at most 100 things; none: it is sound. It sees one
// moment, and keeps the log from being truncated until it has ended. An error says that it could not look.
func (db *DB) Verify(ctx context.Context) (found []Damage, err error) {
	err = db.Snapshot(ctx, func(tx *Tx) error {
		found = nil
		for _, check := range []func(*Tx) ([]Damage, error){checkPages, db.checkNames, db.checkOwners, db.checkLedger, checkJSON} {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			list, err := check(tx)
			if fault.Is(translate(err), fault.StorageCorrupt) {
				text := err.Error()
				if se, own := errors.AsType[*sqlite.Error](err); own {
					text = se.Error()
				}
				list, err = append(list, Damage{"database", text}), nil
			}
			if found = append(found, list...); err != nil || len(found) >= maxDamage {
				return err
			}
		}
		return nil
	})
	return found[:min(len(found), maxDamage)], err
}

// checkPages has SQLite look at every page and every index.
func checkPages(tx *Tx) (found []Damage, err error) {
	texts, err := column[string](tx, fmt.Sprintf("PRAGMA integrity_check(%d)", maxDamage))
	for _, text := range texts {
		if text != "ok" {
			found = append(found, Damage{"database", text})
		}
	}
	return found, err
}

// checkNames is checkObjects for [DB.Verify].
func (db *DB) checkNames(tx *Tx) (found []Damage, err error) {
	err = db.checkObjects(tx)
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind == fault.SchemaChanged {
		return []Damage{{"schema", f.Message}}, nil
	}
	return nil, err
}

// checkOwners looks for rows whose owner is missing, and for columns that name a missing row.
func (db *DB) checkOwners(tx *Tx) (found []Damage, err error) {
	if db.opts.schema != mainSchema {
		return nil, nil
	}
	refs := slices.Clone(references)
	for _, t := range ownedTables {
		switch t.of {
		case ofRun, ofThread:
			refs = append(refs, reference{t.table, t.by, owners[t.of], "n"})
		case ofRunKey, ofThreadKey:
			refs = append(refs, reference{t.table, t.by + " >> 24", owners[t.of], "n"})
		}
	}
	for _, r := range refs {
		missing, err := column[string](tx, fmt.Sprintf(`SELECT DISTINCT CAST(%[1]s.%[2]s AS TEXT) FROM %[1]s WHERE %[1]s.%[2]s IS NOT NULL
			AND NOT EXISTS (SELECT 1 FROM %[3]s AS o WHERE o.%[4]s = %[1]s.%[2]s) LIMIT ?`, r.table, r.column, r.to, r.key), maxDamage-len(found))
		for _, name := range missing {
			found = append(found, Damage{r.table, fmt.Sprintf("it has rows of %s %s, which is missing", strings.TrimSuffix(r.to, "s"), name)})
		}
		if err != nil || len(found) >= maxDamage {
			return found, err
		}
	}
	return found, nil
}

// checkLedger holds the firings of triggers against their runs. A run may be missing, because it was erased.
func (db *DB) checkLedger(tx *Tx) (found []Damage, err error) {
	if db.opts.schema != mainSchema {
		return nil, nil
	}
	texts, err := column[string](tx, `SELECT 'firing ' || f.n || CASE
			WHEN f.outcome = 'fired' AND f.run_id IS NULL THEN ' has fired, but names no run'
			WHEN f.outcome <> 'fired' AND f.run_id IS NOT NULL THEN ' is ' || f.outcome || ', but names the run ' || f.run_id
			WHEN (f.outcome = 'queued') > f.open THEN ' is queued, but not open'
			WHEN f.open > (f.outcome IN ('queued', 'fired')) THEN ' is ' || f.outcome || ', but open'
			WHEN started.id IS NOT f.run_id AND started.id IS NOT NULL THEN ' has started the run ' || started.id || ', but does not name it'
			WHEN named.origin IS NOT 'firing:' || f.id AND named.id IS NOT NULL THEN ' names the run ' || f.run_id || ', which it has not started'
		END AS wrong
		FROM firings f LEFT JOIN runs named ON named.id = f.run_id LEFT JOIN runs started ON started.origin = 'firing:' || f.id
		WHERE wrong IS NOT NULL ORDER BY f.n LIMIT ?`, maxDamage)
	for _, text := range texts {
		found = append(found, Damage{"firings", text})
	}
	return found, err
}

// checkJSON looks for columns of JSON that hold something else.
func checkJSON(tx *Tx) (found []Damage, err error) {
	columns, err := all(tx, func(c *[2]string, to []any) []any { return append(to, &c[0], &c[1]) },
		`SELECT t.name, c.name FROM sqlite_schema AS t JOIN pragma_table_info(t.name) AS c WHERE t.type = 'table' AND c.type = 'TEXT'
		AND (c.name IN ('json', 'payload', 'body') OR c.name LIKE '%\_json' ESCAPE '\') ORDER BY t.name, c.cid`)
	for _, c := range columns {
		if err != nil || len(found) >= maxDamage {
			break
		}
		var rows []string
		rows, err = column[string](tx, fmt.Sprintf(`SELECT %s FROM "%s" WHERE "%s" IS NOT NULL AND NOT json_valid("%s") LIMIT %d`,
			rowName(c[0]), c[0], c[1], c[1], maxDamage-len(found)))
		for _, row := range rows {
			found = append(found, Damage{c[0] + "." + c[1], "row " + row + " is not JSON"})
		}
	}
	return found, err
}

// rowName is an expression that names a row of a table.
func rowName(table string) string {
	if table == "sessions" || table == "auth_tokens" { // they have no rowid
		return "id"
	}
	return "CAST(rowid AS TEXT)"
}
