package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The tool of the culprit kills the server. It may be called again, so each start makes the call anew.
const loopConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {
		"crash": {"kind": "exec", "description": "kills the server", "command": ["sh", "-c", "sleep 0.3; kill -9 $(cat pid); sleep 9"], "approval": "never", "idempotent": true},
		"look": {"kind": "exec", "description": "takes its time", "command": ["sh", "-c", "sleep 0.4; echo seen"], "sideEffect": "read-only"}
	},
	"agents": {
		"culprit": {"kind": "llm", "provider": "p", "model": "culprit", "tools": ["crash"]},
		"innocent": {"kind": "llm", "provider": "p", "model": "innocent", "tools": ["look"], "subAgents": ["helper"]},
		"helper": {"kind": "llm", "provider": "p", "model": "helper", "tools": ["look"]}
	}
}`

// One run kills the server each time it goes on; thirty others are interrupted each time. The one is given up, and none
// of the others is.
func TestKillerAmongInnocents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), loopConfig)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [
		{"when": {"model": "culprit"}, "toolCalls": [{"name": "crash", "args": {}}]},
		{"when": {"model": "innocent", "step": 0}, "toolCalls": [{"name": "subagent_helper", "args": {"input": "x"}}]},
		{"when": {"step": 0}, "toolCalls": [{"name": "look", "args": {}}]},
		{"when": {"model": "innocent", "step": 1}, "toolCalls": [{"name": "look", "args": {}}]},
		{"text": "done"}]}`)
	pid := func(p *process) { write(t, filepath.Join(dir, "pid"), fmt.Sprint(p.cmd.Process.Pid)) }
	s := serve(t, dir)
	pid(s.process)
	start := func(agent string) string {
		var started struct{ RunID string }
		if code := s.call("POST", "/agents/"+agent+"/stream", `{"input": "go"}`, &started); code != http.StatusAccepted {
			t.Fatalf("starting %s = %d", agent, code)
		}
		return started.RunID
	}
	var innocents []string
	for range 30 {
		innocents = append(innocents, start("innocent"))
	}
	culprit := start("culprit")
	s.wait()
	deaths := 1
	for ; deaths < 20; deaths++ {
		s.ready = filepath.Join(t.TempDir(), "ready.json")
		s.process = spawn(t, dir, nil, nil, "start", "--port", "0", "--ready-file", s.ready)
		pid(s.process)
		lives := func() bool {
			select {
			case <-s.process.done:
				return false
			default:
				return true
			}
		}
		for lives() {
			if _, err := os.Stat(s.ready); err == nil {
				break
			}
			<-time.After(5 * time.Millisecond)
		}
		if !lives() {
			continue
		}
		s.url = s.process.await(s.ready)
		ended := func() bool {
			res, err := http.Get(s.url + "/runs?status=running")
			if err != nil {
				return false
			}
			defer res.Body.Close()
			var list struct{ Runs []run }
			return decodeBody(res, &list) == nil && len(list.Runs) == 0
		}
		over := false
		for lives() && !over {
			over = ended()
			<-time.After(20 * time.Millisecond)
		}
		if over {
			break
		}
	}
	var told struct {
		Status string
		Error  struct{ Code string }
	}
	if s.call("GET", "/runs/"+culprit+"/state", "", &told); told.Status != "failed" || told.Error.Code != "crash-loop" {
		t.Errorf("after %d crashes the culprit is %+v, want failed with crash-loop", deaths, told)
	}
	for _, id := range innocents {
		told.Error.Code = ""
		if s.call("GET", "/runs/"+id+"/state", "", &told); told.Status != "completed" {
			t.Errorf("after %d crashes, an innocent run is %+v", deaths, told)
		}
	}
	t.Logf("%d crashes", deaths)
}

func decodeBody(res *http.Response, to any) error { return json.NewDecoder(res.Body).Decode(to) }
