package store

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"agentd/server/fault"
)

//go:embed migrations/*.sql chain/*.sql
var migrationFiles embed.FS

// mainSchema is the folder of the migrations of the database itself; an audit chain has its own.
const mainSchema = "migrations"

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
	exec := func(query string, args ...any) error {
		_, err := c.c.ExecContext(context.Background(), query, args...)
		return err
	}
	if err := exec("BEGIN IMMEDIATE"); err != nil {
		return unusable("", err)
	}
	defer func() {
		if err != nil {
			exec("ROLLBACK") //nolint:errcheck // the first error is the one to report
		}
	}()
	if err := exec(bookkeeping); err != nil {
		return fault.New(fault.MigrationFailed, "The database could not be migrated: %v.", err).Because(err)
	}
	applied, err := compare(c, folder)
	if err != nil {
		return err
	}
	for _, m := range migrations(folder)[applied:] {
		err := exec(m.sql)
		if err == nil {
			err = exec("INSERT INTO schema_migrations (version, name, checksum, applied_at) VALUES (?,?,?,?)",
				m.version, m.name, m.checksum, now.UnixMilli())
		}
		if err != nil {
			return fault.New(fault.MigrationFailed, "Migration %03d (%s) failed: %v.", m.version, m.name, err).Because(err)
		}
	}
	if err := exec("COMMIT"); err != nil {
		return fault.New(fault.MigrationFailed, "The migrated database could not be committed: %v.", err).Because(err)
	}
	return nil
}

// compare checks what was applied against what this build knows and returns how many migrations are applied.
func compare(c *conn, folder string) (int, error) {
	rows, err := c.c.QueryContext(context.Background(), "SELECT version, checksum FROM schema_migrations ORDER BY version")
	if err != nil {
		return 0, unusable("", err)
	}
	defer rows.Close()
	known := migrations(folder)
	applied := 0
	for rows.Next() {
		var version int
		var checksum string
		if err := rows.Scan(&version, &checksum); err != nil {
			return 0, unusable("", err)
		}
		if version > len(known) {
			return 0, fault.New(fault.SchemaNewer, "The database has schema %d; this version knows %d.", version, len(known))
		}
		if applied++; version != applied || known[version-1].checksum != checksum {
			return 0, fault.New(fault.StoreUnusable, "Schema %d of the database is not the one that this version knows.", version)
		}
	}
	return applied, rows.Err()
}

// checkSchema refuses a database that a reader cannot read: behind, newer or foreign.
func checkSchema(c *conn, folder string) error {
	var n int
	err := c.c.QueryRowContext(context.Background(), "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_migrations'").Scan(&n)
	if err != nil {
		return unusable("", err)
	}
	applied := 0
	if n > 0 {
		if applied, err = compare(c, folder); err != nil {
			return err
		}
	}
	if behind := len(migrations(folder)) - applied; behind > 0 {
		return fault.New(fault.SchemaBehind, "The database is %d migration(s) behind.", behind)
	}
	return nil
}
