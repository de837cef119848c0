package tool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/proc"
)

// ExecOptions is what NewExec needs. Spec and Command are required.
type ExecOptions struct {
	Spec    Spec
	Command []string // the program, looked up as package proc says, and its arguments
	Dir     string   // working folder; empty is the server's
	Env     []string // its whole environment besides the three variables below; see proc.Environ
	// MaxOutput is how many bytes of stdout are read; 0 is 8 MiB, more than 32 MiB is of no use.
	MaxOutput int64
	// Redact takes known secrets out of the end of stderr that is shown in an error; nil: there are none.
	Redact func(string) string
}

// NewExec makes a tool of a program, or returns config-invalid. It starts nothing.
//
// The program gets the arguments as a line of JSON on stdin. What it writes to stdout is the result, JSON if it parses
// and text else, and is streamed as text while it runs. Its environment has AGENTD_CALL_ID (the idempotency key of the
// call), AGENTD_RUN_ID and AGENTD_AGENT_ID besides. Another exit status than 0 is an error with the end of stderr. The
// end of the call's context ends the whole process group.
func NewExec(opts ExecOptions) (Tool, error) {
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		return nil, fault.Invalid("The exec tool is not valid.", fault.At("names no program", "command"))
	}
	if opts.MaxOutput < 0 {
		return nil, fault.Invalid("The exec tool is not valid.", fault.At("want a positive number of bytes", "maxOutputBytes"))
	}
	opts.MaxOutput = min(opts.MaxOutput, maxOutput)
	opts.Redact = orSame(opts.Redact)
	return execTool{opts}, nil
}

type execTool struct{ ExecOptions }

func (t execTool) Spec() Spec { return t.ExecOptions.Spec }

func (t execTool) Execute(ctx context.Context, call Call) (Result, error) {
	env := append([]string(nil), t.Env...)
	env = append(env, "AGENTD_CALL_ID="+call.Key, "AGENTD_RUN_ID="+call.RunID, "AGENTD_AGENT_ID="+call.AgentID)
	p, err := proc.Start(ctx, proc.Command{Argv: t.Command, Dir: t.Dir, Env: proc.Environ(nil, nil, env...),
		Input: append(append([]byte(nil), call.Args...), '\n'), MaxOutput: t.MaxOutput})
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, context.Cause(ctx)
		}
		return Result{}, &Error{Message: "The tool's program could not be started: " + err.Error() + "."}
	}
	output := collect(p, call.Stream)
	status, err := p.Wait()
	if over, ok := errors.AsType[*proc.OverflowError](err); ok {
		e := &Error{Kind: message.InvalidOutput, Message: fmt.Sprintf("The tool's program wrote more than %d bytes and was ended.", over.Limit)}
		if !t.Spec().Repeatable() {
			e.Hint = mayHaveHappened
		}
		return Result{}, e
	}
	if err != nil {
		return Result{}, err
	}
	if !status.OK() {
		text := fmt.Sprintf("The tool's program ended with %v", status)
		if said := strings.TrimSpace(t.Redact(status.Stderr)); said != "" {
			return Result{}, &Error{Message: text + ": " + said}
		}
		return Result{}, &Error{Message: text + " and an empty standard error."}
	}
	if json.Valid(output) {
		return Result{Output: output}, nil
	}
	if len(output) == 0 {
		return Result{}, nil
	}
	return JSON(strings.ToValidUTF8(string(output), "\uFFFD"))
}

// collect reads all of r and streams it as text, cut between characters.
func collect(r io.Reader, stream func(Chunk)) []byte {
	var all []byte
	var text runes
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		all = append(all, buf[:n]...)
		if s := text.push(buf[:n]); s != "" {
			stream(Chunk{Kind: Text, Text: s})
		}
		if err != nil { // the end of it, or too much: Wait tells
			if len(text.held) > 0 {
				stream(Chunk{Kind: Text, Text: string(text.held)})
			}
			return all
		}
	}
}
