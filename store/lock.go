package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode"

	"agentd/server/fault"
)

// Holder is what a lock file tells about the process that holds the database.
type Holder struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`           // "start" or another subcommand
	Address string `json:"address,omitempty"` // base URL of the server's API, once it listens
}

// fileLock is an advisory lock of the operating system on a file beside the database. It ends with the process,
// however that ends, so there are no stale locks.
type fileLock struct{ f *os.File }

func acquire(path string, h Holder) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(path, err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	for end := time.Now().Add(inheritedFor); err == syscall.EWOULDBLOCK && time.Now().Before(end) && orphaned(f); {
		time.Sleep(5 * time.Millisecond)
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, unusable(path, err)
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
	l := &fileLock{f}
	return l, l.describe(h)
}

// inheritedFor is how long to wait for a lock whose holder is gone: a program that it was starting when it was killed has
// a copy of the descriptor until it executes.
const inheritedFor = time.Second

// orphaned reports whether the process that a lock file names is gone.
func orphaned(f *os.File) bool {
	h, err := readHolder(f)
	return err == nil && h.PID > 0 && errors.Is(syscall.Kill(h.PID, 0), syscall.ESRCH)
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
	// Closing alone is not enough: a process that is being started has a copy of the descriptor until it executes.
	syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN) //nolint:errcheck // then closing gives it back
	return l.f.Close()
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
		err = errors.New("it is not what a holder writes")
	}
	if err != nil {
		return Holder{}, err
	}
	return h, nil
}
