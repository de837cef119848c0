package server_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentd/server/audit"
	"agentd/server/config"
	"agentd/store/storetest"
)

// BenchmarkGrowth and BenchmarkAuditGrowth measure, one request after the other, what must not cost more as the database and
// the audit chain grow. AGENTD_GROWTH has the sizes, in runs and in entries. All figures come from
//
//	AGENTD_GROWTH=10000,100000,1000000 go test ./server -run '^$' -bench Growth -benchtime 300x -timeout 30m
//
// Of them, the metric cpu-µs, of client and server together, is what other programs on the machine disturb least.
func BenchmarkGrowth(b *testing.B) { // G1, G2
	grown(b, func(b *testing.B, runs int) {
		began := time.Now()
		addr, token := benchServer(b, func(cfg *config.Config) { storetest.Grow(b, cfg.Storage.Path, runs) })
		b.Logf("%d runs made in %s", runs, time.Since(began).Round(time.Second))
		invoker := mint(b, addr, token, "agents:invoke:*", "sessions:write:*") // its answers have no state
		ask := asking(b, addr, token)
		run := func(name, token, session string) {
			body := fmt.Sprintf(`{"input":"hello","sessionId":%q}`, session)
			b.Run(name, func(b *testing.B) { load(b, addr, 1, request("POST", "/v1/agents/noop/run", addr, token, body), 200) })
		}
		b.Run("subscribe-to-a-session-of-10", func(b *testing.B) { subscribe(b, addr, token, storetest.Session(1)) })
		b.Run("subscribe-to-a-session-of-10000", func(b *testing.B) { subscribe(b, addr, token, storetest.LongSession) })
		b.Run("start", func(b *testing.B) {
			load(b, addr, 1, request("POST", "/v1/agents/noop/stream", addr, token, `{"input":"hello"}`), 202)
		})
		run("run-in-a-session-of-10", invoker, counted) // each in another
		run("run-in-a-session-of-10000", invoker, storetest.LongSession)
		run("run-in-a-session-of-10-with-its-state", token, counted)
		run("run-in-a-session-of-10000-with-its-state", token, storetest.LongSession)
		b.Run("state", func(b *testing.B) { load(b, addr, 1, stateRequest(b, addr, token), 200) })
		ask("approvals", "/v1/approvals")
		ask("runs", "/v1/runs?limit=20")
		ask("runs-of-an-agent", "/v1/runs?limit=20&agentId=agent3")
		for _, status := range []string{"pending", "running", "awaiting_approval", "completed", "failed", "aborted"} {
			ask("runs-"+status, "/v1/runs?limit=20&status="+status)
		}
		ask("sessions", "/v1/sessions")
		ask("sessions-of-nobody", "/v1/sessions?agentId=nobody")
		ask("sessions-of-a-user-with-nobody", "/v1/sessions?userId=anonymous&agentId=nobody")
		ask("messages-of-the-long-session", "/v1/sessions/"+storetest.LongSession+"/messages?limit=20")
	})
}

func BenchmarkAuditGrowth(b *testing.B) { // G6
	grown(b, func(b *testing.B, entries int) {
		began := time.Now()
		addr, token := benchServer(b, func(cfg *config.Config) {
			cfg.Audit.Enabled, cfg.Audit.PassphraseRef, cfg.Audit.Path = true, cfg.Auth.PepperRef, filepath.Join(cfg.Dir, "audit.db")
			chain(b, cfg, entries)
		})
		b.Logf("%d entries made in %s", entries, time.Since(began).Round(time.Second))
		ask := asking(b, addr, token)
		ask("newest", "/v1/audit?order=desc")
		ask("since-late", fmt.Sprintf("/v1/audit?from=%d", chainTime(entries-500)))
		ask("until-early", fmt.Sprintf("/v1/audit?order=desc&to=%d", chainTime(500)))
		ask("between", fmt.Sprintf("/v1/audit?from=%d&to=%d", chainTime(entries/2), chainTime(entries/2+99)))
		ask("rare-action", "/v1/audit?action="+string(rare))
		ask("rare-action-newest", "/v1/audit?order=desc&action="+string(rare))
	})
}

// grown runs a benchmark for each of the sizes.
func grown(b *testing.B, fn func(b *testing.B, size int)) {
	for text := range strings.SplitSeq(cmp.Or(os.Getenv("AGENTD_GROWTH"), "10000"), ",") {
		size, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("size="+text, func(b *testing.B) { fn(b, size) })
	}
}

// asking makes a function that measures a GET request.
func asking(b *testing.B, addr, token string) func(name, path string) {
	return func(name, path string) {
		b.Run(name, func(b *testing.B) { load(b, addr, 1, request("GET", path, addr, token, ""), 200) })
	}
}

// rare is the action of one entry in the middle of the chain.
const rare = audit.Action("secret:rare")

// chainTime is the time of the nth entry that chain makes.
func chainTime(n int) int64 { return 1_700_000_000_000 + int64(n)*1000 }

// chain makes an audit chain of so many entries, a second apart.
func chain(b *testing.B, cfg *config.Config, entries int) {
	b.Helper()
	l, err := audit.Open(b.Context(), audit.Options{Path: cfg.Audit.Path, Durability: "normal", Passphrase: []byte(os.Getenv("AGENTD_BENCH_PEPPER"))})
	if err != nil {
		b.Fatal(err)
	}
	records := make([]audit.Record, 0, 500)
	for n := range entries {
		r := audit.Record{At: time.UnixMilli(chainTime(n)), Actor: audit.Actor{Kind: audit.ActorToken, ID: "token-1"}, Action: "http:request",
			Target: "GET /v1/runs", Decision: audit.Success, Metadata: map[string]any{"status": 200, "durationMs": 3}}
		if n == entries/2 {
			r.Action = rare
		}
		if records = append(records, r); len(records) == cap(records) || n == entries-1 {
			if err := l.Note(b.Context(), records...); err != nil {
				b.Fatal(err)
			}
			records = records[:0]
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

// mint makes a token with scopes.
func mint(b *testing.B, addr, token string, scopes ...string) string {
	b.Helper()
	body, _ := json.Marshal(map[string]any{"scopes": scopes})
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(request("POST", "/v1/tokens", addr, token, string(body))); err != nil {
		b.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	var made struct{ Raw string }
	if err := json.NewDecoder(res.Body).Decode(&made); err != nil || made.Raw == "" {
		b.Fatalf("status %d, %v", res.StatusCode, err)
	}
	return made.Raw
}

// subscribe measures what a subscription to a session costs until its answer begins.
func subscribe(b *testing.B, addr, token, session string) {
	req := request("GET", "/v1/sessions/"+session+"/events", addr, token, "")
	spent := cpu(b)
	for range b.N {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Write(req); err != nil {
			b.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, " 200 ") {
			b.Fatal(line, err)
		}
		conn.Close()
	}
	b.ReportMetric(float64((cpu(b)-spent).Microseconds())/float64(b.N), "cpu-µs")
}
