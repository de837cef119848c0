package external

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"agentd/server/fault"
	"agentd/server/sse"
)

// A frame is one JSON object as it came: a line of a program, or the data of a server-sent event.
type frame struct {
	at   string // "line 7", for messages
	typ  string // the type, should the object have none
	data []byte // valid until the next frame is read
}

// frames returns the next thing that read reads; io.EOF after the last, agent-protocol for one that is too long, or read's
// error. Blank ones are skipped, but counted.
func frames(unit string, read func() (typ string, data []byte, err error)) func() (frame, error) {
	n := 0
	return func() (frame, error) {
		for {
			n++
			typ, data, err := read()
			if errors.Is(err, sse.ErrTooLong) {
				return frame{}, fault.New(fault.AgentProtocol, "The agent's %s %d is longer than %d bytes.", unit, n, maxFrame)
			}
			if data = bytes.TrimSpace(data); len(data) > 0 && (err == nil || err == io.EOF) {
				return frame{fmt.Sprintf("%s %d", unit, n), typ, data}, nil
			}
			if err != nil {
				return frame{}, err
			}
		}
	}
}

// lines reads a program's JSON lines: one object a line, at most maxFrame bytes, ended by LF or by the end of the output.
func lines(r io.Reader) func() (frame, error) {
	in := bufio.NewReader(r)
	var line []byte
	return frames("line", func() (string, []byte, error) {
		for line = line[:0]; ; {
			part, err := in.ReadSlice('\n')
			line = append(line, bytes.TrimSuffix(part, []byte("\n"))...)
			if len(line) > maxFrame {
				return "", nil, sse.ErrTooLong
			}
			if err != bufio.ErrBufferFull {
				return "", line, err
			}
		}
	})
}

// events reads a text/event-stream.
func events(r io.Reader) func() (frame, error) {
	in := sse.NewReader(r, maxFrame)
	return frames("event", func() (string, []byte, error) {
		ev, err := in.Next()
		return ev.Type, ev.Data, err
	})
}
