// Package store keeps all durable data in one SQLite file: open, migrate, transact with group commit, one repository per aggregate.
//
// There is one write connection and a small pool of read connections. Writers hand closures to [DB.Update]; those
// that wait at the same moment are committed in one transaction, so they share one fsync:
//
//	Update(fn) --> queue --> one of the waiting callers leads: BEGIN; fn...; COMMIT --> every caller of the batch returns
//
// With durability "full", which is the default, a nil error from Update means that the change survives power loss.
//
// Rows of a run are keyed by one integer, run number << 24 | index, so that they lie together, need no second index
// and are deleted by range. A run has at most 2^24-1 events, messages, steps and calls. Rows of a thread are keyed alike, by
// the number of its first run: it has at most 2^24-1 steps, and as many tasks, in all its runs.
package store

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"agentd/server/fault"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Options say which file to open and how.
type Options struct {
	Path       string // the database file; its folder is made (0700) when it does not exist
	Durability string // "full" (default): a commit survives power loss; "normal": it survives a crash of the process
	ReadOnly   bool   // no lock, no migration: a schema that is behind is refused, Update fails
	Holder     Holder // what a second process reads about this one in the lock file
	Logger     *slog.Logger
	// Committed is told of each transaction that has written, or failed: how many closures shared it, and how long it took. It
	// must return soon. nil: nobody is.
	Committed func(closures int, took time.Duration, err error)

	// Beside is for a short-lived process that writes next to the one that holds the lock: it takes none itself,
	// migrates nothing, refuses a schema that is behind, and leaves the log to the holder. Its transactions and the
	// holder's wait for each other, at most 5 seconds, so they must be short.
	Beside bool

	schema string // the folder of its migrations; empty: mainSchema
}

const readers = 4

// DB is an open database. It is safe for concurrent use.
type DB struct {
	opts   Options
	lock   *fileLock
	writer writer
	pool   chan *conn // idle read connections
	watch  watch
	read   driver.Connector            // nil until it is needed
	write  driver.Connector            // likewise
	damage atomic.Pointer[fault.Error] // the first that was met; see Ping
}

// Open opens the file, takes its lock and brings it to this version's schema. Errors are start-up faults:
// store-locked, store-unusable, storage-corrupt, schema-newer, schema-behind, schema-changed, migration-failed,
// restore-incomplete.
func Open(ctx context.Context, opts Options) (*DB, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	path, err := place(opts.Path)
	if err != nil {
		return nil, unusable(opts.Path, err)
	}
	opts.Path = path
	opts.schema = cmp.Or(opts.schema, mainSchema)
	db := &DB{opts: opts, pool: make(chan *conn, readers)}
	if err := db.open(ctx); err != nil {
		db.Close()
		return nil, unusable(path, err)
	}
	return db, nil
}

func (db *DB) open(ctx context.Context) error {
	guest := db.opts.ReadOnly || db.opts.Beside // the file is somebody else's
	if err := cmp.Or(restoring(db.opts.Path), abandoned(db.opts.Path)); err != nil {
		return err
	}
	if !guest {
		if err := db.own(); err != nil {
			return err
		}
	}
	if err := alone(db.opts.Path); err != nil {
		return err
	}
	if !db.opts.ReadOnly {
		var err error
		if db.write, err = sqlite.NewConnector(db.dsn(false)); err != nil {
			return err
		}
		c, err := newConn(ctx, db.write)
		if err != nil {
			return err
		}
		db.writer.init(db, c)
	}
	if !guest {
		if err := migrate(db.writer.c, db.opts.schema, time.Now()); err != nil {
			return err
		}
	}
	var err error
	if db.read, err = sqlite.NewConnector(db.dsn(true)); err != nil {
		return err
	}
	for range readers {
		c, err := newConn(ctx, db.read)
		if err != nil {
			return err
		}
		db.pool <- c
	}
	if db.watch.c, err = newConn(ctx, db.read); err != nil {
		return err
	}
	return db.View(ctx, func(tx *Tx) error {
		if guest {
			if err := checkSchema(tx, db.opts.schema); err != nil {
				return err
			}
		}
		return db.checkObjects(tx)
	})
}

