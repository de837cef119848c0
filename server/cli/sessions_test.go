package cli_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSessions carries a session from one id to another by a file, here and through a server.
func TestSessions(t *testing.T) {
	t.Parallel()
	inside(t, func(t *testing.T, dir string) {
		do := func(stdin string, args ...string) said {
			t.Helper()
			return spawn(t, dir, strings.NewReader(stdin), nil, append([]string{"sessions"}, args...)...).wait()
		}
		spawn(t, dir, nil, nil, "run", "same", "hello\nthere", "--session", "s1", "--user", "ann").wait().want(t, 0, "hello", "")
		spawn(t, dir, nil, nil, "run", "same", "x", "--session", "s2", "--user", "bob").wait().want(t, 0, "", "")

		do("", "list").want(t, 0, "s1       ann   same", "").want(t, 0, "s2       bob   same", "")
		if s := do("", "list", "--user", "ann", "--agent", "same").want(t, 0, "s1", ""); strings.Contains(s.stdout, "s2") {
			t.Errorf("list --user ann = %s", s.stdout)
		}
		var list struct{ Sessions []struct{ ID, UserID string } }
		if do("", "list", "--json", "--agent", "none").want(t, 0, `"sessions": []`, "").decode(t, &list); len(list.Sessions) != 0 {
			t.Errorf("list --agent none = %v", list)
		}
		do("", "show", "s1").want(t, 0, "session:  s1\nuser:     ann\nagent:    same\n", "")
		do("", "show", "s1", "--json").want(t, 0, `"userId": "ann"`, "")
		do("", "messages", "s1").want(t, 0, "user ann\n  hello\n  there\n2  ", "").want(t, 0, "assistant same\n  hello\n", "")
		if s := do("", "messages", "s1", "--limit", "1").want(t, 0, "2  ", ""); strings.Contains(s.stdout, "1  ") {
			t.Errorf("messages --limit 1 = %s", s.stdout)
		}
		do("", "messages", "s1", "--json").want(t, 0, `"sequence": 2`, "")

		file := do("", "export", "s1").want(t, 0, `{"kind":"meta"`, "").stdout
		if n := strings.Count(file, "\n"); n != 6 || !strings.Contains(file, `"checksum":"sha256:`) {
			t.Errorf("export has %d lines, want 6, with a checksum:\n%s", n, file)
		}
		do("", "export", "s1", "-o", "s1.jsonl").want(t, 0, "Wrote session s1 to s1.jsonl (", "")
		write(t, filepath.Join(dir, "old"), "old")
		do("", "export", "s1", "-o", "old", "--json").want(t, 0, `"file": "old"`, "")
		times := regexp.MustCompile(`"(createdAt|writtenAtIso)":"[^"]*"`)
		for _, name := range []string{"s1.jsonl", "old"} {
			if got := read(t, filepath.Join(dir, name)); times.ReplaceAllString(got, "") != times.ReplaceAllString(file, "") {
				t.Errorf("%s = %s\nwant %s", name, got, file)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, "s1.jsonl")); err != nil || info.Mode() != 0o600 {
			t.Errorf("s1.jsonl: %v, %v; want mode 0600", info, err)
		}

		do("", "import", "s1.jsonl").want(t, 1, "", "agentd: session-exists: ").want(t, 1, "", "  hint: Give the session another id with --as.\n")
		do("", "import", "s1.jsonl", "--as", "s3").want(t, 0, "Created session s3 with 2 message(s) and 0 hand-off(s).\n", "")
		do(file, "import", "-", "--as", "s4", "--json").want(t, 0, `"warnings": []`, "")
		do(strings.Replace(file, "hello", "jello", 1), "import", "-", "--as", "s5").want(t, 1, "", "agentd: session-export-checksum-mismatch: ")
		do("{}", "import", "-").want(t, 1, "", "  - line.1: is not the meta record")
		do(strings.Replace(file, "\n", "\n"+`{"kind":"audit"}`+"\n", 1), "import", "-").want(t, 1, "", "recordCount")
		do("", "import", "absent").want(t, 1, "", "The file absent cannot be read: no such file")
		do("", "messages", "s3").want(t, 0, "assistant same\n  hello\n", "")
		if s := spawn(t, dir, nil, nil, "runs", "list").wait(); strings.Count(s.stdout, "\n") != 3 {
			t.Errorf("runs list shows more than the runs that were run:\n%s", s.stdout)
		}

		do("", "delete", "s1").want(t, 2, "", "--yes is missing")
		do("y\n", "delete", "s1", "--json").want(t, 2, `"error": "usage"`, "")
		do("", "delete", "s1", "--yes").want(t, 0, "Erased session s1.\n", "")
		do("", "delete", "s3", "--yes", "--json").want(t, 0, `"erased": true`, "")
		for _, args := range [][]string{{"show", "s1"}, {"messages", "s1"}, {"export", "s1"}, {"export", "s1", "-o", "new"}, {"delete", "s1", "--yes"}} {
			if s := do("", args...).want(t, 1, "", "agentd: session-not-found: ").want(t, 1, "", "`agentd sessions list`"); s.stdout != "" {
				t.Errorf("%s: stdout %q, want none", s.line, s.stdout)
			}
		}
		do("", "export", "s2", "-o", ".").want(t, 2, "", " is not a file")
		do("", "export", "s2", "-o", "none/x").want(t, 1, "", "The file none/x cannot be written: no such file")
		do("", "messages", "s2", "--limit", "0").want(t, 2, "", "want 1 to 1000")
		entries, err := filepath.Glob(filepath.Join(dir, ".agentd-export-*"))
		if _, absent := os.Stat(filepath.Join(dir, "new")); err != nil || len(entries) > 0 || absent == nil {
			t.Errorf("exports that failed left %v and new: %v", entries, absent)
		}
	})
}

