package server_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"agentd/server/config"
	"agentd/server/id"
	"agentd/server/message"
	"agentd/store"
)

// grow fills a database with so many ended runs of a question and an answer: each tenth in one session, the others in
// sessions of ten, one in a hundred failed, of ten agents in turn.
func grow(b *testing.B, path string, runs int) {
	b.Helper()
	db, err := store.Open(b.Context(), store.Options{Path: path, Durability: "normal"})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	body := func(role message.Role, text string) json.RawMessage {
		text2, _ := message.Encode(message.Message{Role: role, Content: message.Text(text)})
		return text2
	}
	said := []store.Message{{Index: 0, Role: "user", Tokens: 6, At: 1, Body: body(message.User, "a question")},
		{Index: 1, Role: "assistant", Tokens: 6, At: 1, Body: body(message.Assistant, "an answer")}}
	for done := 0; done < runs; done += 1000 {
		err := db.Update(b.Context(), func(tx *store.Tx) error {
			for n := done; n < min(done+1000, runs); n++ {
				session := fmt.Sprintf("s%d", n/10)
				if n%10 == 0 {
					session = "long"
				}
				if n == 0 || n%10 == 1 {
					if err := db.Sessions().Insert(tx, store.Session{ID: session, User: "anonymous", Agent: "noop", Created: tx.Now()}); err != nil {
						return err
					}
				}
				status := store.Completed
				if n%100 == 7 {
					status = store.Failed
				}
				owner := "noop"
				if n%10 != 0 {
					owner = fmt.Sprintf("agent%d", n%10)
				}
				if _, err := db.Runs().Apply(tx, &store.Change{Run: store.Run{ID: id.New(), Kind: "agent", Owner: owner, Current: owner, Session: session,
					Status: status, Messages: 2, InputForm: "text", Usage: json.RawMessage(`{}`), Models: json.RawMessage(`{}`), Created: 1, Started: 1, Finished: 1},
					Messages: said}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGrowth measures, one request after the other, what must not cost more as the database grows. The sizes are those
// of AGENTD_GROWTH, in runs: 10000,100000,1000000 takes some minutes to fill.
func BenchmarkGrowth(b *testing.B) { // G1, G2
	for text := range strings.SplitSeq(cmp.Or(os.Getenv("AGENTD_GROWTH"), "10000"), ",") {
		runs, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("runs=%d", runs), func(b *testing.B) {
			addr, token := benchServer(b, func(cfg *config.Config) { grow(b, cfg.Storage.Path, runs) })
			ask := func(name, method, path, body string, status int) {
				b.Run(name, func(b *testing.B) { load(b, addr, 1, request(method, path, addr, token, body), status) })
			}
			ask("start", "POST", "/v1/agents/noop/stream", `{"input":"hello"}`, 202)
			ask("start-in-a-short-session", "POST", "/v1/agents/noop/run", `{"input":"hello","sessionId":"s1"}`, 200)
			ask("start-in-the-long-session", "POST", "/v1/agents/noop/run", `{"input":"hello","sessionId":"long"}`, 200)
			b.Run("state", func(b *testing.B) { load(b, addr, 1, stateRequest(b, addr, token), 200) })
			ask("approvals", "GET", "/v1/approvals", "", 200)
			ask("runs", "GET", "/v1/runs?limit=20", "", 200)
			ask("runs-of-an-agent", "GET", "/v1/runs?limit=20&agentId=agent3", "", 200)
			ask("runs-that-failed", "GET", "/v1/runs?limit=20&status=failed", "", 200)
			ask("runs-that-wait", "GET", "/v1/runs?limit=20&status=awaiting_approval", "", 200)
			ask("sessions", "GET", "/v1/sessions?agentId=nobody", "", 200)
			ask("messages-of-the-long-session", "GET", "/v1/sessions/long/messages?limit=20", "", 200)
		})
	}
}
