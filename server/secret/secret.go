// Package secret turns references into values: env:NAME and file:PATH.
//
// A reference is scheme:path[?query]. The value is read when it is resolved, not before; what is wrong with it is told
// by the reference, never by the value.
package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// maxSize is how large a secret's file may be.
const maxSize = 64 << 10

// Resolver reads references. The zero value reads the process's environment and files relative to the working folder.
type Resolver struct {
	Dir    string                            // the folder that relative files mean
	Lookup func(name string) (string, bool)  // nil: os.LookupEnv
	Warn   func(message string, args ...any) // nil: nobody is told of files that others may read
}

// Resolve returns the value behind a reference. env:NAME takes ?default=TEXT for a variable that is not set; file:PATH
// takes ?encoding=base64 or hex, drops white space at its end, and warns of permissions unless ?warnOnPermissions=0.
func (r Resolver) Resolve(ref string) ([]byte, error) {
	scheme, rest, _ := strings.Cut(ref, ":")
	path, rawQuery, _ := strings.Cut(rest, "?")
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, errors.New("the reference's query is malformed")
	}
	switch strings.ToLower(scheme) {
	case "env":
		return r.env(path, query)
	case "file":
		return r.file(path, query)
	}
	return nil, errors.New("the reference has no scheme that this version supports")
}

func (r Resolver) env(name string, query url.Values) ([]byte, error) {
	lookup := r.Lookup
	if lookup == nil {
		lookup = os.LookupEnv
	}
	if v, ok := lookup(name); ok {
		return []byte(v), nil
	}
	if query.Has("default") {
		return []byte(query.Get("default")), nil
	}
	return nil, fmt.Errorf("the environment variable %s is not set", name)
}

func (r Resolver) file(path string, query url.Values) ([]byte, error) {
	path = strings.TrimPrefix(path, "//")
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, errors.New("there is no home folder")
		}
		path = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(r.Dir, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Mode().Perm()&0o077 != 0 && query.Get("warnOnPermissions") != "0" && r.Warn != nil {
		r.Warn("others may read a secret's file", "file", path, "mode", fi.Mode().Perm().String())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxSize {
		return nil, fmt.Errorf("the file %s is larger than %d bytes", path, maxSize)
	}
	b = bytes.TrimRight(b, " \t\r\n")
	switch enc := query.Get("encoding"); enc {
	case "", "utf8":
		return b, nil
	case "hex":
		return decoded(hex.DecodeString(string(b)))
	case "base64":
		return decoded(base64.StdEncoding.DecodeString(string(b)))
	default:
		return nil, fmt.Errorf("the encoding %q is not utf8, hex or base64", enc)
	}
}

// decoded keeps the decoder's error, which may quote the secret, to itself.
func decoded(b []byte, err error) ([]byte, error) {
	if err != nil {
		return nil, errors.New("the file does not have the encoding that the reference names")
	}
	return b, nil
}
