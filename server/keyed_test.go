package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"agentd/auth"
	"agentd/server/gate"
	"agentd/server/notify"
	"agentd/server/rest"
	"agentd/store/storetest"
)

const keyedConfig = `{"metrics": {"requireAuth": true}, "audit": {"enabled": true, "passphraseRef": "file:pepper"},
	"providers": {"fake": {"kind": "scripted", "script": "turns.json"}},
	"tools": {"pay": {"kind": "exec", "description": "Pays", "command": ["true"]}},
	"agents": {"clerk": {"kind": "llm", "provider": "fake", "model": "m", "tools": ["pay"]}},
	"workflows": {
		"wait": {"start": "w", "nodes": {"w": {"kind": "await", "name": "go", "next": "end"}}},
		"fail": {"start": "f", "nodes": {"f": {"kind": "tool", "tool": "calculator", "args": {"expression": "${ 1 / 0 }"}, "next": "end"}}}},
	"notify": [{"on": ["trigger.missed"], "url": "http://127.0.0.1:9/", "secretRefs": ["file:pepper"]}],
	"triggers": {"t1": {"kind": "event", "event": "came", "workflow": "wait"}, "on": {"kind": "event", "event": "on", "workflow": "wait"},
		"gone1": {"kind": "event", "event": "gone", "workflow": "wait"}, "gone2": {"kind": "event", "event": "gone", "workflow": "wait"}, "gone3": {"kind": "event", "event": "gone", "workflow": "wait"}}}`

const keyedTurns = `{"turns": [{"when": {"step": 0}, "toolCalls": [{"name": "pay", "args": {}}]}, {"text": "paid"}]}`

// keyedRecipes tell of each row that takes a key how to send a request that it answers with 2xx, as often as it is
// asked: the path and the body. A row without one fails the tests, so that none is added that forgets its key.
var keyedRecipes = map[string]func(s *sweep) (path, body string){
	"POST /agents/{id}/run":      func(*sweep) (string, string) { return "/agents/echo/run", `{"input": "x"}` },
	"POST /agents/{id}/stream":   func(*sweep) (string, string) { return "/agents/echo/stream", `{"input": "x"}` },
	"POST /runs/{runId}/abort":   func(s *sweep) (string, string) { return "/runs/" + s.run + "/abort", `{"drain": true}` },
	"POST /runs/{runId}/replay":  func(s *sweep) (string, string) { return "/runs/" + s.run + "/replay", `{"limit": 5}` },
	"POST /sessions/{id}/replay": func(*sweep) (string, string) { return "/sessions/s1/replay", "" },
	"POST /sessions/{id}/export": func(*sweep) (string, string) { return "/sessions/s1/export", `{"hash": false}` },
	"POST /sessions":             func(*sweep) (string, string) { return "/sessions", `{"userId": "ann", "agentId": "echo"}` },
	"POST /runs/{runId}/resume":  keyedResume,
	"POST /runs/import":          keyedRunImport,
	"POST /sessions/import":      keyedSessionImport,
	"POST /audit/verify":         func(*sweep) (string, string) { return "/audit/verify", "" },
	"POST /audit/export":         func(*sweep) (string, string) { return "/audit/export", `{"toSeq": 3}` },
	"POST /sessions/{id}/close":  func(*sweep) (string, string) { return "/sessions/s1/close", "" },
	"POST /notifications/retry": func(*sweep) (string, string) {
		return "/notifications/retry", fmt.Sprintf(`{"target": %q}`, notify.TargetID("http://127.0.0.1:9/"))
	},
	"POST /notifications/test": func(*sweep) (string, string) { return "/notifications/test", "" },
	"POST /retention/run":      func(*sweep) (string, string) { return "/retention/run", `{"dryRun": true}` },
	"DELETE /sessions/{id}":    keyedErase,
	"DELETE /tokens/{id}":      func(s *sweep) (string, string) { id, _ := s.mint(0, "agents:read"); return "/tokens/" + id, "" },

	"POST /triggers/{id}/fire":    func(*sweep) (string, string) { return "/triggers/t1/fire", "" },
	"POST /triggers/{id}/enable":  func(*sweep) (string, string) { return "/triggers/on/enable", "" },
	"POST /triggers/{id}/disable": func(*sweep) (string, string) { return "/triggers/on/disable", "" },
	"POST /triggers/prune":        func(*sweep) (string, string) { return "/triggers/prune", `{"disabled": false, "orphaned": true}` },
	"POST /events/{name}":         func(*sweep) (string, string) { return "/events/came", `{"data": 1}` },
	"DELETE /triggers/{id}":       func(s *sweep) (string, string) { s.gone++; return fmt.Sprint("/triggers/gone", s.gone), "" },

	"POST /workflows/{id}/execute":              func(s *sweep) (string, string) { return "/workflows/wait/execute", keyedThread(s, "") },
	"POST /workflows/{id}/resume":               func(s *sweep) (string, string) { return "/workflows/wait/resume", keyedThread(s, "wait") },
	"POST /workflows/{id}/retry":                func(s *sweep) (string, string) { return "/workflows/fail/retry", keyedThread(s, "fail") },
	"POST /workflows/{id}/tick":                 func(s *sweep) (string, string) { return "/workflows/wait/tick", keyedThread(s, "wait") },
	"DELETE /workflows/{id}/threads/{threadId}": keyedThreadErase,
}

