package cli_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRacingAnswers answers each wait twice at once, and grants each approval twice at once: one answer counts, the other is
// refused as a conflict.
func TestRacingAnswers(t *testing.T) {
	t.Parallel()
	const races = 50
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"rateLimit": {"enabled": false}}, "workflows": {
		"waits": {"state": {"got": {}}, "start": "w", "nodes": {"w": {"kind": "await", "name": "ok", "save": "got", "next": "end"}}},
		"asks": {"state": {"got": {}}, "start": "a", "nodes": {"a": {"kind": "approval", "name": "ok", "show": 1, "save": "got", "next": "end"}}}
	}}`)
	s := serve(t, dir)
	for i := range races {
		id := fmt.Sprint("t", i)
		runs := map[string]string{}
		for _, workflow := range []string{"waits", "asks"} {
			var started struct{ RunID, Status string }
			if code := s.call("POST", "/workflows/"+workflow+"/execute?wait=true", fmt.Sprintf(`{"threadId": %q}`, id), &started); code != http.StatusOK {
				t.Fatalf("executing %s = %d, %+v", workflow, code, started)
			}
			runs[workflow] = started.RunID
		}
		var approval orderState
		s.call("GET", "/runs/"+runs["asks"]+"/state", "", &approval)
		if len(approval.PendingApprovals) != 1 {
			t.Fatalf("an approval node waits as %+v", approval)
		}
		var all sync.WaitGroup
		codes := map[string]chan int{}
		twice := func(what, path, body string, n int) {
			if codes[what] == nil {
				codes[what] = make(chan int, 2)
			}
			to := codes[what]
			all.Go(func() {
				var answer map[string]any
				to <- s.call("POST", path, fmt.Sprintf(body, n), &answer)
			})
		}
		for n := range 2 {
			twice("an answer", "/workflows/waits/resume", `{"threadId": "`+id+`", "name": "ok", "resume": %d}`, n)
			twice("a grant", "/runs/"+runs["asks"]+"/resume", `{"approvals": [{"toolCallId": "`+approval.PendingApprovals[0].ToolCallID+`", "granted": true, "reason": "%d"}]}`, n)
		}
		all.Wait()
		for what, got := range codes {
			a, b := <-got, <-got
			if a, b = min(a, b), max(a, b); a >= 300 || b != http.StatusConflict {
				t.Errorf("race %d: %s, twice at once = %d and %d, want one that counts and one 409", i, what, a, b)
			}
		}
		for _, runID := range runs {
			eventually(t, "the end of "+runID, func() bool { return s.status(runID) == "completed" })
		}
	}
}

// TestThreadsBesideAgents runs 64 threads of 20 steps beside runs of an agent. Neither keeps the other waiting.
func TestThreadsBesideAgents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var nodes []string
	for i := range 20 {
		next := fmt.Sprint("n", i+1)
		if i == 19 {
			next = "end"
		}
		nodes = append(nodes, fmt.Sprintf(`"n%d": {"kind": "tool", "tool": "calculator", "args": {"expression": "${ text(state.n) + '+1' }"}, "save": "r%d", "next": "s%d"},
			"s%d": {"kind": "set", "values": {"n": "${ state.n + 1 }"}, "next": %q}`, i, i, i, i, next))
	}
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprintf(`"r%d": {}`, i))
	}
	write(t, filepath.Join(dir, "agentd.json"), `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "server": {"rateLimit": {"enabled": false}},
		"providers": {"p": {"kind": "scripted", "script": "script.json"}}, "agents": {"a": {"kind": "llm", "provider": "p", "model": "m", "tools": ["calculator"]}},
		"workflows": {"long": {"state": {"n": {"initial": 0}, `+strings.Join(keys, ", ")+`}, "output": "${ state.n }", "start": "n0", "nodes": {`+strings.Join(nodes, ",")+`}}}}`)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"when": {"step": 0}, "toolCalls": [{"name": "calculator", "args": {"expression": "6*7"}}]}, {"text": "42"}]}`)
	s := serve(t, dir)
	var mu sync.Mutex // guards took
	took := map[string][]time.Duration{}
	measure := func(what, path, body string) {
		begun := time.Now()
		var answer struct {
			Status string
			Output any
		}
		code := s.call("POST", path, body, &answer)
		mu.Lock()
		defer mu.Unlock()
		took[what] = append(took[what], time.Since(begun))
		if code != http.StatusOK || answer.Status != "completed" || what == "thread" && fmt.Sprint(answer.Output) != "20" {
			t.Errorf("a %s = %d, %+v", what, code, answer)
		}
	}
	for range 8 { // nothing beside it
		measure("run alone", "/agents/a/run", `{"input": "go"}`)
		measure("thread alone", "/workflows/long/execute?wait=true", `{}`)
	}
	stop := make(chan struct{})
	var agents, threads sync.WaitGroup
	for range 8 {
		agents.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					measure("run", "/agents/a/run", `{"input": "go"}`)
				}
			}
		})
	}
	for range 64 {
		threads.Go(func() {
			for range 3 {
				measure("thread", "/workflows/long/execute?wait=true", `{}`)
			}
		})
	}
	threads.Wait()
	close(stop)
	agents.Wait()
	for what, all := range took {
		slices.Sort(all)
		most := all[len(all)-1]
		t.Logf("%-12s %4d: half in %s, 99%% in %s, all in %s", what, len(all), all[len(all)/2], all[len(all)*99/100], most)
		// A machine that is busy with other tests is slow, but does not leave a run out.
		if most > 20*time.Second || most > 20*all[len(all)/2]+2*time.Second {
			t.Errorf("one %s took %s, half of them %s", what, most, all[len(all)/2])
		}
	}
	if len(took["run"]) < 20 {
		t.Errorf("only %d runs of the agent have ended beside the threads", len(took["run"]))
	}
}
