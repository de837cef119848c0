package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentd/ws"
	"agentd/ws/wstest"
)

// The benchmarks compare what a client gets of a model through the server with what it gets from the model directly. The model
// and the server are processes of their own, so that the CPU time of the server counts alone. Each token is the time at which
// the model wrote it.
//
//	go test ./server -run '^$' -bench 'BenchmarkToken$' -benchtime 1x -count 5
//	go test ./server -run '^$' -bench BenchmarkFirstToken -benchtime 300x -count 5

// tokenPart names the part that this process plays in a benchmark: model, or server. Absent: none.
const tokenPart = "AGENTD_BENCH_TOKEN_PART"

// TestTokenPart is one of the processes. It prints where it listens, and what CPU time it has used for each line that it reads,
// until its input ends.
func TestTokenPart(t *testing.T) {
	var at part
	switch os.Getenv(tokenPart) {
	case "model":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go http.Serve(l, http.HandlerFunc(serveTokens)) //nolint:errcheck // the process ends first
		at.Addr = l.Addr().String()
	case "server":
		r := newRig(t, fmt.Sprintf(`{
			"providers": {"model": {"kind": "openai-compatible", "baseUrl": "http://%s/v1"}},
			"agents": {"talker": {"kind": "llm", "provider": "model", "model": "some-model", "instructions": "You talk.", "historyTokens": 0}}}`,
			os.Getenv(tokenPart+"_MODEL")), nil)
		at.Addr, at.Token = strings.TrimPrefix(r.url, "http://"), r.admin
	default:
		t.Skip(tokenPart + " is not set: a benchmark sets it for a process that it starts")
	}
	line, _ := json.Marshal(at)
	fmt.Printf("%s\n", line)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		fmt.Println(u.Utime.Nano() + u.Stime.Nano())
	}
}

var asked = regexp.MustCompile(`tokens=(\d+) every=(\w+)`)

// serveTokens streams as many tokens as the request's text asks for, as often as it asks for. The first comes at once, the end
// when another would.
func serveTokens(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	want := asked.FindSubmatch(body)
	if want == nil {
		http.Error(w, "the text names no number of tokens", http.StatusBadRequest)
		return
	}
	n, _ := strconv.Atoi(string(want[1]))
	every, _ := time.ParseDuration(string(want[2]))
	w.Header().Set("Content-Type", "text/event-stream")
	const head = `data: {"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion.chunk","created":1763823000,"model":"some-model","system_fingerprint":"fp_44709d6fcb",`
	flush := http.NewResponseController(w).Flush
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := range n + 1 {
		if i > 0 {
			<-tick.C
		}
		if i == n {
			break
		}
		fmt.Fprintf(w, head+`"choices":[{"index":0,"delta":{"content":"%d "},"logprobs":null,"finish_reason":null}],"usage":null}`+"\n\n", time.Now().UnixNano())
		if flush() != nil {
			return
		}
	}
	io.WriteString(w, head+`"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}`+"\n\n") //nolint:errcheck // the client notices
	fmt.Fprintf(w, head+`"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":%d,"total_tokens":%d}}`+"\n\ndata: [DONE]\n\n", n, n+9)
}

// part is a process of a benchmark.
type part struct {
	Addr, Token string

	in  io.Writer
	out *bufio.Reader
}

// startPart starts a process and waits until it listens.
func startPart(b *testing.B, name, model string) *part {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestTokenPart$")
	if file := os.Getenv(tokenPart + "_CPUPROFILE"); file != "" && name == "server" {
		cmd.Args = append(cmd.Args, "-test.cpuprofile="+file)
	}
	cmd.Env, cmd.Stderr = append(os.Environ(), tokenPart+"="+name, tokenPart+"_MODEL="+model), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := &part{in: in, out: bufio.NewReader(out)}
	b.Cleanup(func() {
		in.Close()
		said, _ := io.ReadAll(p.out)
		if err := cmd.Wait(); err != nil {
			b.Errorf("the %s ends with %v: %s", name, err, said)
		}
	})
	if line, err := p.out.ReadBytes('\n'); err != nil || json.Unmarshal(line, p) != nil {
		b.Fatalf("the %s says %q, %v, want where it listens", name, line, err)
	}
	return p
}

