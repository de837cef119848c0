package ws_test

import (
	"strings"
	"testing"

	"agentd/ws"
)

// What is discarded is neither held nor checked, however long it is, and control frames are served.
func TestDiscard(t *testing.T) {
	near, far := tcp(t)
	c, p := accepted(t, ws.Options{MaxMessage: 1000}, near, far)
	done := make(chan error)
	go func() { done <- c.Discard() }()
	p.send(p.frame(fin|text, strings.Repeat("\xff", 100_000)), p.frame(cont, "of nothing"), p.frame(fin|ping, "a"))
	if got, err := p.next(); err != nil || !strings.Contains(got, "a") {
		t.Errorf("a ping is answered by %q, %v, want a pong", got, err)
	}
	p.send(p.frame(fin|shut, "\x03\xe8"))
	if err := <-done; ws.CodeOf(err) != ws.CodeNormal {
		t.Errorf("Discard() = %v, want the close of the peer", err)
	}
	if _, _, err := c.Read(); ws.CodeOf(err) != ws.CodeNormal {
		t.Errorf("Read() after Discard() = %v, want the same", err)
	}
}
