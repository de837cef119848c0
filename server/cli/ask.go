package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"agentd/server/agent"
)

// An asker asks the person at the terminal about tool calls that wait.
type asker struct {
	in   *bufio.Reader
	out  io.Writer
	left map[string]bool // calls that the person wants to leave waiting
}

// newAsker is nil where nobody can be asked: somebody must read stderr and type on stdin.
func (c *call) newAsker() *asker {
	if c.flags.json || !isTerminal(c.stdin) || !isTerminal(c.stderr) {
		return nil
	}
	return &asker{in: bufio.NewReader(c.stdin), out: c.stderr, left: map[string]bool{}}
}

// ask asks about each call and returns what was decided; abort says that the whole run is to end. When ctx ends or no
// more can be read, nothing is decided.
func (a *asker) ask(ctx context.Context, pending []agent.Approval) (decisions []agent.Decision, abort bool) {
	for _, p := range pending {
		if a.left[callName(p)] {
			continue
		}
		fmt.Fprintf(a.out, "\n%s waits for your approval:\n%s", printable(p.ToolName), readable(p.Args))
		if p.SubRunToolCallID != "" {
			fmt.Fprintf(a.out, "  for: an agent that was called (%s)\n", printable(p.SubRunToolCallID))
		}
		if p.Reason != "" {
			fmt.Fprintf(a.out, "  because: %s\n", printable(p.Reason))
		}
		answer, err := a.choose(ctx)
		if err != nil {
			fmt.Fprintln(a.out)
			return nil, false
		}
		switch answer {
		case 'y':
			decisions = append(decisions, agent.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
		case 'n':
			reason, err := a.line(ctx, "Why? The agent is told (empty: no reason): ")
			if err != nil {
				fmt.Fprintln(a.out)
				return nil, false
			}
			decisions = append(decisions, agent.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Reason: reason})
		case 'a':
			return nil, true
		case 'w':
			a.left[callName(p)] = true
		}
	}
	return decisions, false
}

// choose asks until the answer is one of the four.
func (a *asker) choose(ctx context.Context) (rune, error) {
	for {
		text, err := a.line(ctx, "[y]es, [n]o, [a]bort the run, leave it [w]aiting? ")
		if err != nil {
			return 0, err
		}
		switch text = strings.ToLower(text); text {
		case "y", "yes", "n", "no", "a", "abort", "w", "wait":
			return rune(text[0]), nil
		}
	}
}

// line reads one line, without the white space around it. The end of ctx ends the wait, but not the goroutine that
// reads: a terminal cannot be left alone otherwise, and nobody reads from it again before the process ends.
func (a *asker) line(ctx context.Context, prompt string) (string, error) {
	io.WriteString(a.out, prompt) //nolint:errcheck // there is nowhere left to tell of it
	type line struct {
		text string
		err  error
	}
	read := make(chan line, 1)
	go func() {
		text, err := a.in.ReadString('\n')
		read <- line{text, err}
	}()
	select {
	case l := <-read:
		return strings.TrimSpace(strings.ToValidUTF8(l.text, "")), l.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// readable is arguments as indented lines for a terminal. Nothing is left out: it is what the person answers for.
func readable(args json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, args, "", "  ") != nil {
		b.Reset()
		b.Write(args)
	}
	return indented(b.String()) + "\n"
}

// indented is a text of several lines, made fit for a terminal.
func indented(text string) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, "  "+printable(line))
	}
	return strings.Join(lines, "\n")
}
