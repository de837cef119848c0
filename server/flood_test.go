package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// connect opens a connection to the server of the rig. Nothing on it takes longer than patience.
func (r *rig) connect() net.Conn {
	r.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		r.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // reads and writes tell
	return conn
}

// TestFloods sends what no client sends. Each is refused or answered at once, and the server lives.
func TestFloods(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{"auth": {"kind": "none"}}`, nil)
	const host = "Host: localhost\r\n"
	get := "GET /v1/health HTTP/1.1\r\n" + host
	lines := func(n int, line string) string { return strings.Repeat(line, n) }
	for _, tc := range []struct {
		name, sent string
		want       string // the statuses of the answers
	}{
		{"a header of 1 MiB", get + "X: " + lines(1<<20, "a") + "\r\n\r\n", "431"},
		{"a header name of 1 MiB", get + lines(1<<20, "a") + ": x\r\n\r\n", "431"},
		{"a URL of 1 MiB", "GET /v1/health?" + lines(1<<20, "a") + " HTTP/1.1\r\n" + host + "\r\n", "431"},
		{"a method of 1 MiB", lines(1<<20, "A") + " /v1/health HTTP/1.1\r\n" + host + "\r\n", "431"},
		{"a request line without end", "GET /" + lines(4<<20, "a"), "431"},
		{"100000 header lines", get + lines(100_000, "X-Header: a value\r\n") + "\r\n", "431"},
		{"10000 header lines that fit", get + "Connection: close\r\n" + lines(10_000, "a:b\r\n") + "\r\n", "200"},
		{"a cookie of 60 KiB", get + "Connection: close\r\nCookie: " + lines(15<<10, "a=b;") + "\r\n\r\n", "200"},
		{"nothing but line ends", lines(100_000, "\r\n"), "400"},
		{"garbage", lines(1000, "\x00\xff\x16\x03\x01\r\n"), "400"},
		{"a TLS handshake", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "400"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "403"}, // it names no host; then the connection ends
		{"another version", "GET / HTTP/9.9\r\n\r\n", "505"},
		{"no host", "GET / HTTP/1.1\r\n\r\n", "400"},
		{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
		{"a NUL in a header", get + "X: a\x00b\r\n\r\n", "400"},
		{"a space before the colon", get + "X : a\r\n\r\n", "400"},
		{"two lengths", get + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
		{"a negative length", get + "Content-Length: -1\r\n\r\n", "400"},
		{"a length with a sign", get + "Content-Length: +1\r\n\r\na", "400"},
		{"an unknown coding", get + "Transfer-Encoding: gzip, chunked\r\n\r\n", "501"},
		{"a chunk that is none", get + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "200"}, // nobody reads it; the connection ends
		{"a request, then garbage", get + "\r\n\x00\x01\x02\r\n\r\n", "200 400"},
		{"a request, then a flood", get + "\r\nGET /" + lines(1<<20, "a"), "200 431"},
		{"100 requests at once", lines(99, get+"\r\n") + get + "Connection: close\r\n\r\n", strings.TrimSpace(lines(100, "200 "))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := r.connect()
			defer conn.Close()
			var sender sync.WaitGroup
			defer sender.Wait()
			sender.Go(func() { io.WriteString(conn, tc.sent) }) //nolint:errcheck // a refusal comes before the end of a flood
			var got []string
			answers := bufio.NewReader(conn)
			for {
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					if _, late := err.(net.Error); late && strings.Contains(err.Error(), "timeout") {
						t.Errorf("the connection is not ended within %v", patience)
					}
					break
				}
				got = append(got, fmt.Sprint(res.StatusCode))
				body, err := io.ReadAll(res.Body)
				if err != nil && res.StatusCode < 400 {
					t.Errorf("answer %d %s ends with %v", res.StatusCode, body, err)
					break
				}
				// What is no request gets the plain text of net/http.
				if text := string(body); res.StatusCode >= 400 && (text == "" || !res.Close || res.Header.Get("Content-Type") == "") {
					t.Errorf("answer %d is %q with the header %v, want a text that says why", res.StatusCode, text, res.Header)
				}
			}
			conn.Close()
			if all := strings.Join(got, " "); all != tc.want {
				t.Errorf("answers %.200s, want %.200s", all, tc.want)
			}
			if ans := r.do("GET", "/v1/health", "", ""); ans.StatusCode != 200 {
				t.Errorf("then GET /health = %d %s", ans.StatusCode, ans.body)
			}
		})
	}
}

// quantile is the time within which so much of the requests is answered.
func quantile(took []time.Duration, q float64) time.Duration {
	slices.Sort(took)
	return took[int(float64(len(took)-1)*q)]
}

// TestManyConnections has 500 clients send their headers byte by byte, 500 stop in the middle of a body and 2000 do
// nothing. Others are answered as before, and when all have gone nothing of them is left.
func TestManyConnections(t *testing.T) { // not beside others, which have goroutines and memory of their own
	r := newRig(t, `{"auth": {"kind": "none"}}`, nil)
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	idle, slow := 2000, 500
	if room := int(min(files.Cur, 1<<20)) - 300; 2*(idle+2*slow) > room {
		idle, slow = room/4, room/16
		t.Logf("with %d files open at most, there are %d idle clients and two times %d slow ones", files.Cur, idle, slow)
	}
	var conns, drips []net.Conn
	measure := func() time.Duration {
		var took []time.Duration
		for i := range 200 {
			for n := i % 50; n < len(drips); n += 50 {
				io.WriteString(drips[n], "a") //nolint:errcheck // it may be ended already
			}
			begun := time.Now()
			if ans := r.do("POST", "/v1/agents/echo/run", "", `{"input":"x"}`); ans.StatusCode != 200 {
				t.Fatalf("POST run = %d %s", ans.StatusCode, ans.body)
			}
			took = append(took, time.Since(begun))
		}
		return quantile(took, 0.9)
	}
	memory := func() uint64 {
		runtime.GC()
		runtime.GC() // the second frees what the first took out of pools
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	quiet := measure()
	r.client.CloseIdleConnections()
	goroutines, heap := runtime.NumGoroutine(), memory()

	open := func(sent string) net.Conn {
		conn := r.connect()
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		return conn
	}
	for range idle {
		open("")
	}
	for range slow {
		drips = append(drips, open("GET /v1/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))
		open("POST /v1/agents/echo/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{\"input\": \"half")
	}
	beside, held := measure(), memory()
	t.Logf("90 %% of requests are answered in %v, beside %d connections in %v; one of those takes %d bytes, both ends together", quiet, len(conns), beside,
		(int64(held)-int64(heap))/int64(len(conns)))
	if beside > 5*quiet+100*time.Millisecond {
		t.Errorf("90 %% of requests take %v beside slow clients and %v without, want it about the same", beside, quiet)
	}
	if each := (int64(held) - int64(heap)) / int64(len(conns)); each > 64<<10 {
		t.Errorf("a connection that does nothing takes %d bytes, want at most 64 KiB", each)
	}
	for _, c := range conns {
		c.Close()
	}
	r.client.CloseIdleConnections()
	left := func() (int, uint64) { return runtime.NumGoroutine(), memory() }
	n, size := left()
	for limit := time.Now().Add(patience); (n > goroutines+5 || size > heap+8<<20) && time.Now().Before(limit); {
		n, size = left()
	}
	if n > goroutines+5 || size > heap+8<<20 {
		t.Errorf("when all have gone there are %d goroutines and %d bytes, want about the %d and %d of before", n, size, goroutines, heap)
	}
}
