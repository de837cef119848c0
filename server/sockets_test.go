package server_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentd/ws"
	"agentd/ws/wstest"
)

const subprotocol = "svc.protocol.v1"

// socket is a WebSocket of a script. It reads all the time, as clients do, so that it answers a close frame at once.
type socket struct {
	conn   *wstest.Conn
	frames chan string
	err    error // why frames is closed
	last   string
	calls  int
	subs   map[string]subscription // by the names of the script
}

type subscription struct{ id, subject string }

// maxFrames is how many frames may come before a script reads them.
const maxFrames = 10_000

func newSocket(conn *wstest.Conn) *socket {
	s := &socket{conn: conn, frames: make(chan string, maxFrames), subs: map[string]subscription{}}
	go func() {
		defer close(s.frames)
		for {
			typ, frame, err := conn.Read(context.Background())
			switch {
			case err != nil:
				s.err = err
				conn.CloseNow()
				return
			case typ != ws.Text:
				s.err = fmt.Errorf("a frame is %d: %x", typ, frame)
				return
			}
			s.frames <- string(frame)
		}
	}()
	return s
}

func (s *socket) close() {
	s.conn.CloseNow()
	for range s.frames {
	}
}

// next waits for a frame.
func (s *socket) next() (string, error) {
	select {
	case f, ok := <-s.frames:
		if !ok {
			return "", s.err
		}
		s.last = f
		return f, nil
	case <-time.After(patience):
		return "", fmt.Errorf("nothing came within %v", patience)
	}
}

// nextEvent is next in the form of an event stream.
func (s *socket) nextEvent() (frame, error) {
	text, err := s.next()
	if err != nil {
		return frame{}, err
	}
	var f struct{ Kind, Type, EventID string }
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return frame{}, err
	}
	if f.Kind == "event" {
		return frame{event: f.Type, id: f.EventID, data: text}, nil
	}
	return frame{event: f.Kind, data: text}, nil
}

// play goes through the lines of a block `socket NAME`.
func (p *player) socket(b block) {
	p.t.Helper()
	name, rest := b.head.rest, b.lines
	if p.sockets[name] == nil {
		if rest = p.openSocket(name, rest); rest == nil {
			return
		}
	}
	for _, l := range rest {
		s := p.sockets[name]
		if s == nil {
			p.failf(l, "the socket is closed")
		}
		if problem := p.socketLine(name, s, l); problem != "" {
			p.failf(l, "%s: %s", name, problem)
		}
	}
}

// openSocket opens a socket and returns the lines that are left. When the upgrade is to be refused, there are none.
func (p *player) openSocket(name string, lines []line) []line {
	p.t.Helper()
	token, protocols, header := p.admin, []string{subprotocol}, http.Header{}
	for ; len(lines) > 0; lines = lines[1:] {
		l := lines[0]
		switch l.verb {
		case "as":
			token = p.tokenOf(l)
			continue
		case "with":
			name, value, _ := strings.Cut(p.fill(l), ":")
			header.Add(name, strings.TrimSpace(value))
			continue
		case "offer":
			protocols = nil
			if l.rest != "-" {
				protocols = strings.Fields(p.fill(l))
			}
			continue
		}
		break
	}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	conn, err := p.dial(header, protocols...)
	refused, wasRefused := errors.AsType[*wstest.DialError](err)
	wanted := len(lines) > 0 && lines[0].verb == "status"
	switch {
	case wanted && wasRefused:
		done := make(chan struct{})
		close(done)
		x := &exchange{rig: p.rig, method: "GET", path: p.cfg.Server.BasePath + p.cfg.Server.WS.Path, cancel: func() {}, done: done,
			resp: &http.Response{StatusCode: refused.Status, Header: refused.Header, Body: io.NopCloser(bytes.NewReader(refused.Body))}}
		p.expect(block{lines: lines}, x, lines)
		return nil
	case wanted:
		p.failf(lines[0], "the upgrade was not refused: %v", err)
	case err != nil:
		p.t.Fatalf("%s: %s: %v", p.script.file, name, err)
	}
	want := ""
	if slices.Contains(protocols, subprotocol) {
		want = subprotocol
	}
	if got := conn.Protocol(); got != want {
		p.t.Fatalf("%s: %s: the subprotocol is %q, want %q", p.script.file, name, got, want)
	}
	s := newSocket(conn)
	p.t.Cleanup(s.close)
	p.sockets[name] = s
	return lines
}

