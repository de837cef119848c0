// Package secret turns references into values, keeps values in stores, and hides them wherever they show up later.
//
// A reference such as env:NAME or file:path is read by [Parse] and resolved by a [Resolver]. ref:KEY asks the active
// store, which [Activate] chooses. Every value that was resolved is known to a [Redactor], which takes it out of logs and
// messages. What is wrong with a reference is told by the reference, never by the value.
package secret

import (
	"fmt"
	"os"
	"strings"
	"sync"
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
	Warn     func(message string, args ...any) // nil: nobody is told of files that others may read
	Store    Store                             // what ref: asks; nil: there is none
	Known    *Redactor                         // is told every value; may be nil
	Literals bool                              // allows literal:, together with the environment

	mu     sync.Mutex         // guards opened
	opened map[string]*bundle // encrypted files by path and passphrase, since opening one is meant to be slow
}

// Resolve returns the value behind a reference, which the caller owns. The error is an [*Error].
//
//	env:NAME              a variable; ?default=TEXT where it is not set
//	file:PATH             a file without white space at its end; ?encoding=base64 or hex; it warns when others may read
//	                      the file unless ?warnOnPermissions=0
//	encrypted-file:PATH#KEY  a value of an encrypted file; ?key=REF is where its passphrase is, which is otherwise that
//	                      of the environment; KEY may be a JSON pointer (RFC 6901)
//	ref:KEY               a value of the active store
//	literal:VALUE         the value itself, where that is allowed
func (r *Resolver) Resolve(text string) ([]byte, error) {
	value, e := r.resolve(text)
	if e == nil {
		e = r.know(value)
	}
	if e != nil {
		return nil, e
	}
	return value, nil
}

// know tells the redactor of a value.
func (r *Resolver) know(value []byte) *Error {
	if r.Known == nil || r.Known.Add(value) {
		return nil
	}
	return unresolved(fmt.Sprintf("more than %d bytes of secrets would be known, too many to hide", maxKnown))
}

func (r *Resolver) resolve(text string) ([]byte, *Error) {
	ref, e := parse(text)
	if e != nil {
		return nil, e
	}
	switch ref.Scheme {
	case "env":
		if value, ok := r.lookup(ref.Path); ok {
			return []byte(value), nil
		}
		if value, ok := ref.Query["default"]; ok {
			return []byte(value), nil
		}
		return nil, unresolved("the environment variable " + ref.Path + " is not set")
	case "file":
		return r.file(ref.Path, ref.Query["encoding"], ref.Query["warnOnPermissions"] != "0")
	case "encrypted-file":
		return r.encrypted(ref)
	case "ref":
		return r.stored(ref.Path)
	case "literal":
		return r.literal(ref.Path)
	}
	return nil, ref.peer()
}

func (r *Resolver) lookup(name string) (string, bool) {
	if r.Lookup == nil {
		return os.LookupEnv(name)
	}
	return r.Lookup(name)
}

func (r *Resolver) literal(value string) ([]byte, *Error) {
	flag, set := r.lookup(AllowLiterals)
	where, _ := r.lookup(Environment)
	why := ""
	switch {
	case strings.EqualFold(where, "production"):
		why = Environment + " is production"
	case !set || flag != "1":
		why = AllowLiterals + " is not 1"
	case !r.Literals:
		why = "the program does not allow it"
	default:
		return []byte(value), nil
	}
	return nil, &Error{Kind: LiteralForbidden, Message: "a literal: reference is refused, because " + why}
}

func (r *Resolver) stored(key string) ([]byte, *Error) {
	if r.Store == nil {
		return nil, unresolved("there is no active store of secrets for " + key)
	}
	value, found, err := r.Store.Get(key)
	switch {
	case err != nil:
		return nil, failure(err)
	case !found:
		e := unresolved(fmt.Sprintf("the store %s has no value under %q", r.Store.Name(), key))
		e.Hint = "Keep one with `agentd secrets set " + key + "`, in the store that the server will use."
		return nil, e
	}
	return value, nil
}

// encrypted reads one value of an encrypted file.
func (r *Resolver) encrypted(ref Ref) ([]byte, *Error) {
	passphrase, e := r.key(ref)
	if e != nil {
		return nil, e
	}
	path, e := r.path(ref.Path)
	if e != nil {
		return nil, e
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	id := path + "\x00" + string(passphrase)
	b := r.opened[id]
	if b == nil {
		sealed, err := readSealed(path)
		if err != nil {
			return nil, failure(err)
		}
		if sealed == nil {
			return nil, unresolved("there is no file " + path)
		}
		if b, err = open(sealed, passphrase); err != nil {
			return nil, failure(fmt.Errorf("the file %s %w", path, err))
		}
		if r.opened == nil {
			r.opened = map[string]*bundle{}
		}
		r.opened[id] = b
	}
	value, found, err := b.find(ref.Fragment)
	switch {
	case err != nil:
		return nil, failure(err)
	case !found && ref.Fragment == "":
		return nil, unresolved("the reference names none of the file's values: write encrypted-file:path#KEY")
	case !found:
		return nil, unresolved(fmt.Sprintf("the file %s has no value under %q", path, ref.Fragment))
	}
	return value, nil
}

// key is the passphrase of an encrypted file.
func (r *Resolver) key(ref Ref) ([]byte, *Error) {
	if where, given := ref.Query["key"]; given {
		value, e := r.resolve(where)
		if e == nil && len(value) == 0 {
			e = unresolved("the passphrase of the encrypted file is empty")
		}
		if e == nil {
			e = r.know(value)
		}
		return value, e
	}
	value, e := r.master()
	if e == nil && value == nil {
		e = unresolved("there is no passphrase for encrypted files")
		e.Hint = "Set " + Passphrase + " or " + PassphraseAt + ", or add ?key=REF to the reference."
	}
	return value, e
}

// master is the passphrase that the environment names; nil when it names none.
func (r *Resolver) master() ([]byte, *Error) {
	if value, ok := r.lookup(Passphrase); ok && value != "" {
		return []byte(value), r.know([]byte(value))
	}
	path, ok := r.lookup(PassphraseAt)
	if !ok || path == "" {
		return nil, nil
	}
	value, e := r.file(path, "", true)
	if e == nil && len(value) == 0 {
		e = unresolved("the file that " + PassphraseAt + " names is empty")
	}
	if e == nil {
		e = r.know(value)
	}
	return value, e
}

// Files are the files that a reference is read from, also those that do not exist.
func (r *Resolver) Files(text string) (all []string) {
	ref, e := parse(text)
	if e != nil || ref.Scheme != "file" && ref.Scheme != "encrypted-file" {
		return nil
	}
	if path, e := r.path(ref.Path); e == nil {
		all = append(all, path)
	}
	if key, ok := ref.Query["key"]; ok {
		all = append(all, r.Files(key)...)
	}
	return all
}

// failure is err as an [*Error].
func failure(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	return unresolved(err.Error())
}
