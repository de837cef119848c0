package ws_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"agentd/ws"
)

// wheel is a connection that delivers the same bytes over and over, and forgets what is written.
type wheel struct {
	script
	b  []byte
	at int
}

func (w *wheel) Read(p []byte) (int, error) {
	n := copy(p, w.b[w.at:])
	w.at = (w.at + n) % len(w.b)
	return n, nil
}

func (w *wheel) Write(p []byte) (int, error) { return len(p), nil }

var benchSizes = []int{16, 125, 1 << 10, 16 << 10, 64 << 10}

// BenchmarkRead reads masked text from memory.
func BenchmarkRead(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			frame := (&peer{}).frame(fin|text, strings.Repeat("x", n))
			w := &wheel{b: bytes.Repeat(frame, max(1, 8<<10/len(frame)))}
			c, err := ws.Accept(hijacked{nc: w}, handshake(), ws.Options{})
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if _, p, err := c.Read(); err != nil || len(p) != n {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWrite writes to memory.
func BenchmarkWrite(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, s := scriptedBoth(b, ws.Options{})
			p := make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Write(ws.Binary, p); err != nil {
					b.Fatal(err)
				}
				s.out.Reset()
			}
		})
	}
}

// rawEcho is the least that an echo server can do: it checks nothing, masks byte by byte and has one buffer.
func rawEcho(nc net.Conn) {
	br := bufio.NewReaderSize(nc, 32<<10)
	out := make([]byte, 0, 32<<10)
	for {
		b, err := br.Peek(2)
		if err != nil {
			return
		}
		head, n := 6, int(b[1]&0x7F)
		if n == 126 {
			if b, err = br.Peek(4); err != nil {
				return
			}
			head, n = 8, int(b[2])<<8|int(b[3])
		}
		if b, err = br.Peek(head + n); err != nil {
			return
		}
		out = append(out[:0], b[0], b[1]&0x7F)
		out = append(out, b[2:head-4]...)
		at := len(out)
		out = append(out, b[head:head+n]...)
		for i := range out[at:] {
			out[at+i] ^= b[head-4+i&3]
		}
		br.Discard(head + n) //nolint:errcheck // it has been peeked
		if _, err := nc.Write(out); err != nil {
			return
		}
	}
}

// BenchmarkEcho has some connections over TCP with some messages in flight on each, and compares with rawEcho.
func BenchmarkEcho(b *testing.B) {
	for _, load := range []struct{ conns, flight, size int }{{1, 1, 125}, {64, 1, 125}, {64, 16, 125}, {16, 4, 16 << 10}} {
		for _, server := range []string{"raw", "ws"} {
			b.Run(fmt.Sprintf("%s/%dx%d/%d", server, load.conns, load.flight, load.size), func(b *testing.B) {
				var group sync.WaitGroup
				var peers []net.Conn
				for range load.conns {
					near, far := tcp(b)
					if server == "raw" {
						group.Go(func() { rawEcho(near) })
					} else {
						c, p := accepted(b, ws.Options{}, near, far)
						far = p.nc
						group.Go(func() { echo(c) }) //nolint:errcheck // it ends with the connection
					}
					peers = append(peers, far)
				}
				burst := bytes.Repeat((&peer{}).frame(fin|bin, strings.Repeat("x", load.size)), load.flight)
				answer := load.flight * len(encoded(strings.Repeat("x", load.size)))
				rounds := make(chan struct{})
				var clients sync.WaitGroup
				for _, far := range peers {
					clients.Go(func() {
						got := make([]byte, answer)
						for range rounds {
							if _, err := far.Write(burst); err != nil {
								b.Error(err)
								return
							}
							if _, err := io.ReadFull(far, got); err != nil {
								b.Error(err)
								return
							}
						}
						far.Close()
					})
				}
				b.ResetTimer()
				for range b.N {
					rounds <- struct{}{}
				}
				close(rounds)
				clients.Wait()
				b.StopTimer()
				group.Wait()
				b.ReportMetric(float64(b.N*load.flight)/b.Elapsed().Seconds(), "msg/s")
			})
		}
	}
}

// BenchmarkFanOut sends events of 320 bytes to subscribers over TCP, in batches, and compares with the writing of the same
// bytes to the bare connections.
func BenchmarkFanOut(b *testing.B) {
	frame := encoded(strings.Repeat("x", 316))
	for _, load := range []struct{ conns, batch int }{{100, 1}, {1000, 1}, {100, 64}, {1000, 64}} {
		for _, writer := range []string{"raw", "ws"} {
			b.Run(fmt.Sprintf("%s/%dx%d", writer, load.conns, load.batch), func(b *testing.B) {
				var group sync.WaitGroup
				var bare []net.Conn
				var conns []*ws.Conn
				for range load.conns {
					near, far := tcp(b)
					if writer == "ws" {
						c, _ := accepted(b, ws.Options{}, near, far)
						conns = append(conns, c)
					}
					bare = append(bare, near)
					group.Go(func() { io.Copy(io.Discard, far); far.Close() }) //nolint:errcheck // it ends with the connection
				}
				bytesOfBatch := bytes.Repeat(frame, load.batch)
				b.ReportAllocs()
				b.ResetTimer()
				for i := range b.N {
					var err error
					if writer == "ws" {
						err = conns[i%load.conns].WriteEncoded(bytesOfBatch)
					} else {
						_, err = bare[i%load.conns].Write(bytesOfBatch)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				b.ReportMetric(float64(b.N*load.batch)/b.Elapsed().Seconds(), "events/s")
				for _, nc := range bare {
					nc.Close()
				}
				group.Wait()
			})
		}
	}
}

// BenchmarkIdle measures what an idle connection holds that net/http has accepted and that has echoed once: heap and stack
// beyond those of the two bare ends of TCP.
func BenchmarkIdle(b *testing.B) {
	const conns = 2000
	used := func() (heap, stack uint64) {
		for range 3 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, m.StackInuse
	}
	for b.Loop() {
		emptyHeap, _ := used()
		var pairs []net.Conn
		for range conns {
			near, far := tcp(b)
			pairs = append(pairs, near, far)
		}
		bare, _ := used()
		bare -= emptyHeap
		for _, nc := range pairs {
			nc.Close()
		}
		pairs = nil

		var readers sync.WaitGroup
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := ws.Accept(w, r, ws.Options{})
			if err != nil {
				b.Error(err)
				return
			}
			readers.Go(func() { echo(c) }) //nolint:errcheck // it ends with the connection
		}))
		emptyHeap, emptyStack := used()
		var fars []net.Conn
		for range conns {
			far, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			fars = append(fars, far)
			if err := handshake().Write(far); err != nil {
				b.Fatal(err)
			}
			p := &peer{nc: far, br: bufio.NewReader(far)}
			if _, err := http.ReadResponse(p.br, nil); err != nil {
				b.Fatal(err)
			}
			p.send(p.frame(fin|text, "hello"))
			p.want(b, "text hello")
		}
		heap, stack := used()
		b.ReportMetric(float64(heap-emptyHeap-bare)/conns, "heap-B/conn")
		b.ReportMetric(float64(stack-emptyStack)/conns, "stack-B/conn")
		b.ReportMetric(float64(bare)/conns, "B/bare-pair")
		for _, far := range fars {
			far.Close()
		}
		readers.Wait()
		s.Close()
	}
}