// keyedNever are rows that no request is answered with 2xx.
var keyedNever = []string{"POST /workflows/{id}/fork"}

// keyedThread is a body that names a thread of a workflow which has ended or waits; a new one where none is given.
func keyedThread(s *sweep, workflow string) string {
	body := fmt.Sprintf(`{"threadId": %q}`, s.fresh("thread"))
	if workflow != "" {
		if ans := s.do("POST", "/v1/workflows/"+workflow+"/execute?wait=true", s.admin, body); ans.StatusCode/100 == 4 {
			s.t.Fatalf("POST execute = %d %s", ans.StatusCode, ans.body)
		}
	}
	return body
}

func keyedThreadErase(s *sweep) (path, body string) {
	var named struct{ ThreadID string }
	if err := json.Unmarshal([]byte(keyedThread(s, "fail")), &named); err != nil {
		s.t.Fatal(err)
	}
	return "/workflows/fail/threads/" + named.ThreadID, ""
}

func keyedResume(s *sweep) (path, body string) {
	ans := s.do("POST", "/v1/agents/clerk/run", s.admin, "")
	var parked struct {
		RunID  string
		Result struct {
			State struct{ PendingApprovals []struct{ ToolCallID string } }
		}
	}
	if err := json.Unmarshal([]byte(ans.body), &parked); err != nil || len(parked.Result.State.PendingApprovals) != 1 {
		s.t.Fatalf("the run of clerk answers %s", ans.body)
	}
	return "/runs/" + parked.RunID + "/resume", fmt.Sprintf(`{"approvals": [{"toolCallId": %q, "granted": true}]}`, parked.Result.State.PendingApprovals[0].ToolCallID)
}

func keyedRunImport(s *sweep) (path, body string) {
	var told struct{ State map[string]any }
	if err := json.Unmarshal([]byte(s.do("GET", "/v1/runs/"+s.run+"/state", s.admin, "").body), &told); err != nil {
		s.t.Fatal(err)
	}
	told.State["id"], told.State["sessionId"] = s.fresh("moved"), ""
	state, err := json.Marshal(told.State)
	if err != nil {
		s.t.Fatal(err)
	}
	return "/runs/import", string(state)
}

func keyedSessionImport(s *sweep) (path, body string) {
	file := s.do("POST", "/v1/sessions/s1/export", s.admin, "", "Accept: application/x-ndjson")
	return "/sessions/import?as=" + s.fresh("copy"), file.body
}

func keyedErase(s *sweep) (path, body string) {
	id := s.fresh("gone")
	if ans := s.do("POST", "/v1/sessions", s.admin, fmt.Sprintf(`{"userId": "ann", "agentId": "echo", "sessionId": %q}`, id)); ans.StatusCode != 201 {
		s.t.Fatalf("POST /sessions = %d %s", ans.StatusCode, ans.body)
	}
	return "/sessions/" + id, ""
}

// keyedRow is a request for a row, and the answer that it got.
type keyedRow struct {
	method, path, body, key string
	first                   answer
}

func (k *keyedRow) send(s *sweep, token string) answer {
	s.t.Helper()
	return s.do(k.method, "/v1"+k.path, token, k.body, "Idempotency-Key: "+k.key)
}

func (k *keyedRow) String() string { return k.method + " " + k.path }

// takesKey reports whether a row honours an Idempotency-Key. An event of a hook has an id instead.
func takesKey(rt rest.Route) bool { return rt.Effects() && !rt.Secret && !needOf(rt).signed }

