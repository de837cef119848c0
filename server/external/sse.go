package external

import (
	"bufio"
	"bytes"
	"io"

	"agentd/server/fault"
)

// events reads a text/event-stream as the HTML standard has it (section 9.2.6, "Interpreting an event stream"):
// lines end with LF, CR or CRLF, a blank line ends an event, lines that begin with a colon are comments, several
// data lines make one text, and an event that the stream's end cuts off is dropped. Of the fields it knows event
// and data; an event without data means nothing.
type events struct {
	r       *bufio.Reader
	n       int    // events so far
	line    []byte // the current line
	data    []byte // the current event's data
	afterCR bool   // an LF that follows belongs to the line before it
}

func newEvents(r io.Reader) *events {
	e := &events{r: bufio.NewReader(r)}
	if bom, _ := e.r.Peek(3); string(bom) == "\xEF\xBB\xBF" {
		e.r.Discard(3)
	}
	return e
}

// next returns the next event; io.EOF after the last, agent-protocol for one that is too long, or the reader's error.
func (e *events) next() (frame, error) {
	e.data = e.data[:0]
	typ := ""
	for {
		if err := e.readLine(); err != nil {
			return frame{}, err
		}
		if len(e.line) == 0 {
			if data := bytes.TrimSpace(e.data); len(data) > 0 {
				e.n++
				return frame{number: e.n, typ: typ, data: data}, nil
			}
			e.data, typ = e.data[:0], ""
			continue
		}
		field, value, _ := bytes.Cut(e.line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			typ = string(value)
		case "data":
			if len(e.data)+len(value) >= maxFrame {
				return frame{}, e.tooLong()
			}
			e.data = append(append(e.data, value...), '\n')
		}
	}
}

// readLine reads the next line into e.line, without its end.
func (e *events) readLine() error {
	e.line = e.line[:0]
	for {
		c, err := e.r.ReadByte()
		if err != nil {
			return err
		}
		ofCRLF := c == '\n' && e.afterCR
		e.afterCR = c == '\r'
		switch {
		case ofCRLF:
		case c == '\n' || c == '\r':
			return nil
		case len(e.line) == maxFrame+len("data: "):
			return e.tooLong()
		default:
			e.line = append(e.line, c)
		}
	}
}

func (e *events) tooLong() error {
	return fault.New(fault.AgentProtocol, "The agent's event %d is longer than %d bytes.", e.n+1, maxFrame)
}
