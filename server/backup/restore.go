package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// A restore has three steps. A crash in the first leaves the instance as it was; from the second on, the instance cannot be
// started before the third has ended, which can be repeated:
//
//	Unpack: FILE --> data.db.restore ...        whoever restores checks these, and changes them
//	Exchange: the journal                       durable: data.db.restore-journal
//	Finish: data.db --> data.db.bak.TIME, data.db.restore --> data.db, ..., and the journal goes

const staged = ".restore"

// Staged is where Unpack puts the files.
func (s Site) Staged() Site {
	to := Site{}
	for name, path := range s {
		to[name] = path + staged
	}
	return to
}

// Unpack writes the members of a backup beside the files that they are to replace. On an error, Discard removes them.
func (s Site) Unpack(r io.Reader) (*Manifest, error) {
	if err := s.Discard(); err != nil {
		return nil, err
	}
	to := s.Staged()
	return Read(r, func(name string, size int64, r io.Reader) error {
		if err := os.MkdirAll(filepath.Dir(to[name]), 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(to[name], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err == nil {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	})
}

// beside are the files that SQLite and the store put beside a database, by what follows its name.
var beside = []string{"-wal", "-shm", ".lock"}

// Discard removes what Unpack, or an earlier process, has left. It must not be called after Exchange.
func (s Site) Discard() error {
	var errs []error
	for _, path := range s.Staged() {
		for _, suffix := range append([]string{""}, beside...) {
			if err := os.Remove(path + suffix); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Journal is what a restore does to the files.
type Journal struct {
	V     string `json:"v"`
	File  string `json:"file"` // the backup
	At    int64  `json:"at"`   // in milliseconds since 1970
	Moves []Move `json:"moves"`
	Changes
}

// Changes is what was changed in the database of a backup before it takes its place.
type Changes struct {
	Ended     int    `json:"ended"`               // runs that ended as restored
	Erased    int    `json:"erased"`              // sessions, threads and runs that were erased after the backup, and are again
	NotErased string `json:"notErased,omitempty"` // why some that were erased after the backup may be back
}

// A Move puts a file in the place of another, which is kept.
type Move struct {
	From string `json:"from,omitempty"` // empty: there is no new one
	To   string `json:"to"`
	Kept string `json:"kept"`
}

const journalLabel = "agentd-restore/1"

// Exchange writes the journal of a restore, after which Finish must be called until it succeeds. The staged files are closed
// and durable.
func (s Site) Exchange(file string, at time.Time, made Changes) error {
	j := Journal{V: journalLabel, File: file, At: at.UnixMilli(), Changes: made}
	add := func(from, to string) {
		j.Moves = append(j.Moves, Move{from, to, fmt.Sprintf("%s.bak.%d", to, j.At)})
	}
	// The logs go first: beside another database, SQLite would take them for its own.
	for _, name := range []string{Database, Chain} {
		for _, suffix := range []string{"-wal", "-shm"} {
			add("", s[name]+suffix)
		}
	}
	to := s.Staged()
	for _, name := range Names {
		switch {
		case exists(to[name]):
			add(to[name], s[name])
		case name != Secrets: // the secrets may be needed to open the rest
			add("", s[name])
		}
	}
	for _, name := range []string{Database, Chain} {
		if exists(to[name]) {
			if err := settle(to[name]); err != nil {
				return err
			}
		}
	}
	return j.write(s[Database])
}

// settle removes what is beside a staged database, which must be complete without it.
func settle(path string) error {
	if info, err := os.Stat(path + "-wal"); err == nil && info.Size() > 0 {
		return fmt.Errorf("the log of %s was not folded into it", path)
	}
	for _, suffix := range beside {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(store.Sync(path), store.Sync(filepath.Dir(path)))
}

// write writes the journal beside a database; the file has its name when it is durable.
func (j *Journal) write(database string) error {
	path := database + store.RestoreJournal
	text, err := json.MarshalIndent(j, "", "  ")
	if err == nil {
		err = os.WriteFile(path+".tmp", text, 0o600)
	}
	if err == nil {
		err = store.Sync(path + ".tmp")
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err == nil {
		err = store.Sync(filepath.Dir(path))
	}
	return err
}

// Finish exchanges the files as the journal says, and removes it. It returns nil without an error when there is none.
func (s Site) Finish() (*Journal, error) {
	path := s[Database] + store.RestoreJournal
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var j Journal
	if err == nil {
		err = json.Unmarshal(text, &j)
	}
	if err == nil && j.V != journalLabel {
		err = fmt.Errorf("it is %.40q, and this version reads %s", j.V, journalLabel)
	}
	if err == nil {
		err = j.write(s[Chain]) // those who open only the chain heed that
	}
	for _, m := range j.Moves {
		if err == nil {
			err = m.make()
		}
	}
	for _, name := range []string{Chain, Database} {
		if err == nil {
			err = os.Remove(s[name] + store.RestoreJournal)
		}
		if err == nil {
			err = store.Sync(filepath.Dir(s[name]))
		}
	}
	if err != nil {
		return nil, fault.New(fault.RestoreIncomplete, "The restore that %s describes cannot be finished: %v.", path, err).Because(err)
	}
	return &j, nil
}

// make makes a move, unless it was made.
func (m *Move) make() error {
	if m.From != "" && !exists(m.From) {
		return nil
	}
	if exists(m.To) && (m.From != "" || !exists(m.Kept)) {
		if exists(m.Kept) {
			return fmt.Errorf("both %s and %s exist", m.To, m.Kept)
		}
		if err := os.Rename(m.To, m.Kept); err != nil {
			return err
		}
	}
	if m.From != "" {
		// The old file must have its new name before the new one has the old.
		if err := errors.Join(store.Sync(filepath.Dir(m.To)), os.Rename(m.From, m.To)); err != nil {
			return err
		}
	}
	return store.Sync(filepath.Dir(m.To))
}
