package ws_test

import (
	"strings"
	"testing"

	"agentd/ws"
)

// Whoever has called Read may go on using what it returned while another closes the connection, however much comes
// meanwhile.
func TestCloseLeavesWhatReadReturned(t *testing.T) {
	for name, long := range map[string]int{"short": 5, "long": 2000} {
		near, far := tcp(t)
		c, p := accepted(t, ws.Options{}, near, far)
		want := strings.Repeat("a", long)
		p.send(t, p.frame(fin|text, want))
		_, got, err := c.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- c.Close(t.Context(), 1000, "") }()
		p.want(t, "close 1000")
		for _, n := range []int{10, 300, 3000, 5} {
			p.send(t, p.frame(fin|text, strings.Repeat("b", n)))
		}
		p.send(t, p.frame(fin|shut, "\x03\xe8"))
		far.Close()
		if err := <-closed; err != nil {
			t.Errorf("Close() = %v, want none", err)
		}
		if string(got) != want {
			t.Errorf("a %s message has become %s", name, short(got))
		}
	}
}
