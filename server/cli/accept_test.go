package cli_test

import (
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/store/storetest"
)

// TestAcceptBrokenChain cuts the chain of a server. The next start knows, and says so until somebody accepts it.
func TestAcceptBrokenChain(t *testing.T) {
	t.Parallel()
	dir := audited(t)
	admin := token(t, dir)
	start := func() *listener {
		s := serve(t, dir)
		s.token = admin
		return s
	}
	stop := func(s *listener) {
		s.signal(syscall.SIGTERM)
		s.wait().want(t, 0, "", "")
	}
	run := func(args ...string) said {
		return spawn(t, dir, nil, nil, append([]string{"audit"}, args...)...).wait()
	}
	told := func(s *listener) (status int, whole string) {
		res := s.request("GET", "/metrics", "")
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "svc_audit_whole ") {
				whole = strings.TrimSpace(line)
			}
		}
		return s.call("GET", "/health", "", nil), whole
	}

	s := start()
	for range 10 {
		s.call("GET", "/agents", "", nil)
	}
	if status, whole := told(s); status != 200 || whole != "svc_audit_whole 1" {
		t.Errorf("health and metrics of a whole chain = %d, %s", status, whole)
	}
	stop(s)
	run("accept", "--reason", "Nothing.").want(t, 1, "", "audit-whole")
	storetest.Behind(t, filepath.Join(dir, "audit.db"), "DELETE FROM audit_log WHERE seq > 5")
	kept := read(t, filepath.Join(dir, "audit.db.checkpoints"))

	s = start()
	for range 30 {
		s.call("GET", "/agents", "", nil)
	}
	if status, whole := told(s); status != 503 || whole != "svc_audit_whole 0" {
		t.Errorf("health and metrics of a chain that was cut = %d, %s; want 503 and 0", status, whole)
	}
	run("accept", "--reason", "Too early.").want(t, 1, "", "Stop the server")
	stop(s)
	if read(t, filepath.Join(dir, "audit.db.checkpoints")) != kept {
		t.Error("a checkpoint of the chain that was cut was signed")
	}
	run("verify").want(t, 1, "BROKEN", "")
	run("accept").want(t, 2, "", "--reason is missing")
	run("accept", "--reason", "The disk failed on 3 May.").want(t, 0, "at entry 6 (truncated)", "")
	run("verify").want(t, 0, "The disk failed on 3 May.", "")
	run("verify", "--json").want(t, 0, `"accepted"`, "")
	run("list", "--action", "audit:accept").want(t, 0, "audit:accept", "")

	s = start()
	if status, whole := told(s); status != 200 || whole != "svc_audit_whole 1" {
		t.Errorf("health and metrics of an accepted chain = %d, %s; want 200 and 1", status, whole)
	}
	stop(s)
	run("verify").want(t, 0, "accepted", "")
}