// cpu is what the process has used.
func (p *part) cpu(b *testing.B) time.Duration {
	var used time.Duration
	if _, err := fmt.Fprintln(p.in); err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Fscan(p.out, &used); err != nil {
		b.Fatal(err)
	}
	return used
}

// A listener gets the tokens of one request after the other.
type listener interface {
	// ask makes a request. It calls token with each token's text, and returns when there are no more.
	ask(text string, token func(sent []byte)) error
	close()
}

// direct is a client of the model.
type direct struct {
	addr string
	conn net.Conn
	r    *bufio.Reader
}

func newDirect(model, _ *part) (listener, error) {
	conn, err := net.Dial("tcp", model.Addr)
	if err != nil {
		return nil, err
	}
	return &direct{model.Addr, conn, bufio.NewReader(conn)}, nil
}

func (d *direct) ask(text string, token func([]byte)) error {
	body := fmt.Sprintf(`{"model":"some-model","stream":true,"messages":[{"role":"user","content":%q}]}`, text)
	if _, err := d.conn.Write(request("POST", "/v1/chat/completions", d.addr, "none", body)); err != nil {
		return err
	}
	return eachToken(d.r, `"delta":{"content":"`, "0\r\n", token)
}

func (d *direct) close() { d.conn.Close() }

// eachToken calls token with what follows a text in a line, until a line has the end.
func eachToken(r *bufio.Reader, before, end string, token func([]byte)) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if _, sent, ok := bytes.Cut(line, []byte(before)); ok {
			token(sent)
		} else if strings.HasPrefix(string(line), end) {
			return nil
		}
	}
}

// sseListener starts runs of a session and gets their events in the answers.
type sseListener struct {
	server  *part
	session string
}

func newSSE(_, server *part) (listener, error) {
	return &sseListener{server, fmt.Sprintf("s-%x", rand.Uint64())}, nil
}

