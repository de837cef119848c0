package store

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"agentd/server/fault"
)

// RestoreJournal is what the name of a database is followed by in that of the journal of a restore. While the journal is there,
// some of the files may be those of the backup and others not, and nobody can open the database.
const RestoreJournal = ".restore-journal"

// restoring refuses a database whose files are being exchanged.
func restoring(path string) error {
	journal := path + RestoreJournal
	if _, err := os.Lstat(journal); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fault.New(fault.RestoreIncomplete, "A restore was interrupted while it exchanged the files: %s exists.", journal)
}

// Claim takes the locks of a database file that need not exist, without opening it. The error is store-locked while another
// process holds it.
func Claim(path string, h Holder) (io.Closer, error) {
	real, err := place(path)
	if err != nil {
		return nil, unusable(path, err)
	}
	path = real
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, unusable(path, err)
	}
	l, err := acquire(path, h)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = l.hold(f)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, errors.Join(err, l.release())
	}
	return claim{l}, nil
}

type claim struct{ l *fileLock }

func (c claim) Close() error { return c.l.release() }
