package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"agentd/server/message"
)

// printJSON writes one indented document to stdout.
func (c *call) printJSON(v any) error {
	b, err := message.Encode(v)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return err
	}
	out.WriteByte('\n')
	_, err = c.stdout.Write(out.Bytes())
	return err
}

// A table is lines of cells for people, under a head.
type table struct{ *tabwriter.Writer }

func (c *call) table(head ...string) table {
	w := table{tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)}
	w.row(head...)
	return w
}

// row adds a line. Cells that others have filled are made printable, and an empty one is a dash.
func (w table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(printable(cell), "-")
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// facts writes lines of a name and a value, of which empty ones are left out.
func facts(to io.Writer, pairs ...string) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(w, "%s:\t%s\n", pairs[i], printable(pairs[i+1]))
		}
	}
	return w.Flush()
}

// report writes what came of a command: a sentence or, with --json, a document.
func (c *call) report(doc any, format string, args ...any) error {
	if c.flags.json {
		return c.printJSON(doc)
	}
	_, err := fmt.Fprintf(c.stdout, format, args...)
	return err
}
