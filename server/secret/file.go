package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// path is the file that a reference names, as an absolute path or relative to the working folder.
func (r *Resolver) path(name string) (string, error) {
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", errors.New("there is no home folder")
		}
		name = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(r.Dir, name)
	}
	return name, nil
}

// file reads a secret's file, without white space at its end.
func (r *Resolver) file(name, encoding string, warn bool) ([]byte, error) {
	path, err := r.path(name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if fi.Mode().Perm()&0o077 != 0 && warn && r.Warn != nil {
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
	switch encoding {
	case "", "utf8":
		return b, nil
	case "hex":
		b, err = hex.DecodeString(string(b))
	case "base64":
		b, err = base64.StdEncoding.DecodeString(string(b))
	default:
		return nil, fmt.Errorf("the encoding %q is not utf8, hex or base64", encoding)
	}
	if err != nil { // it may quote the secret
		return nil, fmt.Errorf("the file %s does not have the encoding that the reference names", path)
	}
	return b, nil
}
