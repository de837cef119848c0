package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/ws/wstest"
)

// skewed is a server whose wall clock can be set.
type skewed struct {
	*listener
	skew  string // the file that tells how far the clock is ahead
	begun time.Time
	from  int // the last address that a request came from
}

// serveSkewed starts a server whose clock is ahead of the true time.
func serveSkewed(t *testing.T, dir, program string, ahead time.Duration) *skewed {
	t.Helper()
	s := &skewed{listener: &listener{ready: filepath.Join(t.TempDir(), "ready.json")}, skew: filepath.Join(t.TempDir(), "skew"), begun: time.Now()}
	s.process = command(t, dir, "start", "--port", "0", "--ready-file", s.ready)
	s.cmd.Path, s.cmd.Env = program, append(s.cmd.Env, "CLOCK_SKEW_FILE="+s.skew, "CLOCK_SKEW="+ahead.String())
	s.process.start()
	s.url = s.await(s.ready)
	return s
}

// set sets the clock so far ahead of the true time.
func (s *skewed) set(ahead time.Duration) {
	s.t.Helper()
	write(s.t, s.skew, ahead.String())
	s.signal(syscall.SIGUSR1)
	eventually(s.t, "the jump of the clock", func() bool { _, err := os.Stat(s.skew); return os.IsNotExist(err) })
	res := s.ask("", "GET", "/health", "")
	at, err := http.ParseTime(res.Header.Get("Date"))
	if off := time.Until(at) - ahead; err != nil || off.Abs() > 10*time.Second {
		s.t.Fatalf("the clock tells %v, %v; want %v ahead of the true time", at, err, ahead)
	}
}

// ask sends a request with a token and reads the answer; headers come in pairs. Each request comes from an address of its
// own, unless a header says otherwise.
func (s *skewed) ask(token, method, path, body string, header ...string) answered {
	s.t.Helper()
	s.from++
	header = append([]string{"X-Forwarded-For", fmt.Sprintf("10.1.%d.%d", s.from/256, s.from%256)}, header...)
	if token != "" {
		header = append(header, "Authorization", "Bearer "+token)
	}
	res := s.request(method, path, body, header...)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	s.sane(method+" "+path, res.Header, string(b))
	return answered{res, string(b)}
}

type answered struct {
	*http.Response
	body string
}

// code is the member error of the body.
func (a answered) code() string {
	var body struct{ Error string }
	json.Unmarshal([]byte(a.body), &body) //nolint:errcheck // then it has none
	return body.Error
}

var negative = regexp.MustCompile(`"[A-Za-z]*(Ms|Seconds|duration)": ?-`)

// sane checks that nothing that an answer tells takes less than no time, or longer than any limit that is set.
func (s *skewed) sane(what string, h http.Header, body string) {
	s.t.Helper()
	for _, name := range []string{"Retry-After", "X-RateLimit-Reset"} {
		if v := h.Get(name); v != "" {
			if n, err := strconv.Atoi(v); err != nil || n < 0 || n > 600 {
				s.t.Errorf("%s: %s is %s, want 0 to 600 seconds", what, name, v)
			}
		}
	}
	body = strings.ReplaceAll(body, `"stepSeconds":-`, `"stepSeconds":`) // by how much the clock was set
	if m := negative.FindString(body); m != "" {
		s.t.Errorf("%s tells %s…, want no negative time in %s", what, m, body)
	}
}

// run starts a run and returns its id, which must be above all before it.
func (s *skewed) run(agent, body string) string {
	s.t.Helper()
	res := s.ask(s.token, "POST", "/agents/"+agent+"/stream", body)
	var told struct{ RunID string }
	if err := json.Unmarshal([]byte(res.body), &told); err != nil || res.StatusCode != http.StatusAccepted {
		s.t.Fatalf("POST /agents/%s/stream = %d %s, want 202", agent, res.StatusCode, res.body)
	}
	return told.RunID
}

// clockState is a run's state, as far as it matters here.
type clockState struct {
	Status                 string
	StartedAt, CompletedAt int64
	Error                  struct{ Code string }
	PendingApprovals       []struct{ ToolCallID, RequestedAt, ExpiresAt string }
	State                  struct {
		Steps []struct {
			StartedAt, EndedAt string
			ToolCalls          []struct{ Outcome struct{ DurationMS int64 } }
		}
	}
}

