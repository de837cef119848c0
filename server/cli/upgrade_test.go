package cli_test

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// outputs are what the runs of the fixtures come to once everything that waits is granted, by their names in facts.
var outputs = map[string]string{
	"completed": "clerk: paid", "keyed": "clerk: paid", "recorded": "reader: look", "away": "lodge: hello", "back1": "lodge: hello", "back2": "hall: bye",
	"given": "lodge: pay", "held": "clerk: paid", "parked": "clerk: paid", "queued1": "reader: one", "queued2": "clerk: paid",
	"child": "desk: clerk: paid", "moved": "desk: clerk: paid", "asked": "asker: deployed", "pair": "pair: paid", "unknown": "wirer: wired",
	"under_tool": "waiter: waited", "under_queue": "reader: after", "under_child": "boss: waiter: waited",
	"under_lines": "lines: the other half", "under_wire": "wirer: wired",
}

// TestUpgrade opens the databases of earlier versions. Runs that ended stay as they are, those that wait continue when
// their calls are granted, and those that a kill interrupted continue by themselves.
func TestUpgrade(t *testing.T) {
	fixtures, err := filepath.Glob("testdata/upgrade/*.tar.gz")
	if err != nil || len(fixtures) == 0 {
		t.Fatal("there are no fixtures", err)
	}
	for _, path := range fixtures {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".tar.gz"), func(t *testing.T) {
			t.Parallel()
			upgrade(t, path)
		})
	}
}

