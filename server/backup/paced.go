package backup

import (
	"io"
	"os"
	"time"
)

// Paced returns a writer to a file that leaves the disk to others: the disk has each stretch before the next one is written, so
// that a commit of another process waits for one stretch at most, and then the writer rests half of the time that this took. The
// caller syncs the file at the end.
func Paced(f *os.File) io.Writer { return &paced{f: f, begun: time.Now()} }

const stretch = 256 << 10 // bytes; with twice as much, others wait noticeably

type paced struct {
	f     *os.File
	at, n int64 // where this stretch begins, and how many bytes it has
	begun time.Time
}

func (p *paced) Write(b []byte) (int, error) {
	n, err := p.f.Write(b)
	if p.n += int64(n); err == nil && p.n >= stretch {
		err = written(p.f, p.at, p.n)
		time.Sleep(time.Since(p.begun) / 2)
		p.at, p.n, p.begun = p.at+p.n, 0, time.Now()
	}
	return n, err
}
