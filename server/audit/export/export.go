// Package export writes entries of the audit chain to a file, as lines of JSON or as CSV.
package export

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"strconv"
	"strings"

	"agentd/server/audit"
)

// Formats of an export.
const (
	JSONL = "jsonl" // the canonical form of each entry on a line
	CSV   = "csv"   // RFC 4180 with a head, but lines end in LF; see inert
)

// Exported is the size of an export.
type Exported struct {
	Bytes  int64  `json:"bytes"`
	Rows   int64  `json:"rows"`
	Format string `json:"format"`
}

// pageSize is how many entries are read at once.
const pageSize = 1000

// Write writes the entries from one sequence number to another, both included, 0 being no bound. It ends with the entry
// that is the last one when it begins.
func Write(ctx context.Context, l *audit.Log, out io.Writer, format string, from, to int64) (Exported, error) {
	x := Exported{Format: format}
	if to == 0 {
		to = l.Head().Size
	}
	w := bufio.NewWriterSize(counting{out, &x.Bytes}, 64<<10)
	put := func(e *audit.Entry) error {
		_, err := w.Write(append(e.Line(w.AvailableBuffer()), '\n'))
		return err
	}
	flush := w.Flush
	if format == CSV {
		c := csv.NewWriter(w)
		if err := c.Write(head); err != nil {
			return x, err
		}
		put = func(e *audit.Entry) error { return c.Write(line(e)) }
		flush = func() error {
			c.Flush()
			return errors.Join(c.Error(), w.Flush())
		}
	}
	for e, err := range l.Entries(ctx, audit.Query{From: from, To: to, Limit: pageSize}) {
		if err == nil {
			err = put(e)
		}
		if err != nil {
			return x, err
		}
		x.Rows++
	}
	return x, flush()
}

var head = []string{"seq", "ts", "actorKind", "actorId", "actorLabel", "action", "target", "decision", "runId", "sessionId", "toolName", "metadata", "prevHash", "hash"}

// line is an entry as a record of CSV.
func line(e *audit.Entry) []string {
	var c audit.Context
	if e.Context != nil {
		c = *e.Context
	}
	fields := []string{strconv.FormatInt(e.Seq, 10), strconv.FormatInt(e.TS, 10), e.Actor.Kind, e.Actor.ID, e.Actor.Label, e.Action, e.Target,
		string(e.Decision), c.RunID, c.SessionID, c.ToolName, string(e.Metadata), e.PrevHash, e.Hash}
	for i := range fields {
		fields[i] = inert(fields[i])
	}
	return fields
}

// inert puts an apostrophe before a text that a spreadsheet would take for a formula, and before one that begins with an
// apostrophe, so that taking one away gives the text back. Clients choose some of the texts.
func inert(text string) string {
	if text != "" && strings.Contains("=+-@\t\r'", text[:1]) {
		return "'" + text
	}
	return text
}

// counting counts the bytes that a writer takes.
type counting struct {
	w io.Writer
	n *int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	*c.n += int64(n)
	return n, err
}
