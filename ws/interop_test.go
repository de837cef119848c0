package ws_test

import (
	"bufio"
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"agentd/ws"
)

// TestInterop talks with implementations that others wrote, on either side: with the npm package ws if AGENTD_WS_NODE names
// the folder whose node_modules has it, and with Autobahn if AGENTD_WS_PYTHON names a Python that can import it.
func TestInterop(t *testing.T) {
	peers := map[string][]string{"AGENTD_WS_NODE": {"node", "peer.js"}, "AGENTD_WS_PYTHON": {os.Getenv("AGENTD_WS_PYTHON"), "peer.py"}}
	for name, command := range peers {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(name) == "" {
				t.Skip(name + " is not set")
			}
			t.Run("server", func(t *testing.T) { interopServer(t, command) })
			t.Run("client", func(t *testing.T) { interopClient(t, command) })
		})
	}
}

const interopProtocol = "interop.v1"

func interopCommand(t *testing.T, command []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], args...)...)
	cmd.Dir, cmd.Stderr = "../testdata/wsinterop", os.Stderr
	return cmd
}

// interopServer has the other side echo.
func interopServer(t *testing.T, command []string) {
	cmd := interopCommand(t, command, "server", interopProtocol)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill() //nolint:errcheck // it has ended
		cmd.Wait()         //nolint:errcheck // it was killed
	}()
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c, err := ws.Dial(t.Context(), "ws://127.0.0.1:"+strings.TrimSpace(port), &ws.DialOptions{Protocols: []string{"other", interopProtocol}})
	if err != nil || c.Protocol() != interopProtocol {
		t.Fatalf("Dial() = %v", err)
	}
	defer c.CloseNow()
	for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 500_000} {
		for typ, fill := range map[ws.Type]string{ws.Text: "µ", ws.Binary: "\xff\xfe"} {
			sent := []byte(strings.Repeat(fill, n/2))
			if err := c.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := c.Write(t.Context(), typ, sent); err != nil {
				t.Fatal(err)
			}
			if got, p, err := c.Read(t.Context()); err != nil || got != typ || !bytes.Equal(p, sent) {
				t.Fatalf("Read() = %v, %d bytes, %v, want the %d of type %v that were sent", got, len(p), err, len(sent), typ)
			}
		}
	}
	if c.LastPong().IsZero() {
		t.Error("no pong came")
	}
	if err := c.Close(t.Context(), 4321, "bye"); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// interopClient echoes what the other side sends.
func interopClient(t *testing.T, command []string) {
	var group sync.WaitGroup
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := ws.Accept(w, r, &ws.AcceptOptions{Protocol: interopProtocol})
		if err != nil {
			t.Errorf("Accept() = %v", err)
			return
		}
		group.Go(func() {
			if err := echo(c); ws.CodeOf(err) != 4000 {
				t.Errorf("Read() = %v, want code 4000", err)
			}
		})
	}))
	defer s.Close()
	if out, err := interopCommand(t, command, "client", interopProtocol, "ws"+strings.TrimPrefix(s.URL, "http")).Output(); err != nil {
		t.Errorf("client = %v, %s", err, out)
	}
	group.Wait()
}
