package stream_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/auth"
	"agentd/server/commentary"
	"agentd/server/event"
	"agentd/server/hub"
	"agentd/server/stream"
)

// arena is a service behind an HTTP server on loopback TCP, with one subject that all its clients watch.
type arena struct {
	hub       *hub.Hub
	service   *stream.Service
	addr      string
	text      string // of each event
	published int
}

const arenaSubject = "session:arena/events"

// newArena starts a service.
func newArena(tb testing.TB, queue int) *arena {
	tb.Helper()
	a := &arena{hub: hub.New(hub.Options{}), text: strings.Repeat("x", 94)}
	feed := func(context.Context, event.Subject) (stream.Feed, error) {
		return stream.Feed{Subject: arenaSubject}, nil
	}
	a.service = stream.New(stream.Options{Hub: a.hub, Feed: feed, KeepAlive: time.Minute, Queue: queue, Version: "0",
		Sanitiser: commentary.New(commentary.Wrap, []string{"text.delta"})})
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		if err := a.service.ServeWS(w, r, netip.Addr{}, ""); err != nil {
			tb.Errorf("ServeWS() = %v, want none", err)
		}
	})
	mux.HandleFunc("/sse", func(w http.ResponseWriter, r *http.Request) {
		if err := a.service.ServeSSE(w, r, auth.Anonymous(), stream.Feed{Subject: arenaSubject}); err != nil {
			tb.Errorf("ServeSSE() = %v, want none", err)
		}
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	a.addr = l.Addr().String()
	server := &http.Server{Handler: mux, ErrorLog: log.New(io.Discard, "", 0)}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) }) //nolint:errcheck // its end is wanted
	tb.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		a.service.Shutdown(now)
		server.Close()
		serving.Wait()
	})
	return a
}

// mark stands once in each event, and in nothing else that a client gets.
const mark = '^'

// publish makes the next event, whose WebSocket frame has about 250 bytes and the text.
func (a *arena) publish() {
	a.published++
	id := fmt.Sprintf("1.%06d", a.published)
	a.hub.Publish(arenaSubject, &hub.Entry{Pos: hub.Position{Epoch: 1, Seq: a.published}, ID: id, Type: "text.delta",
		Payload: fmt.Appendf(nil, `{"type":"text.delta","id":%q,"delta":"^%06d%s"}`, id, a.published, a.text)})
}

// watch connects a client, and returns when it is subscribed.
func (a *arena) watch(tb testing.TB, path string) net.Conn {
	tb.Helper()
	conn, err := net.Dial("tcp", a.addr)
	if err != nil {
		tb.Fatal(err)
	}
	request, last := "GET /sse HTTP/1.1\r\nHost: x\r\n\r\n", "\r\n\r\n"
	if path == "/ws" {
		request = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: " + stream.Subprotocol + "\r\n\r\n" +
			masked(`{"v":"1","jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"a","version":"1"}}}`) +
			masked(`{"v":"1","jsonrpc":"2.0","id":2,"method":"subscription.subscribe","params":{"subject":"`+arenaSubject+`"}}`)
		last = `"kind":"subscribed"`
	}
	if _, err := io.WriteString(conn, request); err != nil {
		tb.Fatal(err)
	}
	var got []byte
	for b := make([]byte, 1024); !bytes.Contains(got, []byte(last)); {
		n, err := conn.Read(b)
		if err != nil {
			tb.Fatalf("the answer ends with %v after %q", err, got)
		}
		got = append(got, b[:n]...)
	}
	return conn
}

// masked is a client's text frame of at least 126 bytes, with a key of zeros.
func masked(text string) string {
	text = fmt.Sprintf("%-126s", text)
	return string(binary.BigEndian.AppendUint16([]byte{0x81, 0x80 | 126}, uint16(len(text)))) + "\x00\x00\x00\x00" + text
}

// audience is clients that count events, which are published in rounds, at most two ahead of the slowest client.
type audience struct {
	size    int
	round   int             // events of one
	left    [2]atomic.Int64 // clients that have not all of an even or odd round
	done    chan struct{}   // holds a token for each round that all clients have
	readers sync.WaitGroup
	noted   atomic.Pointer[func(client, event int, at time.Time)] // is told instead of done
}

// counter makes a function that reads from a connection and counts the events. The default only counts marks.
type counter func(client int, conn net.Conn) func() (events int, err error)

func countMarks(_ int, conn net.Conn) func() (int, error) {
	buf := make([]byte, 16<<10)
	return func() (int, error) {
		n, err := conn.Read(buf)
		return bytes.Count(buf[:n], []byte{mark}), err
	}
}

