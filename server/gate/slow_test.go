package gate_test

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/gate"
)

// one is a listener with one connection.
type one struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l one) Close() error   { close(l.closed); return nil }
func (l one) Addr() net.Addr { return &net.TCPAddr{} }

// slow reads with pauses.
type slow struct{ io.Reader }

func (s slow) Read(p []byte) (int, error) {
	<-time.After(100 * time.Millisecond)
	return s.Reader.Read(p)
}

// A client that does not read its answer loses its connection after a while; one that comes back later on a connection
// that it has kept does not.
func TestClientsThatDoNotRead(t *testing.T) {
	for _, size := range []int{1, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			g := gate.New(gate.Options{BasePath: "/v1", Logger: slog.New(slog.DiscardHandler)})
			handle(g, "GET /{$}", func(w http.ResponseWriter, r *http.Request) {
				gate.JSON(w, http.StatusOK, strings.Repeat("x", size))
			})
			client, conn := net.Pipe()
			l := one{make(chan net.Conn, 1), make(chan struct{})}
			l.conn <- conn
			srv := &http.Server{Handler: g}
			go srv.Serve(l) //nolint:errcheck
			defer srv.Close()
			ask := func() {
				t.Helper()
				if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
			}
			answers := bufio.NewReader(slow{client})
			for range 2 {
				ask()
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, res.Body); err != nil || n != int64(size)+3 {
					t.Errorf("an answer of %d bytes and three is one of %d, %v", size, n, err)
				}
				<-time.After(time.Hour)
			}
			ask()
			<-time.After(time.Minute)
			if n, err := io.Copy(io.Discard, client); err != nil || n > 0 {
				t.Errorf("after a minute in which nobody read %d bytes, the connection gives %d more, %v; want it closed", size, n, err)
			}
		})
	}
}
