package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"agentd/server/fault"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// A Frozen is a database file as it was at one moment. While it is open, the log of the file is not truncated.
type Frozen struct {
	path   string
	folder string // of its migrations
	c      *conn  // in a read transaction

	Schema int   // how many migrations were applied
	Size   int64 // of the file's image, in bytes
}

const (
	freezePoll = 200 * time.Microsecond
	freezeMost = 50 * time.Millisecond  // how long it keeps the database from being written while it waits for the chain
	freezeRest = 300 * time.Millisecond // before it does that again: SQLite looks for a lock that was given back each 100 ms
	freezeWait = 30 * time.Second       // how long Freeze tries
)

// Freeze opens the database and, if chain is not empty, the file of the audit chain as of one moment, also beside the
// processes that hold them. Their writers pause between two commits, for at most 100 ms, while Freeze opens both and calls
// meanwhile. The caller closes each file.
func Freeze(ctx context.Context, main, chain string, meanwhile func() error) (files []*Frozen, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close() //nolint:errcheck // the first error is the one to report
			}
			files = nil
		}
	}()
	var locks []*conn
	defer func() {
		for _, c := range locks {
			err = errors.Join(err, c.close())
		}
	}()
	for _, f := range []*Frozen{{path: main, folder: mainSchema}, {path: chain, folder: chainSchema}} {
		if f.path == "" {
			continue
		}
		lock, err := f.open(ctx)
		if lock != nil {
			locks = append(locks, lock)
		}
		if f.c != nil {
			files = append(files, f)
		}
		if err != nil {
			return files, unusable(f.path, err)
		}
	}
	for end := time.Now().Add(freezeWait); ; {
		held, err := pause(locks, func() error {
			for _, f := range files {
				if err := f.freeze(); err != nil {
					return err
				}
			}
			return meanwhile()
		})
		if !busy(err) {
			return files, translate(err)
		}
		for _, f := range files {
			f.c.run("ROLLBACK") //nolint:errcheck // those that have not begun have nothing to roll back
		}
		if time.Now().After(end) {
			return files, fault.New(fault.StorageFailed, "The database was written without a pause for %v.", freezeWait).Because(err)
		}
		rest := freezePoll
		if held {
			rest = freezeRest
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return files, context.Cause(ctx)
		}
	}
}

// open makes the two connections of a file: one for its lock, and one for its image.
func (f *Frozen) open(ctx context.Context) (lock *conn, err error) {
	if f.path, err = place(f.path); err != nil {
		return nil, err
	}
	if err := cmp.Or(restoring(f.path), abandoned(f.path), alone(f.path)); err != nil {
		return nil, err
	}
	v := url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(0)", "trusted_schema(0)", "mmap_size(0)", "cache_size(-1000)"}}
	from, err := sqlite.NewConnector((&url.URL{Scheme: "file", OmitHost: true, Path: f.path, RawQuery: v.Encode()}).String())
	if err != nil {
		return nil, err
	}
	if lock, err = newConn(ctx, from); err == nil {
		f.c, err = newConn(ctx, from)
	}
	return lock, err
}

// pause calls fn while it has the write locks of all files. It gives up if it cannot have the first one at once, or a later
// one soon; held reports whether it had the first.
func pause(locks []*conn, fn func() error) (held bool, err error) {
	if err := locks[0].run("BEGIN IMMEDIATE"); err != nil {
		return false, err
	}
	defer locks[0].run("ROLLBACK") //nolint:errcheck // nothing was written
	end := time.Now().Add(freezeMost)
	for _, c := range locks[1:] {
		err := c.run("BEGIN IMMEDIATE")
		for ; busy(err) && time.Now().Before(end); err = c.run("BEGIN IMMEDIATE") {
			time.Sleep(freezePoll)
		}
		if err != nil {
			return true, err
		}
		defer c.run("ROLLBACK") //nolint:errcheck // nothing was written
	}
	return true, fn()
}

func busy(err error) bool {
	se, ok := errors.AsType[*sqlite.Error](err)
	return ok && se.Code()&0xff == sqlite3.SQLITE_BUSY
}

// freeze begins the read transaction, and looks what there is.
func (f *Frozen) freeze() (err error) {
	if err := f.c.run("BEGIN"); err != nil {
		return err
	}
	tx := &Tx{c: f.c}
	if f.Schema, err = compare(tx, f.folder); err != nil {
		return errors.Join(err, f.c.run("ROLLBACK"))
	}
	var pages, size int64
	err = tx.row("SELECT page_count, page_size FROM pragma_page_count, pragma_page_size").Scan(&pages, &size)
	f.Size = pages * size
	if err != nil {
		return errors.Join(err, f.c.run("ROLLBACK"))
	}
	return nil
}

// Write writes the image of the file, page by page.
func (f *Frozen) Write(ctx context.Context, w io.Writer) error {
	var size int64
	err := (&Tx{c: f.c}).collect(func(row scanner) error {
		var page []byte
		if err := row.Scan(&page); err != nil {
			return err
		}
		if size += int64(len(page)); size>>20 != (size-int64(len(page)))>>20 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := w.Write(page)
		return err
	}, "SELECT data FROM sqlite_dbpage")
	if err == nil && size != f.Size {
		err = Damaged(fmt.Errorf("the file %s has %d bytes of pages instead of %d", f.path, size, f.Size))
	}
	return err
}

// Close ends the use of the file.
func (f *Frozen) Close() error { return f.c.close() }
