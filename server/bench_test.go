package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentd/auth"
	"agentd/server"
	"agentd/server/agent"
	"agentd/server/config"
	"agentd/server/event"
	"agentd/server/id"
	"agentd/store"
)

// The benchmarks measure the server as shipped over loopback TCP, next to ceilings that do the least that the same
// answer needs: BenchmarkCeilingHello a constant answer, BenchmarkCeilingRunDB a decoded body, a keyed hash and one
// durable row. What counts is the ratio of two that were measured in the same minute.

// noop answers at once.
type noop struct{}

func (noop) ID() string { return "noop" }

func (noop) Run(context.Context, agent.Input) (agent.Result, error) { return agent.Result{}, nil }

// steps makes three steps that do nothing.
type steps struct{ noop }

func (steps) ID() string { return "steps" }

func (steps) Stream(_ context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
	for n := 1; n <= 3; n++ {
		if err := out.Emit(event.New(event.StepStart, map[string]int{"stepNumber": n})); err != nil {
			return agent.Result{}, err
		}
	}
	return agent.Result{Output: "done"}, nil
}

// benchServer starts a server with token authentication and returns its address and a token for everything.
func benchServer(b *testing.B, change ...func(*config.Config)) (addr, token string) {
	b.Helper()
	dir := b.TempDir()
	cfg := config.Default()
	cfg.Dir = dir
	cfg.Server.Port = 0
	cfg.Server.RateLimit.Enabled = false // all requests come from one address
	cfg.Auth.PepperRef = "env:AGENTD_BENCH_PEPPER"
	b.Setenv("AGENTD_BENCH_PEPPER", "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGH")
	cfg.Storage.Path = filepath.Join(dir, "data.db")
	cfg.Server.RateLimit.Enabled = false
	for _, do := range change {
		do(cfg)
	}
	db, err := store.Open(b.Context(), store.Options{Path: cfg.Storage.Path})
	if err != nil {
		b.Fatal(err)
	}
	_, raw, err := issuerOf(b, cfg, db).Mint(b.Context(), auth.Anonymous(), auth.MintRequest{Scopes: []string{"admin:*"}})
	if err != nil {
		b.Fatal(err)
	}
	if err := db.Close(); err != nil {
		b.Fatal(err)
	}
	srv, err := server.New(server.Options{Config: cfg})
	if err != nil {
		b.Fatal(err)
	}
	for _, a := range []agent.Agent{noop{}, steps{}} {
		if err := srv.Agents().Register(agent.Registration{ID: a.ID(), Agent: a}); err != nil {
			b.Fatal(err)
		}
	}
	at, err := srv.Start(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := srv.Shutdown(context.Background()); err != nil {
			b.Errorf("Shutdown: %v", err)
		}
	})
	return at.String(), string(raw)
}

func request(method, path, addr, token, body string, headers ...string) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n%s", method, path, addr, token,
		strings.Join(append(headers, ""), "\r\n"), len(body), body)
}

// counted is the id of a session, and keyed a header with a key. load counts their digits, so that each request has another.
const (
	counted = "s" + digits
	keyed   = "Idempotency-Key: key-" + digits
	digits  = "0000000000"
)

// load sends a request over keep-alive connections, each one at a time, b.N in all, and reports rate and latency. It counts
// the digits of the request down.
func load(b *testing.B, addr string, conns int, req []byte, status int) {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(b.N))
	took := make([][]time.Duration, conns)
	var wg sync.WaitGroup
	spent := cpu(b)
	b.ResetTimer()
	for c := range conns {
		wg.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			r := bufio.NewReader(conn)
			req, key := bytes.Clone(req), bytes.Index(req, []byte(digits))
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				if key >= 0 {
					copy(req[key:], fmt.Sprintf("%0*d", len(digits), n))
				}
				begun := time.Now()
				if _, err := conn.Write(req); err != nil {
					b.Error(err)
					return
				}
				if err := response(r, status); err != nil {
					b.Error(err)
					return
				}
				took[c] = append(took[c], time.Since(begun))
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "req/s")
	b.ReportMetric(float64((cpu(b)-spent).Microseconds())/float64(len(all)), "cpu-µs") // of client and server, which a busy machine changes least
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}

// cpu is what the process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// response reads one answer with a length.
func response(r *bufio.Reader, status int) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if got, _ := strconv.Atoi(string(line[9:12])); got != status {
		rest, _ := r.Peek(r.Buffered())
		return fmt.Errorf("status %d, want %d: %s", got, status, rest)
	}
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			_, err = r.Discard(length)
			return err
		}
		if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(v)))
		}
	}
}

var connections = []int{1, 64}

func BenchmarkRunStart(b *testing.B) { // P1, P2
	for _, c := range connections {
		b.Run(fmt.Sprintf("c=%d", c), func(b *testing.B) {
			addr, token := benchServer(b)
			load(b, addr, c, request("POST", "/v1/agents/noop/stream", addr, token, `{"input":"hello"}`), 202)
		})
	}
}

