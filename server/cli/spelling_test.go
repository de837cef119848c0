package cli_test

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// wishing is a model server that asks once for the call that the user names: the tool, a space, and the arguments as they
// are to be spelt.
func wishing(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Messages []struct{ Role, Content string }
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		last := asked.Messages[len(asked.Messages)-1]
		delta := map[string]any{"content": "told: " + last.Content}
		if last.Role == "user" {
			name, args, _ := strings.Cut(last.Content, " ")
			delta = map[string]any{"tool_calls": []any{map[string]any{"index": 0, "id": "c1", "type": "function", "function": map[string]any{"name": name, "arguments": args}}}}
		}
		b, _ := json.Marshal(map[string]any{"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": "stop"}}})
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", b)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestSpelling calls tools with arguments in spellings of which a program could make something else than a permission.
func TestSpelling(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{
		"auth": {"kind": "none"}, "storage": {"path": "data/data.db"},
		"providers": {"wishing": {"kind": "openai-compatible", "baseUrl": "`+wishing(t)+`/v1", "retries": 0}},
		"tools": {
			"deploy": {"kind": "exec", "description": "Deploys", "command": ["sh", "-c", "cat >> done.txt"]},
			"pay": {"kind": "exec", "description": "Pays", "approval": {"when": {"amount": 100}}, "command": ["sh", "-c", "cat >> done.txt"]}},
		"agents": {"a": {"kind": "llm", "provider": "wishing", "model": "m", "tools": ["deploy", "pay"],
			"permissions": {"deny": ["deploy:env=prod"], "allow": ["deploy:env=dev"]}}}
	}`)
	for _, tc := range []struct{ call, want string }{
		{`deploy {"env":"dev","env":"prod"}`, `told: Error: The arguments can be read in more than one way: the member "env" is there twice`},
		{`deploy {"env":"dev","\u0065nv":"prod"}`, `the member "env" is there twice`},
		{`deploy {"env":"dev","x":[{"a":1,"a":2}]}`, `the member "a" is there twice`},
		{`deploy {"env":"\u0070rod"}`, "may not make this call"},
		{`deploy {"env":["dev","prod"]}`, "may not make this call"},
		{`deploy {"env":[["dev"],["\u0070rod"]]}`, "may not make this call"},
		{`deploy {"ENV":"prod"}`, "may not make this call"},
		{`deploy {"env":"dev","Env":"test"}`, "waits"},
		{`deploy {"env":["dev","test"]}`, "waits"},
		{`deploy {"other":"dev"}`, "waits"},
		{`deploy {"ENV":"dev"}`, "waits"},
		{`pay {"amount":100.0}`, "waits"},
		{`pay {"amount":1e2}`, "waits"},
		{`pay {"amount":"100"}`, "waits"},
		{`pay {"amount":[5,100]}`, "waits"},
		{`pay {"amount":9007199254740993}`, "more digits than a double holds"},
		{`pay {"amount":1e400}`, "no double holds"},
		{`pay {"to":"\ud800"}`, "not Unicode"},
	} {
		s := spawn(t, dir, nil, nil, "run", "a", tc.call).wait()
		if tc.want == "waits" {
			s.want(t, 3, "", "waits for approval")
		} else {
			s.want(t, 0, tc.want, "")
		}
		if b, err := os.ReadFile(filepath.Join(dir, "done.txt")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s had an effect: %s, %v", tc.call, b, err)
		}
	}
	spawn(t, dir, nil, nil, "run", "a", ` deploy {"x" : 1.0, "\u0065nv": "d\u0065v", "list":[1e2,-0] }`[1:]).wait().want(t, 0, "told: ", "")
	if got, want := read(t, filepath.Join(dir, "done.txt")), `{"env":"dev","list":[100,0],"x":1}`+"\n"; got != want {
		t.Errorf("the program got %q, want %q", got, want)
	}
}

// TestEditedDatabase edits what a stopped server has stored of a call that waits, and starts it again.
func TestEditedDatabase(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"the call":     `UPDATE run_messages SET body = replace(body, '"to":"ann"', '"to":"eve"') WHERE role = 'assistant'`,
		"the approval": `UPDATE run_slots SET json = replace(json, '"to":"ann"', '"to":"eve"') WHERE json LIKE '[{"toolCallId"%'`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := newGatedSite(t)
			s := serve(t, dir)
			call := park(t, dir, "clerk", "ann")[0]
			s.signal(syscall.SIGTERM)
			s.wait()
			db, err := sql.Open("sqlite", filepath.Join(dir, "data", "data.db"))
			if err != nil {
				t.Fatal(err)
			}
			res, err := db.Exec(statement)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); err != nil || n != 1 {
				t.Fatalf("%d rows were changed, %v, want one", n, err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			s = serve(t, dir)
			if status := s.call("GET", "/health", "", nil); status != http.StatusServiceUnavailable {
				t.Errorf("GET /health = %d, want 503", status)
			}
			var list struct {
				Approvals []struct{ ToolCallID, Mismatch string }
			}
			if status := s.call("GET", "/approvals", "", &list); status != http.StatusOK || len(list.Approvals) != 1 || list.Approvals[0].Mismatch == "" {
				t.Errorf("GET /approvals = %d %+v, want one with a mismatch", status, list)
			}
			spawn(t, dir, nil, nil, "approvals").wait().want(t, 0, "CHANGED SINCE THE REQUEST: ", "")
			spawn(t, dir, nil, nil, "runs", "approve", call.RunID).wait().want(t, 1, "", "call-altered: The stored arguments of the call "+call.ToolCallID+" of pay differ from the requested ones.")
			if n := payments(t, dir); n != 0 || s.status(call.RunID) != "awaiting_approval" {
				t.Errorf("%d payments and the run %s, want none, and that it waits", n, s.status(call.RunID))
			}
			if !strings.Contains(s.stderr.String(), "a stored tool call was changed") {
				t.Errorf("the log says nothing of it:\n%s", s.stderr.String())
			}
			spawn(t, dir, nil, nil, "runs", "deny", call.RunID).wait().want(t, 0, "", "")
			if n := payments(t, dir); n != 0 || s.status(call.RunID) != "completed" {
				t.Errorf("after the denial: %d payments and the run %s", n, s.status(call.RunID))
			}
		})
	}
}
