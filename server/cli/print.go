package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"agentd/server/fault"
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

// show writes the result of a command: with --json a document, otherwise what write writes for people. If it is not ok, the
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

// exitCode is the error of a command that has reported everything itself.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// exit renders an error, on stderr or with --json as a document on stdout, and returns the exit code.
func (c *call) exit(err error) int {
	if err == nil {
		return exitOK
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	f := fault.Of(err)
	doc := struct {
		Error   string        `json:"error"`
		Message string        `json:"message"`
		Hint    string        `json:"hint,omitempty"`
		Issues  []fault.Issue `json:"issues,omitempty"`
	}{f.Kind.Code, f.Message, f.NextStep(), f.Issues}
	if f.Kind == fault.Internal { // nobody else reads it, and there is no other log
		doc.Message, doc.Hint = err.Error(), ""
	}
	code := exitFailed
	if c.cmd != nil && c.cmd.fails != 0 {
		code = c.cmd.fails
	}
	if f.Kind == fault.Usage {
		code = exitUsage
	}
	if c.flags.json && c.cmd != nil && c.cmd.lines { // on one line, as those before it
		b, _ := message.Encode(doc)
		c.stdout.Write(append(b, '\n')) //nolint:errcheck // there is nowhere left to report it
		return code
	} else if c.flags.json {
		c.printJSON(doc) //nolint:errcheck // likewise
		return code
	}
	// The text may come from a server, or quote a file.
	fmt.Fprintf(c.stderr, "agentd: %s: %s\n", printable(doc.Error), printable(doc.Message))
	for _, is := range doc.Issues {
		fmt.Fprintf(c.stderr, "  - %s\n", printable(issue(is)))
	}
	if doc.Hint != "" {
		fmt.Fprintf(c.stderr, "  hint: %s\n", printable(doc.Hint))
	}
	return code
}

// issue is a problem as one line: its path, if any, and what is wrong.
func issue(is fault.Issue) string {
	if len(is.Path) == 0 {
		return is.Message
	}
	return dotted(is.Path) + ": " + is.Message
}

// dotted is a path of the configuration or a body as people write it.
func dotted(path []any) string {
	words := make([]string, len(path))
	for i, e := range path {
		words[i] = fmt.Sprint(e)
	}
	return strings.Join(words, ".")
}

// advised gives a fault a hint for this command line. What nobody classified has none.
func advised(err error, hint string) error {
	if f := fault.Of(err); f.Kind != fault.Internal {
		f.Advise(hint)
	}
	return err
}
