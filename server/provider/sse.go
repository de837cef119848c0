package provider

import (
	"bufio"
	"bytes"
	"io"
)

// maxEvent bounds a line of an event stream and the data of an event, in bytes.
const maxEvent = 1 << 20

// events reads the data of server-sent events (WHATWG HTML, 9.2). Lines end with LF or CRLF; comments and fields
// other than data are skipped, as are events without data.
type events struct {
	lines *bufio.Scanner
	data  []byte
}

func newEvents(r io.Reader) *events {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 16<<10), maxEvent)
	return &events{lines: lines}
}

// next returns the data of the next event, its lines joined by LF; it is valid until the call after. An event whose
// blank line the end of the stream leaves out counts, one that a read error cuts does not. The error is io.EOF at
// the end, bufio.ErrTooLong for a line or an event above maxEvent, or the reader's own.
func (e *events) next() ([]byte, error) {
	e.data = e.data[:0]
	some := false
	for e.lines.Scan() {
		line := e.lines.Bytes()
		if len(line) == 0 {
			if some {
				return e.data, nil
			}
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		if string(field) != "data" {
			continue
		}
		if some {
			e.data = append(e.data, '\n')
		}
		some = true
		if e.data = append(e.data, bytes.TrimPrefix(value, []byte(" "))...); len(e.data) > maxEvent {
			return nil, bufio.ErrTooLong
		}
	}
	if err := e.lines.Err(); err != nil {
		return nil, err
	}
	if !some {
		return nil, io.EOF
	}
	return e.data, nil
}
