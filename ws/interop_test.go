package ws_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// The tests of this file talk with implementations that others wrote, on either side: with the npm package ws if
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
			c, err := ws.Accept(w, r, &ws.AcceptOptions{Protocol: query.Get("protocol")})
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
		if err := c.Close(t.Context(), ws.Code(code), query.Get("reason")); err != nil {
			t.Errorf("Close(%d) = %v, want none", code, err)
		}
		return nil
	})
	serve("/ping", func(c *ws.Conn, _ url.Values) error {
		if err := c.Ping(t.Context()); err != nil {
			return err
		}
		if _, _, err := c.Read(t.Context()); err != nil {
			return err
		}
		if err := c.Write(t.Context(), ws.Text, []byte(map[bool]string{true: "no", false: "yes"}[c.LastPong().IsZero()])); err != nil {
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
		if err := c.WriteEncoded(t.Context(), batch); err != nil {
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

// TestNodeServer is a client of ours with a server by ws, which is server.js.
func TestNodeServer(t *testing.T) {
	lines := node(t, "server.js")
	line := func(v any) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("server.js has ended: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), v); err != nil {
			t.Fatalf("server.js writes %s: %v", lines.Bytes(), err)
		}
	}
	var server struct{ Port int }
	line(&server)
	base := fmt.Sprintf("ws://127.0.0.1:%d", server.Port)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	dial := func(path string, protocols ...string) *ws.Conn {
		t.Helper()
		c, err := ws.Dial(ctx, base+path, &ws.DialOptions{Protocols: protocols})
		if err != nil {
			t.Fatalf("Dial(%s) = %v", path, err)
		}
		t.Cleanup(c.CloseNow)
		return c
	}
	ended := func(path string, code ws.Code) (reason string) {
		t.Helper()
		var got struct {
			Path string
			nodeEnd
		}
		if line(&got); got.Path != path || got.Code != code {
			t.Errorf("the server saw the end %+v, want %d of %s", got, code, path)
		}
		return got.Reason
	}
	want := func(c *ws.Conn, typ ws.Type, message string) {
		t.Helper()
		if got, p, err := c.Read(ctx); got != typ || string(p) != message || err != nil {
			t.Errorf("Read() = %v %s, %v, want %v %s", got, short(p), err, typ, short(message))
		}
	}

	for _, path := range []string{"/echo", "/fragments"} {
		c := dial(path)
		for _, n := range []int{0, 1, 125, 126, 127, 65535, 65536, 1 << 20} {
			for _, typ := range []ws.Type{ws.Text, ws.Binary} {
				message := strings.Repeat("ü", n/2) + strings.Repeat("x", n%2)
				if err := c.Write(ctx, typ, []byte(message)); err != nil {
					t.Fatal(err)
				}
				want(c, typ, message)
			}
		}
		if err := c.Close(ctx, 4321, "bye ☂"); err != nil {
			t.Errorf("Close() = %v after %s, want none", err, path)
		}
		if reason := ended(path, 4321); reason != "bye ☂" {
			t.Errorf("the server saw the reason %q, want bye ☂", reason)
		}
	}

	c := dial("/ping")
	if err := c.Write(ctx, ws.Text, []byte("are you there?")); err != nil {
		t.Fatal(err)
	}
	want(c, ws.Text, "pong are you there?")
	if err := c.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	want(c, ws.Text, "ping ")
	if c.LastPong().IsZero() {
		t.Error("LastPong() is zero, though the server has been pinged")
	}
	c.CloseNow()
	ended("/ping", ws.CodeAbnormal)

	for _, tc := range []struct {
		path   string
		code   ws.Code // that Read tells
		reason string
	}{
		{"/close?code=1000", ws.CodeNormal, ""},
		{"/close?code=4002&reason=auth.invalid", 4002, "auth.invalid"},
		{"/close", ws.CodeNone, ""},
	} {
		c := dial(tc.path)
		_, _, err := c.Read(ctx)
		if closed, ok := errors.AsType[*ws.CloseError](err); !ok || closed.Code != tc.code || closed.Reason != tc.reason {
			t.Errorf("Read() = %v of %s, want a close with %d %q", err, tc.path, tc.code, tc.reason)
		}
		c.Close(ctx, ws.CodeNormal, "") //nolint:errcheck // it has ended already
		ended(tc.path, tc.code)
	}
	for path, code := range map[string]ws.Code{"/surrogate": ws.CodeInvalidPayload, "/big?size=1048577": ws.CodeTooBig, "/terminate": ws.CodeAbnormal} {
		c := dial(path)
		if _, _, err := c.Read(ctx); ws.CodeOf(err) != code {
			t.Errorf("CodeOf(%v) = %d of %s, want %d", err, ws.CodeOf(err), path, code)
		}
		c.Close(ctx, ws.CodeNormal, "") //nolint:errcheck // it has ended already
		ended(path, code)
	}

	c = dial("/echo", "a", "b")
	if got := c.Protocol(); got != "b" {
		t.Errorf("Protocol() = %q, want b", got)
	}
	c.CloseNow()
	_, err := ws.Dial(ctx, base+"/elsewhere", nil)
	refused, ok := errors.AsType[*ws.DialError](err)
	if !ok || refused.Status != http.StatusServiceUnavailable || refused.Header.Get("Retry-After") != "5" || string(refused.Body) != "busy" {
		t.Errorf("Dial(/elsewhere) = %+v, want the server's refusal", err)
	}
}

const autobahnProtocol = "interop.v1"

// TestAutobahnServer is a client of ours with a server by Autobahn, which echoes in fragments.
func TestAutobahnServer(t *testing.T) {
	server := lines(t, others(t, "AGENTD_WS_PYTHON", os.Getenv("AGENTD_WS_PYTHON"), "peer.py", "server", autobahnProtocol))
	if !server.Scan() {
		t.Fatalf("peer.py has ended: %v", server.Err())
	}
	c, err := ws.Dial(t.Context(), "ws://127.0.0.1:"+server.Text(), &ws.DialOptions{Protocols: []string{"other", autobahnProtocol}})
	if err != nil || c.Protocol() != autobahnProtocol {
		t.Fatalf("Dial() = %v, %v; want the protocol %s", c, err, autobahnProtocol)
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
		t.Error("LastPong() is zero, though the server has been pinged")
	}
	if err := c.Close(t.Context(), 4321, "bye"); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// TestAutobahnClient lets the client of Autobahn check a server of ours that echoes.
func TestAutobahnClient(t *testing.T) {
	var group sync.WaitGroup
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := ws.Accept(w, r, &ws.AcceptOptions{Protocol: autobahnProtocol})
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
	if err := others(t, "AGENTD_WS_PYTHON", os.Getenv("AGENTD_WS_PYTHON"), "peer.py", "client", autobahnProtocol, url).Run(); err != nil {
		t.Errorf("peer.py = %v", err)
	}
	group.Wait()
}
