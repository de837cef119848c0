package backup

import (
	"os"
	"syscall"
)

const throughDisk = 1 | 2 | 4 // SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER

// written waits until the disk has a part of a file. Unlike a sync, it does not commit the journal of the file system, for which
// the commits of others would wait.
func written(f *os.File, at, n int64) error {
	if syscall.SyncFileRange(int(f.Fd()), at, n, throughDisk) == nil {
		return nil
	}
	return f.Sync() // not every kernel and file system has the call
}
