package cli_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentd/store"
	"agentd/store/storetest"
)

// TestBackupCommands makes a backup beside a server, and restores it in another folder and in the same one.
func TestBackupCommands(t *testing.T) {
	t.Parallel()
	dir := audited(t)
	admin := token(t, dir)
	s := serve(t, dir)
	s.token = admin
	in := func(dir string, args ...string) said {
		return spawn(t, dir, nil, nil, append([]string{"storage"}, args...)...).wait()
	}
	for range 20 {
		s.call("GET", "/agents", "", nil)
	}
	in(dir, "status", "--json").want(t, 0, `"walBytes"`, "")
	in(dir, "backup", "a.tar").want(t, 0, "Wrote", "")
	in(dir, "backup", "a.tar").want(t, 1, "", "exists")
	in(dir, "restore", "a.tar").want(t, 1, "", "store-locked")
	in(dir, "compact").want(t, 0, "audit.db is 0 bytes shorter", "")
	in(dir, "verify").want(t, 0, "undamaged", "")
	if info, err := os.Stat(filepath.Join(dir, "a.tar")); err != nil || info.Mode() != 0o600 {
		t.Fatalf("the backup: %v, %v; want mode 0600", info.Mode(), err)
	}
	if text := read(t, filepath.Join(dir, "a.tar")); strings.Contains(text, "correct horse") || strings.Contains(text, "0123456789abcdef0123456789ABCDEF") {
		t.Error("the backup holds a passphrase or the pepper")
	}

	// Another folder, with the same configuration and keys.
	other := audited(t)
	write(t, filepath.Join(other, "a.tar"), read(t, filepath.Join(dir, "a.tar")))
	in(other, "restore", "a.tar").want(t, 0, "Restored", "")
	in(other, "verify").want(t, 0, "undamaged", "")
	spawn(t, other, nil, nil, "audit", "verify").wait().want(t, 0, "whole", "")
	spawn(t, other, nil, nil, "audit", "list", "--action", "storage:restore").wait().want(t, 0, "storage:restore", "")
	spawn(t, other, nil, nil, "audit", "list", "--action", "storage:backup").wait().want(t, 0, "storage:backup", "")
	in(other, "compact").want(t, 0, "shorter", "")
	restored := serve(t, other)
	restored.token = admin
	if status := restored.call("GET", "/agents", "", nil); status != 200 {
		t.Errorf("a request with a token of the backup = %d, want 200", status)
	}

	// Other keys, and a file that was changed.
	for name, bad := range map[string]struct{ file, text, code string }{
		"another passphrase": {"phrase", "another passphrase altogether\n", "audit-passphrase-wrong"},
		"another pepper":     {"pepper", "ZYXWVUTSRQPONMLKJIHGFEDCBA987654", "backup-other-pepper"},
		"a changed backup":   {"a.tar", strings.Replace(read(t, filepath.Join(dir, "a.tar")), "schema_migrations", "schema_Migrations", 1), "backup-invalid"},
		"no backup":          {"a.tar", "hello", "backup-invalid"},
	} {
		empty := audited(t)
		write(t, filepath.Join(empty, "a.tar"), read(t, filepath.Join(dir, "a.tar")))
		write(t, filepath.Join(empty, bad.file), bad.text)
		in(empty, "restore", "a.tar").want(t, 1, "", bad.code)
		if left, _ := filepath.Glob(filepath.Join(empty, "*.db*")); strings.Contains(strings.ReplaceAll(strings.Join(left, " "), ".lock", ""), ".restore") {
			t.Errorf("%s: %v is left", name, left)
		}
	}
	changed := audited(t)
	write(t, filepath.Join(changed, "a.tar"), read(t, filepath.Join(dir, "a.tar")))
	write(t, filepath.Join(changed, "pepper"), "ZYXWVUTSRQPONMLKJIHGFEDCBA987654")
	in(changed, "restore", "--accept-new-pepper", "a.tar").want(t, 0, "Restored", "")

	// The same folder, in the midst of an exchange.
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	journal := fmt.Sprintf(`{"v":"agentd-restore/1","file":"a.tar","at":7,"moves":[{"to":%[1]q,"kept":%[2]q}]}`, filepath.Join(dir, "none.db-wal"), filepath.Join(dir, "none.db-wal.bak.7"))
	database := filepath.Join(dir, "data.db")
	write(t, database+store.RestoreJournal, journal)
	spawn(t, dir, nil, nil, "start", "--port", "0").wait().want(t, 1, "", "restore-incomplete")
	in(dir, "backup", "b.tar").want(t, 1, "", "restore-incomplete")
	in(dir, "restore", "a.tar").want(t, 0, "Finished", "")
	in(dir, "restore", "a.tar").want(t, 0, "Restored", "")
	if err := os.Rename(filepath.Join(dir, "audit.db.checkpoints"), filepath.Join(dir, "taken")); err != nil {
		t.Fatal(err)
	}
	in(dir, "verify").want(t, 1, "checkpoints-missing", "")
	if err := os.Rename(filepath.Join(dir, "taken"), filepath.Join(dir, "audit.db.checkpoints")); err != nil {
		t.Fatal(err)
	}
	if old, _ := filepath.Glob(database + ".bak.*"); len(old) != 1 {
		t.Errorf("the replaced databases are %v, want one", old)
	}
	spawn(t, dir, nil, nil, "audit", "verify").wait().want(t, 0, "whole", "")
}

