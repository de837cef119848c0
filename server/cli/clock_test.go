package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/ws"
)

const clockSite = `{
	"auth": {"pepperRef": "file:pepper", "perIpFailureThreshold": 3, "perIpLockoutMs": 600000},
	"audit": {"enabled": true, "passphraseRef": "file:phrase", "checkpoint": {"intervalMs": 1000}},
	"storage": {"path": "data.db"},
	"server": {"trustProxy": true, "rateLimit": {"windowMs": 600000, "perIpRequests": 12}, "sse": {"keepAliveMs": 1000},
		"stream": {"replayBuffer": {"pruneIntervalSeconds": 1}}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {
		"look": {"kind": "exec", "description": "looks", "command": ["sh", "-c", "echo seen"], "sideEffect": "read-only"},
		"hold": {"kind": "exec", "description": "waits", "command": ["sh", "-c", "until [ -e \"$0\" ]; do sleep 0.1; done; echo held", "go"], "sideEffect": "read-only"},
		"pay": {"kind": "exec", "description": "asks first", "command": ["sh", "-c", "echo paid"], "approval": "always"},
		"lend": {"kind": "exec", "description": "asks first, for a while", "command": ["sh", "-c", "echo lent"], "approval": "always", "approvalTerms": {"expiresMs": 1800000}},
		"sink": {"kind": "exec", "description": "asks first, never ends", "command": ["sleep", "600"], "approval": "always"}
	},
	"agents": {
		"quick": {"kind": "llm", "provider": "p", "model": "m", "tools": ["look"]},
		"long": {"kind": "llm", "provider": "p", "model": "long", "tools": ["hold"]},
		"payer": {"kind": "llm", "provider": "p", "model": "payer", "tools": ["pay"]},
		"lender": {"kind": "llm", "provider": "p", "model": "lender", "tools": ["lend"]},
		"late": {"kind": "llm", "provider": "p", "model": "late", "tools": ["hold", "lend"]},
		"bounded": {"kind": "llm", "provider": "p", "model": "bounded", "tools": ["sink"], "budget": {"wallMs": 3000}},
		"slow": {"kind": "llm", "provider": "p", "model": "slow", "record": true}
	}
}`

const clockScript = `{"turns": [
	{"when": {"model": "slow"}, "text": "slow", "delayMs": 2000},
	{"when": {"model": "long", "step": 0}, "toolCalls": [{"name": "hold", "args": {}}]},
	{"when": {"model": "payer", "step": 0}, "toolCalls": [{"name": "pay", "args": {}}]},
	{"when": {"model": "lender", "step": 0}, "toolCalls": [{"name": "lend", "args": {}}]},
	{"when": {"model": "late", "step": 0}, "toolCalls": [{"name": "hold", "args": {}}]},
	{"when": {"model": "late", "step": 1}, "toolCalls": [{"name": "lend", "args": {}}]},
	{"when": {"model": "bounded", "step": 0}, "toolCalls": [{"name": "sink", "args": {}}]},
	{"when": {"model": "m", "step": 0}, "text": "I look.", "toolCalls": [{"name": "look", "args": {}}]},
	{"text": "Done."}]}`

// skewed is a server whose wall clock can be set.
type skewed struct {
	*listener
	skew  string // the file that tells how far the clock is ahead
	begun time.Time
	from  int // the last address that a request came from
}