// BenchmarkKeyedRunStart is BenchmarkRunStart with a key for each run.
func BenchmarkKeyedRunStart(b *testing.B) {
	for _, c := range connections {
		b.Run(fmt.Sprintf("c=%d", c), func(b *testing.B) {
			addr, token := benchServer(b)
			load(b, addr, c, request("POST", "/v1/agents/noop/stream", addr, token, `{"input":"hello"}`, keyed), 202)
		})
	}
}

// BenchmarkReplay is one keyed request again and again.
func BenchmarkReplay(b *testing.B) {
	addr, token := benchServer(b)
	first, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer first.Close()
	req := request("POST", "/v1/agents/noop/stream", addr, token, `{"input":"hello"}`, "Idempotency-Key: always-the-same")
	if _, err := first.Write(req); err != nil {
		b.Fatal(err)
	}
	if err := response(bufio.NewReader(first), 202); err != nil { // while it is under way, another is refused
		b.Fatal(err)
	}
	load(b, addr, 64, req, 202)
}

func BenchmarkWholeRun(b *testing.B) { // P4: three steps
	addr, token := benchServer(b)
	load(b, addr, 64, request("POST", "/v1/agents/steps/run", addr, token, `{"input":"hello"}`), 200)
}

func BenchmarkRunState(b *testing.B) { // P3
	addr, token := benchServer(b)
	load(b, addr, 64, stateRequest(b, addr, token), 200)
}

// BenchmarkReadsBesideWrites measures reads while as many clients as read start runs, one after the other.
func BenchmarkReadsBesideWrites(b *testing.B) { // P23
	addr, token := benchServer(b)
	read := stateRequest(b, addr, token)
	write := request("POST", "/v1/agents/noop/stream", addr, token, `{"input":"hello"}`)
	ctx, stop := context.WithCancel(b.Context())
	var writers sync.WaitGroup
	var wrote atomic.Int64
	for range 16 {
		writers.Go(func() {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer conn.Close()
			for r := bufio.NewReader(conn); ctx.Err() == nil; wrote.Add(1) {
				if _, err = conn.Write(write); err == nil {
					err = response(r, 202)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	load(b, addr, 16, read, 200)
	b.ReportMetric(float64(wrote.Load())/b.Elapsed().Seconds(), "writes/s")
	stop()
	writers.Wait()
}

// stateRequest makes a run, and the request for its state.
func stateRequest(b *testing.B, addr, token string) []byte {
	res, err := http.DefaultClient.Do(func() *http.Request {
		r, _ := http.NewRequest("POST", "http://"+addr+"/v1/agents/noop/run", bytes.NewReader([]byte(`{"input":"x"}`)))
		r.Header.Set("Authorization", "Bearer "+token)
		return r
	}())
	if err != nil {
		b.Fatal(err)
	}
	var run struct{ RunID string }
	if err := json.NewDecoder(res.Body).Decode(&run); err != nil {
		b.Fatal(err)
	}
	res.Body.Close()
	return request("GET", "/v1/runs/"+run.RunID+"/state", addr, token, "")
}

func ceiling(b *testing.B, h http.HandlerFunc) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", h)
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	b.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

func BenchmarkCeilingHello(b *testing.B) {
	addr := ceiling(b, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"hello":"world"}`)
	})
	load(b, addr, 64, request("GET", "/", addr, "x", ""), 200)
}

func BenchmarkCeilingRunDB(b *testing.B) {
	for _, c := range connections {
		b.Run(fmt.Sprintf("c=%d", c), func(b *testing.B) {
			db, err := store.Open(b.Context(), store.Options{Path: filepath.Join(b.TempDir(), "data.db")})
			if err != nil {
				b.Fatal(err)
			}
			addr := ceiling(b, func(w http.ResponseWriter, r *http.Request) {
				var in struct{ Input string }
				if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
					b.Error(err)
				}
				mac := hmac.New(sha256.New, []byte("0123456789abcdef0123456789abcdef"))
				io.WriteString(mac, r.Header.Get("Authorization"))
				mac.Sum(nil)
				c := store.Change{Run: store.Run{ID: id.New(), Kind: "agent", Owner: "a", Current: "a", Status: store.Completed, InputForm: "text",
					Usage: []byte(`{}`), Models: []byte(`{}`)}}
				if err := db.Update(r.Context(), func(tx *store.Tx) error { _, err := db.Runs().Apply(tx, &c); return err }); err != nil {
					b.Error(err)
				}
				out, _ := json.Marshal(map[string]string{"runId": c.Run.ID, "status": "running"})
				w.WriteHeader(202)
				w.Write(out)
			})
			load(b, addr, c, request("POST", "/", addr, "x", `{"input":"hello"}`), 202)
			b.Cleanup(func() { db.Close() })
		})
	}
}
