package server_test

import (
	"net/http"
	"slices"
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
			if n := needOf(rt); n.public || n.any || n.upgrade {
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
