// Package sse reads text/event-stream (HTML standard, section 9.2.6, "Interpreting an event stream").
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// ErrTooLong is the error for a line or an event above the reader's limit.
var ErrTooLong = errors.New("sse: event too long")

// An Event is what two blank lines enclose, if it has data.
type Event struct {
	Type string // of the field event; empty: none
	ID   string // of the field id; empty: none
	Data []byte // of the data fields, joined by LF; valid until the next call of Next
}

// Reader reads events. Lines end with LF, CR or CRLF; comments, other fields and events without data are skipped.
type Reader struct {
	// KeepCut returns an event that the end of the stream leaves without its blank line, as some servers do. The standard
	// drops it.
	KeepCut bool

	r       *bufio.Reader
	max     int
	line    []byte
	data    []byte
	some    bool // the event has data
	afterCR bool // an LF that follows belongs to the line before it
}

// BufferSize is how many bytes a Reader reads at once. It reads from a bufio.Reader of that size without another buffer.
const BufferSize = 16 << 10

// NewReader makes a reader of events whose lines and data are at most max bytes long. It skips a byte order mark at the
// beginning.
func NewReader(r io.Reader, max int) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, BufferSize), max: max}
}

// Next returns the next event. The error is io.EOF after the last, ErrTooLong, or the reader's own.
func (e *Reader) Next() (Event, error) {
	if e.line == nil {
		if bom, _ := e.r.Peek(3); string(bom) == "\xEF\xBB\xBF" {
			e.r.Discard(3) //nolint:errcheck // they have been peeked
		}
		e.line = []byte{}
	}
	e.data, e.some = e.data[:0], false
	for ev := (Event{}); ; {
		err := e.readLine()
		cut := err == io.EOF && e.KeepCut
		if err != nil && !cut {
			return Event{}, err
		}
		if len(e.line) > 0 {
			if err := e.field(&ev); err != nil {
				return Event{}, err
			}
		}
		if len(e.line) > 0 && !cut {
			continue
		}
		switch {
		case e.some:
			ev.Data = e.data
			return ev, nil
		case cut:
			return Event{}, err
		}
		ev = Event{}
	}
}

func (e *Reader) field(ev *Event) error {
	name, value, _ := bytes.Cut(e.line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(name) {
	case "event":
		ev.Type = string(value)
	case "id":
		ev.ID = string(value)
	case "data":
		if len(e.data)+len(value) > e.max {
			return ErrTooLong
		}
		if e.some {
			e.data = append(e.data, '\n')
		}
		e.data, e.some = append(e.data, value...), true
	}
	return nil
}

// readLine reads the next line, without its end. At the end of the stream, line holds what came after the last end.
func (e *Reader) readLine() error {
	for e.line = e.line[:0]; ; {
		if _, err := e.r.Peek(1); err != nil {
			return err
		}
		some, _ := e.r.Peek(e.r.Buffered())
		if ofCRLF := some[0] == '\n' && e.afterCR; ofCRLF {
			some = some[1:]
			e.r.Discard(1) //nolint:errcheck // it is there
		}
		e.afterCR = false
		end := bytes.IndexByte(some, '\n')
		if end < 0 {
			end = len(some)
		}
		if cr := bytes.IndexByte(some[:end], '\r'); cr >= 0 {
			end, e.afterCR = cr, true
		}
		if len(e.line)+end > e.max+len("event: ")+1 {
			return ErrTooLong
		}
		e.line = append(e.line, some[:end]...)
		if end < len(some) {
			_, err := e.r.Discard(end + 1)
			return err
		}
		e.r.Discard(end) //nolint:errcheck // it is there
	}
}
