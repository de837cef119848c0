package provider

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"agentd/server/sse"
)

const (
	maxAnswer = 16 << 20 // bytes of an answer

	// tailWait is the time that a server has, once the model finished, to report the usage and end the stream.
	tailWait = 5 * time.Second
	// closeWait is the time that it then has to end the body, so that the connection can be used again.
	closeWait = 100 * time.Millisecond
)

// maxEvent bounds a line of an event stream and the data of an event, in bytes.
const maxEvent = 1 << 20

var (
	errSilent   = errors.New("no byte came in time")
	errTooLarge = errors.New("the answer is larger than 16 MiB")
)

// receive reads an answer until the model finished and the server has nothing to add. The server answers with an
// event stream, or with one object where it does not stream. The first byte shows which; the content type is not reliable.
func receive(ctx context.Context, in *meter, a *answer) (*problem, error) {
	r := bufio.NewReaderSize(in, sse.BufferSize) // which the reader of events uses, too
	if first, err := firstByte(r); err != nil {
		return nil, err
	} else if first == '{' {
		return receiveObject(r, a)
	}
	stream := sse.NewReader(r, maxEvent)
	stream.KeepCut = true
	for {
		ev, err := stream.Next()
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		data := bytes.TrimSpace(ev.Data)
		switch {
		case err != nil && a.finish != "":
			return nil, nil // only the usage can be missing
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		case len(data) == 0:
			continue
		case string(data) == "[DONE]":
			in.wait = min(in.wait, closeWait)
			_, _ = io.Copy(io.Discard, io.LimitReader(r, maxErrorBody))
			return nil, a.stop()
		}
		if trouble, err := a.add(data); trouble != nil || err != nil {
			return trouble, err
		}
		if a.finish != "" {
			in.wait = min(in.wait, tailWait)
		}
	}
}

func receiveObject(r io.Reader, a *answer) (*problem, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if trouble, err := a.add(data); trouble != nil || err != nil {
		return trouble, err
	}
	return nil, a.stop()
}

// firstByte skips white space and returns the byte after it without taking it.
func firstByte(r *bufio.Reader) (byte, error) {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		if strings.IndexByte(" \t\r\n", b) < 0 {
			return b, r.UnreadByte()
		}
	}
}

// A meter reads a body within limits: at most left bytes, and none later than wait after it is asked for one. The
// time between reads does not count, so a slow sink costs nothing.
type meter struct {
	body    io.Reader
	left    int
	silence *time.Timer // ends the request's context
	wait    time.Duration
}

func (m *meter) Read(b []byte) (int, error) {
	if m.left == 0 {
		return 0, errTooLarge
	}
	m.silence.Reset(m.wait)
	n, err := m.body.Read(b[:min(len(b), m.left)])
	m.silence.Stop()
	m.left -= n
	return n, err
}
