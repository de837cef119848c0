package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var triggerKills = often(50, 10) // how often TestKillTriggers kills the server

const (
	intervals = 190 // triggers that are due each second, and as many more as make 200 take an event
	listeners = 10
)

// triggerConfig declares the triggers. A third of those with a schedule catches up all dues, a third the last one, and a third none.
func triggerConfig() string {
	var all []string
	for i := range intervals {
		policy := []string{`"catchupPolicy": "none"`, `"catchupPolicy": "last"`, `"catchupPolicy": "all", "maxCatchupRuns": 3`}[i%3]
		overlap := []string{"allow", "skip", "queue"}[i/3%3]
		all = append(all, fmt.Sprintf(`"i%03d": {"kind": "interval", "everyMs": 1000, "jitterMs": %d, "agent": "writer", "overlap": %q, %s}`, i, i*5, overlap, policy))
	}
	for i := range listeners {
		all = append(all, fmt.Sprintf(`"e%02d": {"kind": "event", "event": "order", "agent": "writer", "input": "${ event.id }"}`, i))
	}
	return `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
		"providers": {"p": {"kind": "scripted", "script": "script.json"}}, "agents": {"writer": {"kind": "llm", "provider": "p", "model": "m"}},
		"triggers": {` + strings.Join(all, ",") + `}}`
}

// A firingRow is a row of a ledger.
type firingRow struct {
	Slot, Origin, Outcome, RunID string
	Due, LastDue                 time.Time
	Count                        int
}

// pages reads all pages of a list.
func pages[T any](t *testing.T, url, member string) (all []T) {
	t.Helper()
	for cursor := ""; ; {
		res, err := http.Get(url + "?limit=1000" + cursor) //nolint:noctx // of a test
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		var page map[string]json.RawMessage
		var list []T
		if err == nil {
			err = json.Unmarshal(body, &page)
		}
		if err == nil {
			err = json.Unmarshal(page[member], &list)
		}
		if err != nil {
			t.Fatalf("%s: %v: %.200s", url, err, body)
		}
		all = append(all, list...)
		if page["nextCursor"] == nil {
			return all
		}
		cursor = "&cursor=" + strings.Trim(string(page["nextCursor"]), `"`)
	}
}

// TestKillTriggers kills the server at random moments while 200 triggers fire, and starts it again each time. Then each due is in its
// ledger once, each row that fired has its run, no run lacks its row, and each event that was acknowledged has fired once.
func TestKillTriggers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), triggerConfig())
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"text": "written"}]}`)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	client := &http.Client{Timeout: 10 * time.Second}
	emitted := map[string]bool{} // by the ids of events, whether they were acknowledged
	emit := func(url, id string) {
		res, err := client.Post(url+"/events/order", "application/json", strings.NewReader(fmt.Sprintf(`{"id": %q, "data": {"id": %q}}`, id, id)))
		if err == nil {
			res.Body.Close()
		}
		emitted[id] = emitted[id] || err == nil && res.StatusCode == http.StatusOK
	}
	for round := range triggerKills {
		s := serve(t, dir)
		stop := make(chan struct{})
		var emitter sync.WaitGroup
		emitter.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
					emit(s.url, fmt.Sprintf("o%d-%d", round, n))
				}
			}
		})
		time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
		s.process.signal(syscall.SIGKILL)
		s.process.wait()
		close(stop)
		emitter.Wait()
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
	}

	s := serve(t, dir)
	for id := range emitted { // a client sends what was not acknowledged again; nobody minds what was
		emit(s.url, id)
		if !emitted[id] {
			t.Errorf("the event %s was not acknowledged by a server that works", id)
		}
	}
	time.Sleep(2 * time.Second)
	for i := range intervals + listeners { // nothing fires any more
		id := fmt.Sprintf("i%03d", i)
		if i >= intervals {
			id = fmt.Sprintf("e%02d", i-intervals)
		}
		s.request("POST", "/triggers/"+id+"/disable", "").Body.Close()
	}
	s.rest()

	rows := map[string]string{} // triggers by the ids of their runs
	outcomes := map[string]int{}
	for i := range intervals {
		trigger := fmt.Sprintf("i%03d", i)
		ledger := pages[firingRow](t, s.url+"/triggers/"+trigger+"/firings", "firings")
		slices.SortFunc(ledger, func(a, b firingRow) int { return a.Due.Compare(b.Due) })
		for k, f := range ledger {
			outcomes[f.Outcome]++
			if k > 0 {
				last := ledger[k-1].Due
				if ledger[k-1].Outcome == "missed" && !ledger[k-1].LastDue.IsZero() {
					last = ledger[k-1].LastDue
				}
				if f.Due.Sub(last) != time.Second {
					t.Errorf("%s: the due %v (%s) follows %v, want a second between them", trigger, f.Due, f.Outcome, last)
				}
			}
			if (f.Outcome == "fired") != (f.RunID != "") {
				t.Errorf("%s: %+v", trigger, f)
			}
			if f.RunID != "" {
				if other := rows[f.RunID]; other != "" {
					t.Errorf("the run %s is that of %s and of %s", f.RunID, other, trigger)
				}
				rows[f.RunID] = trigger
			}
		}
	}
	for i := range listeners {
		trigger := fmt.Sprintf("e%02d", i)
		fired := map[string]int{}
		for _, f := range pages[firingRow](t, s.url+"/triggers/"+trigger+"/firings", "firings") {
			if fired[strings.TrimPrefix(f.Slot, "e:")]++; f.Outcome != "fired" {
				t.Errorf("%s: %+v", trigger, f)
			}
			rows[f.RunID] = trigger
		}
		for id := range emitted {
			if fired[id] != 1 {
				t.Errorf("%s fired %d times for the event %s", trigger, fired[id], id)
			}
		}
	}
	ended := map[string]int{}
	for _, r := range pages[struct{ RunID, Status string }](t, s.url+"/runs", "runs") {
		ended[r.Status]++
		if rows[r.RunID] == "" {
			t.Errorf("the run %s (%s) has no row in a ledger", r.RunID, r.Status)
		}
		delete(rows, r.RunID)
	}
	for run, trigger := range rows {
		t.Errorf("the run %s of %s does not exist", run, trigger)
	}
	t.Logf("%d kills: dues by outcome %v, %d events, runs %v", triggerKills, outcomes, len(emitted), ended)
	spawn(t, dir, nil, nil, "storage", "verify").wait().want(t, 0, "undamaged", "")
}
