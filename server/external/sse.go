package external

import (
	"bytes"
	"errors"
	"io"

	"agentd/server/fault"
	"agentd/server/sse"
)

// events gives the events of a text/event-stream as frames. An event whose data is blank means nothing.
type events struct {
	r *sse.Reader
	n int // events so far
}

func newEvents(r io.Reader) *events { return &events{r: sse.NewReader(r, maxFrame)} }

// next returns the next event; io.EOF after the last, agent-protocol for one that is too long, or the reader's error.
func (e *events) next() (frame, error) {
	for {
		ev, err := e.r.Next()
		if errors.Is(err, sse.ErrTooLong) {
			return frame{}, fault.New(fault.AgentProtocol, "The agent's event %d is longer than %d bytes.", e.n+1, maxFrame)
		}
		if err != nil {
			return frame{}, err
		}
		if data := bytes.TrimSpace(ev.Data); len(data) > 0 {
			e.n++
			return frame{number: e.n, typ: ev.Type, data: data}, nil
		}
	}
}