// keyedRows has a request for every row of the table that takes a key.
func keyedRows(t *testing.T, s *sweep) []*keyedRow {
	t.Helper()
	var rows []*keyedRow
	used := 0
	for _, rt := range table() {
		pattern := rt.Pattern("")
		recipe := keyedRecipes[pattern]
		switch {
		case recipe != nil:
			used++
			if !takesKey(rt) {
				t.Errorf("there is a recipe for %s, which takes no key", pattern)
			}
			path, body := recipe(s)
			rows = append(rows, &keyedRow{method: rt.Method, path: path, body: body, key: s.fresh("key-0000")})
		case takesKey(rt) && !slices.Contains(keyedNever, pattern):
			t.Errorf("%s takes an Idempotency-Key, but there is no recipe for it in keyedRecipes", pattern)
		}
	}
	if used != len(keyedRecipes) {
		t.Errorf("%d of %d recipes are for rows of the table", used, len(keyedRecipes))
	}
	return rows
}

func newKeyedSweep(t *testing.T) *sweep {
	return newSweepOn(t, newRig(t, keyedConfig, fstest.MapFS{"turns.json": {Data: []byte(keyedTurns)}}))
}

// TestEveryEffectHappensOnce: every row with an effect answers a request with the same key again, also after a restart,
// and refuses the key for another request and from somebody else.
func TestEveryEffectHappensOnce(t *testing.T) {
	t.Parallel()
	s := newKeyedSweep(t)
	_, other := s.operatorToken(auth.MintRequest{Scopes: []string{"admin:*"}})
	rows := keyedRows(t, s)
	for _, k := range rows {
		if k.first = k.send(s, s.admin); k.first.StatusCode/100 != 2 || k.first.Header["Idempotency-Replayed"] != nil {
			t.Fatalf("%s = %d %s %v, want 2xx, not replayed", k, k.first.StatusCode, k.first.body, k.first.Header)
		}
	}
	made := s.inventory()
	for _, restarted := range []bool{false, true} {
		for _, k := range rows {
			for range 2 {
				again := k.send(s, s.admin)
				if again.StatusCode != k.first.StatusCode || again.body != k.first.body || again.Header.Get("Content-Type") != k.first.Header.Get("Content-Type") ||
					again.Header.Get("Idempotency-Replayed") != "true" || again.Header.Get("X-Request-Id") == k.first.Header.Get("X-Request-Id") {
					t.Errorf("%s again, restarted %v = %d %s %v\nwant %d %s, replayed", k, restarted, again.StatusCode, again.body, again.Header, k.first.StatusCode, k.first.body)
				}
			}
			conflict := func(what string, ans answer) {
				t.Helper()
				if ans.StatusCode != http.StatusConflict || ans.code() != "idempotency-conflict" || ans.Header["Idempotency-Replayed"] != nil {
					t.Errorf("%s with %s = %d %s, want 409 idempotency-conflict", k, what, ans.StatusCode, ans.body)
				}
			}
			conflict("another token", k.send(s, other))
			changed := *k
			if changed.path += "?"; strings.Contains(k.path, "?") {
				changed.path = k.path + "&"
			}
			changed.path += "other=1"
			// No route passes over a parameter that it does not have, so only one that it has makes another request.
			if ans := changed.send(s, s.admin); ans.code() != "config-invalid" && ans.code() != "run-not-suspended" || ans.Header["Idempotency-Replayed"] != nil {
				t.Errorf("%s with a stray parameter = %d %s, want 400 config-invalid", k, ans.StatusCode, ans.body)
			}
			if at := strings.Index(k.path, "?as="); at >= 0 {
				changed.path = k.path[:at] + "?as=" + s.fresh("other")
				conflict("another query", changed.send(s, s.admin))
			}
			if s.send(k.method, "/v1"+k.path, "", k.body, "Idempotency-Key: "+k.key).whole(t).StatusCode != http.StatusUnauthorized {
				t.Errorf("%s is answered again to nobody", k)
			}
		}
		if !restarted {
			s.stop()
			s.start()
		}
	}
	if after := s.inventory(); after != made {
		t.Errorf("after the repetitions there is\n%s\nwant\n%s", after, made)
	}
}

