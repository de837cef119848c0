package ws_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/ws"
)

// The tests of this file talk with clients that others wrote: with the npm package ws if
// AGENTD_WS_NODE names a folder whose node_modules has it, and with Autobahn if AGENTD_WS_PYTHON names a Python that can
// import it. Their side is in testdata/wsinterop.

// others is a program of the other side, which ends with the test.
func others(t *testing.T, env, command, script string, args ...string) *exec.Cmd {
	t.Helper()
	if os.Getenv(env) == "" {
		t.Skipf("%s is not set: .ci/run sets it, and runs this test", env)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, command, append([]string{filepath.Join("../testdata/wsinterop", script)}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	t.Cleanup(func() {
		cmd.Wait() //nolint:errcheck // it has been killed, or said all that it had to
		if t.Failed() {
			t.Logf("%s wrote %s", script, stderr.Bytes())
		}
	})
	return cmd
}

// lines starts a program and returns what it writes.
func lines(t *testing.T, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	if _, err := cmd.StdinPipe(); err != nil { // open until the end
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return bufio.NewScanner(out)
}

func node(t *testing.T, script string, args ...string) *bufio.Scanner {
	t.Helper()
	return lines(t, others(t, "AGENTD_WS_NODE", "node", script, args...))
}

// TestNodeClient lets the client of ws check a server of ours. The checks are in client.js.
func TestNodeClient(t *testing.T) {
	ends := sync.Map{} // id of a connection: chan of the error of its Read
	endOf := func(id string) chan error {
		c, _ := ends.LoadOrStore(id, make(chan error, 1))
		return c.(chan error)
	}
	var group sync.WaitGroup
	mux := http.NewServeMux()
	serve := func(path string, use func(c *ws.Conn, query url.Values) error) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			c, err := ws.Accept(w, r, ws.Options{Protocol: query.Get("protocol")})
			if refusal, ok := errors.AsType[*ws.HandshakeError](err); ok {
				for name, values := range refusal.Header {
					w.Header()[name] = values
				}
				http.Error(w, refusal.Message, refusal.Status)
				return
			}
			if err != nil {
				return
			}
			group.Go(func() {
				err := use(c, query)
				if id := query.Get("id"); id != "" { // somebody will ask
					endOf(id) <- err
				}
			})
		})
	}
	serve("/echo", func(c *ws.Conn, _ url.Values) error { return echo(c) })
	serve("/close", func(c *ws.Conn, query url.Values) error {
		code, _ := strconv.Atoi(query.Get("code"))
		if err := c.Close(ws.Code(code), query.Get("reason")); err != nil {
			t.Errorf("Close(%d) = %v, want none", code, err)
		}
		return nil
	})
	serve("/ping", func(c *ws.Conn, _ url.Values) error {
		if err := c.Ping(); err != nil {
			return err
		}
		if _, _, err := c.Read(); err != nil {
			return err
		}
		answer := "yes"
		if err := c.Ping(); err != nil {
			answer = "no"
		}
		if err := c.Write(ws.Text, []byte(answer)); err != nil {
			return err
		}
		return echo(c)
	})
	serve("/batch", func(c *ws.Conn, _ url.Values) error {
		var batch []byte
		for _, n := range []int{0, 125, 126, 65535, 65536} {
			batch = append(ws.AppendHead(batch, ws.Text, n), strings.Repeat("x", n)...)
			batch = append(ws.AppendHead(batch, ws.Binary, n), strings.Repeat("y", n)...)
		}
		if err := c.WriteEncoded(batch); err != nil {
			return err
		}
		return echo(c)
	})
	mux.HandleFunc("/end", func(w http.ResponseWriter, r *http.Request) {
		select {
		case err := <-endOf(r.URL.Query().Get("id")):
			end := nodeEnd{Code: ws.CodeOf(err)}
			if closed, ok := errors.AsType[*ws.CloseError](err); ok {
				end.Reason = closed.Reason
			}
			json.NewEncoder(w).Encode(end) //nolint:errcheck // the client tells
		case <-r.Context().Done():
		}
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		srv.Close()
		group.Wait()
	})
	checks := 0
	for lines := node(t, "client.js", strings.TrimPrefix(srv.URL, "http://")); lines.Scan(); checks++ {
		var check struct{ Name, Error string }
		if err := json.Unmarshal(lines.Bytes(), &check); err != nil {
			t.Fatalf("client.js writes %s: %v", lines.Bytes(), err)
		}
		t.Run(check.Name, func(t *testing.T) {
			if check.Error != "" {
				t.Error(check.Error)
			}
		})
	}
	if checks != 11 {
		t.Errorf("client.js made %d checks, want 11", checks)
	}
}

// nodeEnd is how a connection ended for the side that others wrote, or is told to it.
type nodeEnd struct {
	Code   ws.Code `json:"code"`
	Reason string  `json:"reason"`
}

const autobahnProtocol = "interop.v1"

// TestAutobahnClient lets the client of Autobahn check a server of ours that echoes.
func TestAutobahnClient(t *testing.T) {
	var group sync.WaitGroup
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := ws.Accept(w, r, ws.Options{Protocol: autobahnProtocol})
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
	defer srv.Close()
	url := "ws" + strings.TrimPrefix(srv.URL, "http")
	if err := others(t, "AGENTD_WS_PYTHON", os.Getenv("AGENTD_WS_PYTHON"), "peer.py", autobahnProtocol, url).Run(); err != nil {
		t.Errorf("peer.py = %v", err)
	}
	group.Wait()
}
