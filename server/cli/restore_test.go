package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/server/audit"
	"agentd/server/backup"
	"agentd/store"
	"agentd/store/storetest"
)

const master = "AGENTD_MASTER_PASSPHRASE=the master"

// A parcel is what a backup holds.
type parcel struct {
	backup.Manifest
	members map[string]string
}

func unwrap(t *testing.T, text string) (p parcel) {
	t.Helper()
	p.members = map[string]string{}
	m, err := backup.Read(strings.NewReader(text), func(name string, _ int64, r io.Reader) error {
		b, err := io.ReadAll(r)
		p.members[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Manifest = *m
	return p
}

// wrap is the backup, with new sums.
func (p *parcel) wrap(t *testing.T) string {
	t.Helper()
	var sources []backup.Source
	for _, name := range backup.Names {
		if text, ok := p.members[name]; ok {
			sources = append(sources, backup.Source{Name: name, Size: int64(len(text)), Write: func(w io.Writer) error {
				_, err := io.WriteString(w, text)
				return err
			}})
		}
	}
	var b bytes.Buffer
	if err := backup.Write(&b, &p.Manifest, sources); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// change carries out statements in a member.
func (p *parcel) change(t *testing.T, name string, statements ...string) {
	t.Helper()
	path := write(t, filepath.Join(t.TempDir(), name), p.members[name])
	storetest.Behind(t, path, statements...)
	p.members[name] = read(t, path)
}

// contents are the files below a folder, with their modes.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		all[path] = fmt.Sprint(info.Mode()) + read(t, path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRestoreRefuses gives a restore what it must not take. Each refusal has its code and a hint, and leaves each file as it was.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	dir := audited(t)
	file := filepath.Join(dir, "a.tar")
	in := func(env string, args ...string) said {
		t.Helper()
		return spawn(t, dir, nil, []string{env}, args...).wait()
	}
	in(master, "secrets", "set", "api", "--value", "hush").want(t, 0, "", "")
	s := serve(t, dir)
	s.token = token(t, dir)
	for range 30 {
		s.call("GET", "/agents", "", nil)
	}
	in(master, "storage", "backup", "whole.tar").want(t, 0, "Wrote", "")
	whole := read(t, filepath.Join(dir, "whole.tar"))
	write(t, file, whole)
	in(master, "storage", "restore", "a.tar").want(t, 1, "", "store-locked").want(t, 1, "", "hint: Stop the server")
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	in(master, "storage", "verify").want(t, 0, "undamaged", "")

	// Where the parts of the file begin, in their order.
	starts, at := map[string]int{}, 0
	p := unwrap(t, whole)
	for _, name := range backup.Names {
		if starts[name] = at; len(p.members[name]) == 0 {
			t.Fatalf("the backup has no %s", name)
		}
		at += 512 + (len(p.members[name])+511)/512*512
	}
	manifest := at
	type attempt struct {
		text, code string
		spoil      func(p *parcel)
		files      map[string]string
		env        string
	}
	attempts := map[string]attempt{"a space alone": {code: "backup-invalid", text: " "}}
	spoiled := func(what, code string, spoil func(p *parcel)) { attempts[what] = attempt{code: code, spoil: spoil} }
	flipped := func(what string, at int) {
		b := []byte(whole)
		b[at] ^= 0x10
		attempts["a change of "+what] = attempt{code: "backup-invalid", text: string(b)}
	}
	for name, start := range starts {
		attempts["a cut before "+name] = attempt{code: "backup-invalid", text: whole[:start]}
		attempts["a cut within "+name] = attempt{code: "backup-invalid", text: whole[:start+512+len(p.members[name])/2]}
		flipped("the first byte of "+name, start+512)
		flipped("the last byte of "+name, start+511+len(p.members[name]))
	}
	for field, at := range map[string]int{"name": 0, "mode": 100, "owner": 108, "size": 130, "time": 140, "sum": 150, "type": 156, "magic": 257, "rest": 500} {
		flipped("the "+field+" in a head", at)
	}
	flipped("the padding", starts[backup.Secrets]+512+len(p.members[backup.Secrets])+1)
	flipped("the manifest", manifest+512+30)
	flipped("the trailer", len(whole)-1000)
	attempts["a cut before the manifest"] = attempt{code: "backup-invalid", text: whole[:manifest]}
	attempts["a cut in the trailer"] = attempt{code: "backup-invalid", text: whole[:len(whole)-1]}
	attempts["something after it"] = attempt{code: "backup-invalid", text: whole + "x"}

	spoiled("a newer database", "schema-newer", func(p *parcel) {
		p.change(t, backup.Database, "INSERT INTO schema_migrations VALUES (999, 'later', 'x', 1)")
	})
	spoiled("a newer chain", "schema-newer", func(p *parcel) {
		p.change(t, backup.Chain, "INSERT INTO schema_migrations VALUES (999, 'later', 'x', 1)")
	})
	spoiled("a database of another program", "backup-invalid", func(p *parcel) { p.change(t, backup.Database, "CREATE TABLE more (a)") })
	spoiled("rows of nobody", "backup-invalid", func(p *parcel) {
		p.change(t, backup.Database, "INSERT INTO timers (run, due) VALUES (77, 1)")
	})
	spoiled("a page that is damaged", "backup-invalid", func(p *parcel) {
		b := []byte(p.members[backup.Database])
		copy(b[8192:], bytes.Repeat([]byte{0xff}, 4096))
		p.members[backup.Database] = string(b)
	})
	spoiled("what is no database", "backup-invalid", func(p *parcel) { p.members[backup.Database] = strings.Repeat("text", 2048) })
	spoiled("a broken chain", "backup-invalid", func(p *parcel) { p.change(t, backup.Chain, "UPDATE audit_log SET ts = ts + 1 WHERE seq = 3") })
	spoiled("a chain that was cut", "backup-invalid", func(p *parcel) { p.change(t, backup.Chain, "DELETE FROM audit_log WHERE seq > 5") })
	spoiled("no checkpoints", "checkpoints-missing", func(p *parcel) { delete(p.members, backup.Checkpoints) })
	spoiled("a manifest that names another key", "backup-invalid", func(p *parcel) { p.AuditKey = "sha256:00" })
	attempts["another passphrase"] = attempt{code: "audit-passphrase-wrong", files: map[string]string{"phrase": "another passphrase altogether\n"}}
	attempts["another pepper"] = attempt{code: "backup-other-pepper", files: map[string]string{"pepper": "ZYXWVUTSRQPONMLKJIHGFEDCBA987654"}}
	attempts["another passphrase of secrets"] = attempt{code: "resolution-failed", env: "AGENTD_MASTER_PASSPHRASE=another one"}
	attempts["no passphrase of secrets"] = attempt{code: "resolution-failed", env: "NONE="}

	// A disk without room: no file may become longer than 200 blocks.
	cramped := func(want string, args ...string) {
		t.Helper()
		before := contents(t, dir)
		c := command(t, dir, append([]string{"storage"}, args...)...)
		c.cmd.Path, c.cmd.Args = "/bin/sh", append([]string{"sh", "-c", `ulimit -f 200; exec "$0" "$@"`, binary}, c.cmd.Args[1:]...)
		c.start().wait().want(t, 1, "", "storage-failed: "+want).want(t, 1, "", "hint: Check free space")
		if args[0] == "restore" && !maps.Equal(before, contents(t, dir)) {
			t.Error("a restore without room changed files")
		}
		if left, err := filepath.Glob(filepath.Join(dir, ".agentd-backup-*")); err != nil || len(left) > 0 {
			t.Errorf("%v is left, %v", left, err)
		}
	}
	cramped("The backup could not be unpacked", "restore", "whole.tar")
	cramped("The backup could not be written", "backup", "b.tar")

	for what, a := range attempts {
		restore := map[string]string{file: whole}
		for name, text := range a.files {
			path := filepath.Join(dir, name)
			restore[path] = read(t, path)
			write(t, path, text)
		}
		if a.spoil != nil {
			p := unwrap(t, whole)
			a.spoil(&p)
			a.text = p.wrap(t)
		}
		if a.files == nil && a.env == "" {
			write(t, file, a.text)
		}
		if a.env == "" {
			a.env = master
		}
		before := contents(t, dir)
		if got := in(a.env, "storage", "restore", "a.tar"); got.code != 1 || !strings.Contains(got.stderr, a.code) || !strings.Contains(got.stderr, "hint: ") {
			t.Errorf("storage restore with %s = %d, want 1 and %s with a hint\n%s%s", what, got.code, a.code, got.stdout, got.stderr)
		}
		if after := contents(t, dir); !maps.Equal(before, after) {
			t.Errorf("storage restore with %s changed files", what)
		}
		for path, text := range restore {
			write(t, path, text)
		}
	}
	in(master, "storage", "restore", "a.tar").want(t, 0, "Restored", "")
	in(master, "storage", "verify").want(t, 0, "undamaged", "")
	in(master, "secrets", "get", "api", "--reveal").want(t, 0, "hush", "")
}

// TestRestoreOlder restores the files of earlier versions, which have fewer tables.
func TestRestoreOlder(t *testing.T) {
	t.Parallel()
	fixtures, err := filepath.Glob("testdata/upgrade/*-stopped.tar.gz")
	if err != nil || len(fixtures) == 0 {
		t.Fatal("there are no fixtures", err)
	}
	for _, fixture := range fixtures {
		old, dir := t.TempDir(), t.TempDir()
		unpack(t, fixture, old)
		site, err := filepath.Glob("testdata/upgrade/site/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, folder := range []string{old, dir} {
			for _, path := range site {
				write(t, filepath.Join(folder, filepath.Base(path)), read(t, path))
			}
			write(t, filepath.Join(folder, "go"), "")
		}
		from := backup.Site{}
		for _, name := range backup.Names {
			from[name] = filepath.Join(old, name)
		}
		key, err := audit.ParseKey([]byte(spawn(t, old, nil, nil, "audit", "key").wait().want(t, 0, "", "").stdout))
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		m := backup.Manifest{AuditKey: audit.KeyOf(key).Fingerprint}
		if err := from.Create(t.Context(), &b, &m); err != nil || m.Schema == 0 || m.Schema >= store.SchemaVersion() {
			t.Fatalf("a backup of %s has schema %d, %v; want one before %d", fixture, m.Schema, err, store.SchemaVersion())
		}
		write(t, filepath.Join(dir, "a.tar"), b.String())
		in := func(args ...string) said { t.Helper(); return spawn(t, dir, nil, nil, args...).wait() }
		in("storage", "restore", "a.tar").want(t, 0, "Restored", "")
		in("storage", "verify").want(t, 0, "undamaged", "")
		in("storage", "status", "--json").want(t, 0, fmt.Sprintf(`"schema": %d`, store.SchemaVersion()), "")
		for line := range strings.Lines(read(t, filepath.Join(old, "facts"))) {
			if f := strings.Fields(line); f[0] == "run.completed" {
				in("runs", "show", f[1]).want(t, 0, "completed", "")
			}
		}
		s := serve(t, dir)
		s.signal(syscall.SIGTERM)
		s.wait().want(t, 0, "", "")
	}
}
