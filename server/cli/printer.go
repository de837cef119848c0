package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"agentd/server/agent"
	"agentd/server/client"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/store"
)

// A printer shows a run while it runs.
//
// What it writes to stdout is always the beginning of the text that a text.complete event has in full. So deltas that
// come are written at once, and those that went missing are made good when the step is complete.
type printer struct {
	out, err io.Writer
	lines    bool // events as lines of JSON, instead of text
	terminal bool // stdout is one
	margin   margin
	activity bool // show steps and tools on stderr
	dim      bool
	broken   error // of writing to stdout

	shown strings.Builder // of the text that is not complete yet
	gap   bool            // a delta of it is missing
	last  event.Cursor    // of the latest event
	any   bool            // some text was written
	open  bool            // the last line of stdout has no end

	calls map[string]string // arguments by tool call id
	end   ending
}

// An ending is what agent.end tells, as far as it matters here.
type ending struct {
	Result struct {
		Output json.RawMessage
		Status store.Status
		Error  *agent.RunError
		State  struct{ PendingApprovals []journal.Approval }
	}
}

// ends reports whether an event says how a run stands at its end, or while it waits.
func ends(typ string) bool {
	return typ == event.AgentEnd || typ == event.WorkflowEnd || typ == event.WorkflowSuspended
}

// endingOf reads an event that ends says something of. A workflow says at the top what an agent says of its result.
func endingOf(e *client.Frame) (end ending) {
	if e.Type == event.AgentEnd {
		json.Unmarshal(e.Payload, &end) //nolint:errcheck // then nothing is known
		return end
	}
	var own struct{ PendingApprovals []journal.Approval }
	json.Unmarshal(e.Payload, &end.Result) //nolint:errcheck // likewise; state is another's
	json.Unmarshal(e.Payload, &own)        //nolint:errcheck // likewise
	end.Result.State.PendingApprovals = own.PendingApprovals
	return end
}

func newPrinter(c *call) *printer {
	tty := isTerminal(c.stderr)
	return &printer{out: c.stdout, err: c.stderr, lines: c.flags.json, terminal: isTerminal(c.stdout), margin: margin{mark: "│ "},
		activity: tty || c.flags.verbose, dim: tty && c.getenv("NO_COLOR") == "", calls: map[string]string{}}
}

// show takes the next event.
func (p *printer) show(e *client.Frame) {
	if p.lines {
		p.line(e.Payload)
	}
	var body struct {
		Delta, Text          string
		ToolCallID, ToolName string
		FinalArgs, Result    json.RawMessage
		NodeName, Status     string
		Error                agent.RunError
		Message              string
		By, Reason           string
	}
	if ends(e.Type) {
		if p.end = endingOf(e); !p.lines {
			p.finish()
		}
		return
	}
	if p.lines {
		return
	}
	at, _ := event.ParseCursor(e.EventID)
	p.gap = p.gap || event.Transient(e.Type) && (at.Seq != p.last.Seq || at.Sub != p.last.Sub+1)
	p.last = at
	if json.Unmarshal(e.Payload, &body) != nil { // an agent's own event may have members of other types
		return
	}
	switch e.Type {
	case event.TextDelta:
		if !p.gap {
			p.text(body.Delta)
		}
	case event.TextComplete:
		p.complete(body.Text)
	case event.AgentStart, event.StepStart: // after a restart, the model is asked again
		p.void()
	case event.AgentFellback:
		p.void()
		p.tell("another model takes over")
	case event.ToolCallEnd:
		p.calls[body.ToolCallID] = string(body.FinalArgs)
	case event.ToolStart:
		p.tell("%s %s", body.ToolName, p.calls[body.ToolCallID])
	case event.ToolProgress:
		p.tell("%s … %s", body.ToolName, body.Message)
	case event.ToolEnd:
		p.tell("%s → %s", body.ToolName, body.Result)
	case event.ToolError:
		p.tell("%s failed: %s", body.ToolName, body.Error.Message)
	case event.WorkflowTaskStart:
		p.tell("%s", body.NodeName)
	case event.WorkflowTaskEnd:
		if body.Status == "failed" {
			p.tell("%s failed: %s", body.NodeName, body.Error.Message)
		}
	case event.ApprovalRequested:
		p.tell("a call waits for approval")
	case event.ApprovalGranted:
		p.decided("approved", body.ToolCallID, body.By, "")
	case event.ApprovalDenied:
		p.decided("denied", body.ToolCallID, body.By, body.Reason)
	}
}

// another prepares for the events of another run.
func (p *printer) another() {
	p.void()
	if p.open {
		p.write("\n")
	}
	p.any, p.last, p.end = false, event.Cursor{}, ending{}
	clear(p.calls)
}

// line writes an event as one line of JSON.
func (p *printer) line(payload json.RawMessage) {
	var b bytes.Buffer
	if json.Compact(&b, payload) == nil {
		b.WriteByte('\n')
		p.write(b.String())
	}
}

func (p *printer) write(s string) {
	if s == "" || p.broken != nil {
		return
	}
	if p.terminal && p.lines {
		s = escaped(s)
	} else if p.terminal {
		p.margin.width = columns(p.out)
		s = p.margin.set(s)
	}
	_, p.broken = io.WriteString(p.out, s)
	p.open = !strings.HasSuffix(s, "\n")
}

// text writes a piece of the text that is not complete yet. A text before it gets an end of line first; one alone is
// written as it is.
func (p *printer) text(s string) {
	if s == "" {
		return
	}
	if p.shown.Len() == 0 && p.any && p.open {
		p.write("\n")
	}
	p.any = true
	p.shown.WriteString(s)
	p.write(s)
}

// complete makes good what is missing of a text.
func (p *printer) complete(text string) {
	if rest, ok := strings.CutPrefix(text, p.shown.String()); ok {
		p.text(rest)
	} else if !strings.HasPrefix(p.shown.String(), text) { // the agent streamed one thing and says another in the end
		p.void()
		p.text(text)
	}
	p.shown.Reset()
	p.gap = false
	if p.terminal && p.open {
		p.write("\n")
	}
}

// void ends the line of a text that does not count: what is written cannot be taken back.
func (p *printer) void() {
	if p.shown.Len() > 0 && p.open {
		p.write("\n")
	}
	p.shown.Reset()
	p.gap = false
}

// tell writes one line about what happens to stderr.
func (p *printer) tell(format string, args ...any) {
	p.note("· " + fitting(fmt.Sprintf(format, args...), min(160, columns(p.err)-4)))
}

// decided writes who has decided on a call, and why.
func (p *printer) decided(verdict, callID, by, reason string) {
	text := fmt.Sprintf("the call %s was %s by %s", callID, verdict, cmp.Or(by, "somebody"))
	if reason != "" {
		text += ": " + reason
	}
	in := margin{mark: "· ", width: columns(p.err)}
	p.note(in.set(printable(text)))
}

// note writes a line to stderr.
func (p *printer) note(text string) {
	if !p.activity {
		return
	}
	if p.terminal && p.open { // both may be the same terminal
		p.write("\n")
	}
	if p.dim {
		text = "\x1b[2m" + text + "\x1b[0m"
	}
	fmt.Fprintln(p.err, text)
}

// finish writes the output of a run that has said no text, and ends the line where a person reads it.
func (p *printer) finish() {
	res := p.end.Result
	if !p.any && res.Status == store.Completed && len(res.Output) > 0 && string(res.Output) != "null" {
		var s string
		if json.Unmarshal(res.Output, &s) == nil {
			p.write(s)
		} else {
			p.line(res.Output)
		}
	}
	if p.terminal && p.open {
		p.write("\n")
	}
}

// verdict is the error that the end of a run amounts to. For a run that waits, it prints how to decide.
func (c *call) verdict(p *printer, runID string) error {
	res := p.end.Result
	switch {
	case p.broken != nil:
		return exitCode(exitFailed) // nobody reads what could be said
	case res.Status == store.Completed:
		return nil
	case res.Status == store.Suspended:
		if !p.lines {
			fmt.Fprintf(c.stderr, "agentd: run %s waits. See for what with `agentd runs show %[1]s`\n", runID)
		}
		return exitCode(exitAwaiting)
	case res.Status == store.Awaiting:
		if !p.lines {
			c.tellPending(runID, res.State.PendingApprovals)
		}
		return exitCode(exitAwaiting)
	case p.lines:
		return exitCode(exitFailed) // the events have shown why
	case res.Error != nil:
		return fault.Told(res.Error.Code, res.Error.Message, res.Error.Hint)
	}
	return fault.New(fault.RunFailed, "The run ended as %q.", res.Status)
}

// tellPending prints to stderr what a run waits for, and the commands to decide with.
func (c *call) tellPending(runID string, pending []journal.Approval) {
	for _, a := range pending {
		fmt.Fprintf(c.stderr, "agentd: %s waits for approval:\n%s", printable(a.ToolName), details(a, columns(c.stderr)))
	}
	where := ""
	if c.flags.dev {
		where = " --dev"
	} else if c.flags.config != "" {
		where = " --config " + quoted(c.flags.config)
	}
	fmt.Fprintf(c.stderr, "agentd: run %[1]s waits. Decide with one of:\n  agentd runs approve %[1]s%[2]s\n  agentd runs deny %[1]s --reason WHY%[2]s\n", runID, where)
}
