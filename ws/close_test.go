package ws_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/ws"
)

// TestClose closes from this side, with nobody, somebody or somebody slow reading.
func TestClose(t *testing.T) {
	for _, reader := range []string{"none", "waiting", "between"} {
		t.Run(reader, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := opened(t, ws.Options{})
				ended := make(chan error, 1)
				switch reader {
				case "none":
					close(ended)
				case "waiting":
					go func() {
						_, _, err := c.Read()
						ended <- err
					}()
				case "between":
					go p.send(p.frame(fin|text, "kept"))
					_, m, err := c.Read()
					if err != nil {
						t.Fatal(err)
					}
					go func() {
						<-time.After(time.Second)
						if string(m) != "kept" {
							t.Errorf("the message has become %q", m)
						}
						_, _, err := c.Read()
						ended <- err
					}()
				}
				synctest.Wait()
				closed := make(chan error)
				go func() { closed <- c.Close(4007, "server.shutdown") }()
				p.want(t, "close 4007 server.shutdown")
				synctest.Wait()
				if err := c.Write(ws.Text, nil); err != ws.ErrClosed {
					t.Errorf("Write() = %v, want ErrClosed", err)
				}
				if reader != "waiting" {
					go p.send(p.frame(fin|text, "dropped"), p.frame(fin|ping, "dropped"), p.frame(text, strings.Repeat("x", 10_000)))
				} else {
					go p.send(p.frame(fin|ping, "no more answered"))
				}
				go func() {
					<-time.After(100 * time.Millisecond)
					p.send(p.frame(fin|shut, closing(4007, "")))
					synctest.Wait()
					p.nc.Close() // which a client waits for
				}()
				if err := <-closed; err != nil {
					t.Errorf("Close() = %v", err)
				}
				if err := <-ended; reader != "none" && ws.CodeOf(err) != 4007 {
					t.Errorf("Read() = %v, want code 4007", err)
				}
				if err := c.Close(4007, ""); err != nil {
					t.Errorf("Close() again = %v", err)
				}
				if s, err := p.next(); err == nil {
					t.Errorf("peer.next() = %q, want nothing after the close frame", s)
				}
			})
		})
	}
}

// TestCloseOfStalledPeers closes connections whose peers do not do their part.
func TestCloseOfStalledPeers(t *testing.T) {
	tests := []struct {
		name  string
		setup func(t *testing.T, c *ws.Conn, p *peer)
	}{
		{"reads nothing", func(*testing.T, *ws.Conn, *peer) {}},
		{"reads nothing, and others write", func(t *testing.T, c *ws.Conn, p *peer) {
			for range 3 {
				go c.Write(ws.Text, []byte("stuck")) //nolint:errcheck // it fails in the end
			}
		}},
		{"reads nothing, and one reads", func(t *testing.T, c *ws.Conn, p *peer) {
			go c.Read() //nolint:errcheck // it fails in the end
		}},
		{"never answers", func(t *testing.T, c *ws.Conn, p *peer) { go io.Copy(io.Discard, p.br) }}, //nolint:errcheck // it does not matter
		{"sends without end", func(t *testing.T, c *ws.Conn, p *peer) {
			go io.Copy(io.Discard, p.br) //nolint:errcheck // it does not matter
			go func() {
				for {
					if _, err := p.nc.Write(p.frame(fin|text, "more")); err != nil {
						return
					}
					<-time.After(10 * time.Millisecond)
				}
			}()
		}},
		{"sends half a frame", func(t *testing.T, c *ws.Conn, p *peer) {
			go io.Copy(io.Discard, p.br) //nolint:errcheck // it does not matter
			go p.send([]byte{fin | text})
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := opened(t, ws.Options{WriteTimeout: time.Hour})
				tc.setup(t, c, p)
				synctest.Wait()
				start := time.Now()
				err := c.Close(ws.CodeGoingAway, "")
				if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 5*time.Second {
					t.Errorf("Close() = %v after %v, want a timeout after 5 s", err, time.Since(start))
				}
				<-time.After(time.Second)
				if _, err := p.nc.Write([]byte{0}); err == nil {
					t.Error("the TCP connection is open")
				}
			})
		})
	}
}

