package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"

	"agentd/server/fault"
)

// Holder is what a lock file says about the process that holds the database.
type Holder struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`           // "start" or another subcommand
	Address string `json:"address,omitempty"` // base URL of the server's API, once it listens
}

// fileLock is two advisory locks of the operating system: on a file beside the database, which names the holder, and on
// the database file itself, so that no other name of that file gets past. They end with the process, however that ends,
// so there are no stale locks.
type fileLock struct {
	f *os.File

	// data must stay open until SQLite has closed the file: closing any descriptor of a file takes away the POSIX locks
	// that the process has on it, and SQLite uses those.
	data *os.File
}

func acquire(path string, h Holder) (*fileLock, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(path+".lock", err)
	}
	err = lockSoon(f, func() bool {
		held, err := readHolder(f)
		return err == nil && gone(held.PID)
	})
	if err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, unusable(path+".lock", err)
		}
		who := "another process"
		if held, err := readHolder(f); err == nil {
			who = fmt.Sprintf("process %d (agentd %s)", held.PID, held.Command)
			if held.Address != "" {
				who += " at " + held.Address
			}
		}
		return nil, fault.New(fault.StoreLocked, "%s holds the database.", who)
	}
	l := &fileLock{f: f}
	if err := l.describe(h); err != nil {
		f.Close()
		return nil, unusable(path+".lock", err)
	}
	return l, nil
}

// hold locks the database file itself, which the caller has opened. The lock closes it.
func (l *fileLock) hold(data *os.File) error {
	l.data = data
	err := lockSoon(data, func() bool { return true }) // the lock does not say whose it is
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fault.New(fault.StoreLocked, "another process holds the database %s under another name of that file.", data.Name())
	}
	return err
}

// lockSoon locks a file. While orphaned reports that the process that holds the lock is gone, it waits for a moment.
func lockSoon(f *os.File, orphaned func() bool) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for end := time.Now().Add(inheritedFor); err == syscall.EWOULDBLOCK && time.Now().Before(end) && orphaned(); {
		time.Sleep(5 * time.Millisecond)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	return err
}

// inheritedFor is how long to wait for a lock whose holder is gone: a program that it was starting when it was killed has
// a copy of the descriptor until it executes.
const inheritedFor = time.Second

func gone(pid int) bool { return pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// place is the one name of a database file: absolute and without symbolic links, so that everybody finds the same lock and
// the same log beside it. The file and its folders need not exist.
func place(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	if _, found := os.Lstat(path); found == nil {
		return "", fmt.Errorf("%s is a symbolic link to something that does not exist: %w", path, err)
	}
	folder, err := place(filepath.Dir(path))
	return filepath.Join(folder, filepath.Base(path)), err
}

// alone refuses a file that has a second name: SQLite keeps a log beside each name, and so each would be another database.
func alone(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
		return fault.New(fault.StoreUnusable, "The database %s has %d names (hard links), and the log beside one of them is missing beside the others.", path, st.Nlink).
			Advise("Remove the other names, which `find / -xdev -samefile FILE` lists. Make copies with `cp`, not with links.")
	}
	return nil
}

func (l *fileLock) describe(h Holder) error {
	h.PID = os.Getpid()
	b, err := json.Marshal(h)
	if err == nil {
		err = l.f.Truncate(0)
	}
	if err == nil {
		_, err = l.f.WriteAt(append(b, '\n'), 0)
	}
	return err
}

func (l *fileLock) release() error {
	l.f.Truncate(0) //nolint:errcheck // what it says no longer holds; the lock itself is what counts
	var errs []error
	for _, f := range []*os.File{l.data, l.f} {
		if f == nil {
			continue
		}
		// Closing alone is not enough: a process that is being started has a copy of the descriptor until it executes.
		syscall.Flock(int(f.Fd()), syscall.LOCK_UN) //nolint:errcheck // then closing gives it back
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Announce writes h into the lock file, so that other processes find the server that holds the database.
func (db *DB) Announce(h Holder) error {
	if db.lock == nil {
		return nil
	}
	return db.lock.describe(h)
}

// FindHolder reports who holds the database at path; ok is false when nobody does.
func FindHolder(path string) (h Holder, ok bool) {
	path, err := place(path)
	if err != nil {
		return h, false
	}
	f, err := os.Open(path + ".lock")
	if err != nil {
		return h, false
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		return h, false // the lock is free; closing the file gives it back
	}
	h, err = readHolder(f)
	return h, err == nil
}

// readHolder reads what describe wrote, which has at most 4 KiB. The file is empty while a process opens the database.
func readHolder(f *os.File) (Holder, error) {
	var h Holder
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	if err == nil {
		err = json.Unmarshal(b, &h)
	}
	if err == nil && (h.PID < 1 || strings.ContainsFunc(h.Command+h.Address, unicode.IsControl)) {
		err = errors.New("it is not the content that a holder writes")
	}
	if err != nil {
		return Holder{}, err
	}
	return h, nil
}
