package cli_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentd/store/storetest"
)

const (
	clockIntervals = 90 // triggers of each kind, 200 together
	clockCrons     = 90
	clockIdle      = 10
	clockEvents    = 10
)

var clockSteps = often(40, 9) // how often TestClockTriggers moves the clock

// clockTriggers declares the triggers by their ids, with all policies of catch-up and overlap.
func clockTriggers() map[string]string {
	all := map[string]string{}
	for i := range clockIntervals + clockCrons {
		policy := []string{`"catchupPolicy": "none"`, `"catchupPolicy": "last"`, `"catchupPolicy": "all", "maxCatchupRuns": 3`}[i%3]
		rest := fmt.Sprintf(`"agent": "writer", "overlap": %q, "jitterMs": %d, %s}`, []string{"allow", "skip", "queue"}[i/3%3], i*5, policy)
		if i < clockIntervals {
			all[fmt.Sprintf("i%02d", i)] = `{"kind": "interval", "everyMs": 1000, ` + rest
		} else {
			all[fmt.Sprintf("c%02d", i-clockIntervals)] = fmt.Sprintf(`{"kind": "cron", "spec": "* * * * *", "timezone": %q, `, []string{"UTC", "Asia/Kolkata"}[i%2]) + rest
		}
	}
	for i := range clockIdle {
		all[fmt.Sprintf("q%02d", i)] = fmt.Sprintf(`{"kind": "idle", "afterMs": %d, "agent": "writer", "session": "quiet%d"}`, 1000+i*200, i)
	}
	for i := range clockEvents {
		all[fmt.Sprintf("e%02d", i)] = `{"kind": "event", "event": "order", "agent": "writer"}`
	}
	return all
}

// TestClockTriggers sets the clock of a server with 200 triggers forward and back by more than a day, and by less than a minute, while
// it runs, and while it is stopped or killed. Then each due is in its ledger at most once and each due of the true time is there, each row that
// fired has its run, and no run lacks its row.
func TestClockTriggers(t *testing.T) {
	program := os.Getenv("AGENTD_SKEWED")
	if program == "" {
		t.Skip("AGENTD_SKEWED names no program whose clock can be set; .ci/clock builds one")
	}
	dir := t.TempDir()
	declared := clockTriggers()
	var lines []string
	for id, text := range declared {
		lines = append(lines, fmt.Sprintf("%q: %s", id, text))
	}
	write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
		"providers": {"p": {"kind": "scripted", "script": "script.json"}}, "agents": {"writer": {"kind": "llm", "provider": "p", "model": "m"}},
		"triggers": {`+strings.Join(lines, ",")+`}}`)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"text": "written"}]}`)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))

	var ahead time.Duration
	s := serveSkewed(t, dir, program, ahead)
	begun := time.Now().Add(time.Second)
	emitted := 0
	for step := range clockSteps {
		s.request("POST", "/events/order", fmt.Sprintf(`{"id": "o%d"}`, step)).Body.Close()
		emitted++
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
		last := ahead
		switch far := []time.Duration{0, 25 * time.Hour, -25 * time.Hour}[step%3]; {
		case step == clockSteps-1:
			ahead = 0
		case random.IntN(3) == 0: // crons are due sooner
			ahead += 50 * time.Second
		default:
			ahead = far
		}
		signal := []syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL}[random.IntN(3)]
		t.Logf("step %d: the clock is %v ahead, %v before, signal %d", step, ahead, last, signal)
		if signal == 0 {
			s.set(ahead)
			if jump := ahead - last; jump.Abs() > time.Minute {
				if body := s.ask("", "GET", "/health", "").body; !strings.Contains(body, `"clock":{"status":"warn"`) {
					t.Errorf("after a step of %v the health is %s", jump, body)
				}
			}
			continue
		}
		s.signal(signal)
		s.wait()
		s = serveSkewed(t, dir, program, ahead)
	}
	time.Sleep(2 * time.Second)
	ended := time.Now().Add(-3 * time.Second)
	for id := range declared {
		s.request("POST", "/triggers/"+id+"/disable", "").Body.Close()
	}
	eventually(t, "the end of all runs", func() bool {
		for _, status := range []string{"running", "pending"} {
			res := s.request("GET", "/runs?limit=1&status="+status, "")
			body, _ := io.ReadAll(res.Body)
			if res.Body.Close(); !strings.Contains(string(body), `"runs":[]`) {
				return false
			}
		}
		return true
	})

	runs, outcomes := map[string]string{}, map[string]int{}
	for id := range declared {
		ledger := pages[firingRow](t, s.url+"/triggers/"+id+"/firings", "firings")
		for _, f := range ledger {
			outcomes[id[:1]+" "+f.Outcome]++
			if (f.Outcome == "fired") != (f.RunID != "") {
				t.Errorf("%s: %+v", id, f)
			}
			if f.RunID != "" {
				if other := runs[f.RunID]; other != "" {
					t.Errorf("the run %s is that of %s and of %s", f.RunID, other, id)
				}
				runs[f.RunID] = id
			}
		}
		switch id[:1] {
		case "c":
			accounted(t, id, ledger, time.Minute, begun, ended)
		case "i":
			accounted(t, id, ledger, time.Second, begun, ended)
		case "e":
			if len(ledger) != emitted {
				t.Errorf("%s has %d rows, want one for each of %d events", id, len(ledger), emitted)
			}
		}
	}
	for _, r := range pages[run](t, s.url+"/runs", "runs") {
		if runs[r.RunID] == "" {
			t.Errorf("the run %s (%s) has no row in a ledger", r.RunID, r.Status)
		}
		delete(runs, r.RunID)
	}
	for run, id := range runs {
		t.Errorf("the run %s of %s does not exist", run, id)
	}
	if res := s.request("GET", "/health", ""); res.StatusCode != http.StatusOK {
		t.Errorf("the health is %d", res.StatusCode)
	}
	t.Logf("%d steps: dues by kind and outcome %v", clockSteps, outcomes)
}

