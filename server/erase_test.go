package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server"
	"agentd/server/config"
	"agentd/server/graph"
	"agentd/store"
	"agentd/store/storetest"
)

// erasable are workflows whose threads have all that can hang on one: agents with a session of the thread, one of their own, and
// none; threads below, with agents; steps, state, waits, and answers to waits that are not reached.
var erasable = map[string]string{
	"outer": `{"start": "own", "state": {"said": {}, "all": {}}, "input": {"type": "object"}, "nodes": {
		"own":    {"kind": "agent", "agent": "echo", "session": "thread", "input": "${ input.word }", "save": "said", "next": "named"},
		"named":  {"kind": "agent", "agent": "echo", "session": "${ 'shared' }", "input": "${ input.word }", "next": "each"},
		"each":   {"kind": "map", "over": "${ [input.word, input.word] }", "save": "all", "do": {"kind": "agent", "agent": "echo", "input": "${ item }"}, "next": "below"},
		"below":  {"kind": "workflow", "workflow": "inner", "input": "${ {'word': input.word} }", "next": "wait"},
		"wait":   {"kind": "await", "name": "ready", "next": "end"}}}`,
	"inner": `{"start": "say", "state": {"said": {}}, "input": {"type": "object"}, "nodes": {
		"say":    {"kind": "agent", "agent": "echo", "session": "thread", "input": "${ input.word }", "save": "said", "next": "ask"},
		"ask":    {"kind": "approval", "name": "go", "show": {"word": "${ state.said }"}, "next": "end"}}}`,
}

// An eraser is a server with the workflows above.
type eraser struct {
	*testing.T
	srv  *server.Server
	url  string
	path string
}

func newEraser(t *testing.T) *eraser {
	cfg := config.Default()
	cfg.Server.Port, cfg.Auth.Kind, cfg.Audit.Enabled, cfg.Storage.Path = 0, "none", false, filepath.Join(t.TempDir(), "agentd.db")
	srv, err := server.New(server.Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	for _, reg := range testAgents(nil) {
		if err := srv.Agents().Register(reg); err != nil {
			t.Fatal(err)
		}
	}
	for id, text := range erasable {
		g, err := graph.Parse(id, []byte(text))
		if err == nil {
			err = srv.Workflows().Declare(id, g)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	addr, err := srv.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Shutdown(context.Background()) }) //nolint:errcheck // nothing runs any more
	return &eraser{t, srv, "http://" + addr.String() + cfg.Server.BasePath, cfg.Storage.Path}
}

// do sends a request and returns the status and the members of the answer.
func (e *eraser) do(method, path, body string) (int, map[string]any) {
	e.Helper()
	req, err := http.NewRequestWithContext(e.Context(), method, e.url+path, strings.NewReader(body))
	if err != nil {
		e.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		e.Fatal(err)
	}
	var members map[string]any
	json.Unmarshal(raw, &members) //nolint:errcheck // then there are none
	return resp.StatusCode, members
}

// park runs a thread of outer, linked to a session, until the workflow below waits.
func (e *eraser) park(thread, session, word string) (run string) {
	e.Helper()
	status, ans := e.do("POST", "/workflows/outer/execute", fmt.Sprintf(`{"threadId": %q, "sessionId": %q, "input": {"word": %q}}`, thread, session, word))
	if run, _ = ans["runId"].(string); status != http.StatusAccepted {
		e.Fatalf("execute = %d %v", status, ans)
	}
	e.settle(run, "awaiting_approval")
	return run
}

func (e *eraser) settle(run, want string) {
	e.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		status, ans := e.do("GET", "/runs/"+run+"/state", "")
		if ans["status"] == want {
			return
		}
		if time.Now().After(end) {
			e.Fatalf("the run is %d %v, want %s", status, ans, want)
		}
	}
}

// TestErasedThreadsLeaveNothing erases threads that wait, by themselves and with the session that they are linked to. No table
// keeps an id or a value of them; what another thread has stays.
func TestErasedThreadsLeaveNothing(t *testing.T) {
	for name, erase := range map[string]func(e *eraser) (int, map[string]any){
		"thread": func(e *eraser) (int, map[string]any) {
			return e.do("DELETE", "/workflows/outer/threads/secret-thread", "")
		},
		"session": func(e *eraser) (int, map[string]any) { return e.do("DELETE", "/sessions/secret-session", "") },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEraser(t)
			kept := e.park("kept", "kept-session", "kept-word")
			run := e.park("secret-thread", "secret-session", "secret-word")
			if status, ans := e.do("POST", "/workflows/outer/resume", `{"threadId": "secret-thread", "name": "ready", "resume": "secret-answer"}`); status != http.StatusAccepted {
				t.Fatalf("resume = %d %v", status, ans)
			}
			e.settle(run, "awaiting_approval") // the thread moves for a moment, to keep the answer
			ids := e.below(run)
			if len(ids) != 7 { // its own, the one below, and those of five agents
				t.Fatalf("the thread has the runs %q", ids)
			}
			ids = append(ids, "secret-thread", "secret-word", "secret-answer")
			if name == "session" {
				ids = append(ids, "secret-session")
			}
			if status, ans := erase(e); status != http.StatusNoContent {
				t.Fatalf("DELETE = %d %v", status, ans)
			}
			for _, id := range ids {
				if tables := storetest.Holding(t, e.path, id); tables != nil {
					t.Errorf("the tables %q still hold %s", tables, id)
				}
			}
			if status, ans := e.do("GET", "/runs/"+run+"/state", ""); status != http.StatusNotFound {
				t.Errorf("GET state of an erased run = %d %v, want 404", status, ans)
			}
			if status, _ := e.do("GET", "/workflows/outer/state?threadId=secret-thread", ""); status != http.StatusNotFound {
				t.Errorf("GET state of an erased thread = %d, want 404", status)
			}
			if got := e.below(kept); len(got) != 7 {
				t.Errorf("of the other thread, the runs %q stay", got)
			}
			var list struct{ Messages []json.RawMessage }
			resp, err := http.Get(e.url + "/sessions/shared/messages")
			if err == nil {
				err = json.NewDecoder(resp.Body).Decode(&list)
				resp.Body.Close()
			}
			if err != nil || len(list.Messages) != 2 {
				t.Errorf("the session that both shared has %s, %v, want a question and an answer", list.Messages, err)
			}
			if found, err := e.verify(); err != nil || len(found) > 0 {
				t.Errorf("Verify = %v, %v", found, err)
			}
		})
	}
}

// below returns the ids of a run and of all that it hosts.
func (e *eraser) below(run string) (ids []string) {
	e.Helper()
	_, ans := e.do("GET", "/runs?parent="+run, "")
	list, _ := ans["runs"].([]any)
	for _, r := range list {
		id, _ := r.(map[string]any)["runId"].(string)
		ids = append(ids, e.below(id)...)
	}
	if slices.Contains(ids, "") {
		e.Fatalf("the answer has runs without an id: %v", ans)
	}
	return append(ids, run)
}

func (e *eraser) verify() ([]store.Damage, error) {
	db, err := store.Open(e.Context(), store.Options{Path: e.path, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return db.Verify(e.Context())
}
