// Package secret resolves references to secret values, keeps values in stores, and removes values from everything that is shown.
//
// [Parse] reads a reference such as env:NAME or file:path, and a [Resolver] resolves it. ref:KEY asks the active store,
// which [Activate] chooses. A [Redactor] knows every resolved value and removes it from logs and messages. An error
// names the reference, never the value.
package secret

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"agentd/server/fault"
)

// Variables of the environment that this package reads.
const (
	AllowLiterals = "AGENTD_ALLOW_LITERAL_SECRETS"  // 1 is one of the three conditions of literal:
	Environment   = "AGENTD_ENV"                    // production forbids literal:
	Passphrase    = "AGENTD_MASTER_PASSPHRASE"      // of encrypted files
	PassphraseAt  = "AGENTD_MASTER_PASSPHRASE_FILE" // or the file that holds it
)

// maxSize is how large a secret may be, in bytes.
const maxSize = 64 << 10

// Resolver resolves references. The zero value reads the process's environment and files relative to the working folder,
// and has no store. It is safe for concurrent use once its fields are set, and must not be copied.
type Resolver struct {
	Dir      string                            // the folder that relative files mean
	Lookup   func(name string) (string, bool)  // nil: os.LookupEnv
	Warn     func(message string, args ...any) // gets files that others may read; may be nil
	Store    Store                             // what ref: asks; nil: there is none
	Known    *Redactor                         // gets every value; may be nil
	Literals bool                              // allows literal:, together with the environment

	mu     sync.Mutex            // guards opened
	opened map[string]*fileStore // encrypted files by path and passphrase: each keeps its key, which is meant to be slow to derive
}

// Resolve returns the value behind a reference, which the caller owns. The error is a fault.
//
//	env:NAME              a variable; ?default=TEXT where it is not set
//	file:PATH             a file without white space at its end; ?encoding=base64 or hex; it warns when others may read
//	                      the file unless ?warnOnPermissions=0
//	encrypted-file:PATH#KEY  a value of an encrypted file; ?key=REF is where its passphrase is, which is otherwise that
//	                      of the environment; KEY may be a JSON pointer (RFC 6901)
//	ref:KEY               a value of the active store
//	literal:VALUE         the value itself, where that is allowed
func (r *Resolver) Resolve(text string) ([]byte, error) {
	value, err := r.known(r.resolve(text))
	return value, failure(err)
}

// known has the redactor know a value that there is.
func (r *Resolver) known(value []byte, err error) ([]byte, error) {
	if err == nil && r.Known != nil && !r.Known.Add(value) {
		err = fmt.Errorf("more than %d bytes of secrets would be known, too many to hide", maxKnown)
	}
	if err != nil {
		return nil, err
	}
	return value, nil
}

// resolve returns errors that are faults or clauses.
func (r *Resolver) resolve(text string) ([]byte, error) {
	ref, err := Parse(text)
	if err != nil {
		return nil, err
	}
	switch ref.Scheme {
	case "env":
		if value, ok := r.lookup(ref.Path); ok {
			return []byte(value), nil
		}
		if value, ok := ref.Query["default"]; ok {
			return []byte(value), nil
		}
		return nil, fmt.Errorf("the environment variable %s is not set", ref.Path)
	case "file":
		return r.file(ref.Path, ref.Query["encoding"], ref.Query["warnOnPermissions"] != "0")
	case "encrypted-file":
		return r.encrypted(ref)
	case "ref":
		return r.stored(ref.Path)
	}
	return r.literal(ref.Path)
}

func (r *Resolver) lookup(name string) (string, bool) {
	if r.Lookup == nil {
		return os.LookupEnv(name)
	}
	return r.Lookup(name)
}

func (r *Resolver) literal(value string) ([]byte, error) {
	flag, _ := r.lookup(AllowLiterals)
	where, _ := r.lookup(Environment)
	why := ""
	switch {
	case strings.EqualFold(where, "production"):
		why = Environment + " is production"
	case flag != "1":
		why = AllowLiterals + " is not 1"
	case !r.Literals:
		why = "this program does not allow it"
	default:
		return []byte(value), nil
	}
	return nil, failed(fault.LiteralForbidden, "a literal: reference is refused, because %s", why)
}

func (r *Resolver) stored(key string) ([]byte, error) {
	if r.Store == nil {
		return nil, fmt.Errorf("there is no active store of secrets for %s", key)
	}
	value, found, err := r.Store.Get(key)
	if err == nil && !found {
		err = failed(fault.ResolutionFailed, "the store %s has no value under %q", r.Store.Name(), key).
			Advise("Keep one with `agentd secrets set " + key + "`, in the store that the server will use.")
	}
	return value, err
}

// encrypted reads one value of an encrypted file.
func (r *Resolver) encrypted(ref Ref) ([]byte, error) {
	passphrase, err := r.key(ref)
	if err != nil {
		return nil, err
	}
	path, err := r.path(ref.Path)
	if err != nil {
		return nil, err
	}
	id := path + "\x00" + string(passphrase)
	r.mu.Lock()
	if r.opened == nil {
		r.opened = map[string]*fileStore{}
	}
	if r.opened[id] == nil {
		r.opened[id] = &fileStore{path: path, passphrase: passphrase}
	}
	file := r.opened[id]
	r.mu.Unlock()
	value, found, err := file.find(ref.Fragment)
	switch {
	case err != nil || found:
		return value, err
	case !exists(path):
		return nil, fmt.Errorf("there is no file %s", path)
	case ref.Fragment == "":
		return nil, errors.New("the reference names none of the file's values: write encrypted-file:path#KEY")
	}
	return nil, fmt.Errorf("the file %s has no value under %q", path, ref.Fragment)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// key is the passphrase of an encrypted file.
func (r *Resolver) key(ref Ref) ([]byte, error) {
	if where, given := ref.Query["key"]; given {
		value, err := r.resolve(where)
		if err == nil && len(value) == 0 {
			err = errors.New("the passphrase of the encrypted file is empty")
		}
		return r.known(value, err)
	}
	value, err := r.master()
	if err == nil && value == nil {
		err = failed(fault.ResolutionFailed, "there is no passphrase for encrypted files").
			Advise("Set " + Passphrase + " or " + PassphraseAt + ", or add ?key=REF to the reference.")
	}
	return value, err
}

// master is the passphrase that the environment names; nil when it names none.
func (r *Resolver) master() ([]byte, error) {
	if value, ok := r.lookup(Passphrase); ok && value != "" {
		return r.known([]byte(value), nil)
	}
	path, ok := r.lookup(PassphraseAt)
	if !ok || path == "" {
		return nil, nil
	}
	value, err := r.file(path, "", true)
	if err == nil && len(value) == 0 {
		err = fmt.Errorf("the file that %s names is empty", PassphraseAt)
	}
	return r.known(value, err)
}

// Files are the files that a reference is read from, also those that do not exist.
func (r *Resolver) Files(text string) (all []string) {
	ref, err := Parse(text)
	if err != nil || ref.Scheme != "file" && ref.Scheme != "encrypted-file" {
		return nil
	}
	if path, err := r.path(ref.Path); err == nil {
		all = append(all, path)
	}
	if key, ok := ref.Query["key"]; ok {
		all = append(all, r.Files(key)...)
	}
	return all
}