func (s *sseListener) ask(text string, token func([]byte)) error {
	conn, err := net.Dial("tcp", s.server.Addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	body := fmt.Sprintf(`{"input":%q,"sessionId":%q}`, text, s.session)
	if _, err := conn.Write(request("POST", "/v1/agents/talker/stream", s.server.Addr, s.server.Token, body, "Accept: text/event-stream")); err != nil {
		return err
	}
	return eachToken(bufio.NewReaderSize(conn, 64<<10), `"payload":{"type":"text.delta","delta":"`, "event: lifecycle", token)
}

func (s *sseListener) close() {}

// wsListener starts runs of a session, and gets the session's events on a socket.
type wsListener struct {
	sseListener
	socket *wstest.Conn
	conn   net.Conn
	r      *bufio.Reader
}

func newWS(_, server *part) (listener, error) {
	l := &wsListener{sseListener: sseListener{server, fmt.Sprintf("s-%x", rand.Uint64())}}
	var err error
	if l.conn, err = net.Dial("tcp", server.Addr); err != nil {
		return nil, err
	}
	l.r = bufio.NewReader(l.conn)
	l.socket, err = wstest.Dial(context.Background(), "ws://"+server.Addr+"/v1/ws", &wstest.DialOptions{Header: bearer(server.Token), Protocols: []string{"svc.protocol.v1"}})
	if err != nil {
		return nil, err
	}
	for _, text := range []string{`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"bench","version":"1"}}}`,
		fmt.Sprintf(`{"v":"1","jsonrpc":"2.0","id":2,"method":"subscription.subscribe","params":{"subject":"session:%s/events"}}`, l.session)} {
		if err := l.socket.Write(context.Background(), ws.Text, []byte(text)); err != nil {
			return nil, err
		}
	}
	return l, l.until(`"kind":"subscribed"`, nil)
}

func (l *wsListener) ask(text string, token func([]byte)) error {
	body := fmt.Sprintf(`{"input":%q,"sessionId":%q}`, text, l.session)
	if _, err := l.conn.Write(request("POST", "/v1/agents/talker/stream", l.server.Addr, l.server.Token, body)); err != nil {
		return err
	}
	if err := l.until(`"type":"agent.end"`, token); err != nil {
		return err
	}
	return response(l.r, http.StatusAccepted)
}

// until reads frames until one has a text.
func (l *wsListener) until(text string, token func([]byte)) error {
	for {
		_, frame, err := l.socket.Read(context.Background())
		if err != nil {
			return err
		}
		if _, sent, ok := bytes.Cut(frame, []byte(`"payload":{"type":"text.delta","delta":"`)); ok {
			token(sent)
		} else if bytes.Contains(frame, []byte(text)) {
			return nil
		}
	}
}

func (l *wsListener) close() {
	l.conn.Close()
	l.socket.CloseNow()
}

// ways are how a client can get a model's tokens.
var ways = []struct {
	name string
	make func(model, server *part) (listener, error)
}{{"direct", newDirect}, {"ws", newWS}, {"sse", newSSE}}

// BenchmarkToken measures how long after the model has written a token a client has it, and the CPU time of the server for it,
// with one stream and with many.
func BenchmarkToken(b *testing.B) { // U1
	const tokens, every = 200, 25 * time.Millisecond
	for _, streams := range []int{1, 500} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			model := startPart(b, "model", "")
			server := startPart(b, "server", model.Addr)
			for _, way := range ways {
				b.Run(way.name, func(b *testing.B) {
					var listeners []listener
					for range streams {
						l, err := way.make(model, server)
						if err != nil {
							b.Fatal(err)
						}
						defer l.close()
						listeners = append(listeners, l)
					}
					delays := make([][]time.Duration, streams)
					var spent time.Duration
					for b.Loop() {
						used := server.cpu(b)
						var all sync.WaitGroup
						for i, l := range listeners {
							all.Go(func() {
								<-time.After(time.Duration(i) * tokens * every / time.Duration(streams)) // not all at once
								n := 0
								err := l.ask(fmt.Sprintf("tokens=%d every=%v", tokens, every), func(sent []byte) {
									n++
									delays[i] = append(delays[i], since(sent))
								})
								if n != tokens || err != nil {
									b.Error(errors.Join(fmt.Errorf("%d tokens came, want %d", n, tokens), err))
								}
							})
						}
						all.Wait()
						spent += server.cpu(b) - used
					}
					report(b, delays)
					if way.name != "direct" {
						b.ReportMetric(float64(spent.Microseconds())/float64(b.N*streams*tokens), "cpu-µs/token")
					}
				})
			}
		})
	}
}

// since is the age of a token.
func since(sent []byte) time.Duration {
	text, _, _ := bytes.Cut(sent, []byte(" "))
	at, _ := strconv.ParseInt(string(text), 10, 64)
	return time.Since(time.Unix(0, at))
}

// report reports the quantiles of what took long.
func report(b *testing.B, took [][]time.Duration) {
	all := slices.Concat(took...)
	slices.Sort(all)
	if len(all) == 0 {
		return
	}
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFirstToken measures how long after its request a client has the first token. Nothing else is under way.
func BenchmarkFirstToken(b *testing.B) { // U2
	model := startPart(b, "model", "")
	server := startPart(b, "server", model.Addr)
	for _, way := range ways {
		b.Run(way.name, func(b *testing.B) {
			l, err := way.make(model, server)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { l.close() }()
			var took []time.Duration
			used := server.cpu(b)
			for b.Loop() {
				begun := time.Now()
				if err := l.ask("tokens=1 every=5ms", func([]byte) { took = append(took, time.Since(begun)) }); err != nil {
					b.Fatal(err)
				}
			}
			if way.name != "direct" {
				b.ReportMetric(float64((server.cpu(b)-used).Microseconds())/float64(b.N), "cpu-µs/run")
			}
			report(b, [][]time.Duration{took})
		})
	}
}
