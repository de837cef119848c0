// Package backup keeps the storage of an instance in one file, and puts it back.
//
// The file is a tar archive of the members in [Names] that there are, in that order. The last one is the manifest, which has
// the size and the SHA-256 of each other. It holds no key, no pepper and no configuration. The sums find accidents; whoever
// can write the file can change both. The audit chain in it is protected by its own signatures.
package backup

import (
	"archive/tar"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"time"

	"agentd/server/fault"
)

// Names of the members.
const (
	Database    = "data.db"
	Chain       = "audit.db"
	Checkpoints = "audit.db.checkpoints"
	Secrets     = "secrets.kse"

	manifestName = "manifest.json"
)

// Names are the members that a backup can have, besides its manifest, in their order. The first is always there.
var Names = []string{Database, Chain, Checkpoints, Secrets}

const (
	label       = "agentd-backup/1"
	maxManifest = 64 << 10
	block       = 512 // of a tar archive
)

// Manifest describes a backup.
type Manifest struct {
	V         string   `json:"v"`
	CreatedAt int64    `json:"createdAt"` // in milliseconds since 1970
	Version   string   `json:"version"`   // of agentd
	Schema    int      `json:"schema"`    // of the database
	AuditKey  string   `json:"auditKey,omitempty"`
	Pepper    string   `json:"pepper,omitempty"` // see PepperPrint
	Members   []Member `json:"members"`
}

// Member describes a file in a backup.
type Member struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// PepperPrint is a fingerprint of a pepper, which has at least 32 bytes. It cannot be used in the place of the pepper.
func PepperPrint(pepper []byte) string {
	mac := hmac.New(sha256.New, pepper)
	io.WriteString(mac, "agentd backup: fingerprint of the pepper") //nolint:errcheck // a hash takes everything
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// A Source is a file that becomes a member.
type Source struct {
	Name  string
	Size  int64
	Write func(io.Writer) error // writes Size bytes
}

// Write writes a backup, with members in the order of Names. It completes the manifest.
func Write(w io.Writer, m *Manifest, sources []Source) error {
	archive := tar.NewWriter(w)
	m.V, m.Members = label, nil
	for _, s := range sources {
		sum := sha256.New()
		if err := begin(archive, m, s.Name, s.Size); err != nil {
			return err
		}
		if err := s.Write(io.MultiWriter(archive, sum)); err != nil {
			return err
		}
		m.Members = append(m.Members, Member{s.Name, s.Size, digest(sum)})
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = begin(archive, m, manifestName, int64(len(text)))
	}
	if err == nil {
		_, err = archive.Write(text)
	}
	return errors.Join(err, archive.Close())
}

// begin writes the head of a member. GNU is the format in which a head has one block, whatever the size.
func begin(archive *tar.Writer, m *Manifest, name string, size int64) error {
	head := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, Format: tar.FormatGNU, ModTime: time.Unix(m.CreatedAt/1000, 0)}
	return archive.WriteHeader(head)
}

// Read reads a backup to its end and gives each member to take, which reads all of it. The members are those that the
// manifest names only when Read returns no error. Errors other than backup-invalid are those of take and of the reader.
func Read(r io.Reader, take func(name string, size int64, r io.Reader) error) (*Manifest, error) {
	in := &counter{r: r}
	archive := tar.NewReader(in)
	var found []Member
	var m *Manifest
	want, next := int64(2*block), 0 // the archive ends with two blocks
	for m == nil {
		head, err := archive.Next()
		if err != nil {
			return nil, in.invalid("it ends before its manifest: %v", err)
		}
		i := slices.Index(Names, head.Name)
		switch {
		case head.Typeflag != tar.TypeReg || head.PAXRecords != nil || head.Size < 0:
			return nil, in.invalid("the member %.80q is not a plain file", head.Name)
		case head.Name == manifestName:
			if m, err = readManifest(archive, head.Size); err != nil {
				return nil, in.invalid("its manifest: %v", err)
			}
		case i < next:
			return nil, in.invalid("the member %.80q is unknown, or there twice, or not in its place", head.Name)
		default:
			sum := sha256.New()
			from := &counter{r: io.TeeReader(archive, sum)}
			if err := take(head.Name, head.Size, from); err != nil {
				if errors.Is(err, io.ErrUnexpectedEOF) {
					return nil, in.invalid("it ends within %s", head.Name)
				}
				return nil, err
			}
			if from.n != head.Size {
				return nil, in.invalid("it ends within %s", head.Name)
			}
			found, next = append(found, Member{head.Name, head.Size, digest(sum)}), i+1
		}
		want += block + (head.Size+block-1)/block*block
	}
	if _, err := archive.Next(); err != io.EOF {
		return nil, in.invalid("something follows its manifest")
	}
	if rest, err := io.Copy(io.Discard, io.LimitReader(in, 1)); err != nil || rest != 0 || in.n != want {
		return nil, in.invalid("it has %d bytes instead of %d", in.n, want)
	}
	if len(found) == 0 || found[0].Name != Database {
		return nil, in.invalid("it has no database")
	}
	if len(found) != len(m.Members) {
		return nil, in.invalid("it has %d members, and its manifest names %d", len(found), len(m.Members))
	}
	for i, f := range found {
		if f != m.Members[i] {
			return nil, in.invalid("%s differs from what the manifest says", f.Name)
		}
	}
	return m, nil
}

func readManifest(r io.Reader, size int64) (*Manifest, error) {
	if size > maxManifest {
		return nil, fmt.Errorf("it has more than %d bytes", maxManifest)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var m Manifest
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("text follows it")
	}
	if m.V != label {
		return nil, fmt.Errorf("it is %.40q, and this version reads %s", m.V, label)
	}
	return &m, nil
}

// A counter counts what is read, and keeps the error of the reader.
type counter struct {
	r   io.Reader
	n   int64
	err error
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	if c.n += int64(n); err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// invalid is the error of a file that is no backup, or that of the reader.
func (c *counter) invalid(format string, args ...any) error {
	if c.err != nil {
		return c.err
	}
	return fault.New(fault.BackupInvalid, "The file is not a whole backup: "+format+".", args...)
}

func digest(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }
