package ws_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/ws"
)

var errGone = errors.New("gone")

// TestMessageTimeout starts messages and control frames and does not end them.
func TestMessageTimeout(t *testing.T) {
	parts := map[string]step{
		"half a header":       cut(part{fin | text, strings.Repeat("x", 300)}, 0, 0),
		"half a payload":      cut(part{fin | text, "hello"}, 0, 2),
		"half a long payload": cut(part{fin | text, strings.Repeat("x", 100_000)}, 0, 20_000),
		"half a message":      frames(part{text, "hel"}),
		"half a ping":         cut(part{fin | ping, "hello"}, 0, 2),
		"half after a ping":   frames(part{fin | ping, "hello"}, part{text, "hel"}),
	}
	for name, s := range parts {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := opened(t, ws.Options{})
				go p.send(p.frame(fin|text, "before"))
				if _, m, err := c.Read(); err != nil || string(m) != "before" {
					t.Fatalf("Read() = %q, %v", m, err)
				}
				failed := make(chan error)
				go func() {
					_, _, err := c.Read()
					failed <- err
				}()
				<-time.After(time.Hour) // of the bubble: between messages, any time may pass
				b := s(p)
				if name == "half a header" {
					b[0] = b[0][:3]
				}
				if name == "half after a ping" { // which takes its time, too
					go p.send(b[0][:4])
					<-time.After(20 * time.Second)
					b[0] = b[0][4:]
					at := bytes.IndexByte(b[0], text) // where the ping ends
					go p.send(b[0][:at])
					p.want(t, "pong hello")
					b[0] = b[0][at:]
				}
				start := time.Now()
				go p.send(b...)
				p.want(t, "close 1008 message slower than 30s")
				if err := <-failed; ws.CodeOf(err) != ws.CodePolicy || time.Since(start) != 30*time.Second {
					t.Errorf("Read() = %v after %v, want code 1008 after 30s", err, time.Since(start))
				}
			})
		})
	}
}

// TestMessageTimeoutStartsAnew has messages one after the other that are slow, but not too slow.
func TestMessageTimeoutStartsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{})
		go echo(c) //nolint:errcheck // what comes back tells
		for range 5 {
			for _, f := range []part{{fin | ping, "a"}, {text, "b"}, {fin | ping, "c"}, {fin | cont, "d"}} {
				b := p.frame(f.b0, f.payload)
				p.send(b[:len(b)-1])
				<-time.After(8 * time.Second)
				last := b[len(b)-1:]
				if f.b0 == fin|cont { // the end of one comes with the beginning of the next
					last = append(last, p.frame(fin|ping, "a")[:3]...)
				}
				if f.b0 == text {
					p.send(last)
					continue
				}
				go p.send(last)
				switch f.b0 {
				case fin | ping:
					p.want(t, "pong "+f.payload)
				case fin | cont:
					p.want(t, "text bd")
				}
				if f.b0 == fin|cont {
					<-time.After(16 * time.Second)
					go p.send(p.frame(fin|ping, "a")[3:])
					p.want(t, "pong a")
				}
			}
			<-time.After(time.Hour)
		}
	})
}

// TestWriteTimeout writes to a peer that does not read.
func TestWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{WriteTimeout: 4 * time.Second})
		go c.Write(ws.Text, nil) //nolint:errcheck // it is here to move the deadline
		p.want(t, "text ")
		<-time.After(time.Second)
		start := time.Now()
		err := c.Write(ws.Text, []byte("hello"))
		if took := time.Since(start); !errors.Is(err, os.ErrDeadlineExceeded) || took < 4*time.Second || took > 6*time.Second {
			t.Errorf("Write() = %v after %v, want a timeout after 4 to 6 s", err, took)
		}
		if _, _, again := c.Read(); again != err {
			t.Errorf("Read() = %v, want %v", again, err)
		}
		if again := c.Ping(); again != err {
			t.Errorf("Ping() = %v, want %v", again, err)
		}
	})
}

// TestCloseNow closes a connection that one reads, one writes, and one waits to write.
func TestCloseNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{WriteTimeout: time.Hour})
		ended := make(chan error, 3)
		go func() {
			_, _, err := c.Read()
			ended <- err
		}()
		for range 2 {
			go func() { ended <- c.Write(ws.Text, []byte("unread")) }()
		}
		synctest.Wait()
		c.CloseNow()
		for range 3 {
			if err := <-ended; err != ws.ErrClosed {
				t.Errorf("a call during CloseNow() = %v, want ErrClosed", err)
			}
		}
		if err := c.Ping(); err != ws.ErrClosed {
			t.Errorf("Ping() = %v, want ErrClosed", err)
		}
		if _, err := p.br.ReadByte(); err == nil {
			t.Error("the TCP connection is open")
		}
	})
}

// TestPingWhileWriting sends pings while a writer is stuck: Read goes on, and the last ping gets a pong in the end.
func TestPingWhileWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{})
		go c.Write(ws.Binary, []byte("stuck")) //nolint:errcheck // what comes back tells
		synctest.Wait()
		go func() {
			for i := range 1000 {
				p.send(p.frame(fin|ping, fmt.Sprint(i)))
			}
			p.send(p.frame(fin|text, "done"))
		}()
		if _, m, err := c.Read(); err != nil || string(m) != "done" {
			t.Fatalf("Read() = %q, %v, want done", m, err)
		}
		p.want(t, "binary stuck", "pong 999")
	})
}

// TestPingFlood sends pings and never reads the pongs.
func TestPingFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{WriteTimeout: 2 * time.Second})
		go p.send(slices.Repeat([][]byte{p.frame(fin|ping, "x")}, 100)...)
		start := time.Now()
		if _, _, err := c.Read(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) > 3*time.Second {
			t.Errorf("Read() = %v after %v, want a timeout after 3 s at most", err, time.Since(start))
		}
	})
}

// TestPing has a peer answer two pings, and then none.
func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := opened(t, ws.Options{})
		go echo(c) //nolint:errcheck // not of interest
		for range 2 {
			<-time.After(time.Minute)
			go c.Ping() //nolint:errcheck // what comes tells
			p.want(t, "ping ")
			go p.send(p.frame(fin|pong, ""))
			synctest.Wait()
		}
		go c.Ping() //nolint:errcheck // what comes tells
		p.want(t, "ping ")
		<-time.After(time.Minute)
		if err := c.Ping(); err != ws.ErrClosed {
			t.Errorf("Ping() of a peer that has not answered the one before = %v, want %v", err, ws.ErrClosed)
		}
	})
}

// encoded puts messages together as a server does.
func encoded(messages ...string) (b []byte) {
	for _, m := range messages {
		b = append(ws.AppendHead(b, ws.Text, len(m)), m...)
	}
	return b
}

// TestEncoded writes batches of all sizes.
func TestEncoded(t *testing.T) {
	for _, sizes := range [][]int{{}, {5}, {0}, {1, 2, 3}, {40_000}, {125, 126, 65535, 65536}, {10, 40_000, 20}, slices.Repeat([]int{320}, 500)} {
		synctest.Test(t, func(t *testing.T) {
			c, p := opened(t, ws.Options{})
			var batch []byte
			var want []string
			for i, n := range sizes {
				payload := strings.Repeat(string(rune('a'+i%26)), n)
				typ, name := ws.Text, "text "
				if i%2 == 1 {
					typ, name = ws.Binary, "binary "
				}
				batch = append(ws.AppendHead(batch, typ, n), payload...)
				want = append(want, name+short(payload))
			}
			done := make(chan error)
			go func() { done <- c.WriteEncoded(batch) }()
			p.want(t, want...)
			if err := <-done; err != nil {
				t.Errorf("WriteEncoded() = %v", err)
			}
		})
	}
}

// TestConcurrent reads and writes from all sides at once.
func TestConcurrent(t *testing.T) {
	near, far := tcp(t)
	c, p := accepted(t, ws.Options{}, near, far)
	var group sync.WaitGroup
	const writers, each = 8, 200
	for w := range writers {
		group.Go(func() {
			for i := range each {
				var err error
				switch m := fmt.Appendf(nil, "%d %d", w, i); i % 2 {
				case 0:
					err = c.Write(ws.Text, m)
				case 1:
					err = c.WriteEncoded(encoded(string(m), "hello"))
				}
				if err != nil {
					t.Errorf("write %d of writer %d = %v", i, w, err)
				}
			}
		})
	}
	ended := make(chan error)
	go func() {
		for {
			if _, _, err := c.Read(); err != nil {
				ended <- err
				return
			}
		}
	}()
	group.Go(func() {
		for i := range 300 {
			p.send(p.frame(fin|ping, fmt.Sprint(i)), p.frame(fin|text, "x"), p.frame(fin|pong, ""))
		}
	})
	next := make([]int, writers)
	for left := writers * each; left > 0; {
		s, err := p.next()
		if err != nil {
			t.Fatal(err)
		}
		var w, i int
		if n, _ := fmt.Sscanf(s, "text %d %d", &w, &i); n != 2 {
			continue
		}
		if i != next[w] {
			t.Fatalf("message %d of writer %d, want %d", i, w, next[w])
		}
		next[w]++
		left--
	}
	group.Wait()
	p.send(p.frame(fin|shut, ""))
	if err := <-ended; ws.CodeOf(err) != ws.CodeNone {
		t.Errorf("Read() = %v, want code 1005", err)
	}
}

// TestEnd closes the TCP connection in the middle of everything.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, b := range []string{"", "\x81", "\x01\x80KEYS"} {
			c, p := opened(t, ws.Options{})
			go func() {
				p.send([]byte(b))
				p.nc.Close()
			}()
			_, _, err := c.Read()
			if ws.CodeOf(err) != ws.CodeAbnormal {
				t.Errorf("Read() after %q = %v, want code 1006", b, err)
			}
			if again := c.Write(ws.Text, nil); again != err {
				t.Errorf("Write() = %v, want %v", again, err)
			}
		}
	})
}

// TestHalfClosed has a peer that ends its side of the TCP connection, and still gets what is written.
func TestHalfClosed(t *testing.T) {
	near, far := tcp(t)
	c, p := accepted(t, ws.Options{}, near, far)
	p.send(p.frame(fin|text, "question"))
	if err := far.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, m, err := c.Read(); err != nil || string(m) != "question" {
		t.Fatalf("Read() = %q, %v", m, err)
	}
	if err := c.Write(ws.Text, []byte("answer")); err != nil {
		t.Errorf("Write() = %v", err)
	}
	if _, _, err := c.Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Read() = %v, want %v", err, io.ErrUnexpectedEOF)
	}
	p.want(t, "text answer")
	if s, err := p.next(); err != io.EOF {
		t.Errorf("peer.next() = %q, %v, want EOF", s, err)
	}
}
