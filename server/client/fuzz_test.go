package client_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"agentd/server/client"
	"agentd/server/fault"
	"agentd/server/fuzztest"
)

// A script is a server that takes the handshake, says what it has to say and is gone.
type script struct {
	net.Conn // nil: all that is used is below
	status   string
	frames   []byte
	in       bytes.Buffer
	out      bytes.Buffer
	begun    bool
}

func (s *script) Read(p []byte) (int, error) { return s.in.Read(p) }

func (s *script) Write(p []byte) (int, error) {
	if !s.begun {
		s.begun = true
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(p)))
		if err != nil {
			return 0, err
		}
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455 section 1.3
		s.in.WriteString(s.status + "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: svc.protocol.v1\r\n" +
			"Sec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n")
		s.in.Write(s.frames)
		return len(p), nil
	}
	return s.out.Write(p)
}

func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// textFrame is a whole text message of a server (RFC 6455 section 5.2).
func textFrame(text string) []byte {
	switch n := len(text); {
	case n < 126:
		return append([]byte{0x81, byte(n)}, text...)
	case n < 1<<16:
		return append(binary.BigEndian.AppendUint16([]byte{0x81, 126}, uint16(n)), text...)
	default:
		return append(binary.BigEndian.AppendUint64([]byte{0x81, 127}, uint64(n)), text...)
	}
}

const secretToken = "t0p-s3cret"

// watchScript watches a server that says what s does, and does not come back.
func watchScript(t testing.TB, s *script, yield func(*client.Frame) error) error {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	gone := errors.New("gone")
	lost := gone
	err := client.Watch(ctx, client.Options{Subject: "s", Header: http.Header{"Authorization": {"Bearer " + secretToken}},
		Server: func() (client.Place, error) {
			return client.Place{URL: "ws://h/v1/ws", Dial: func(context.Context, string, string) (net.Conn, error) { return s, nil }}, nil
		},
		Lost: func(err error) {
			lost = err
			cancel(gone)
		}}, yield)
	if err == gone {
		return lost
	}
	return err
}

// checkError checks an error of a watch.
func checkError(t *testing.T, said string, err error) {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind == fault.Internal || f.Kind.Code == "" {
		t.Errorf("Watch() of %q = %v, want a fault that names what is wrong", said, err)
	} else if strings.Contains(f.Message, secretToken) && !strings.Contains(said, secretToken) {
		t.Errorf("Watch() of %q = %v, which has the token", said, err)
	}
}

// FuzzFrames is a server that sends lines as frames, once it has taken the subscription.
func FuzzFrames(f *testing.F) {
	f.Add(event("e1") + "\n" + lifecycle("paused") + "\n" + event("e2") + "\n" + lifecycle("completed") + "\n" + event("e3"))
	f.Add(`{"kind":"replay-marker","subscriptionId":"sub1","eventId":"x"}` + "\n" + `{"v":"1","jsonrpc":"2.0","id":"x","error":{"code":-32603,"message":"Busy.","data":{"error":"storage-failed"}}}`)
	f.Add(`{"kind":"error","code":"subject.erased","message":"Gone.","subscriptionId":"sub1"}`)
	f.Add(`{"kind":"event","kind":"lifecycle","Status":"failed","subscriptionId":"sub1","payload":[1e999]}` + "\n[]")
	f.Add(`{"id":"subscribe","result":{"subscriptionId":"sub2"}}` + "\n" + `{"id":"initialize"}` + "\n" + strings.ReplaceAll(event("e"), "sub1", "sub2") + "\nnull\n7")
	f.Fuzz(func(t *testing.T, lines string) {
		said := strings.Split(lines, "\n")
		s := &script{status: "HTTP/1.1 101 Switching Protocols\r\n", frames: append(textFrame(initialized), textFrame(subscribed)...)}
		for _, line := range said {
			s.frames = append(s.frames, textFrame(line)...)
		}
		at, over := -1, false
		err := watchScript(t, s, func(f *client.Frame) error {
			for at++; at < len(said) && said[at] != string(f.Raw); at++ {
			}
			if at == len(said) || over || !json.Valid(f.Raw) || f.Kind != "event" && f.Kind != "lifecycle" && f.Kind != "replay-marker" {
				t.Errorf("Watch() of %q hands over %+v with %q", said, f, f.Raw)
				return io.ErrUnexpectedEOF
			}
			if !bytes.Contains(f.Raw, bytes.TrimSpace(f.Payload)) || f.Ended() != (f.Kind == "lifecycle" && slices.Contains([]string{"completed", "failed", "aborted"}, f.Status)) {
				t.Errorf("Watch() of %q makes %+v", f.Raw, f)
			}
			over = f.Ended()
			return nil
		})
		if over != (err == nil) {
			t.Errorf("Watch() of %q = %v, though the run has ended: %v", said, err, over)
		} else if err != nil {
			checkError(t, lines, err)
		}
	})
}

// FuzzRefusal is a server that answers the handshake in a way of its own.
func FuzzRefusal(f *testing.F) {
	f.Add([]byte("HTTP/1.1 401 Unauthorized\r\nContent-Length: 41\r\n\r\n" + `{"error":"auth-required","message":"No."}`))
	f.Add([]byte("HTTP/1.1 503 Service Unavailable\r\n\r\n{\"error\":\"\\u001b\"}"))
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n<html>"))
	f.Add([]byte("SSH-2.0-OpenSSH\r\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		s := &script{begun: true}
		s.in.Write(answer)
		err := watchScript(t, s, func(*client.Frame) error { return nil })
		if err == nil {
			t.Fatalf("Watch() of %q = nil", answer)
		}
		checkError(t, string(answer), err)
	})
}

// Frames are up to 1 MiB long, and what one of them holds is read once.
func TestFrameCost(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		frame := `{"kind":"event","subscriptionId":"sub1","eventId":"e","payload":` + string(text) + `}`
		end := lifecycle("completed")
		fuzztest.Cost{PerByte: 16, Base: 512 << 10}.Check(t, len(frame), func() {
			s := &script{status: "HTTP/1.1 101 Switching Protocols\r\n", frames: append(textFrame(initialized), textFrame(subscribed)...)}
			s.frames = append(append(s.frames, textFrame(frame)...), textFrame(end)...)
			if err := watchScript(t, s, func(*client.Frame) error { return nil }); err != nil {
				t.Errorf("Watch() of %s = %v", name, err)
			}
		})
	}
}