func (s *skewed) state(runID string) (st clockState) {
	s.t.Helper()
	if err := json.Unmarshal([]byte(s.ask(s.token, "GET", "/runs/"+runID+"/state", "").body), &st); err != nil {
		s.t.Fatal(err)
	}
	return st
}

// becomes waits until a run has a status, and checks the times in its state.
func (s *skewed) becomes(runID, status string) (st clockState) {
	s.t.Helper()
	eventually(s.t, "the run "+status, func() bool { st = s.state(runID); return st.Status == status })
	if st.CompletedAt != 0 && st.CompletedAt < st.StartedAt {
		s.t.Errorf("the run %s lasts from %d to %d", runID, st.StartedAt, st.CompletedAt)
	}
	last := ""
	for i, step := range st.State.Steps {
		if step.StartedAt < last || step.EndedAt != "" && step.EndedAt < step.StartedAt {
			s.t.Errorf("step %d of run %s lasts from %s to %s, after one that ended at %s", i+1, runID, step.StartedAt, step.EndedAt, last)
		}
		last = step.EndedAt
		for _, c := range step.ToolCalls {
			if most := time.Since(s.begun).Milliseconds() + 1; c.Outcome.DurationMS < 0 || c.Outcome.DurationMS > most {
				s.t.Errorf("a call of run %s took %d ms, want 0 to %d", runID, c.Outcome.DurationMS, most)
			}
		}
	}
	return st
}

// approve grants what a run waits for. The code is that of the run's end if it fails.
func (s *skewed) approve(runID, code string) {
	s.t.Helper()
	pending := s.becomes(runID, "awaiting_approval").PendingApprovals
	body := fmt.Sprintf(`{"approvals": [{"toolCallId": %q, "granted": true}]}`, pending[0].ToolCallID)
	if res := s.ask(s.token, "POST", "/runs/"+runID+"/resume", body); res.code() != code {
		s.t.Fatalf("POST /runs/%s/resume = %d %s, want the error %q", runID, res.StatusCode, res.body, code)
	}
}

func (s *skewed) mint(expiresIn time.Duration) string {
	s.t.Helper()
	body := `{"scopes": ["admin:*"]}`
	if expiresIn != 0 {
		body = fmt.Sprintf(`{"scopes": ["admin:*"], "expiresInMs": %d}`, expiresIn.Milliseconds())
	}
	var minted struct{ Raw string }
	if err := json.Unmarshal([]byte(s.ask(s.token, "POST", "/tokens", body).body), &minted); err != nil || minted.Raw == "" {
		s.t.Fatalf("no token was made: %v", err)
	}
	return minted.Raw
}

func (s *skewed) ticket(token string) string {
	s.t.Helper()
	var issued struct{ Ticket string }
	if err := json.Unmarshal([]byte(s.ask(token, "POST", "/session/ws-ticket", "").body), &issued); err != nil || issued.Ticket == "" {
		s.t.Fatalf("no ticket was made: %v", err)
	}
	return issued.Ticket
}

// dial opens a socket with a ticket. The channel gets the error that ends it.
func (s *skewed) dial(ticket string) (*wstest.Conn, <-chan error) {
	s.t.Helper()
	conn, err := wstest.Dial(s.t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/ws", &wstest.DialOptions{Protocols: []string{"svc.protocol.v1", "ticket." + ticket}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(conn.CloseNow)
	ended := make(chan error, 1)
	go func() {
		for {
			if _, _, err := conn.Read(s.t.Context()); err != nil {
				ended <- err
				return
			}
		}
	}()
	return conn, ended
}

// cpu is the time that the process has computed for.
func (s *skewed) cpu() time.Duration { return processorTime(s.t, s.cmd.Process.Pid) }

// processorTime reads the fields utime and stime of /proc/PID/stat, in hundredths of a second.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, fmt.Sprintf("/proc/%d/stat", pid)), ") ")
	f := strings.Fields(rest)
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err1 != nil || err2 != nil {
		t.Fatalf("/proc/%d/stat: %v, %v", pid, err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
