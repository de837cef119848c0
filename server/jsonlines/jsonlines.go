// Package jsonlines writes and reads files of JSON lines: a head, a body that a checksum covers, and a footer with the checksum.
package jsonlines

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"iter"

	"agentd/server/message"
)

// A Body counts and sums up the lines between the head and the footer.
type Body struct {
	Lines int
	sum   hash.Hash
}

// NewBody makes an empty body.
func NewBody() *Body { return &Body{sum: sha256.New()} }

// Add adds a line with its end.
func (b *Body) Add(line []byte) {
	b.Lines++
	b.sum.Write(line)
}

// Checksum is sha256:<hex> of the lines so far.
func (b *Body) Checksum() string { return "sha256:" + hex.EncodeToString(b.sum.Sum(nil)) }

// A Writer writes values as lines. After an error it writes nothing more; Close returns the error.
type Writer struct {
	*Body
	Err error
	w   *bufio.Writer
}

// NewWriter makes a writer whose first line is the head.
func NewWriter(w io.Writer, head any) *Writer {
	out := &Writer{Body: NewBody(), w: bufio.NewWriterSize(w, 64<<10)}
	out.line(head)
	return out
}

// Write adds a line to the body.
func (w *Writer) Write(v any) { w.Add(w.line(v)) }

// Close writes the footer and whatever is buffered.
func (w *Writer) Close(footer any) error {
	if w.line(footer); w.Err == nil {
		w.Err = w.w.Flush()
	}
	return w.Err
}

func (w *Writer) line(v any) []byte {
	if w.Err != nil {
		return nil
	}
	b, err := message.Encode(v)
	if err != nil {
		w.Err = err
		return nil
	}
	// Raw JSON of programs and models may hold bytes that are not UTF-8, which readers would change each in its own way.
	b = append(bytes.ToValidUTF8(b, []byte("\uFFFD")), '\n')
	_, w.Err = w.w.Write(b)
	return b
}

// Limits that a file passes.
var (
	ErrLine = errors.New("a line is too long")
	ErrFile = errors.New("the file is too large")
)

// Read yields the lines of a file with their ends, which the last line may lack. A line is valid until the next one. Errors end
// it: ErrLine, ErrFile, and those of src.
func Read(src io.Reader, maxLine, maxFile int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		limited := &io.LimitedReader{R: src, N: int64(maxFile) + 1}
		lines := bufio.NewScanner(limited)
		lines.Buffer(make([]byte, 0, 64<<10), maxLine+1)
		lines.Split(whole)
		for lines.Scan() && limited.N > 0 {
			if !yield(lines.Bytes(), nil) {
				return
			}
		}
		switch err := lines.Err(); {
		case limited.N <= 0:
			yield(nil, ErrFile)
		case errors.Is(err, bufio.ErrTooLong):
			yield(nil, ErrLine)
		case err != nil:
			yield(nil, err)
		}
	}
}

// whole splits a file into lines with their ends, since the checksum covers them.
func whole(data []byte, atEOF bool) (advance int, line []byte, err error) {
	n := bytes.IndexByte(data, '\n') + 1
	if n == 0 && atEOF {
		n = len(data)
	}
	if n == 0 {
		return 0, nil, nil
	}
	return n, data[:n], nil
}