// TestClockHealth has a trigger that cannot fire, because its ledger takes no row, and then one that has missed dues.
func TestClockHealth(t *testing.T) {
	program := os.Getenv("AGENTD_SKEWED")
	if program == "" {
		t.Skip("AGENTD_SKEWED names no program whose clock can be set; .ci/clock builds one")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"rateLimit": {"enabled": false}},
		"providers": {"p": {"kind": "scripted", "script": "script.json"}}, "agents": {"writer": {"kind": "llm", "provider": "p", "model": "m"}},
		"triggers": {"t": {"kind": "interval", "everyMs": 1000, "agent": "writer", "overlap": "allow"}}}`)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"text": "written"}]}`)
	s := serveSkewed(t, dir, program, 0)
	says := func(text string) {
		t.Helper()
		eventually(t, text, func() bool {
			return strings.Contains(s.ask("", "GET", "/health", "").body, `"triggers":{"status":`+text)
		})
	}
	says(`"ok"`)
	database := "file:" + filepath.Join(dir, "data.db") + "?_pragma=busy_timeout(5000)"
	storetest.Behind(t, database, "CREATE TRIGGER broken BEFORE INSERT ON firings BEGIN SELECT RAISE(ABORT, 'broken'); END")
	eventually(t, "a due that cannot fire", func() bool { return strings.Contains(s.stderr.String(), "a trigger is tried again") })
	s.set(2 * time.Minute)
	says(`"warn","message":"A trigger has been due for more than a minute`)
	s.set(10 * time.Minute)
	says(`"fail","message":"A trigger has been due for more than five minutes`)
	if ready := s.ask("", "GET", "/health/ready", ""); ready.StatusCode != 503 || !strings.Contains(ready.body, "triggers") {
		t.Errorf("GET /health/ready = %d %s, want 503 and triggers", ready.StatusCode, ready.body)
	}
	if live := s.ask("", "GET", "/health/live", ""); live.StatusCode != 200 {
		t.Errorf("GET /health/live = %d %s, want 200", live.StatusCode, live.body)
	}
	storetest.Behind(t, database, "DROP TRIGGER broken")
	says(`"ok"`) // it has fired since
	s.ask("", "POST", "/triggers/t/disable", "")
	s.set(20 * time.Minute)
	s.ask("", "POST", "/triggers/t/enable", "")
	says(`"ok"`) // what is disabled misses nothing
	s.signal(syscall.SIGTERM)
	s.wait()
	write(t, filepath.Join(dir, "agentd.json"), strings.ReplaceAll(read(t, filepath.Join(dir, "agentd.json")), "1000", "600000"))
	s = serveSkewed(t, dir, program, 20*time.Minute)
	says(`"ok"`)
	s.set(45 * time.Minute)
	says(`"warn","message":"Triggers have missed dues`)
}

// accounted checks a ledger: no due has two rows, and between two times no due lacks one. A clock that is set back begins an interval anew, so
// its dues may be less than a period apart.
func accounted(t *testing.T, id string, ledger []firingRow, period time.Duration, from, until time.Time) {
	t.Helper()
	last := func(f firingRow) time.Time {
		if f.LastDue.IsZero() {
			return f.Due
		}
		return f.LastDue
	}
	slices.SortFunc(ledger, func(a, b firingRow) int { return a.Due.Compare(b.Due) })
	var covered time.Time
	for k, f := range ledger {
		if span := last(f).Sub(f.Due); span%period != 0 || f.Count != int(span/period)+1 {
			t.Errorf("%s: %+v has a range of %v", id, f, span)
		}
		for _, g := range ledger[k+1:] {
			if g.Due.After(last(f)) {
				break
			}
			if g.Due.Sub(f.Due)%period == 0 {
				t.Errorf("%s: the due %v is in the rows %+v and %+v", id, g.Due, f, g)
			}
		}
		if f.Due.Before(until) && covered.After(from) && f.Due.Sub(covered) >= 2*period {
			t.Errorf("%s: nothing accounts for the dues from %v to %+v", id, covered, f)
		}
		if l := last(f); l.After(covered) {
			covered = l
		}
	}
	if covered.Add(period).Before(until) {
		t.Errorf("%s: the last due is %v, want one until %v", id, covered, until)
	}
}
