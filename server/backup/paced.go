package backup

import (
	"io"
	"os"
	"time"
)

// Paced returns a writer to a file that leaves the disk to others: the disk has each stretch before the next one is written, so
// that a commit of another process waits for one stretch at most, and then the writer rests half of the time that this took. As
// long as the log of the database at a path changes, stretches are shorter. The caller syncs the file at the end.
func Paced(f *os.File, database string) io.Writer {
	return &paced{f: f, log: database + "-wal", begun: time.Now()}
}

const (
	long  = 256 << 10 // bytes of a stretch, while nobody else writes
	short = 64 << 10  // with twice as much, the 99th percentile of others' commits doubles
	quiet = 100 * time.Millisecond
)

type paced struct {
	f     *os.File
	at, n int64 // where this stretch begins, and how many bytes it has
	begun time.Time

	log     string
	seen    time.Time // when the log was last changed
	changed time.Time // when that was noticed
}

func (p *paced) Write(b []byte) (int, error) {
	total := 0
	for len(b) > 0 {
		n, err := p.f.Write(b[:min(len(b), short)])
		total, b, p.n = total+n, b[n:], p.n+int64(n)
		if err == nil && (p.n >= long || p.n >= short && time.Since(p.changed) < quiet) {
			err = p.rest()
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// rest ends a stretch.
func (p *paced) rest() error {
	err := written(p.f, p.at, p.n)
	time.Sleep(time.Since(p.begun) / 2)
	if info, missing := os.Stat(p.log); missing == nil && !info.ModTime().Equal(p.seen) {
		p.seen, p.changed = info.ModTime(), time.Now()
	}
	p.at, p.n, p.begun = p.at+p.n, 0, time.Now()
	return err
}
