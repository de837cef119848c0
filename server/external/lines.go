package external

import (
	"bufio"
	"bytes"
	"io"

	"agentd/server/fault"
)

// lines reads a program's JSON lines: one object a line, at most maxFrame bytes, ended by LF or by the end of the
// output. Blank lines are skipped, but counted.
type lines struct {
	r    *bufio.Reader
	n    int
	line []byte
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReader(r)} }

// next returns the next line; io.EOF after the last, agent-protocol for one that is too long, or the reader's error.
func (l *lines) next() (frame, error) {
	for {
		l.n++
		err := l.read()
		if err != nil && err != io.EOF {
			return frame{}, err
		}
		if data := bytes.TrimSpace(l.line); len(data) > 0 {
			return frame{number: l.n, data: data}, nil
		}
		if err != nil {
			return frame{}, err
		}
	}
}

// read fills l.line with the next line, without its end. The last line may come with io.EOF.
func (l *lines) read() error {
	l.line = l.line[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.line = append(l.line, bytes.TrimSuffix(part, []byte("\n"))...)
		if len(l.line) > maxFrame {
			return fault.New(fault.AgentProtocol, "The agent's line %d is longer than %d bytes.", l.n, maxFrame)
		}
		if err != bufio.ErrBufferFull {
			return err
		}
	}
}
