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

// show writes what came of a command: with --json a document, else what write says to people. Where it is not ok, the
// command fails without a further word.
func (c *call) show(ok bool, doc any, write func(sheet)) error {
	var err error
	if c.flags.json {
		err = c.printJSON(doc)
	} else {
		w := newSheet(c.stdout)
		write(w)
		err = w.Flush()
	}
	if err == nil && !ok {
		err = exitCode(exitFailed)
	}
	return err
}

// report is [call.show] for one sentence.
func (c *call) report(doc any, format string, args ...any) error {
	return c.show(true, doc, func(w sheet) { w.say(format+"\n", args...) })
}

// A sheet is lines for people, of which those with cells are aligned.
type sheet struct{ *tabwriter.Writer }

func newSheet(to io.Writer) sheet { return sheet{tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)} }

// row adds a line of cells. A cell may hold what others say; an empty one is a dash.
func (w sheet) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = cmp.Or(printable(cell), "-")
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// fact adds a line of a name and a value. The value may hold what others say.
func (w sheet) fact(name, format string, args ...any) {
	fmt.Fprintf(w, "%s:\t%s\n", name, printable(fmt.Sprintf(format, args...)))
}

// facts adds a line for each pair of a name and a value, but none for an empty value.
func (w sheet) facts(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			w.fact(pairs[i], "%s", pairs[i+1])
		}
	}
}

// say adds text.
func (w sheet) say(format string, args ...any) { fmt.Fprintf(w, format, args...) }
