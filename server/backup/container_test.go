package backup_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"agentd/server/backup"
	"agentd/server/fault"
)

// written is a backup with members of these texts.
func written(t testing.TB, texts map[string]string) []byte {
	t.Helper()
	var sources []backup.Source
	for _, name := range backup.Names {
		if text, ok := texts[name]; ok {
			sources = append(sources, backup.Source{Name: name, Size: int64(len(text)), Write: func(w io.Writer) error {
				_, err := io.WriteString(w, text)
				return err
			}})
		}
	}
	var b bytes.Buffer
	if err := backup.Write(&b, &backup.Manifest{CreatedAt: time.Now().UnixMilli(), Version: "1.2.3", Schema: 4}, sources); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func members(b []byte) (*backup.Manifest, map[string]string, error) {
	got := map[string]string{}
	m, err := backup.Read(bytes.NewReader(b), func(name string, size int64, r io.Reader) error {
		text, err := io.ReadAll(r)
		got[name] = string(text)
		return err
	})
	return m, got, err
}

var some = map[string]string{backup.Database: strings.Repeat("page", 300), backup.Chain: "chain", backup.Checkpoints: "", backup.Secrets: "sealed"}

func TestReadReturnsWhatWasWritten(t *testing.T) {
	m, got, err := members(written(t, some))
	if err != nil || m.Version != "1.2.3" || m.Schema != 4 || len(m.Members) != len(some) {
		t.Fatalf("Read = %+v, %v", m, err)
	}
	for name, text := range some {
		if got[name] != text {
			t.Errorf("%s = %q, want %q", name, got[name], text)
		}
	}
}

// TestReadRefuses changes each byte of a backup that means something, and cuts it everywhere.
func TestReadRefuses(t *testing.T) {
	whole := written(t, some)
	for n := range whole {
		if _, _, err := members(whole[:n]); !fault.Is(err, fault.BackupInvalid) {
			t.Fatalf("Read of the first %d of %d bytes = %v, want backup-invalid", n, len(whole), err)
		}
	}
	if _, _, err := members(append(bytes.Clone(whole), 0)); !fault.Is(err, fault.BackupInvalid) {
		t.Errorf("Read of a backup that a byte follows = %v, want backup-invalid", err)
	}
	database, manifest := 512, bytes.Index(whole, []byte(`"sha256"`))
	for _, at := range []int{database, database + 1199, manifest + 12} {
		b := bytes.Clone(whole)
		b[at] ^= 1
		if _, _, err := members(b); !fault.Is(err, fault.BackupInvalid) {
			t.Errorf("Read of a backup whose byte %d was changed = %v, want backup-invalid", at, err)
		}
	}
	if _, _, err := members(written(t, map[string]string{backup.Chain: "chain"})); !fault.Is(err, fault.BackupInvalid) {
		t.Errorf("Read of a backup without a database = %v, want backup-invalid", err)
	}
}

// TestReadRefusesOtherArchives gives Read archives that no backup is.
func TestReadRefusesOtherArchives(t *testing.T) {
	for name, head := range map[string]tar.Header{
		"a path":         {Name: "../data.db", Typeflag: tar.TypeReg},
		"a link":         {Name: backup.Database, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		"PAX records":    {Name: backup.Database, Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"A.b": "c"}},
		"an unknown one": {Name: "agentd.json", Typeflag: tar.TypeReg},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := errors.Join(w.WriteHeader(&head), w.Close()); err != nil {
			t.Fatal(err)
		}
		if _, got, err := members(b.Bytes()); !fault.Is(err, fault.BackupInvalid) || len(got) > 0 {
			t.Errorf("Read of an archive with %s = %v, %v; want backup-invalid before anything is taken", name, got, err)
		}
	}
}

// TestReadReturnsErrors has the file and the place for its members fail.
func TestReadReturnsErrors(t *testing.T) {
	broken := errors.New("the disk answered with an error")
	b := written(t, some)
	if _, err := backup.Read(io.MultiReader(bytes.NewReader(b[:600]), failing{broken}), func(_ string, _ int64, r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	}); !errors.Is(err, broken) {
		t.Errorf("Read of a file that cannot be read = %v, want %v", err, broken)
	}
	if _, err := backup.Read(bytes.NewReader(b), func(string, int64, io.Reader) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("Read into what cannot be written = %v, want %v", err, broken)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// FuzzContainer: what Read accepts is written again as it was.
func FuzzContainer(f *testing.F) {
	f.Add(written(f, some))
	f.Add(written(f, map[string]string{backup.Database: "x"}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		taken := 0
		m, err := backup.Read(bytes.NewReader(b), func(name string, size int64, r io.Reader) error {
			n, err := io.Copy(io.Discard, r)
			taken += int(n)
			return err
		})
		if taken > len(b) {
			t.Fatalf("Read gave %d bytes of %d", taken, len(b))
		}
		if err != nil {
			if !fault.Is(err, fault.BackupInvalid) {
				t.Fatalf("Read = %v, want backup-invalid", err)
			}
			return
		}
		sum := 0
		for _, member := range m.Members {
			sum += int(member.Size)
		}
		if sum != taken {
			t.Errorf("the manifest names %d bytes, and %d were read", sum, taken)
		}
	})
}
