package cli_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
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
		"sink": {"kind": "exec", "description": "asks first, never ends", "command": ["sleep", "600"], "sideEffect": "read-only", "approval": "always"}
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
	s := serveSkewed(t, dir, program, 0)
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
