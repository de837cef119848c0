package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var kills = often(200, 20) // how often TestKill kills the server

const killConfig = `{
	"auth": {"kind": "none"}, "storage": {"path": "data.db"}, "observability": {"logger": "silent"}, "server": {"rateLimit": {"enabled": false}},
	"providers": {"p": {"kind": "scripted", "script": "script.json"}},
	"tools": {
		"once": {"kind": "exec", "description": "has an effect", "command": ["sh", "-c", "echo \"$AGENTD_CALL_ID\" >> effects; sleep 0.02; echo done"],
			"approval": "never", "onUnknownOutcome": "error"},
		"gate": {"kind": "exec", "description": "asks first", "approval": "always",
			"command": ["sh", "-c", "echo \"gate $AGENTD_CALL_ID\" >> effects; sleep 0.02; echo done"]},
		"look": {"kind": "exec", "description": "has none", "command": ["sh", "-c", "sleep 0.01; echo seen"], "sideEffect": "read-only"}
	},
	"agents": {
		"a": {"kind": "llm", "provider": "p", "model": "m", "tools": ["once", "look"]},
		"g": {"kind": "llm", "provider": "p", "model": "gated", "tools": ["gate"]},
		"desk": {"kind": "llm", "provider": "p", "model": "desk", "handoffs": ["clerk"]},
		"clerk": {"kind": "llm", "provider": "p", "model": "clerk", "subAgents": ["g"], "tools": ["once"]},
		"asks": {"kind": "exec", "protocol": "jsonl", "command": ["sh", "asks.sh"]}
	}
}`

const killScript = `{"turns": [
	{"when": {"model": "gated", "step": 0}, "toolCalls": [{"name": "gate", "args": {"n": 1}}, {"name": "gate", "args": {"n": 2}}]},
	{"when": {"model": "gated"}, "text": "{{lastTool}}"},
	{"when": {"model": "desk", "step": 0}, "toolCalls": [{"name": "transfer_to_clerk", "args": {}}]},
	{"when": {"model": "clerk", "step": 0}, "toolCalls": [{"name": "subagent_g", "args": {"input": "both"}}, {"name": "once", "args": {}}]},
	{"when": {"step": 0}, "text": "first", "toolCalls": [{"name": "once", "args": {}}, {"name": "look", "args": {}}, {"name": "once", "args": {}}]},
	{"when": {"step": 1}, "text": "second", "chunkSize": 2, "chunkDelayMs": 5, "toolCalls": [{"name": "look", "args": {}}]},
	{"when": {"step": 2}, "toolCalls": [{"name": "once", "args": {}}]},
	{"text": "the end", "chunkSize": 2, "chunkDelayMs": 5}]}`

// asks.sh asks for two approvals, and has an effect for each that is granted.
const killAsks = `read -r line
ask() { echo '{"type":"approval.request","toolCallId":"'$1'","toolName":"pay","args":{}}'; }
case "$line" in
*'"type":"run"'*) ask c1; echo '{"type":"checkpoint","state":1}'; ask c2 ;;
*) for c in c1 c2; do
	case "$line" in *'"'$c'","granted":true'*) echo "$AGENTD_RUN_ID $c" >> effects; sleep 0.02 ;; esac
done
echo '{"type":"result","output":"paid"}' ;;
esac
`

func newKillSite(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), killConfig)
	write(t, filepath.Join(dir, "script.json"), killScript)
	write(t, filepath.Join(dir, "asks.sh"), killAsks)
	return dir
}