// TestRestoreEndsRuns restores a backup with runs that move, wait in a queue, sleep and wait for an approval.
func TestRestoreEndsRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{
		"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
		"notify": [{"on": ["run.failed"], "url": "http://127.0.0.1:1/", "secretRefs": ["file:key"]}],
		"providers": {"p": {"kind": "scripted", "script": "script.json"}},
		"tools": {
			"slow": {"kind": "exec", "description": "takes long", "sideEffect": "read-only", "command": ["sh", "-c", "echo x >> calls; sleep 60"]},
			"gate": {"kind": "exec", "description": "asks first", "approval": "always", "command": ["sh", "-c", "echo done"]}
		},
		"agents": {
			"busy": {"kind": "llm", "provider": "p", "model": "busy", "tools": ["slow"]},
			"asks": {"kind": "llm", "provider": "p", "model": "asks", "tools": ["gate"]}
		},
		"workflows": {
			"soon": {"state": {}, "start": "nap", "nodes": {"nap": {"kind": "sleep", "forMs": 4000, "next": "end"}}},
			"late": {"state": {}, "start": "nap", "nodes": {"nap": {"kind": "sleep", "forMs": 3600000, "next": "end"}}}
		}
	}`)
	write(t, filepath.Join(dir, "key"), "whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	write(t, filepath.Join(dir, "script.json"), `{"turns": [
		{"when": {"model": "busy", "step": 0}, "toolCalls": [{"name": "slow", "args": {}}]},
		{"when": {"model": "asks", "step": 0}, "toolCalls": [{"name": "gate", "args": {}}]},
		{"text": "the end"}]}`)
	s := serve(t, dir)
	begin := func(path, body string) string {
		t.Helper()
		var started struct{ RunID string }
		if status := s.call("POST", path, body, &started); status >= 300 || started.RunID == "" {
			t.Fatalf("POST %s = %d, %+v", path, status, started)
		}
		return started.RunID
	}
	moving := begin("/agents/busy/stream", `{"input": "x", "sessionId": "one"}`)
	queued := begin("/agents/busy/stream", `{"input": "y", "sessionId": "one", "onBusy": "queue"}`)
	waiting := begin("/agents/asks/stream", `{"input": "z"}`)
	soon, late := begin("/workflows/soon/execute", `{}`), begin("/workflows/late/execute", `{}`)
	begun := time.Now()
	eventually(t, "the call that takes long", func() bool { _, err := os.Stat(filepath.Join(dir, "calls")); return err == nil })
	eventually(t, "the approval", func() bool { return s.status(waiting) == "awaiting_approval" })
	eventually(t, "the sleep", func() bool { return s.status(soon) == "suspended" && s.status(late) == "suspended" })
	spawn(t, dir, nil, nil, "storage", "backup", "a.tar").wait().want(t, 0, "Wrote", "")
	s.signal(syscall.SIGKILL)
	<-s.done
	time.Sleep(time.Until(begun.Add(6 * time.Second))) // the wall clock of other processes

	check := func(what string, want map[string]string) {
		t.Helper()
		for id, status := range want {
			if got := s.status(id); got != status {
				t.Errorf("%s, a run is %s, want %s", what, got, status)
			}
		}
	}
	spawn(t, dir, nil, nil, "storage", "restore", "a.tar").wait().want(t, 0, "3 run(s)", "")
	notified := spawn(t, dir, nil, nil, "notify", "list", "--json").wait().want(t, 0, "run.failed", "").stdout
	if strings.Count(notified, `"type": "run.failed"`) != 3 {
		t.Errorf("the notifications after a restore are %s, want one for each run that it ended", notified)
	}
	s = serve(t, dir)
	check("after a restore", map[string]string{moving: "failed", queued: "failed", soon: "failed", waiting: "awaiting_approval", late: "suspended"})
	for _, id := range []string{moving, queued, soon} {
		var state map[string]any
		if s.call("GET", "/runs/"+id+"/state", "", &state); !strings.Contains(fmt.Sprint(state), "code:restored") {
			t.Errorf("the state of a run that was ended = %v, want the error restored", state)
		}
	}
	if calls := read(t, filepath.Join(dir, "calls")); calls != "x\n" {
		t.Errorf("the tool was called %d times, want once", strings.Count(calls, "x"))
	}
	s.signal(syscall.SIGTERM)
	s.wait()

	spawn(t, dir, nil, nil, "storage", "restore", "--resume-runs", "a.tar").wait().want(t, 0, "0 run(s)", "")
	s = serve(t, dir)
	eventually(t, "what continues", func() bool { return s.status(moving) == "running" && s.status(soon) == "completed" })
	check("after a restore with --resume-runs", map[string]string{queued: "pending", waiting: "awaiting_approval", late: "suspended"})
}

// TestRestoreErasesAgain erases a session, a thread and a run after a backup, restores that over them, and then over its own result.
func TestRestoreErasesAgain(t *testing.T) {
	t.Parallel()
	dir := audited(t)
	write(t, filepath.Join(dir, "agentd.json"), strings.TrimSuffix(auditedConfig, "}")+`,
		"retention": {"runsDays": 1}, "workflows": {"w": {"state": {}, "start": "nap", "nodes": {"nap": {"kind": "sleep", "forMs": 3600000, "next": "end"}}}}}`)
	admin := token(t, dir)
	s := serve(t, dir)
	s.token = admin
	expect := func(method, path, body string, want int) {
		t.Helper()
		if got := s.call(method, path, body, nil); got != want {
			t.Errorf("%s %s = %d, want %d", method, path, got, want)
		}
	}
	for _, id := range []string{"gone", "kept"} {
		expect("POST", "/sessions", `{"sessionId": "`+id+`", "userId": "u", "agentId": "shout"}`, 201)
		expect("POST", "/agents/shout/run", `{"input": "`+id+`", "sessionId": "`+id+`"}`, 200)
		expect("POST", "/workflows/w/execute?wait=true", `{"threadId": "`+id+`"}`, 200)
	}
	var old, kept struct{ RunID string }
	s.call("POST", "/agents/shout/run", `{"input": "old"}`, &old)
	s.call("POST", "/agents/shout/run", `{"input": "kept"}`, &kept)
	spawn(t, dir, nil, nil, "storage", "backup", "a.tar").wait().want(t, 0, "Wrote", "")
	storetest.Behind(t, filepath.Join(dir, "data.db"), "UPDATE runs SET finished_at = 1 WHERE id = '"+old.RunID+"'")
	expect("POST", "/retention/run", "{}", 200)
	expect("GET", "/runs/"+old.RunID+"/state", "", 404)
	expect("DELETE", "/sessions/gone", "", 204)
	expect("DELETE", "/workflows/w/threads/gone", "", 204)
	s.signal(syscall.SIGKILL) // the entries of both may still wait in the database
	<-s.done
	for range 2 {
		spawn(t, dir, nil, nil, "storage", "restore", "a.tar").wait().want(t, 0, "3 session(s), thread(s) and run(s) that were erased after it were erased again. What", "")
		spawn(t, dir, nil, nil, "audit", "verify").wait().want(t, 0, "whole", "")
		time.Sleep(2 * time.Millisecond) // the names of what is replaced have the time
	}
	s = serve(t, dir)
	s.token = admin
	for path, status := range map[string]int{"/sessions/gone": 404, "/sessions/kept": 200, "/workflows/w/state?threadId=gone": 404, "/workflows/w/state?threadId=kept": 200,
		"/runs/" + old.RunID + "/state": 404, "/runs/" + kept.RunID + "/state": 200} {
		expect("GET", path, "", status)
	}
	s.signal(syscall.SIGTERM)
	s.wait()
	if err := os.Remove(filepath.Join(dir, "audit.db")); err != nil {
		t.Fatal(err)
	}
	spawn(t, dir, nil, nil, "storage", "restore", "a.tar").wait().want(t, 0, "may be back: There are not two audit chains", "")
}

// TestBackupUnderLoad makes a backup while clients start runs. It has every run that was acknowledged before.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	dir, other := newKillSite(t), newKillSite(t)
	s := serve(t, dir)
	var mu sync.Mutex // guards the ids that were acknowledged
	var acknowledged []string
	var stop atomic.Bool
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !stop.Load() {
				var started struct{ RunID string }
				if s.call("POST", "/agents/g/stream", `{"input": "x"}`, &started); started.RunID != "" {
					mu.Lock()
					acknowledged = append(acknowledged, started.RunID)
					mu.Unlock()
				}
			}
		})
	}
	defer clients.Wait()
	defer stop.Store(true)
	enough := func(n int) func() bool {
		return func() bool { mu.Lock(); defer mu.Unlock(); return len(acknowledged) >= n }
	}
	eventually(t, "the first runs", enough(20))
	mu.Lock()
	before := append([]string(nil), acknowledged...)
	mu.Unlock()
	spawn(t, dir, nil, nil, "storage", "backup", "a.tar").wait().want(t, 0, "Wrote", "")
	eventually(t, "runs after the backup", enough(len(before)+5))
	stop.Store(true)
	clients.Wait()
	write(t, filepath.Join(other, "a.tar"), read(t, filepath.Join(dir, "a.tar")))
	spawn(t, other, nil, nil, "storage", "restore", "a.tar").wait().want(t, 0, "Restored", "")
	spawn(t, other, nil, nil, "storage", "verify").wait().want(t, 0, "undamaged", "")
	copied := serve(t, other)
	for _, id := range before {
		if copied.status(id) == "" {
			t.Errorf("the run %s was acknowledged before the backup, and is missing there", id)
		}
	}
}

// TestStorageVerifyFindsDamage spoils the files of a server that was stopped, in one place each.
func TestStorageVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	whole := audited(t)
	s := serve(t, whole)
	s.token = token(t, whole)
	for range 30 {
		s.call("GET", "/agents", "", nil)
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	files := []string{"data.db", "audit.db", "audit.db.checkpoints"}
	for what, tc := range map[string]struct {
		spoil func(dir string)
		want  string // of stdout, or of stderr
	}{
		"nothing":            {func(string) {}, "audit.db is undamaged."},
		"a firing":           {sqlIn(t, "data.db", "INSERT INTO firings (trigger_n, id, slot, emitter, due, dues, at, origin, outcome, open, attempts) VALUES (9, 'f', 't:1', '', 1, 1, 1, 'schedule', 'missed', 0, 0)"), "DAMAGED: firings: it has rows of trigger 9"},
		"an entry":           {sqlIn(t, "audit.db", "UPDATE audit_log SET ts = ts + 1 WHERE seq = 3"), "DAMAGED: chain: it is broken at entry 3"},
		"the latest entries": {sqlIn(t, "audit.db", "DELETE FROM audit_log WHERE seq > 5"), "DAMAGED: chain: it is broken at entry"},
		"the chain":          {func(dir string) { os.Remove(filepath.Join(dir, "audit.db")) }, "DAMAGED: chain: it is missing"},
		"a checkpoint":       {func(dir string) { flip(t, filepath.Join(dir, "audit.db.checkpoints"), 100) }, "DAMAGED: chain: it is broken at entry 1 (bad-signature)"},
		"contents":           {sqlIn(t, "audit.db", "UPDATE audit_log SET sealed = zeroblob(length(sealed)) WHERE seq = 4"), "DAMAGED: chain: it is broken at entry 4"},
	} {
		dir := audited(t)
		for _, name := range files {
			write(t, filepath.Join(dir, name), read(t, filepath.Join(whole, name)))
		}
		tc.spoil(dir)
		code := 1
		if what == "nothing" {
			code = 0
		}
		got := spawn(t, dir, nil, nil, "storage", "verify").wait()
		if got.code != code || !strings.Contains(got.stdout+got.stderr, tc.want) {
			t.Errorf("storage verify after %s was spoiled = %d\n%s%s\nwant %d and %q", what, got.code, got.stdout, got.stderr, code, tc.want)
		}
	}
}

// sqlIn returns what carries out a statement in a database of a folder.
func sqlIn(t *testing.T, name, statement string) func(dir string) {
	return func(dir string) { storetest.Behind(t, filepath.Join(dir, name), statement) }
}

// flip changes a byte of a file; before 0: from its end.
func flip(t *testing.T, path string, at int) {
	t.Helper()
	b := []byte(read(t, path))
	if at < 0 {
		at += len(b)
	}
	b[at] ^= 1
	write(t, path, string(b))
}