// TestSlowInputHoldsNobodyUp imports what comes slowly. The store is not locked meanwhile: a server can be started, and
// what has come in the end is imported through it.
func TestSlowInputHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	home := newGatedSite(t)
	long := strings.Repeat("x", 300<<10) // a pipe does not hold as much, so whoever has written it has a reader
	spawn(t, home, strings.NewReader(long), nil, "run", "same", "--session", "s1").wait().want(t, 0, "", "")
	session := spawn(t, home, nil, nil, "sessions", "export", "s1").wait().want(t, 0, "", "").stdout
	spawn(t, home, strings.NewReader(long), nil, "run", "clerk").wait().want(t, 3, "", "")
	run := spawn(t, home, nil, nil, "runs", "show", waits(t, home)[0].RunID, "--json").wait().want(t, 0, "", "").stdout
	for what, file := range map[string]string{"sessions": session, "runs": run} {
		dir := newGatedSite(t)
		spawn(t, dir, nil, nil, "run", "same", "x").wait().want(t, 0, "x", "") // there is a database
		stdin, to, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close()
		p := spawn(t, dir, stdin, nil, what, "import", "-")
		stdin.Close()
		begun := len(file) / 2
		if _, err := io.WriteString(to, file[:begun]); err != nil {
			t.Fatal(err)
		}
		s := serve(t, dir)
		if _, err := io.WriteString(to, file[begun:]); err != nil {
			t.Errorf("%s import -: %v; want all read", what, err)
		}
		to.Close()
		p.wait().want(t, 0, map[string]string{"sessions": "Created session s1 with 2 message(s)", "runs": "which waits for approval"}[what], "")
		if n := len(s.runs()); what == "runs" && n != 2 {
			t.Errorf("the server lists %d runs, want the imported one, too", n)
		}
	}
}

func TestSessionsWithoutADatabase(t *testing.T) {
	t.Chdir(newGatedSite(t))
	here(t, "sessions", "list").want(t, 1, "", "Make the database with")
	here(t, "sessions", "import", "absent").want(t, 1, "", "cannot be read")
	here(t, "sessions", "import", ".").want(t, 1, "", "agentd: config-invalid: The file . cannot be read: is a directory.")
	if _, err := os.Stat("data/data.db"); err == nil {
		t.Error("a command that failed made a database")
	}
}

// An export or a cassette that a server breaks off is an error, and no file is made of it.
func TestExportThatBreaksOff(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch asked := r.Method + " " + r.URL.Path; asked {
		case "POST /v1/sessions/s/export", "GET /v1/runs/r/cassette":
		default:
			t.Error(asked)
		}
		if r.Header.Get("Accept") != "application/x-ndjson" {
			t.Errorf("%s with Accept %q", r.URL.Path, r.Header.Get("Accept"))
		}
		io.WriteString(w, `{"kind":"meta"}`+"\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer srv.Close()
	hold(t, srv.URL+"/v1")
	write(t, "old", "old")
	for _, args := range [][]string{{"sessions", "export", "s"}, {"runs", "cassette", "r"}} {
		here(t, args...).want(t, 1, `{"kind":"meta"}`, "agentd: server-unreachable: ").want(t, 1, "", "broke off")
		here(t, append(args, "-o", "f")...).want(t, 1, "", "broke off")
		if _, err := os.Stat("f"); err == nil {
			t.Errorf("%v that broke off made its file", args)
		}
		here(t, append(args, "-o", "old")...).want(t, 1, "", "broke off")
		if got := read(t, "old"); got != "old" {
			t.Errorf("%v that broke off left %q in its file", args, got)
		}
	}
	var doc struct{ Error string }
	s := here(t, "sessions", "export", "s", "-o", "f", "--json")
	if err := json.Unmarshal([]byte(s.stdout), &doc); err != nil || doc.Error != "server-unreachable" {
		t.Errorf("%s: %s, want the error as JSON", s.line, s.stdout)
	}
}
