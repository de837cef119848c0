package audit

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"agentd/server/fault"
	"agentd/store"
)

// Query selects entries.
type Query struct {
	From, To     int64 // sequence numbers, both included; 0: no bound; To below 0: none
	Since, Until int64 // times, both included; 0: no bound; Until below 0: none
	Action       string
	ActorID      string
	Newest       bool // begin at the end
	Limit        int  // of entries; 100 when 0
}

// Limits of one page. A page that ends at one of them before its own limit says where the next one begins.
const (
	pageRows  = 50_000  // entries that are looked at
	pageBytes = 4 << 20 // contents of entries that are returned
)

// List returns a page of the entries, in ascending order unless the newest are wanted first. More is the sequence number
// at which the next page begins, as From or, for the newest first, as To; 0: there are no more. The contents must be open.
func (l *Log) List(ctx context.Context, q Query) (page []Entry, more int64, err error) {
	if l.keys == nil {
		return nil, 0, sealed()
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	page = []Entry{}
	l.mu.Lock()
	lost := l.lost
	l.mu.Unlock()
	bytes := 0
	var plain, ad []byte
	n, err := l.file.Scan(ctx, store.Span{From: q.From, To: q.To, Limit: pageRows + 1, Newest: q.Newest}, func(r *store.AuditRow) error {
		if more = r.Seq; len(page) == q.Limit || bytes >= pageBytes {
			return errFull
		}
		if q.Since != 0 && r.TS < q.Since || q.Until != 0 && r.TS > q.Until {
			return nil
		}
		ad = appendBound(ad[:0], r.Seq, r.Hash)
		e := lostEntry(r)
		opened, err := open(l.keys.contents, plain[:0], r.Seal, ad)
		switch {
		case err == nil:
			plain = opened
			e, err = entryOf(r, plain)
		case slices.Contains(lost, r.Seq):
			plain, err = plain[:0], nil
		default:
			return unusable("the contents of entry %d were changed; verify the chain", r.Seq)
		}
		if err != nil || q.Action != "" && q.Action != e.Action || q.ActorID != "" && q.ActorID != e.Actor.ID {
			return err
		}
		page = append(page, e)
		bytes += len(plain)
		return nil
	})
	if errors.Is(err, errFull) || err == nil && n > pageRows {
		return page, more, nil
	}
	return page, 0, err
}

var errFull = errors.New("audit: the page is full")

func sealed() error {
	return fault.New(fault.EncryptionRequired, "The entries are encrypted, and there is no passphrase.").
		Advise("Set `audit.passphraseRef` in the configuration. Verifying the links needs no passphrase.")
}

// Exported is what an export has written.
type Exported struct {
	Bytes  int64  `json:"bytes"`
	Rows   int64  `json:"rows"`
	Format string `json:"format"`
}

// Formats of an export.
const (
	JSONL = "jsonl" // the canonical form of each entry on a line
	CSV   = "csv"   // RFC 4180 with a head, but lines end in LF; see inert
)

// exportPage is how many entries are read at once: no statement is open while they are written.
const exportPage = 1000

// Export writes the entries from one sequence number to another, both included, 0 being no bound. It ends with the
// entry that is the last one when it begins.
func (l *Log) Export(ctx context.Context, out io.Writer, format string, from, to int64) (Exported, error) {
	x := Exported{Format: format}
	if last := l.tree().size; to == 0 && last > 0 {
		to = last
	}
	w := bufio.NewWriterSize(counting{out, &x.Bytes}, 64<<10)
	put := func(e *Entry) error {
		_, err := w.Write(append(e.Line(w.AvailableBuffer()), '\n'))
		return err
	}
	flush := w.Flush
	if format == CSV {
		c := csv.NewWriter(w)
		if err := c.Write(csvHead); err != nil {
			return x, err
		}
		put = func(e *Entry) error { return c.Write(csvLine(e)) }
		flush = func() error {
			c.Flush()
			return errors.Join(c.Error(), w.Flush())
		}
	}
	for more := from; ; {
		var page []Entry
		var err error
		page, more, err = l.List(ctx, Query{From: more, To: to, Limit: exportPage})
		if err != nil {
			return x, err
		}
		for i := range page {
			if err := put(&page[i]); err != nil {
				return x, err
			}
			x.Rows++
		}
		if more == 0 {
			return x, flush()
		}
	}
}

var csvHead = []string{"seq", "ts", "actorKind", "actorId", "actorLabel", "action", "target", "decision", "runId", "sessionId", "toolName", "metadata", "prevHash", "hash"}

func csvLine(e *Entry) []string {
	c := e.Context
	if c == nil {
		c = &Context{}
	}
	line := []string{strconv.FormatInt(e.Seq, 10), strconv.FormatInt(e.TS, 10), e.Actor.Kind, e.Actor.ID, e.Actor.Label, e.Action, e.Target,
		string(e.Decision), c.RunID, c.SessionID, c.ToolName, string(e.Metadata), e.PrevHash, e.Hash}
	for i := range line {
		line[i] = inert(line[i])
	}
	return line
}

// inert puts an apostrophe before a text that a spreadsheet would take for a formula, and before one that begins with an
// apostrophe, so that taking one away gives the text back. Clients choose some of the texts.
func inert(text string) string {
	if text != "" && strings.Contains("=+-@\t\r'", text[:1]) {
		return "'" + text
	}
	return text
}

type counting struct {
	w io.Writer
	n *int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	*c.n += int64(n)
	return n, err
}