// newAudience begins to read. No single read may yield a whole round, and two rounds have to fit into a client's queue.
func newAudience(tb testing.TB, conns []net.Conn, round int, count counter) *audience {
	a := &audience{size: len(conns), round: round, done: make(chan struct{}, 2)}
	for i := range a.left {
		a.left[i].Store(int64(a.size))
	}
	for client, conn := range conns {
		a.readers.Go(func() { a.read(client, count(client, conn)) })
	}
	tb.Cleanup(func() { a.leave(conns) })
	return a
}

func (a *audience) leave(conns []net.Conn) {
	for _, conn := range conns {
		conn.Close()
	}
	a.readers.Wait()
}

func (a *audience) read(client int, next func() (int, error)) {
	for got := 0; ; {
		n, err := next()
		if err != nil {
			return
		}
		had := got
		got += n
		if noted := a.noted.Load(); noted != nil {
			for at := time.Now(); had < got; had++ {
				(*noted)(client, had, at)
			}
			continue
		}
		if round := had / a.round; got/a.round != round {
			if left := &a.left[round%2]; left.Add(-1) == 0 {
				left.Store(int64(a.size))
				a.done <- struct{}{}
			}
		}
	}
}

// rounds publishes so many rounds and waits until all clients have them.
func (a *audience) rounds(tb testing.TB, rounds int, publish func()) {
	for round := range rounds + 2 {
		if round >= 2 {
			select {
			case <-a.done:
			case <-time.After(time.Minute):
				tb.Fatal("events are lost")
			}
		}
		if round < rounds {
			for range a.round {
				publish()
			}
		}
	}
}

// bareFanOut is the least that a server can do to send the same frames to all its connections: a queue for each, and a
// writer that sends all that waits with one write.
type bareFanOut struct {
	conns []*bareConn
	group sync.WaitGroup
}

type bareConn struct {
	net.Conn
	wake    chan struct{}
	mu      sync.Mutex
	waiting [][]byte
}

// newBareFanOut takes connections over from an HTTP server, and returns their other ends, too.
func newBareFanOut(tb testing.TB, size int) (*bareFanOut, []net.Conn) {
	tb.Helper()
	b := &bareFanOut{}
	accepted := make(chan net.Conn)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			tb.Error(err)
		}
		accepted <- conn
	})}
	b.group.Go(func() { server.Serve(l) }) //nolint:errcheck // its end is wanted
	var clients []net.Conn
	for range size {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			tb.Fatal(err)
		}
		io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") //nolint:errcheck // then nothing is accepted
		clients = append(clients, client)
		c := &bareConn{Conn: <-accepted, wake: make(chan struct{}, 1)}
		b.conns = append(b.conns, c)
		b.group.Go(c.write)
	}
	tb.Cleanup(func() {
		server.Close()
		for _, c := range b.conns {
			close(c.wake)
			c.Close()
		}
		b.group.Wait()
	})
	return b, clients
}

func (b *bareFanOut) publish(frame []byte) {
	for _, c := range b.conns {
		c.mu.Lock()
		c.waiting = append(c.waiting, frame)
		first := len(c.waiting) == 1
		c.mu.Unlock()
		if first {
			select {
			case c.wake <- struct{}{}:
			default:
			}
		}
	}
}

var bareOutputs = sync.Pool{New: func() any { return new([]byte) }}

func (c *bareConn) write() {
	var taken [][]byte
	for range c.wake {
		c.mu.Lock()
		taken, c.waiting = c.waiting, taken[:0]
		c.mu.Unlock()
		out := bareOutputs.Get().(*[]byte)
		for i, frame := range taken {
			if *out = append(*out, frame...); len(*out) > 32<<10 || i == len(taken)-1 {
				if _, err := c.Write(*out); err != nil {
					return
				}
				*out = (*out)[:0]
			}
		}
		bareOutputs.Put(out)
	}
}

// eventFrame is what a client of an arena gets for one event.
func eventFrame(tb testing.TB) []byte {
	tb.Helper()
	a := newArena(tb, 1000)
	conn := a.watch(tb, "/ws")
	defer conn.Close()
	a.publish()
	r := bufio.NewReader(conn)
	head, err := r.Peek(4)
	if err != nil || head[1] != 126 {
		tb.Fatalf("the frame begins with %x, %v", head, err)
	}
	frame := make([]byte, 4+int(binary.BigEndian.Uint16(head[2:])))
	if _, err := io.ReadFull(r, frame); err != nil {
		tb.Fatal(err)
	}
	return frame
}

// median of values that are sorted nowhere else.
func median[T cmp.Ordered](values []T) T { return percentile(values, 50) }