// TestClosePayloads tells codes and reasons to the peer.
func TestClosePayloads(t *testing.T) {
	tests := []struct {
		code   ws.Code
		reason string
		want   string
	}{
		{1000, "", "close 1000"},
		{1014, "x", "close 1014 x"},
		{3000, "x", "close 3000 x"},
		{4999, strings.Repeat("x", 123), "close 4999 " + strings.Repeat("x", 123)},
		{4000, strings.Repeat("x", 124), "close 4000 " + strings.Repeat("x", 123)},
		{4000, strings.Repeat("x", 122) + "€", "close 4000 " + strings.Repeat("x", 122)},
		{4000, "a\xffb", "close 4000 a\uFFFDb"},
		{ws.CodeNone, "dropped", "close"},
	}
	for _, tc := range tests {
		synctest.Test(t, func(t *testing.T) {
			c, p := opened(t, ws.Options{})
			closed := make(chan error)
			go func() { closed <- c.Close(tc.code, tc.reason) }()
			got, err := p.next()
			if got != tc.want {
				t.Errorf("Close(%d, %q) sends %q, %v, want %q", tc.code, tc.reason, got, err, tc.want)
			}
			p.send(p.frame(fin|shut, ""))
			p.nc.Close()
			if err := <-closed; err != nil {
				t.Errorf("Close(%d) = %v", tc.code, err)
			}
		})
	}
}

// TestPeerCloses has the peer close, with any code.
func TestPeerCloses(t *testing.T) {
	good := func(code int) bool {
		return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
	}
	for code := range 1 << 16 {
		if code > 5100 && code < 65500 {
			continue
		}
		frame := (&peer{}).frame(fin|shut, closing(uint16(code), "why"))
		c, s := scriptedBoth(t, ws.Options{}, frame)
		_, _, err := c.Read()
		want, told := ws.Code(code), fmt.Sprint("close ", code)
		if !good(code) {
			want, told = ws.CodeProtocol, fmt.Sprintf("close 1002 close frame with code %d", code)
		}
		if ws.CodeOf(err) != want {
			t.Errorf("Read() after code %d = %v, want code %d", code, err, want)
		}
		if e, ok := errors.AsType[*ws.CloseError](err); ok && e.Refused == good(code) || good(code) && e.Reason != "why" {
			t.Errorf("Read() after code %d = %#v, want the reason", code, e)
		}
		p := &peer{br: newReader(s.out.Bytes())}
		p.want(t, told)
		if s, err := p.next(); err != io.EOF {
			t.Errorf("peer.next() = %q, %v, want no more", s, err)
		}
	}
	for _, payload := range []string{"", "x"} {
		c := scripted(t, ws.Options{}, (&peer{}).frame(fin|shut, payload))
		want := map[string]ws.Code{"": ws.CodeNone, "x": ws.CodeProtocol}[payload]
		if _, _, err := c.Read(); ws.CodeOf(err) != want {
			t.Errorf("Read() after close frame %q = %v, want code %d", payload, err, want)
		}
	}
	if got := ws.CodeOf(nil); got != 0 {
		t.Errorf("CodeOf(nil) = %d, want 0", got)
	}
}

// TestRefusalArrives refuses a message of which much is on its way: the close frame still has to reach the peer, which a
// reset of the TCP connection would prevent.
func TestRefusalArrives(t *testing.T) {
	for range 20 {
		near, far := tcp(t)
		c, p := accepted(t, ws.Options{MaxMessage: 1000}, near, far)
		closed := make(chan error)
		go func() {
			_, _, err := c.Read()
			c.Close(ws.CodeNormal, "") //nolint:errcheck // the error is that of Read
			closed <- err
		}()
		p.send(p.frame(fin|bin, strings.Repeat("x", 1<<20)))
		p.want(t, "close 1009 message longer than 1000 bytes")
		far.Close()
		if err := <-closed; ws.CodeOf(err) != ws.CodeTooBig {
			t.Errorf("Read() = %v, want code 1009", err)
		}
	}
}
