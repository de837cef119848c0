package store

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"agentd/server/fault"

	"modernc.org/sqlite"
)

//go:embed migrations/*.sql chain/*.sql
var migrationFiles embed.FS

// mainSchema is the folder of the migrations of the database itself.
const mainSchema = "migrations"

// chainSchema is the folder of the migrations of an audit chain.
const chainSchema = "chain"

type migration struct {
	version  int
	name     string
	sql      string
	checksum string // SHA-256 of the SQL text
}

// migrations are those of an embedded folder in the order of their numbers, which run from 1 without gaps.
func migrations(folder string) []migration {
	entries, err := fs.ReadDir(migrationFiles, folder)
	if err != nil {
		panic(err)
	}
	var ms []migration
	for i, e := range entries {
		text, err := migrationFiles.ReadFile(folder + "/" + e.Name())
		number, rest, _ := strings.Cut(strings.TrimSuffix(e.Name(), ".sql"), "_")
		version, e2 := strconv.Atoi(number)
		if err = errors.Join(err, e2); err != nil || version != i+1 {
			panic(fmt.Sprintf("store: migration file %s: %v", e.Name(), err))
		}
		sum := sha256.Sum256(text)
		ms = append(ms, migration{version, rest, string(text), hex.EncodeToString(sum[:])})
	}
	return ms
}

// SchemaVersion is the schema that this build writes.
func SchemaVersion() int { return len(migrations(mainSchema)) }

const bookkeeping = `CREATE TABLE IF NOT EXISTS schema_migrations (
	version INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL)`

// migrate applies every pending migration in one transaction: afterwards the schema is the old one or the new one,
// never between.
func migrate(c *conn, folder string, now time.Time) (err error) {
	exec := func(doing, query string, args ...any) {
		if err != nil {
			return
		}
		if failed := c.script(query, args...); failed != nil {
			err = fault.New(fault.MigrationFailed, "%s: %v.", doing, failed).Because(failed)
		}
	}
	if err := c.run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			c.run("ROLLBACK") //nolint:errcheck // the first error is the one to report
		}
	}()
	exec("The database could not be migrated", bookkeeping)
	if err != nil {
		return err
	}
	applied, err := compare(&Tx{c: c}, folder)
	if err != nil {
		return err
	}
	for _, m := range migrations(folder)[applied:] {
		doing := fmt.Sprintf("Migration %03d (%s) failed", m.version, m.name)
		exec(doing, m.sql)
		exec(doing, "INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES (?,?,?,?)",
			m.version, m.name, m.checksum, now.UnixMilli())
	}
	// Statistics of a young database would make SQLite scan tables that have grown since. It drops them together with
	// what it has loaded of them.
	for _, table := range statistics {
		exec("The statistics of the database could not be deleted", "DROP TABLE IF EXISTS "+table)
	}
	exec("The migrated database could not be committed", "COMMIT")
	return err
}

// compare checks what was applied against what this build knows and returns how many migrations are applied.
func compare(tx *Tx, folder string) (int, error) {
	type row struct {
		version  int
		checksum string
	}
	applied, err := all(tx, func(r *row, to []any) []any { return append(to, &r.version, &r.checksum) },
		"SELECT version, checksum FROM schema_migrations ORDER BY version")
	if err != nil {
		return 0, err
	}
	known := migrations(folder)
	for i, r := range applied {
		if r.version > len(known) {
			return 0, fault.New(fault.SchemaNewer, "The database has schema %d; this version supports %d.", r.version, len(known))
		}
		if r.version != i+1 || known[i].checksum != r.checksum {
			return 0, fault.New(fault.StoreUnusable, "Schema %d of the database differs from the one of this version.", r.version)
		}
	}
	return len(applied), nil
}

// checkSchema refuses a database that a reader cannot read: behind, newer or foreign.
func checkSchema(tx *Tx, folder string) error {
	n, err := column[string](tx, "SELECT name FROM sqlite_schema WHERE name = 'schema_migrations'")
	if err != nil {
		return err
	}
	applied := 0
	if n != nil {
		if applied, err = compare(tx, folder); err != nil {
			return err
		}
	}
	if behind := len(migrations(folder)) - applied; behind > 0 {
		return fault.New(fault.SchemaBehind, "The database is %d migration(s) behind.", behind)
	}
	return nil
}

// statistics are the tables that ANALYZE makes. This program keeps none.
var statistics = []string{"sqlite_stat1", "sqlite_stat4"}

// objects are what a schema consists of: the text of each table, index, trigger and view by kind and name.
func objects(tx *Tx) (map[string]string, error) {
	rows, err := all(tx, func(o *[2]string, to []any) []any { return append(to, &o[0], &o[1]) }, "SELECT type || ' ' || name, coalesce(sql, '') FROM sqlite_schema")
	byName := map[string]string{}
	for _, o := range rows {
		byName[o[0]] = strings.Join(strings.Fields(o[1]), " ")
	}
	for _, table := range statistics {
		delete(byName, "table "+table)
	}
	return byName, err
}

// made is what the migrations of a folder make of an empty database.
func made(folder string) (map[string]string, error) {
	memory, err := sqlite.NewConnector(":memory:")
	if err != nil {
		return nil, err
	}
	c, err := newConn(context.Background(), memory)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if err := migrate(c, folder, time.Now()); err != nil {
		return nil, err
	}
	return objects(&Tx{c: c})
}

// madeSums are the sums of what made returns. To know them saves each process that opens a database the migration of an empty
// one. A test compares them.
var madeSums = map[string]string{
	mainSchema:  "6ce1840ef9a636e9326416c8941af181938ad3287bf56742d92c37732b9bdea8",
	chainSchema: "f3534df1a1cded13371db1d1508225157b4f3bc648b3a0e2843f8410ff2cc3aa",
}

// sum is the SHA-256 of a schema, in hex.
func sum(objects map[string]string) string {
	text, _ := json.Marshal(objects) //nolint:errcheck // texts can be encoded
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

var madeOnce = map[string]func() (map[string]string, error){
	mainSchema:  sync.OnceValues(func() (map[string]string, error) { return made(mainSchema) }),
	chainSchema: sync.OnceValues(func() (map[string]string, error) { return made(chainSchema) }),
}

// checkObjects refuses a schema that is not what the migrations make. A trigger that somebody planted could keep rows from
// being written, a view could show others, and a missing index makes each request a scan.
func (db *DB) checkObjects(tx *Tx) error {
	have, err := objects(tx)
	if err != nil || sum(have) == madeSums[db.opts.schema] {
		return err
	}
	want, err := madeOnce[db.opts.schema]()
	if err != nil {
		return err
	}
	var wrong []string
	for name, text := range have {
		if known, ok := want[name]; !ok {
			wrong = append(wrong, "the "+name+" is not the program's")
		} else if known != text {
			wrong = append(wrong, "the "+name+" was changed")
		}
	}
	for name := range want {
		if _, ok := have[name]; !ok {
			wrong = append(wrong, "the "+name+" is missing")
		}
	}
	if wrong == nil {
		return nil
	}
	slices.Sort(wrong)
	more := ""
	if n := len(wrong) - 3; n > 0 {
		wrong, more = wrong[:3], fmt.Sprintf(", and %d more", n)
	}
	return fault.New(fault.SchemaChanged, "The schema of %s differs from the one that this version creates: %s%s.", filepath.Base(db.opts.Path), strings.Join(wrong, ", "), more)
}