func serveSkewed(t *testing.T, dir, program string) *skewed {
	t.Helper()
	s := &skewed{listener: &listener{ready: filepath.Join(t.TempDir(), "ready.json")}, skew: filepath.Join(t.TempDir(), "skew"), begun: time.Now()}
	s.process = command(t, dir, "start", "--port", "0", "--ready-file", s.ready)
	s.cmd.Path, s.cmd.Env = program, append(s.cmd.Env, "CLOCK_SKEW_FILE="+s.skew)
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
func (s *skewed) dial(ticket string) (*ws.Conn, <-chan error) {
	s.t.Helper()
	conn, err := ws.Dial(s.t.Context(), "ws"+strings.TrimPrefix(s.url, "http")+"/ws", &ws.DialOptions{Protocols: []string{"svc.protocol.v1", "ticket." + ticket}})
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

// TestClockJumps has the wall clock of a server jump while all that knows of time is under way: back and on by an hour, on
// by 400 days, and back to the true time. .ci/clock builds a program whose clock can be set, and runs this.
func TestClockJumps(t *testing.T) {
	program := os.Getenv("AGENTD_SKEWED")
	if program == "" {
		t.Skip("AGENTD_SKEWED names no program whose clock can be set; .ci/clock builds one")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"agentd.json": clockSite, "script.json": clockScript,
		"pepper": "0123456789abcdef0123456789ABCDEF", "phrase": "correct horse battery staple\n"} {
		write(t, filepath.Join(dir, name), text)
	}
	t.Chdir(dir)
	admin := adminToken(t)
	s := serveSkewed(t, dir, program)
	s.token = admin

	const hour = time.Hour
	brief, lasting := s.mint(hour/2), s.mint(0)
	tickets := map[time.Duration]string{}
	for _, at := range []time.Duration{-hour, hour, 400 * 24 * hour, 0} {
		tickets[at] = s.ticket(lasting)
	}
	briefTicket := s.ticket(brief)
	_, briefEnd := s.dial(s.ticket(brief))
	_, lastingEnd := s.dial(s.ticket(lasting))
	alive := func(name string, end <-chan error) {
		t.Helper()
		select {
		case err := <-end:
			t.Errorf("the socket of a token that %s has ended: %v", name, err)
		default:
		}
	}

	bearer := http.Header{"Authorization": {"Bearer " + lasting}, "X-Forwarded-For": {"10.2.0.1"}}
	socket := &watcher{t: t, name: "socket", header: bearer}
	stream := &watcher{t: t, name: "stream", header: bearer, sse: true}
	var watching sync.WaitGroup
	for _, c := range []*watcher{socket, stream} {
		c.watch("session:s/events", "/sessions/s/events")
		watching.Go(func() { c.connect(t.Context(), s.url, syscall.SIGTERM, nil) })
	}

	// What is under way when the clock jumps.
	long := s.run("long", `{}`)
	payers := map[time.Duration]string{}
	for at := range tickets {
		payers[at] = s.run("payer", `{}`)
	}
	lent, lapsed, bounded := s.run("lender", `{}`), s.run("lender", `{}`), s.run("bounded", `{}`)
	for _, id := range append(slices.Collect(maps.Values(payers)), lent, lapsed, bounded) {
		s.becomes(id, "awaiting_approval")
	}
	keyed := func() answered {
		return s.ask(admin, "POST", "/sessions", `{"userId": "u", "agentId": "quick"}`, "Idempotency-Key", "clock-session")
	}
	keyedRun := func() answered {
		return s.ask(admin, "POST", "/agents/quick/run", `{"input": "x"}`, "Idempotency-Key", "clock-run-1")
	}
	first, firstRun := keyed(), keyedRun()
	if first.StatusCode != 201 || firstRun.StatusCode != 200 {
		t.Fatalf("the requests with a key = %d %s and %d %s", first.StatusCode, first.body, firstRun.StatusCode, firstRun.body)
	}
	limited := func(want int) {
		t.Helper()
		if res := s.ask(admin, "GET", "/agents", "", "X-Forwarded-For", "10.3.0.1"); res.StatusCode != want {
			t.Errorf("GET /agents of an address with a limit = %d %s, want %d", res.StatusCode, res.body, want)
		}
	}
	fails := func(ip string, want string) {
		t.Helper()
		wrong := admin[:len(admin)-1] + string(admin[len(admin)-1]^1)
		if res := s.ask(wrong, "GET", "/agents", "", "X-Forwarded-For", ip); res.code() != want {
			t.Errorf("GET /agents with a wrong token = %d %s, want %s", res.StatusCode, res.body, want)
		}
	}
	for range 8 {
		limited(200)
	}
	for range 3 { // is locked out
		fails("10.4.0.1", "auth-invalid")
	}
	fails("10.5.0.1", "auth-invalid") // two more are needed
	fails("10.5.0.1", "auth-invalid")

	var ofSession []string
	everywhere := func(at time.Duration) {
		slow := s.run("slow", `{}`)
		s.set(at)
		before := s.cpu()
		<-time.After(time.Second)
		if used := s.cpu() - before; used > 500*time.Millisecond {
			t.Errorf("%v ahead: the process computed for %v within a second", at, used)
		}
		limited(200)
		fails("10.4.0.1", "auth-locked-out")
		alive("does not expire", lastingEnd)
		if res := s.ask(lasting, "GET", "/agents", ""); res.StatusCode != 200 {
			t.Errorf("%v ahead: a token that does not expire gets %d %s", at, res.StatusCode, res.body)
		}
		conn, end := s.dial(tickets[at])
		if err := conn.Write(t.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0","id":1,"method":"ping","params":{}}`)); err != nil {
			t.Errorf("%v ahead: a ticket of before opens a socket that fails with %v", at, err)
		}
		for _, again := range []struct{ got, want answered }{{keyed(), first}, {keyedRun(), firstRun}} {
			if again.got.Header.Get("Idempotency-Replayed") != "true" || again.got.body != again.want.body {
				t.Errorf("%v ahead: a request with a key = %d %s, want what it got first: %s", at, again.got.StatusCode, again.got.body, again.want.body)
			}
		}
		id := s.run("quick", `{"sessionId": "s", "onBusy": "queue"}`)
		if len(ofSession) > 0 && id <= ofSession[len(ofSession)-1] {
			t.Errorf("%v ahead: the run %s comes after %s, want its id above", at, id, ofSession[len(ofSession)-1])
		}
		ofSession = append(ofSession, id)
		s.becomes(id, "completed")
		s.approve(payers[at], "")
		s.becomes(payers[at], "completed")
		s.becomes(slow, "completed")
		for line := range strings.Lines(s.ask(admin, "GET", "/runs/"+slow+"/cassette", "").body) {
			var x struct{ DurationMS int64 }
			if err := json.Unmarshal([]byte(line), &x); err != nil || x.DurationMS > 60_000 {
				t.Errorf("%v ahead: a model call of two seconds is recorded as %s", at, line)
			}
		}
		var health struct {
			Status        string
			UptimeSeconds int64
		}
		res := s.ask("", "GET", "/health", "")
		if err := json.Unmarshal([]byte(res.body), &health); err != nil || health.Status == "failing" || health.UptimeSeconds > int64(time.Since(s.begun).Seconds()) {
			t.Errorf("%v ahead: health is %s after %v", at, res.body, time.Since(s.begun))
		}
		alive("does not expire", end)
	}

	everywhere(-hour)
	fails("10.5.0.1", "auth-invalid")
	fails("10.5.0.1", "auth-locked-out")
	alive("expires in half an hour", briefEnd)
	s.approve(bounded, "run-failed") // whose time is not longer for it
	if st := s.becomes(bounded, "failed"); st.Error.Code != "budget-exceeded" {
		t.Errorf("the run with a limit of 3 seconds failed with %q, want budget-exceeded", st.Error.Code)
	}
	s.approve(lent, "")
	s.becomes(lent, "completed")
	if st := s.state(lapsed); st.Status != "awaiting_approval" {
		t.Errorf("an hour back, the run that waits for half an hour is %s", st.Status)
	}

	everywhere(hour)
	select {
	case err := <-briefEnd:
		if ws.CodeOf(err) != 4002 {
			t.Errorf("the socket of an expired token ended with %v, want 4002", err)
		}
	case <-time.After(patience):
		t.Error("the socket of a token that has expired by the clock goes on")
	}
	if res := s.ask(brief, "GET", "/agents", ""); res.code() != "auth-expired" {
		t.Errorf("an expired token gets %d %s, want auth-expired", res.StatusCode, res.body)
	}
	if _, end := s.dial(briefTicket); ws.CodeOf(<-end) != 4002 {
		t.Errorf("a ticket of an expired token opens a socket")
	}
	s.becomes(lapsed, "completed") // its call is denied

	everywhere(400 * 24 * hour)
	far, late := s.run("lender", `{}`), s.run("late", `{}`)
	s.becomes(far, "awaiting_approval")

	everywhere(0)
	if res := s.ask(brief, "GET", "/agents", ""); res.StatusCode != 200 {
		t.Errorf("a token that has not expired gets %d %s", res.StatusCode, res.body)
	}
	limited(429)
	s.approve(far, "")
	s.becomes(far, "completed")
	write(t, filepath.Join(dir, "go"), "")
	s.becomes(long, "completed")
	soon := s.becomes(late, "awaiting_approval").PendingApprovals[0].ExpiresAt
	if at, err := time.Parse(time.RFC3339, soon); err != nil || time.Until(at) > hour {
		t.Errorf("an approval that is asked for now expires at %s, want in half an hour", soon)
	}

	for _, id := range ofSession { // all durable events are still there
		whole := &watcher{t: t, name: "late", header: bearer, sse: true}
		whole.watch("agent:quick/runs/"+id+"/events", "/runs/"+id+"/events")
		whole.connect(t.Context(), s.url, 0, nil)
	}
	eventually(t, "a chain whose entries are all under checkpoints", func() bool {
		return here(t, "audit", "verify").want(t, 0, "", "").code == 0
	})
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	watching.Wait()
	for _, c := range []*watcher{socket, stream} {
		if got := c.all[0].order; !slices.Equal(got, ofSession) || len(c.all[0].over) != len(ofSession) {
			t.Errorf("%s: saw the runs %v, of which %v ended, want %v", c.name, got, c.all[0].over, ofSession)
		}
	}
	here(t, "audit", "verify").want(t, 0, "", "")
}