// TestEveryEffectRefusesAKeyInFlight sends each request twice at once while the store cannot write: one waits, and the
// other is told so.
func TestEveryEffectRefusesAKeyInFlight(t *testing.T) {
	t.Parallel()
	config := strings.Replace(keyedConfig, `"enabled": true`, `"enabled": false`, 1) // else a refusal waits for its entry
	s := newSweepOn(t, newRig(t, config, fstest.MapFS{"turns.json": {Data: []byte(keyedTurns)}}))
	exec := storetest.Another(t, s.cfg.Resolve(s.cfg.Storage.Path))
	for _, k := range keyedRows(t, s) {
		if strings.HasPrefix(k.path, "/audit/") {
			continue
		}
		exec("BEGIN IMMEDIATE")
		answers := make(chan answer, 2)
		for range 2 {
			go func() { answers <- k.send(s, s.admin) }()
		}
		ans := <-answers
		exec("COMMIT")
		if ans.StatusCode != http.StatusConflict || ans.code() != "idempotency-in-flight" || ans.Header.Get("Retry-After") != "1" || ans.Header["Idempotency-Replayed"] != nil {
			t.Errorf("%s, the second at once = %d %s, want 409 idempotency-in-flight and to wait for 1 s", k, ans.StatusCode, ans.body)
		}
		if ans := <-answers; ans.StatusCode/100 != 2 {
			t.Errorf("%s, the first = %d %s, want 2xx", k, ans.StatusCode, ans.body)
		}
		if ans := k.send(s, s.admin); ans.StatusCode/100 != 2 || ans.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s, later = %d %s, want 2xx, replayed", k, ans.StatusCode, ans.body)
		}
	}
}

// An answer that is too large to be kept comes whole, each time anew.
func TestLargeAnswersAreNotKept(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	said := strings.Repeat("x", gate.MaxAnswer)
	if ans := s.do("POST", "/v1/agents/echo/run", s.admin, `{"sessionId": "large", "input": "`+said+`"}`); ans.StatusCode != http.StatusOK {
		t.Fatalf("POST run = %d", ans.StatusCode)
	}
	for range 2 {
		ans := s.do("POST", "/v1/sessions/large/export", s.admin, "", "Idempotency-Key: key-large")
		var export rest.SessionExport
		err := json.Unmarshal([]byte(ans.body), &export)
		if err != nil || ans.StatusCode != http.StatusOK || ans.Header["Idempotency-Replayed"] != nil || !strings.Contains(export.Export, said) {
			t.Errorf("POST export = %d, %d bytes, %v, %v; want it whole and new", ans.StatusCode, len(ans.body), ans.Header, err)
		}
	}
}

// TestOneKeyMakesOneRun sends a thousand requests with one key at once.
func TestOneKeyMakesOneRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{}`, nil)
	for _, route := range []string{"run", "stream"} {
		var mu sync.Mutex // guards the two below
		runs, refused := map[string]int{}, 0
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				ans := r.do("POST", "/v1/agents/echo/"+route, r.admin, `{"input": "x"}`, "Idempotency-Key: one-key-for-"+route)
				id, err := find(ans.body, ".runId")
				mu.Lock()
				defer mu.Unlock()
				if err == nil && ans.StatusCode/100 == 2 {
					runs[id]++
				} else if refused++; ans.code() != "idempotency-in-flight" {
					t.Errorf("%s = %d %s, want the run or idempotency-in-flight", route, ans.StatusCode, ans.body)
				}
			})
		}
		wg.Wait()
		t.Logf("%s: %v, %d refused", route, runs, refused)
		if len(runs) != 1 {
			t.Errorf("%s: the answers name the runs %v, want one", route, runs)
		}
	}
	var list struct{ Runs []any }
	if err := json.Unmarshal([]byte(r.do("GET", "/v1/runs?limit=1000", r.admin, "").body), &list); err != nil || len(list.Runs) != 2 {
		t.Errorf("there are %d runs, %v; want 2", len(list.Runs), err)
	}
}

// The document promises a key exactly where one is taken.
func TestKeysAreDocumented(t *testing.T) {
	t.Parallel()
	for _, enabled := range []bool{true, false} {
		r := newRig(t, fmt.Sprintf(`{"server": {"idempotency": {"enabled": %v}}}`, enabled), nil)
		for _, rt := range table() {
			item, _ := r.contract.doc["paths"].(map[string]any)[rt.Path].(map[string]any)
			op := item[strings.ToLower(rt.Method)]
			if op == nil { // the server has no chain
				continue
			}
			b, _ := json.Marshal(op)
			if got, want := strings.Contains(string(b), "IdempotencyKey"), enabled && takesKey(rt); got != want || strings.Contains(string(b), "idempotency-in-flight") != want {
				t.Errorf("%s documents a key: %v, want %v", rt.Pattern(""), got, want)
			}
		}
	}
}
