package server_test

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// gatedConfig adds to sweepConfig an agent whose tool waits for a person, and one that calls it.
const gatedConfig = `{"metrics": {"requireAuth": true}, "auth": {"perIpFailureThreshold": 1000000}, "audit": {"enabled": true, "passphraseRef": "file:pepper"},
	"providers": {"fake": {"kind": "scripted", "script": "turns.json"}},
	"tools": {"pay": {"kind": "exec", "description": "Pays", "command": ["sh", "-c", "cat >> paid.txt; echo paid"]}},
	"agents": {
		"payer": {"kind": "llm", "provider": "fake", "model": "payer", "tools": ["pay"], "instructions": "operator-secret-payer"},
		"desk": {"kind": "llm", "provider": "fake", "model": "desk", "subAgents": ["payer"], "instructions": "operator-secret-desk", "forwardEvents": "all"}}}`

var gatedFiles = fstest.MapFS{"turns.json": {Data: []byte(`{"turns": [
	{"when": {"model": "desk", "step": 0}, "toolCalls": [{"name": "subagent_payer", "args": {"input": "pay"}}]},
	{"when": {"model": "payer", "step": 0}, "toolCalls": [{"name": "pay", "args": {"to": "argument-secret"}}]},
	{"text": "Done."}]}`)}}

// parked starts a run of an agent and returns its id, once it waits for an approval.
func (s *sweep) parked(agentID string) string {
	s.t.Helper()
	ans := s.do("POST", "/v1/agents/"+agentID+"/run", s.admin, `{"input": "go"}`)
	run, err := find(ans.body, ".runId")
	if err != nil || ans.StatusCode != http.StatusOK {
		s.t.Fatalf("run of %s = %d %s, %v", agentID, ans.StatusCode, ans.body, err)
	}
	return run
}

// A token with one verb on every agent is let in where that verb is what the row is for, and nowhere else.
func TestVerbsStandAlone(t *testing.T) {
	t.Parallel()
	may := map[string][]string{
		"agents:invoke":  {"POST /agents/{id}/run", "POST /agents/{id}/stream", "POST /runs/{runId}/abort"},
		"agents:approve": {"POST /runs/{runId}/resume"},
		"agents:read":    {"GET /agents", "GET /agents/{id}", "GET /runs", "GET /runs/{runId}/state", "GET /runs/{runId}/events", "GET /approvals"},
		"runs:import":    {"POST /runs/import"},
	}
	s := newSweepOn(t, newRig(t, gatedConfig, gatedFiles))
	for scope, rows := range may {
		s.run = s.parked("payer")
		for _, rt := range table() {
			if n := needOf(rt); n.public || n.any || n.upgrade || n.signed {
				continue
			}
			path, _ := s.path(rt)
			allowed := slices.Contains(rows, rt.Pattern(""))
			ans := s.ask(rt.Method, path, s.token(scope))
			if denied := ans.StatusCode == http.StatusForbidden; denied == allowed || denied && ans.code() != "scope-denied" {
				t.Errorf("%s %s with %s alone = %d %s, want it let in: %v", rt.Method, rt.Path, scope, ans.StatusCode, ans.body, allowed)
			}
		}
	}
}

// The instructions of the operator are in nothing that a token without traces:read:raw gets, in whatever way, and
// arguments and state in nothing that one gets who may only start runs.
func TestWithheld(t *testing.T) {
	t.Parallel()
	s := newSweepOn(t, newRig(t, gatedConfig, gatedFiles))
	for _, agentID := range []string{"payer", "desk"} {
		body := `{"input": "go", "sessionId": "of-` + agentID + `"}`
		ans := s.do("POST", "/v1/agents/"+agentID+"/run", s.token("agents:invoke"), body)
		run, err := find(ans.body, ".runId")
		if err != nil {
			t.Fatal(ans.body)
		}
		want := `{"runId": "` + run + `", "status": "awaiting_approval", "result": {"usage": "<any>", "status": "awaiting_approval",
			"pendingApprovals": [{"toolCallId": "<string>", "toolName": "pay"}]}}`
		if diff := mismatch(want, ans.body); diff != nil {
			t.Errorf("run of %s with agents:invoke alone: %v\n%s", agentID, diff, ans.body)
		}
		s.run = run
		_, all := s.mint(0, "agents:invoke", "agents:approve", "agents:read", "sessions:read", "sessions:write", "sessions:export", "traces:read:sanitized", "runs:import", "tokens:list",
			"audit:read", "audit:export")
		for _, rt := range table() {
			if strings.Contains(rt.Path, "openapi") || rt.Method == "DELETE" || strings.HasSuffix(rt.Path, "/abort") {
				continue
			}
			path, _ := s.path(rt)
			path = strings.NewReplacer("/agents/echo", "/agents/"+agentID, "/sessions/s1", "/sessions/of-"+agentID).Replace(path)
			x := s.send(rt.Method, path, all, "")
			if !x.isStream(t) {
				if ans := x.whole(t); strings.Contains(ans.body, "operator-secret") {
					t.Errorf("%s %s without traces:read:raw = %s, want no instructions", rt.Method, path, ans.body)
				}
			}
			x.close()
		}
		x := s.send("GET", "/v1/runs/"+run+"/events", all, "")
		if text := x.until(t, "lifecycle"); strings.Contains(text, "operator-secret") || !strings.Contains(text, `"withheld":true`) {
			t.Errorf("events of %s = %s, want no instructions", run, text)
		}
		x.close()
		if ans := s.do("GET", "/v1/runs/"+run+"/state", all, ""); !strings.Contains(ans.body, `{"role":"system","content":"","withheld":true}`) {
			t.Errorf("state = %s, want the instructions withheld", ans.body)
		}
		if ans := s.do("GET", "/v1/runs/"+run+"/state", s.admin, ""); strings.Count(ans.body, "operator-secret-payer") != 1 || strings.Contains(ans.body, "withheld") {
			t.Errorf("state for traces:read:raw = %s, want the instructions", ans.body)
		}
		x = s.send("POST", "/v1/agents/"+agentID+"/stream", s.token("agents:invoke"), `{"input": "go"}`, "Accept: text/event-stream")
		if text := x.until(t, "lifecycle"); strings.Contains(text, "secret") || strings.Contains(text, "tool.") || !strings.Contains(text, `"pendingApprovals":[{"toolCallId":`) {
			t.Errorf("stream of %s with agents:invoke alone = %s, want what run answers", agentID, text)
		}
		x.close()
	}
}

// until reads an event stream to the end of an event of a type.
func (x *exchange) until(t *testing.T, typ string) string {
	t.Helper()
	var text strings.Builder
	lines := bufio.NewScanner(x.response(t).Body)
	lines.Buffer(nil, 1<<20)
	for last := false; lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		last = last || lines.Text() == "event: "+typ
		if last && lines.Text() == "" {
			return text.String()
		}
	}
	t.Fatalf("%s %s ends without %s: %s", x.method, x.path, typ, text.String())
	return ""
}
