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
	return packed(t, &backup.Manifest{CreatedAt: time.Now().UnixMilli(), Version: "1.2.3", Schema: 4}, texts)
}

func packed(t testing.TB, m *backup.Manifest, texts map[string]string) []byte {
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
	if err := backup.Write(&b, m, sources); err != nil {
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

// TestReadRefuses changes each byte of a backup, and cuts it everywhere.
func TestReadRefuses(t *testing.T) {
	whole := written(t, some)
	refuses := func(b []byte, what string, args ...any) {
		t.Helper()
		if _, _, err := members(b); !fault.Is(err, fault.BackupInvalid) {
			t.Fatalf("Read of a backup "+what+" = %v, want backup-invalid", append(args, err)...)
		}
	}
	for n := range whole {
		refuses(whole[:n], "with the first %d bytes", n)
		for _, bit := range []byte{0x01, 0x20, 0x80} {
			b := bytes.Clone(whole)
			b[n] ^= bit
			refuses(b, "with byte %d changed by %#x", n, bit)
		}
	}
	refuses(append(bytes.Clone(whole), 0), "that a byte follows")
	refuses(append(bytes.Clone(whole), whole...), "that a backup follows")
	refuses(written(t, map[string]string{backup.Chain: "chain"}), "without a database")
}

// TestReadRefusesOtherArchives gives Read archives that no backup is.
func TestReadRefusesOtherArchives(t *testing.T) {
	for name, head := range map[string]tar.Header{
		"a path":           {Name: "../data.db", Typeflag: tar.TypeReg},
		"a link":           {Name: backup.Database, Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		"an owner":         {Name: backup.Database, Typeflag: tar.TypeReg, Uname: "root", Format: tar.FormatGNU},
		"a mode":           {Name: backup.Database, Typeflag: tar.TypeReg, Mode: 0o777, Format: tar.FormatGNU},
		"a long name":      {Name: strings.Repeat("n", 200), Typeflag: tar.TypeReg, Format: tar.FormatGNU},
		"a large manifest": {Name: "manifest.json", Typeflag: tar.TypeReg, Mode: 0o600, Size: 1 << 40, Format: tar.FormatGNU},
		"PAX records":      {Name: backup.Database, Typeflag: tar.TypeReg, Format: tar.FormatPAX, PAXRecords: map[string]string{"A.b": "c"}},
		"an unknown one":   {Name: "agentd.json", Typeflag: tar.TypeReg},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if err := w.WriteHeader(&head); err != nil {
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

// FuzzContainer: Write writes what Read accepts again, byte for byte.
func FuzzContainer(f *testing.F) {
	whole := written(f, some)
	f.Add(whole)
	f.Add(written(f, map[string]string{backup.Database: "x"}))
	f.Add(packed(f, &backup.Manifest{CreatedAt: -1, AuditKey: "k", Pepper: "<&>"}, map[string]string{backup.Database: "", backup.Secrets: strings.Repeat("s", 512)}))
	for _, n := range []int{0, 511, 512, 600, len(whole) - 1024, len(whole) - 1} { // in a head, a member, and before and within the end
		f.Add(whole[:n])
	}
	for _, at := range []int{0, 100, 124, 136, 148, 156, 257, 512, 512 + 1200, len(whole) - 1200, len(whole) - 1} { // each field of a head that Write sets, and what follows it
		b := bytes.Clone(whole)
		b[at] ^= 1
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, got, err := members(b)
		if err != nil {
			if !fault.Is(err, fault.BackupInvalid) {
				t.Fatalf("Read = %v, want backup-invalid", err)
			}
			return
		}
		if again := packed(t, m, got); !bytes.Equal(again, b) {
			t.Errorf("Write wrote what Read accepted as %q", again)
		}
	})
}
