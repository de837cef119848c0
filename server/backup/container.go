// Package backup keeps the storage of an instance in one file, and puts it back.
//
// The file is a tar archive of the members in [Names] that there are, in that order. The last one is the manifest, which has
// the size and the SHA-256 of each other, and its own. It holds no key, no pepper and no configuration. Each byte of the file
// follows from the members and the manifest: Read refuses what Write would write in another way. The sums find accidents; whoever
// can write the file can change both. The audit chain in it is protected by its own signatures.
package backup

import (
	"archive/tar"
	"bufio"
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
	SHA256    string   `json:"sha256"` // of the manifest with this one empty
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
	buffered := bufio.NewWriterSize(w, long)
	archive := tar.NewWriter(buffered)
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
	text, err := m.seal()
	if err == nil {
		err = begin(archive, m, manifestName, int64(len(text)))
	}
	if err == nil {
		_, err = archive.Write(text)
	}
	return errors.Join(err, archive.Close(), buffered.Flush())
}

// seal sets the sum of a manifest, and returns its text.
func (m *Manifest) seal() ([]byte, error) {
	m.SHA256 = ""
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	m.SHA256 = fmt.Sprintf("%x", sha256.Sum256(text))
	return json.MarshalIndent(m, "", "  ")
}

// begin writes the head of a member. GNU is the format in which a head has one block, whatever the size.
func begin(archive *tar.Writer, m *Manifest, name string, size int64) error {
	head := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, Format: tar.FormatGNU, ModTime: time.Unix(m.CreatedAt/1000, 0)}
	return archive.WriteHeader(head)
}

// Read reads a backup to its end and gives each member to take, which reads all of it. The members are those that the
// manifest names only when Read returns no error. Errors other than backup-invalid are those of take and of the reader.
func Read(r io.Reader, take func(name string, size int64, r io.Reader) error) (*Manifest, error) {
	in := &input{r: r}
	m, err := in.read(take)
	if in.err != nil {
		return nil, in.err
	}
	if bad, ok := errors.AsType[defect](err); ok {
		return nil, fault.New(fault.BackupInvalid, "The file is not a whole backup: %s.", string(bad))
	}
	return m, err
}

// A defect is why a file is no backup.
type defect string

func (d defect) Error() string { return string(d) }

func defective(format string, args ...any) error { return defect(fmt.Sprintf(format, args...)) }

// An input reads a backup, and keeps the error of its reader.
type input struct {
	r    io.Reader
	err  error
	head Manifest // with the time that the first head has
}

func (in *input) Read(b []byte) (int, error) {
	n, err := in.r.Read(b)
	if err != nil && err != io.EOF {
		in.err = err
	}
	return n, err
}

func (in *input) read(take func(name string, size int64, r io.Reader) error) (*Manifest, error) {
	var found []Member
	for next := 0; ; {
		name, size, err := in.begin(len(found) == 0)
		if err != nil {
			return nil, err
		}
		if name == manifestName {
			return in.end(size, found)
		}
		i := slices.Index(Names, name)
		if i < next || len(found) == 0 && name != Database {
			return nil, defective("the member %.80q is unknown, or there twice, or not in its place", name)
		}
		sum, from := sha256.New(), &io.LimitedReader{R: in, N: size}
		if err := take(name, size, io.TeeReader(from, sum)); err != nil {
			return nil, err
		}
		if from.N != 0 {
			return nil, defective("it ends within %s", name)
		}
		if err := in.zero(padding(size)); err != nil {
			return nil, err
		}
		found, next = append(found, Member{name, size, digest(sum)}), i+1
	}
}

// begin reads the head of a member, which must be what the function begin writes.
func (in *input) begin(first bool) (name string, size int64, err error) {
	var got [block]byte
	if _, err := io.ReadFull(in, got[:]); err != nil {
		return "", 0, defective("it ends before its manifest")
	}
	head, err := tar.NewReader(bytes.NewReader(got[:])).Next()
	if err != nil {
		return "", 0, defective("it is not an archive: %v", err)
	}
	if first {
		in.head.CreatedAt = head.ModTime.Unix() * 1000
	}
	var want bytes.Buffer
	if err := begin(tar.NewWriter(&want), &in.head, head.Name, head.Size); err != nil || !bytes.Equal(want.Bytes(), got[:]) {
		return "", 0, defective("the member %.80q is not a plain file of a backup", head.Name)
	}
	return head.Name, head.Size, nil
}

// padding is how many bytes follow a member, so that the next one begins with a block.
func padding(size int64) int64 { return -size & (block - 1) }

// zero reads bytes that must be zero.
func (in *input) zero(n int64) error {
	b := make([]byte, n)
	if _, err := io.ReadFull(in, b); err != nil || bytes.ContainsFunc(b, func(r rune) bool { return r != 0 }) {
		return defective("a member is not followed by zeros")
	}
	return nil
}

// end reads the manifest and what follows it, and holds the manifest against the members that were found.
func (in *input) end(size int64, found []Member) (*Manifest, error) {
	if size > maxManifest {
		return nil, defective("its manifest has more than %d bytes", maxManifest)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		return nil, defective("it ends within its manifest")
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, defective("its manifest: %v", err)
	}
	if m.V != label {
		return nil, defective("its manifest is %.40q, and this version reads %s", m.V, label)
	}
	again, err := m.seal()
	if err != nil || !bytes.Equal(again, text) || m.CreatedAt/1000 != in.head.CreatedAt/1000 {
		return nil, defective("its manifest was changed")
	}
	if !slices.Equal(found, m.Members) {
		return nil, defective("its members differ from what the manifest says")
	}
	if err := in.zero(padding(size) + 2*block); err != nil {
		return nil, err
	}
	if n, _ := io.ReadFull(in, make([]byte, 1)); n != 0 {
		return nil, defective("something follows it")
	}
	return &m, nil
}

func digest(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }
