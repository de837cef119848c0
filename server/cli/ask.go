package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"syscall"
	"time"

	"agentd/server/journal"
	"agentd/server/rest"
)

// An asker asks the person at the terminal about tool calls that wait.
type asker struct {
	in   *os.File
	out  io.Writer
	left map[string]bool // calls that the person wants to leave waiting
}

// newAsker is nil where nobody can be asked: somebody must read stderr and type on stdin.
func (c *call) newAsker() *asker {
	if c.flags.json || !isTerminal(c.stdin) || !isTerminal(c.stderr) {
		return nil
	}
	return &asker{in: c.stdin.(*os.File), out: c.stderr, left: map[string]bool{}}
}

// ask asks about each call and returns what was decided; abort says that the whole run is to end. When ctx ends or no
// more can be read, nothing is decided.
func (a *asker) ask(ctx context.Context, pending []journal.Approval) (decisions []rest.DecisionBody, abort bool) {
	for _, p := range pending {
		if a.left[callName(p)] {
			continue
		}
		fmt.Fprintf(a.out, "\n%s waits for your approval:\n%s", printable(p.ToolName), details(p, columns(a.out)))
		answer, err := a.choose(ctx, p)
		word := rest.DecisionBody{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID}
		if answer == refuse && err == nil {
			word.Reason, err = a.line(ctx, "Why? The agent learns the reason (empty: none): ")
		}
		if err != nil {
			fmt.Fprintln(a.out)
			return nil, false
		}
		switch answer {
		case abortRun:
			return nil, true
		case leave:
			a.left[callName(p)] = true
			continue
		case permit:
			word.Granted = true
		case repeat:
			word.Granted, word.Again = true, true
		}
		decisions = append(decisions, word)
	}
	return decisions, false
}

// An answer is what a person says about a call.
type answer int

const (
	permit answer = iota
	repeat        // although it may have happened
	refuse
	abortRun
	leave
)

// choose asks until the answer is one of those that the call allows.
func (a *asker) choose(ctx context.Context, p journal.Approval) (answer, error) {
	prompt, answers := "[y]es", map[string]answer{"y": permit, "yes": permit}
	if p.MayHaveHappened() {
		prompt, answers = "Type again to make it once more", map[string]answer{"again": repeat}
	}
	for word, means := range map[string]answer{"n": refuse, "no": refuse, "a": abortRun, "abort": abortRun, "w": leave, "wait": leave} {
		answers[word] = means
	}
	for {
		text, err := a.line(ctx, prompt+", [n]o, [a]bort the run, leave it [w]aiting? ")
		if err != nil {
			return 0, err
		}
		if means, ok := answers[strings.ToLower(text)]; ok {
			return means, nil
		}
	}
}

// line reads one line, without the white space around it.
func (a *asker) line(ctx context.Context, prompt string) (string, error) {
	return typed(ctx, a.in, func() { io.WriteString(a.out, prompt) }) //nolint:errcheck // there is nowhere left to report it
}

// details are what a person has to know of a call that waits, as indented lines of a terminal.
func details(p journal.Approval, width int) string {
	var b strings.Builder
	b.WriteString(arguments(p.Args, width))
	say := func(format string, args ...any) { b.WriteString(indented(fmt.Sprintf(format, args...)+"\n", width)) }
	if p.MayHaveHappened() {
		say("IT MAY HAVE HAPPENED ALREADY: an earlier attempt has an unknown outcome.")
		if was := p.Previous; was != nil {
			times := "once"
			if was.Attempts > 1 {
				times = fmt.Sprintf("%d times, first", was.Attempts)
			}
			say("begun: %s at %s. %s", times, was.BegunAt, printable(was.Known))
		}
	}
	if p.Reason != "" {
		say("because: %s", printable(p.Reason))
	}
	if p.Imported {
		say("imported: no model asked for it here; it came with a run state")
	}
	if p.SubRunToolCallID != "" {
		say("for: an agent that was called (%s)", printable(p.SubRunToolCallID))
	}
	say("call: %s", printable(callName(p)))
	if p.RequestedBy != "" {
		say("asked by: %s, in a run that %s started", printable(p.RequestedByAgent), printable(p.RequestedBy))
	}
	if p.ApproversNeeded > 1 {
		say("granted by: %d of %d", len(p.GrantedBy), p.ApproversNeeded)
	}
	if p.ExpiresAt != "" {
		say("denied unless somebody decides before: %s", p.ExpiresAt)
	}
	return b.String()
}

// arguments are indented lines for a terminal. Nothing is left out: it is what the person answers for.
func arguments(args json.RawMessage, width int) string {
	var b bytes.Buffer
	if json.Indent(&b, args, "", "  ") != nil {
		b.Reset()
		b.Write(args)
	}
	return indented(escaped(b.String())+"\n", width)
}

// maxTyped is how long a line may be that a person types.
const maxTyped = 64 << 10

// typed reads a line that is typed from now on: what was typed before is dropped, since it answers another question.
// When ctx ends first, nothing is taken and the error is its cause. The terminal hands over one line at a time, so
// nothing of the next is ever held here.
func typed(ctx context.Context, tty *os.File, prompt func()) (string, error) {
	if err := discardInput(tty.Fd()); err != nil {
		return "", fmt.Errorf("the terminal does not drop earlier input: %w", err)
	}
	prompt()
	var line []byte
	for {
		ready, err := readable(int(tty.Fd()))
		switch {
		case err != nil:
			return "", err
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case !ready:
			continue
		}
		var b [4096]byte
		n, err := tty.Read(b[:])
		line = append(line, b[:n]...)
		switch {
		case err != nil:
			return "", err
		case n == 0:
			return "", io.EOF
		case line[len(line)-1] == '\n', len(line) > maxTyped:
			return strings.TrimSpace(strings.ToValidUTF8(string(line), "")), nil
		}
	}
}

// attention is how long the end of a context may go unnoticed at a prompt.
const attention = 20 * time.Millisecond

// readable waits for a moment until a file has something to read.
func readable(fd int) (bool, error) {
	var set syscall.FdSet
	if !include(&set, fd) {
		return false, syscall.EMFILE
	}
	moment := syscall.NsecToTimeval(int64(attention))
	err := selectReading(fd+1, &set, &moment)
	if err == syscall.EINTR {
		return false, nil
	}
	return set != syscall.FdSet{}, err
}

// include adds a descriptor to a set, whose words have another name and size on each system.
func include(set *syscall.FdSet, fd int) bool {
	words := reflect.ValueOf(set).Elem().Field(0)
	bits := words.Type().Elem().Bits()
	if fd >= words.Len()*bits {
		return false
	}
	switch word := words.Index(fd / bits); {
	case word.CanInt():
		word.SetInt(word.Int() | 1<<(fd%bits))
	default:
		word.SetUint(word.Uint() | 1<<(fd%bits))
	}
	return true
}