// own makes the folder and the file, and takes their locks.
func (db *DB) own() (err error) {
	path := db.opts.Path
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if db.lock, err = acquire(path, db.opts.Holder); err != nil {
		return err
	}
	// Made here, a new file is private from the first moment, and so are the files that SQLite puts beside it.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := db.lock.hold(f); err != nil {
		return err
	}
	return f.Chmod(0o600)
}

// unusable makes an error of opening the database a start-up fault.
func unusable(path string, err error) error {
	f, known := errors.AsType[*fault.Error](err)
	se, own := errors.AsType[*sqlite.Error](err)
	switch {
	case known && !(own && (f.Kind == fault.StorageCorrupt || f.Kind == fault.StorageFailed)):
		return err
	case own && damaged(se.Code()):
		return fault.New(fault.StorageCorrupt, "The database %s is damaged: %v.", path, se).Because(err)
	case own:
		err = se
	}
	f = fault.New(fault.StoreUnusable, "The database %s cannot be opened: %v.", path, err).Because(err)
	if full(err) {
		f.Advise("Make room on the file system of this file, then start again. Nothing was changed.")
	}
	return f
}

// full reports whether an error says that there is no room on the disk.
func full(err error) bool {
	if se, ok := errors.AsType[*sqlite.Error](err); ok {
		return se.Code()&0xff == sqlite3.SQLITE_FULL || se.Code() == sqlite3.SQLITE_IOERR_SHMSIZE
	}
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// dsn sets every pragma when a connection is made, so that no connection lacks one. The values and what they cost
// were measured: an inline checkpoint each 2000 pages keeps the log near 8 MiB.
func (db *DB) dsn(readOnly bool) string {
	v := url.Values{}
	pragma := func(p string) { v.Add("_pragma", p) }
	pragma("busy_timeout(5000)")
	pragma("foreign_keys(1)")
	pragma("temp_store(MEMORY)")
	pragma("trusted_schema(0)")
	pragma("cell_size_check(1)")
	if readOnly {
		pragma("cache_size(-4000)")
		pragma("query_only(1)")
		pragma("mmap_size(0)") // an error of the medium in a mapped page would be a signal that ends the process
		if db.opts.ReadOnly && frozen(db.opts.Path) {
			v.Set("immutable", "1") // SQLite would make files beside it, and cannot
		}
	} else {
		pragma("cache_size(-16000)")
		// It takes effect on a new file only, before the journal mode, which writes it. SQLite would commit it to any other file
		// each time, and so have the first start after a crash wait for a checkpoint.
		if info, err := os.Stat(db.opts.Path); err == nil && info.Size() == 0 {
			pragma("auto_vacuum(INCREMENTAL)")
		}
		pragma("journal_mode(WAL)")
		pragma("synchronous(" + map[bool]string{true: "NORMAL", false: "FULL"}[db.opts.Durability == "normal"] + ")")
		pragma("wal_autocheckpoint(2000)")
		pragma("journal_size_limit(16777216)")
		pragma("secure_delete(1)")
	}
	return (&url.URL{Scheme: "file", OmitHost: true, Path: db.opts.Path, RawQuery: v.Encode()}).String()
}

// frozen reports whether a database lies on a read-only medium, so that nobody changes it. One that has a log cannot be
// read there.
func frozen(path string) bool {
	const writable = 2 // W_OK of access(2)
	info, err := os.Stat(path + "-wal")
	return syscall.Access(filepath.Dir(path), writable) == syscall.EROFS && (err != nil || info.Size() == 0)
}

// Close ends the database: it waits for the batch in progress, refuses later ones, truncates the log and frees the
// lock. It may be called once more, to no effect.
func (db *DB) Close() error {
	var errs []error
	if db.write != nil {
		errs = append(errs, db.writer.close())
	}
	for range len(db.pool) {
		errs = append(errs, (<-db.pool).close())
	}
	errs = append(errs, db.watch.close())
	if db.lock != nil {
		errs = append(errs, db.lock.release())
		db.lock = nil
	}
	return errors.Join(errs...)
}

// Path is the absolute path of the database file, without symbolic links.
func (db *DB) Path() string { return db.opts.Path }

// WALSize is the size in bytes of the write-ahead log file, zero when there is none.
func (db *DB) WALSize() int64 {
	if fi, err := os.Stat(db.opts.Path + "-wal"); err == nil {
		return fi.Size()
	}
	return 0
}

// Free is how many bytes the file system of the database still has for this process.
func (db *DB) Free() (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(db.opts.Path), &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// Ping reports whether the database takes writes and shows them to readers, and whether its schema is the program's. It commits a
// number and reads it back; a process that does not hold the database only reads while its last commit has succeeded. Where
// that takes until ctx ends, as it does while another process holds SQLite's lock or the disk hangs, the error is that of the
// last commit, or [ErrSlow]. Once a read or a write has met damage, Ping reports that until the process ends: what was not
// read again may be damaged, too.
func (db *DB) Ping(ctx context.Context) error {
	if met := db.damage.Load(); met != nil {
		return met
	}
	last := db.writer.broken()
	guest := db.opts.ReadOnly || db.opts.Beside
	if guest && last == nil {
		return db.View(ctx, db.checkObjects)
	}
	tried := make(chan error, 1)
	go func() { // its owner is the writer: Close waits for who leads it
		tried <- db.tryOut(ctx, guest)
	}()
	select {
	case err := <-tried:
		if err == nil || ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	}
	return cmp.Or(last, ErrSlow)
}

// ErrSlow is what [DB.Ping] returns if nothing fails but a write takes longer than its caller waits.
var ErrSlow error = fault.New(fault.StorageFailed, "The database does not take a write in time: the disk is slow, or another process holds the database.")

// tryOut writes another number than the last one into the header of the file, which is the program's to use. The holder of
// the file also reads it back.
func (db *DB) tryOut(ctx context.Context, guest bool) error {
	const version = "PRAGMA user_version"
	other := map[bool]int64{true: 1, false: 0}
	var wrote int64
	err := db.Update(ctx, func(tx *Tx) error {
		err := tx.row(version).Scan(&wrote)
		if err == nil {
			wrote = other[wrote == 0]
			_, err = tx.exec(map[int64]string{0: version + " = 0", 1: version + " = 1"}[wrote])
		}
		return err
	})
	if err != nil || guest {
		return err
	}
	return db.View(ctx, func(tx *Tx) error {
		var read int64
		if err := tx.row(version).Scan(&read); err != nil {
			return err
		}
		if read != wrote {
			return fault.New(fault.StorageFailed, "The database does not show what was committed to it.")
		}
		return db.checkObjects(tx)
	})
}

// access is what a repository passes on to its callers of the database.
type access struct{ db *DB }

// Update is [DB.Update].
func (a access) Update(ctx context.Context, fn func(*Tx) error) error { return a.db.Update(ctx, fn) }

// UpdateSoon is [DB.UpdateSoon].
func (a access) UpdateSoon(ctx context.Context, fn func(*Tx) error) error {
	return a.db.UpdateSoon(ctx, fn)
}

// View is [DB.View].
func (a access) View(ctx context.Context, fn func(*Tx) error) error { return a.db.View(ctx, fn) }

// Snapshot is [DB.Snapshot].
func (a access) Snapshot(ctx context.Context, fn func(*Tx) error) error {
	return a.db.Snapshot(ctx, fn)
}

// View runs fn on a read connection, waiting for one until ctx is done. Each statement of fn sees the latest
// commit; statements do not share a snapshot. fn decodes nothing but what it reads: an error of decoding that it returns
// becomes storage-corrupt.
func (db *DB) View(ctx context.Context, fn func(*Tx) error) error {
	select {
	case c := <-db.pool:
		defer func() { db.pool <- c }()
		return db.met(translate(fn(&Tx{c: c, now: time.Now()})))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Snapshot is View with one snapshot for all statements of fn, which should be short: a snapshot keeps the log from
// being truncated.
func (db *DB) Snapshot(ctx context.Context, fn func(*Tx) error) error {
	return db.View(ctx, func(tx *Tx) error {
		if err := tx.c.run("BEGIN"); err != nil {
			return err
		}
		defer tx.c.run("COMMIT") //nolint:errcheck // a read transaction has nothing to lose
		return fn(tx)
	})
}

// ErrNotFound is returned when no row has the id asked for.
var ErrNotFound = errors.New("store: no such row")

// ErrConflict is returned when a compare-and-set found another version, or a unique id is taken.
var ErrConflict = errors.New("store: conflict")