// socketLine does what a line says, and returns what is not as it says.
func (p *player) socketLine(name string, s *socket, l line) string {
	p.t.Helper()
	text := p.fill(l)
	first, rest, _ := strings.Cut(text, " ")
	switch l.verb {
	case ">":
		return s.send(ws.Text, []byte(text))
	case "pad":
		size, _ := strconv.Atoi(first)
		return s.send(ws.Text, []byte(rest+strings.Repeat(" ", max(0, size-len(rest)))))
	case "bytes":
		payload, err := hex.DecodeString(rest)
		if err != nil {
			return err.Error()
		}
		return s.send(map[string]ws.Type{"text": ws.Text, "binary": ws.Binary}[first], payload)
	case "<":
		return s.expect(text)
	case "call":
		return s.call(first, rest)
	case "result":
		return s.expect(fmt.Sprintf(`{"v": "1", "jsonrpc": "2.0", "id": %d, "result": %s}`, s.calls, text))
	case "error":
		message := `"<sentence>"`
		if rest != "" {
			message = rest
		}
		return s.expect(fmt.Sprintf(`{"v": "1", "jsonrpc": "2.0", "id": %d, "error": {"code": %s, "message": %s, "...": 0}}`, s.calls, first, message))
	case "subscribe":
		return p.subscribe(s, strings.Fields(text))
	case "capture":
		name, place, _ := strings.Cut(text, " ")
		v, err := find(s.last, place)
		if err != nil {
			return err.Error()
		}
		p.vars[name] = v
		return ""
	case "events":
		name, lines, _ := strings.Cut(text, "\n")
		sub, ok := s.subs[name]
		if !ok {
			return "there is no subscription " + name
		}
		return p.sequence(sub.subject, sub.id, s.nextEvent, lines)
	case "silent":
		return s.silent()
	case "closed":
		delete(p.sockets, name)
		frame, err := s.next()
		e, ok := errors.AsType[*ws.CloseError](err)
		if !ok || fmt.Sprint(int(e.Code)) != first || e.Reason != rest {
			return fmt.Sprintf("got %s %v, want it closed with %s", frame, err, text)
		}
		return ""
	}
	p.failf(l, "%q is nothing that a socket does", l.verb)
	return ""
}

// send sends a frame. If the server has closed the socket meanwhile, the next read reports it: the write then fails with a
// close error, or with net.ErrClosed if the reader closes the connection during the write.
func (s *socket) send(t ws.Type, payload []byte) string {
	err := s.conn.Write(context.Background(), t, payload)
	if _, closed := errors.AsType[*ws.CloseError](err); err != nil && !closed && !errors.Is(err, ws.ErrClosed) && !errors.Is(err, net.ErrClosed) {
		return err.Error()
	}
	return ""
}

func (s *socket) call(method, params string) string {
	s.calls++
	if params == "" {
		return s.send(ws.Text, fmt.Appendf(nil, `{"v": "1", "jsonrpc": "2.0", "id": %d, "method": %q}`, s.calls, method))
	}
	return s.send(ws.Text, fmt.Appendf(nil, `{"v": "1", "jsonrpc": "2.0", "id": %d, "method": %q, "params": %s}`, s.calls, method, params))
}

func (s *socket) expect(pattern string) string {
	got, err := s.next()
	if err != nil {
		return err.Error()
	}
	if diff := mismatch(pattern, got); diff != nil {
		return fmt.Sprintf("the frame is not as wanted:\n  %s\nit is %s", strings.Join(diff, "\n  "), got)
	}
	return ""
}

// subscribe makes a subscription and checks that the two frames that tell of it agree.
func (p *player) subscribe(s *socket, words []string) string {
	name, subject, since, replayed := words[0], words[1], "", `"<int>"`
	for _, w := range words[2:] {
		if v, ok := strings.CutPrefix(w, "since="); ok {
			since = fmt.Sprintf(`, "sinceEventId": %q`, v)
		} else if v, ok := strings.CutPrefix(w, "replayed="); ok {
			replayed = v
		}
	}
	if problem := s.call("subscription.subscribe", fmt.Sprintf(`{"subject": %q%s}`, subject, since)); problem != "" {
		return problem
	}
	if problem := s.expect(fmt.Sprintf(`{"v": "1", "jsonrpc": "2.0", "id": %d, "result": {"subscriptionId": "<~ sub-conn-[0-9a-f]{16}-[0-9a-f]{12}>",
		"subject": %q, "snapshotEventId?": "<string>", "replayedCount": %s}}`, s.calls, subject, replayed)); problem != "" {
		return problem
	}
	id, _ := find(s.last, ".result.subscriptionId")
	snapshot, err := find(s.last, ".result.snapshotEventId")
	member := ""
	if err == nil {
		member = fmt.Sprintf(`, "snapshotEventId": %q`, snapshot)
	}
	s.subs[name] = subscription{id, subject}
	p.vars[name], p.vars[name+".snapshot"] = id, snapshot
	return s.expect(fmt.Sprintf(`{"v": "1", "kind": "subscribed", "subscriptionId": %q, "subject": %q%s}`, id, subject, member))
}

// silent finds out that nothing is under way. What was published before a ping may follow its answer closely, but comes
// before the answer to a second one.
func (s *socket) silent() string {
	for range 2 {
		if problem := s.call("ping", ""); problem != "" {
			return problem
		}
		for _, pattern := range []string{`{"v": "1", "kind": "pong"}`, fmt.Sprintf(`{"v": "1", "jsonrpc": "2.0", "id": %d, "result": {"ok": true}}`, s.calls)} {
			if problem := s.expect(pattern); problem != "" {
				return "there is something: " + problem
			}
		}
	}
	return ""
}
