package gate_test

import (
	"io"
	"net"
	"strings"
	"testing"

	"agentd/server/gate"
)

// What is not an error of net/http to the letter passes a connection as it is. That its errors are told in our form is
// tested with net/http itself: TestFloods fails when a release of Go words or writes them otherwise.
func TestErrorsPassEverythingElse(t *testing.T) {
	const head = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
	const malformed = "HTTP/1.1 400 Bad Request" + head + "400 Bad Request"
	for text, changed := range map[string]bool{
		malformed: true,
		"HTTP/1.1 505 HTTP Version Not Supported: x" + head + "505 HTTP Version Not Supported: x": true,
		malformed + "\n": false,
		"\n" + malformed: false,
		strings.Replace(malformed, "close", "keep-alive", 1):                      false,
		strings.Replace(malformed, "\r\nConnection", "\r\nX: y\r\nConnection", 1): false,
		strings.Replace(malformed, "400", "404", 2):                               false,
		strings.Replace(malformed, "400", "403", 1):                               false,
		"HTTP/1.1 501 Not Implemented" + head + "501 Not Implemented":             false,
		"HTTP/1.1 " + head:        false,
		"HTTP/1.1 4" + head + "4": false,
		"HTTP/1.1 400 " + strings.Repeat("x", 500) + head + "400 " + strings.Repeat("x", 500): false,
		"": false,
	} {
		near, far := net.Pipe()
		l := one{make(chan net.Conn, 1), make(chan struct{})}
		l.conn <- near
		c, err := gate.Errors(l).Accept()
		if err != nil {
			t.Fatal(err)
		}
		wrote := make(chan error, 1)
		go func() {
			n, err := io.WriteString(c, text)
			if n != len(text) && err == nil {
				err = io.ErrShortWrite
			}
			c.Close()
			wrote <- err
		}()
		got, err := io.ReadAll(far)
		if we := <-wrote; err != nil || we != nil {
			t.Errorf("%q: %v, %v", text, we, err)
		}
		if is := string(got) != text; is != changed {
			t.Errorf("a connection that is given %q sends %q, want it changed: %v", text, got, changed)
		}
	}
}
