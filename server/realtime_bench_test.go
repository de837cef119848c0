package server_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"agentd/ws"
	"agentd/ws/wstest"
)

// BenchmarkFirstEvent measures how long after a run is asked for its first event is at a client that watches its session,
// and how long the answer takes, which needs a durable row. The server is idle.
func BenchmarkFirstEvent(b *testing.B) { // P6
	addr, token := benchServer(b)
	watcher, err := wstest.Dial(b.Context(), "ws://"+addr+"/v1/ws", &wstest.DialOptions{Header: bearer(token), Protocols: []string{"svc.protocol.v1"}})
	if err != nil {
		b.Fatal(err)
	}
	defer watcher.CloseNow()
	send := func(format string, args ...any) {
		if err := watcher.Write(b.Context(), ws.Text, fmt.Appendf(nil, format, args...)); err != nil {
			b.Fatal(err)
		}
	}
	await := func(text string) time.Time {
		for {
			_, frame, err := watcher.Read(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			if bytes.Contains(frame, []byte(text)) {
				return time.Now()
			}
		}
	}
	send(`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"bench","version":"1"}}}`)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	var events, answers []time.Duration
	for n := 0; b.Loop(); n++ {
		send(`{"v":"1","jsonrpc":"2.0","id":2,"method":"subscription.subscribe","params":{"subject":"session:s%d/events"}}`, n)
		await(`"kind":"subscribed"`)
		begun := time.Now()
		answered := make(chan time.Duration)
		go func() {
			defer close(answered)
			_, err := conn.Write(request("POST", "/v1/agents/noop/stream", addr, token, fmt.Sprintf(`{"input":"hello","sessionId":"s%d"}`, n)))
			if err == nil {
				err = response(r, 202)
			}
			if err != nil {
				b.Error(err)
			}
			answered <- time.Since(begun)
		}()
		events = append(events, await(`"type":"agent.start"`).Sub(begun))
		answers = append(answers, <-answered)
		await(`"type":"agent.end"`)
		if n%500 == 499 { // a connection has 1000 subscriptions at most
			b.StopTimer()
			watcher.CloseNow()
			watcher, err = wstest.Dial(b.Context(), "ws://"+addr+"/v1/ws", &wstest.DialOptions{Header: bearer(token), Protocols: []string{"svc.protocol.v1"}})
			if err != nil {
				b.Fatal(err)
			}
			send(`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"bench","version":"1"}}}`)
			b.StartTimer()
		}
	}
	for name, took := range map[string][]time.Duration{"event": events, "answer": answers} {
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), name+"-p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), name+"-p99-µs")
	}
}

// descriptor is a client's socket without any memory of Go.
type descriptor int

func dialDescriptor(b *testing.B, addr string) descriptor {
	b.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		b.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		b.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		err = syscall.Connect(fd, &syscall.SockaddrInet4{Port: number, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err != nil {
		b.Fatal(os.NewSyscallError("connect", err))
	}
	return descriptor(fd)
}

// exchange sends bytes and reads until a text has come.
func (d descriptor) exchange(b *testing.B, send []byte, until string) {
	b.Helper()
	if n, err := syscall.Write(int(d), send); err != nil || n != len(send) {
		b.Fatalf("write = %d, %v, want %d", n, err, len(send))
	}
	var got []byte
	for p := make([]byte, 1024); !bytes.Contains(got, []byte(until)); {
		n, err := syscall.Read(int(d), p)
		if err != nil || n <= 0 {
			b.Fatalf("the answer ends with %v after %q", err, got)
		}
		got = append(got, p[:n]...)
	}
}

// masked is a client's text frame of at least 126 bytes, with a key of zeros.
func masked(text string) string {
	text = fmt.Sprintf("%-126s", text)
	return string(binary.BigEndian.AppendUint16([]byte{0x81, 0x80 | 126}, uint16(len(text)))) + "\x00\x00\x00\x00" + text
}

// BenchmarkIdleConnection measures the memory of the server for an authenticated client that is subscribed and silent. The
// clients have none in this process.
func BenchmarkIdleConnection(b *testing.B) { // P10
	const clients = 2000
	for name, connect := range map[string]func(d descriptor, addr, token string){
		"ws": func(d descriptor, addr, token string) {
			d.exchange(b, fmt.Appendf(nil, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
				"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: svc.protocol.v1\r\n\r\n%s%s", addr, token,
				masked(`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"bench","version":"1"}}}`),
				masked(`{"v":"1","jsonrpc":"2.0","id":2,"method":"subscription.subscribe","params":{"subject":"session:bench/events"}}`)), `"kind":"subscribed"`)
		},
		"sse": func(d descriptor, addr, token string) {
			d.exchange(b, request("GET", "/v1/sessions/bench/events", addr, token, ""), "event-stream")
		},
	} {
		b.Run(name, func(b *testing.B) {
			addr, token := benchServer(b)
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				b.Fatal(err)
			}
			io.WriteString(conn, string(request("POST", "/v1/agents/noop/run", addr, token, `{"sessionId":"bench"}`))) //nolint:errcheck // the answer tells
			if err := response(bufio.NewReader(conn), 200); err != nil {
				b.Fatal(err)
			}
			conn.Close()
			var heaps, stacks []float64
			fill := func(clients int) {
				var open []descriptor
				heap, stack := memoryInUse()
				for range clients {
					d := dialDescriptor(b, addr)
					connect(d, addr, token)
					open = append(open, d)
				}
				moreHeap, moreStack := memoryInUse()
				heaps = append(heaps, float64(int64(moreHeap-heap))/float64(clients)/1024)
				stacks = append(stacks, float64(int64(moreStack-stack))/float64(clients)/1024)
				for _, d := range open {
					syscall.Close(int(d)) //nolint:errcheck // it is a descriptor of ours
				}
			}
			fill(clients / 10) // what is made only once
			heaps, stacks = nil, nil
			for b.Loop() {
				fill(clients)
			}
			slices.Sort(heaps)
			slices.Sort(stacks)
			b.ReportMetric(heaps[len(heaps)/2], "heap-KiB")
			b.ReportMetric(stacks[len(stacks)/2], "stack-KiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// memoryInUse collects garbage until what ends has ended.
func memoryInUse() (heap, stack uint64) {
	var m runtime.MemStats
	for before := uint64(0); ; before = m.HeapInuse + m.StackInuse {
		for range 3 {
			runtime.GC()
			<-time.After(20 * time.Millisecond)
		}
		runtime.ReadMemStats(&m)
		if now := m.HeapInuse + m.StackInuse; before != 0 && now+64<<10 >= before {
			return m.HeapInuse, m.StackInuse
		}
	}
}