// TestKill kills the server at random moments while it starts and moves runs, and starts it again each time. Then every
// run that was acknowledged must end truthfully, its events be numbered without gap or repeat, and no call of the tool
// with an effect have been made twice.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := newKillSite(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)

	var mu sync.Mutex // guards runs
	var runs []string
	client := &http.Client{Timeout: 5 * time.Second}
	start := func(url string, stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			default:
			}
			res, err := client.Post(url+"/agents/a/stream", "application/json", strings.NewReader(`{"input":"go"}`))
			if err != nil {
				return
			}
			var answer struct{ RunID string }
			err = json.NewDecoder(res.Body).Decode(&answer)
			res.Body.Close()
			if res.StatusCode == http.StatusAccepted && err == nil {
				mu.Lock()
				runs = append(runs, answer.RunID)
				mu.Unlock()
			}
			<-time.After(15 * time.Millisecond)
		}
	}
	approve := func(url, agent string, stop <-chan struct{}) {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			res, err := client.Post(url+"/agents/"+agent+"/run", "application/json", nil)
			if err != nil {
				return
			}
			var parked parkedRun
			err = json.NewDecoder(res.Body).Decode(&parked)
			res.Body.Close()
			if err != nil || parked.RunID == "" {
				continue
			}
			mu.Lock()
			runs = append(runs, parked.RunID)
			mu.Unlock()
			decide(client, url, parked.RunID, parked.Result.State.PendingApprovals)
		}
	}
	for range kills {
		s := serve(t, dir)
		stop := make(chan struct{})
		var clients sync.WaitGroup
		for _, agent := range []string{"g", "desk", "asks"} {
			clients.Go(func() { approve(s.url, agent, stop) })
		}
		for range 2 {
			clients.Go(func() { start(s.url, stop) })
		}
		<-time.After(time.Duration(random.IntN(250)) * time.Millisecond)
		s.signal(syscall.SIGKILL)
		s.wait()
		close(stop)
		clients.Wait()
	}
	s := serve(t, dir)
	ends := map[string]int{}
	for _, id := range runs {
		var state struct {
			Status           string
			Error            struct{ Code string }
			PendingApprovals []pendingCall
		}
		eventually(t, "the end of run "+id, func() bool {
			res, err := client.Get(s.url + "/runs/" + id + "/state")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Fatalf("an acknowledged run is lost: GET %s/state = %d", id, res.StatusCode)
			}
			if err := json.NewDecoder(res.Body).Decode(&state); err != nil {
				t.Fatal(err)
			}
			if state.Status == "awaiting_approval" {
				decide(client, s.url, id, state.PendingApprovals)
			}
			return state.Status == "completed" || state.Status == "failed"
		})
		if ends[state.Status+" "+state.Error.Code]++; state.Status == "failed" && state.Error.Code != "crash-loop" {
			t.Errorf("run %s failed with %q", id, state.Error.Code)
		}
		checkEventNumbers(t, client, s.url, id, "agent.end")
	}
	made := map[string]int{}
	for line := range strings.Lines(read(t, filepath.Join(dir, "effects"))) {
		if made[line]++; made[line] > 1 {
			t.Errorf("the call %s was made %d times", strings.TrimSpace(line), made[line])
		}
	}
	t.Logf("%d kills, %d acknowledged runs, %d effects, ends: %v", kills, len(runs), len(made), ends)
	if len(runs) < kills || len(made) < kills {
		t.Errorf("%d runs with %d effects are too few to tell anything", len(runs), len(made))
	}
	s.signal(syscall.SIGTERM)
	s.wait().want(t, 0, "", "")
	spawn(t, dir, nil, nil, "storage", "verify").wait().want(t, 0, "undamaged", "")
}

// parkedRun is the answer for a run that waits.
type parkedRun struct {
	RunID  string
	Result struct {
		State struct{ PendingApprovals []pendingCall }
	}
}

type pendingCall struct{ ToolCallID, SubRunToolCallID, Reason string }

// decide grants what waits, but for calls whose effect may have happened. Nobody is told whether that went well: the
// server may be killed meanwhile.
func decide(client *http.Client, url, runID string, pending []pendingCall) {
	var decisions []string
	for _, p := range pending {
		path := ""
		if p.SubRunToolCallID != "" {
			path = fmt.Sprintf(`,"subRunToolCallId":%q`, p.SubRunToolCallID)
		}
		decisions = append(decisions, fmt.Sprintf(`{"toolCallId":%q,"granted":%v%s}`, p.ToolCallID, p.Reason == "", path))
	}
	res, err := client.Post(url+"/runs/"+runID+"/resume", "application/json", strings.NewReader(`{"approvals":[`+strings.Join(decisions, ",")+`]}`))
	if err == nil {
		res.Body.Close()
	}
}

// checkEventNumbers reads a run's events and checks that the durable ones are numbered 1, 2, 3, ... up to one of
// those that end it.
func checkEventNumbers(t *testing.T, client *http.Client, url, id string, ends ...string) {
	t.Helper()
	res, err := client.Get(url + "/runs/" + id + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	next, last, typ := 1, "", ""
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if of, ok := strings.CutPrefix(line, "event: "); ok {
			if typ = of; typ != "lifecycle" && typ != "replay-marker" {
				last = typ
			}
		}
		name, ok := strings.CutPrefix(line, "id: evt-r-"+id+"-")
		if !ok || typ == "replay-marker" || strings.Contains(name, ".") {
			continue
		}
		if n, err := strconv.ParseInt(name, 36, 64); err != nil || n != int64(next) {
			t.Errorf("run %s: event %q, want number %s", id, line, strconv.FormatInt(int64(next), 36))
		}
		next++
	}
	if err := lines.Err(); err != nil || !slices.Contains(ends, last) {
		t.Errorf("run %s: the last of %d events is %q, %v", id, next-1, last, err)
	}
	if next == 1 {
		t.Error(fmt.Sprint("run ", id, " has no events"))
	}
}
