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
	watch  *conn  // outside of transactions

	Schema int   // how many migrations were applied
	Size   int64 // of the file's image, in bytes
}

const (
	freezePoll = 200 * time.Microsecond
	freezeWait = 30 * time.Second // how long Freeze tries
)

// Freeze opens the database and, if chain is not empty, the file of the audit chain as of one moment, also beside the
// processes that hold them. It takes no lock: it opens both, calls meanwhile, and does so again if somebody has committed to one
// of them in that time. All that was read is of the moment before the look at the first one. The caller closes each file.
func Freeze(ctx context.Context, main, chain string, meanwhile func() error) (files []*Frozen, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close() //nolint:errcheck // the first error is the one to report
			}
			files = nil
		}
	}()
	for _, f := range []*Frozen{{path: main, folder: mainSchema}, {path: chain, folder: chainSchema}} {
		if f.path == "" {
			continue
		}
		files = append(files, f)
		if err := f.open(ctx); err != nil {
			return files, unusable(f.path, err)
		}
	}
	for end := time.Now().Add(freezeWait); ; {
		still, err := together(files, meanwhile)
		if err != nil && !busy(err) {
			return files, translate(err)
		}
		if still {
			break
		}
		for _, f := range files {
			f.c.run("ROLLBACK") //nolint:errcheck // those that have not begun have nothing to roll back
		}
		if time.Now().After(end) {
			return files, fault.New(fault.StorageFailed, "The database was written without a pause for %v.", freezeWait).Because(err)
		}
		select {
		case <-time.After(freezePoll):
		case <-ctx.Done():
			return files, context.Cause(ctx)
		}
	}
	for _, f := range files {
		if err := f.measure(); err != nil {
			return files, translate(err)
		}
	}
	return files, nil
}

// together begins the read transactions and calls fn. It reports whether nobody has committed to any of the files in the meantime.
func together(files []*Frozen, fn func() error) (still bool, err error) {
	before := make([]int64, len(files))
	for i, f := range files {
		if before[i], err = f.version(); err != nil {
			return false, err
		}
	}
	for _, f := range files {
		if err := f.c.run("BEGIN"); err != nil {
			return false, err
		}
		// The transaction sees what was committed when its first statement begins.
		if f.Schema, err = compare(&Tx{c: f.c}, f.folder); err != nil {
			return false, err
		}
	}
	if err := fn(); err != nil {
		return false, err
	}
	for i, f := range files {
		if now, err := f.version(); now != before[i] || err != nil {
			return false, err
		}
	}
	return true, nil
}

// open makes the two connections of a file: one for its image, and one that sees what others commit.
func (f *Frozen) open(ctx context.Context) (err error) {
	if f.path, err = place(f.path); err != nil {
		return err
	}
	if err := cmp.Or(restoring(f.path), abandoned(f.path), alone(f.path)); err != nil {
		return err
	}
	v := url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(0)", "trusted_schema(0)", "mmap_size(0)", "cache_size(-1000)", "query_only(1)"}}
	from, err := sqlite.NewConnector((&url.URL{Scheme: "file", OmitHost: true, Path: f.path, RawQuery: v.Encode()}).String())
	if err != nil {
		return err
	}
	if f.c, err = newConn(ctx, from); err == nil {
		f.watch, err = newConn(ctx, from)
	}
	return err
}

// version is a number that is another one when another connection has committed.
func (f *Frozen) version() (n int64, err error) {
	err = (&Tx{c: f.watch}).row("PRAGMA data_version").Scan(&n)
	return n, err
}

func busy(err error) bool {
	se, ok := errors.AsType[*sqlite.Error](err)
	return ok && se.Code()&0xff == sqlite3.SQLITE_BUSY
}

// measure finds how long the image is.
func (f *Frozen) measure() error {
	var pages, size int64
	err := (&Tx{c: f.c}).row("SELECT page_count, page_size FROM pragma_page_count, pragma_page_size").Scan(&pages, &size)
	f.Size = pages * size
	return err
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
func (f *Frozen) Close() (err error) {
	for _, c := range []*conn{f.c, f.watch} {
		if c != nil {
			err = errors.Join(err, c.close())
		}
	}
	return err
}
