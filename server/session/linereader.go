package session

import (
	"bufio"
	"io"

	"agentd/server/fault"
)

// A lineReader gives the lines of an export, within the limits of an import.
type lineReader struct {
	r    *bufio.Reader
	left int64 // bytes until MaxImport, and one
	line []byte
}

func newLineReader(r io.Reader) *lineReader {
	limited := &io.LimitedReader{R: r, N: MaxImport + 1}
	return &lineReader{r: bufio.NewReaderSize(limited, 64<<10), left: MaxImport + 1}
}

// next returns a line with its end, which the last one may lack. It is valid until the next call. Errors: io.EOF,
// body-too-large, those of the reader.
func (l *lineReader) next() ([]byte, error) {
	l.line = l.line[:0]
	for {
		piece, err := l.r.ReadSlice('\n')
		l.line = append(l.line, piece...)
		l.left -= int64(len(piece))
		switch {
		case l.left <= 0:
			return nil, tooLarge("The session export has more than %d MiB.", MaxImport>>20)
		case len(l.line) > maxLine:
			return nil, tooLarge("A line of the session export has more than %d MiB.", maxLine>>20)
		case err == io.EOF && len(l.line) > 0:
			return l.line, nil
		case err != bufio.ErrBufferFull:
			return l.line, err
		}
	}
}

func tooLarge(format string, args ...any) error {
	return fault.New(fault.BodyTooLarge, format, args...).Advise("Keep the file as it is; a session of this size cannot be imported.")
}
