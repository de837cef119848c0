package secret

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"agentd/server/fault"
)

// A Store keeps secrets by key. Keys are those that [ValidKey] accepts. Errors are faults.
type Store interface {
	// Name is the kind of the store: encrypted-file or env.
	Name() string
	// Get returns a value, which the caller owns; found is false when there is none.
	Get(key string) (value []byte, found bool, err error)
	// Check is the error that Set or, with a nil value, Delete would have without touching anything.
	Check(key string, value []byte) error
	// Set keeps a value of at most 64 KiB of text. It has reached the disk when Set returns.
	Set(key string, value []byte) error
	// Delete forgets a value, and reports whether there was one.
	Delete(key string) (bool, error)
	// List returns what is kept, in the order of the keys.
	List() ([]Entry, error)
}

// An Entry describes a value of a store. Times are ISO-8601, and empty when they are not known.
type Entry struct {
	Key       string `json:"key"`
	CreatedAt string `json:"createdAt,omitempty"`
	UpdatedAt string `json:"updatedAt,omitempty"`
}

var validKey = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./-]{0,127}$`)

// ValidKey reports whether key can name a secret: 1 to 128 letters, digits and _ . / -, one of the first three kinds first.
func ValidKey(key string) bool { return validKey.MatchString(key) }

func checkKey(key string) error {
	if ValidKey(key) {
		return nil
	}
	return invalid("malformed-uri", "the key of a secret is 1 to 128 letters, digits and _ . / -, and begins with a letter, a digit or _")
}

// envStore reads variables of the environment. A key is the name of its variable in any case.
type envStore struct {
	lookup func(string) (string, bool)
}

func (envStore) Name() string { return "env" }

func (s envStore) Get(key string) ([]byte, bool, error) {
	if err := checkKey(key); err != nil {
		return nil, false, err
	}
	value, found := s.lookup(strings.ToUpper(key))
	return []byte(value), found, nil
}

func (s envStore) Check(string, []byte) error { return s.readOnly() }

func (s envStore) Set(string, []byte) error { return s.readOnly() }

func (s envStore) Delete(string) (bool, error) { return false, s.readOnly() }

// List is empty: which variables are secrets, nobody knows.
func (envStore) List() ([]Entry, error) { return []Entry{}, nil }

func (envStore) readOnly() error {
	return failed(fault.SecretAccessDenied, "the active store is the environment, which cannot be changed from here").
		Advise("Set " + Passphrase + " or " + PassphraseAt + ": then secrets are kept in an encrypted file.")
}

// fileStore is an encrypted file. Several processes may change it at a time.
type fileStore struct {
	path       string
	passphrase []byte

	mu   sync.Mutex // guards seen and what is in it
	seen *bundle    // the latest content that was read or written; nil: none
	raw  []byte     // the file that seen was read from
}

func (s *fileStore) Name() string { return "encrypted-file" }

func (s *fileStore) Get(key string) ([]byte, bool, error) {
	if err := checkKey(key); err != nil {
		return nil, false, err
	}
	value, found, err := s.find(key)
	return value, found, failure(err)
}

// find is bundle.find. Without a file there are no values.
func (s *fileStore) find(name string) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.read()
	if err != nil || b == nil {
		return nil, false, err
	}
	return b.find(name)
}

func (s *fileStore) List() ([]Entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []Entry{}
	b, err := s.read()
	if err != nil || b == nil {
		return all, failure(err)
	}
	for key := range b.values {
		all = append(all, Entry{key, b.meta[key].CreatedAt, b.meta[key].UpdatedAt})
	}
	slices.SortFunc(all, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return all, nil
}

func (s *fileStore) Check(key string, value []byte) error {
	switch err := checkKey(key); {
	case err != nil:
		return err
	case value == nil:
	case len(value) == 0:
		return failed(fault.ResolutionFailed, "the value is empty")
	case len(value) > maxSize:
		return failed(fault.ResolutionFailed, "the value is larger than %d bytes", maxSize)
	case !utf8.Valid(value):
		return failed(fault.ResolutionFailed, "the value is not UTF-8 text; encode it, with base64 for instance")
	}
	return nil
}

func (s *fileStore) Set(key string, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	if err := s.Check(key, value); err != nil {
		return err
	}
	return s.change(func(b *bundle) (bool, error) {
		return true, b.put(key, string(value), time.Now().UTC().Format("2006-01-02T15:04:05.000Z"))
	})
}

func (s *fileStore) Delete(key string) (bool, error) {
	if err := s.Check(key, nil); err != nil {
		return false, err
	}
	found := false
	err := s.change(func(b *bundle) (bool, error) {
		_, found = b.values[key]
		delete(b.values, key)
		delete(b.meta, key)
		return found, nil
	})
	return found && err == nil, err
}

// read returns the file's content; nil when there is no file. The caller holds s.mu.
func (s *fileStore) read() (*bundle, error) {
	raw, err := readSealed(s.path)
	switch {
	case err != nil || raw == nil:
		return nil, err
	case s.seen != nil && bytes.Equal(raw, s.raw):
		return s.seen, nil
	}
	b, err := open(raw, s.passphrase, s.seen)
	if err != nil {
		return nil, fmt.Errorf("the file %s %w", s.path, err)
	}
	s.seen, s.raw = b, raw
	return b, nil
}

// change reads, changes and replaces the file, alone among the processes that do.
func (s *fileStore) change(fn func(*bundle) (changed bool, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return failure(s.changeLocked(fn))
}

func (s *fileStore) changeLocked(fn func(*bundle) (bool, error)) error {
	path := s.path
	if target, err := filepath.EvalSymlinks(path); err == nil { // a link stays one, and all names of a file have one lock
		path = target
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which ends the lock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("locking %s: %w", lock.Name(), err)
	}
	b, err := s.read()
	if err != nil {
		return err
	}
	if b == nil {
		b = newBundle(s.passphrase)
	}
	// What fn did to it is not on disk yet, and may never be.
	s.seen, s.raw = nil, nil
	changed, err := fn(b)
	if err != nil || !changed {
		return err
	}
	sealed, err := b.seal()
	if err != nil {
		return fmt.Errorf("the file %s %w", s.path, err)
	}
	if err := replace(path, sealed); err != nil {
		return err
	}
	s.seen, s.raw = b, sealed
	return nil
}

// replace puts a file there whole, for its owner's eyes only: after a crash it is the old one or the new one.
func replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // with mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name()) //nolint:errcheck // the first error is the one to report
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