func upgrade(t *testing.T, fixture string) {
	dir := t.TempDir()
	unpack(t, fixture, dir)
	site, err := filepath.Glob("testdata/upgrade/site/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range site {
		write(t, filepath.Join(dir, filepath.Base(path)), read(t, path))
	}
	write(t, filepath.Join(dir, "go"), "") // what programs wait for
	runs, ended, facts := map[string]string{}, map[string]string{}, map[string]string{}
	for line := range strings.Lines(read(t, filepath.Join(dir, "facts"))) {
		f := strings.Fields(line)
		name, isRun := strings.CutPrefix(f[0], "run.")
		if facts[f[0]] = f[1]; isRun {
			runs[name] = f[1]
			if f[2] == "completed" || f[2] == "failed" {
				ended[name] = f[2]
			}
		}
	}
	here := func(args ...string) said { t.Helper(); return spawn(t, dir, nil, nil, args...).wait() }
	if strings.Contains(fixture, "stopped") {
		here("audit", "verify").want(t, 0, "", "")
		here("migrate").want(t, 0, "", "")
	}

	s := serve(t, dir)
	s.token = facts["token.admin"]
	for name, status := range ended {
		if got := s.status(runs[name]); got != status {
			t.Errorf("run %s is %s, want %s as it was", name, got, status)
		}
	}
	s.grantAll(t, runs)
	for name, id := range runs {
		var got struct {
			Status string
			State  struct {
				Messages []struct{ Content any }
				Error    struct{ Code string }
			}
		}
		s.call("GET", "/runs/"+id+"/state", "", &got)
		status, code, last := "completed", "", ""
		if n := len(got.State.Messages); n > 0 {
			last = fmt.Sprint(got.State.Messages[n-1].Content)
		}
		switch name {
		case "failed":
			status, code = "failed", "content-filter"
		case "aborted":
			status, code = "aborted", "run-aborted"
		case "under_words":
			status, code = "failed", "server-restarted"
		}
		if want := outputs[name]; got.Status != status || got.State.Error.Code != code || !strings.HasPrefix(last, want) {
			t.Errorf("run %s is %s %q and ends with %q, want %s %q with %q", name, got.Status, got.State.Error.Code, last, status, code, want)
		}
	}
	// Each payment was made once; what may have happened and was granted again, twice.
	want := map[string]int{"unknown": 2, "under_wire": 2}
	for call, n := range effects(t, dir) {
		for name, id := range runs {
			if strings.HasPrefix(call, id) && n != max(want[name], 1) {
				t.Errorf("%s: the call %s was made %d times", name, call, n)
			}
		}
	}

	s.sameAnswer(t, "/agents/clerk/stream", `{"input":"go"}`, facts["key.run"], runs["keyed"])
	s.sameAnswer(t, "/sessions", `{"userId":"u","agentId":"clerk"}`, facts["key.session"], facts["session.keyed"])
	for name, status := range map[string]int{"minted": 200, "second": 200, "revoked": 401} {
		s.token = facts["token."+name]
		if got := s.call("GET", "/agents", "", nil); got != status {
			t.Errorf("GET /agents with the token %s = %d, want %d", name, got, status)
		}
	}
	s.token = facts["token.admin"]
	var answer struct{ Result struct{ Output string } }
	if s.call("POST", "/agents/hall/run", `{"input":"again","sessionId":"away"}`, &answer); answer.Result.Output != "lodge: again" {
		t.Errorf("the conversation that was given away is answered %q, want by lodge", answer.Result.Output)
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")

	here("audit", "verify").want(t, 0, "", "")
	here("storage", "verify").want(t, 0, "", "")
	here("audit", "export").want(t, 0, "tool:approval:granted", "")
	here("runs", "list").want(t, 0, runs["parked"], "")
	here("sessions", "list").want(t, 0, "away", "")
	here("sessions", "messages", "paid").want(t, 0, "Not today.", "")
	here("sessions", "export", "busy").want(t, 0, "reader: one", "")
	here("token", "list").want(t, 0, "minted", "")
	here("runs", "cassette", runs["recorded"], "-o", "run.jsonl").want(t, 0, "", "")
	here("replay", "run.jsonl").want(t, 0, "", "")
	write(t, filepath.Join(dir, "key.pem"), here("audit", "key").stdout)
	for _, name := range []string{"completed", "moved", "unknown"} {
		here("evidence", runs[name], "-o", name+".evidence").want(t, 0, "", "")
		here("evidence", "verify", name+".evidence", "--public-key", "key.pem").want(t, 0, "", "")
	}
}

// grantAll grants what waits until every run has ended.
func (s *listener) grantAll(t *testing.T, runs map[string]string) {
	t.Helper()
	open := maps.Clone(runs)
	eventually(t, "the end of every run", func() bool {
		for name, id := range open {
			var run struct {
				Status           string
				PendingApprovals []pendingCall
			}
			s.call("GET", "/runs/"+id+"/state", "", &run)
			for _, p := range run.PendingApprovals {
				path := ""
				if p.SubRunToolCallID != "" {
					path = fmt.Sprintf(`,"subRunToolCallId":%q`, p.SubRunToolCallID)
				}
				body := fmt.Sprintf(`{"approvals":[{"toolCallId":%q,"granted":true,"again":%v%s}]}`, p.ToolCallID, p.Reason == "outcome-unknown", path)
				var refused struct{ Error string }
				if status := s.call("POST", "/runs/"+id+"/resume", body, &refused); status != http.StatusOK {
					t.Fatalf("granting %+v of run %s = %d %s", p, name, status, refused.Error)
				}
			}
			if len(run.PendingApprovals) == 0 && !slices.Contains([]string{"pending", "running", "awaiting_approval"}, run.Status) {
				delete(open, name)
			}
		}
		return len(open) == 0
	})
}

// sameAnswer sends a request with a key again and wants the id of the first answer.
func (s *listener) sameAnswer(t *testing.T, path, body, key, id string) {
	t.Helper()
	res := s.request("POST", path, body, "Idempotency-Key", key)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(b), `"`+id+`"`) || res.Header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("POST %s with %s again = %d %s, %v, want %s replayed", path, key, res.StatusCode, b, err, id)
	}
}

// effects counts how often each call was made.
func effects(t *testing.T, dir string) map[string]int {
	made := map[string]int{}
	for line := range strings.Lines(read(t, filepath.Join(dir, "effects"))) {
		made[strings.Fields(line)[0]]++
	}
	return made
}

func unpack(t *testing.T, archive, dir string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, filepath.Base(h.Name)), string(b))
	}
}
