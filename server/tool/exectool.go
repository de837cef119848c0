package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/proc"
	"agentd/server/secret"
)

// ExecOptions is what NewExec needs. Spec and Command are required.
type ExecOptions struct {
	Spec    Spec
	Command []string // the program, looked up as package proc says, and its arguments
	Dir     string   // working folder; empty is the server's
	Env     []string // its whole environment besides the three variables below; see proc.Environ
	// MaxOutput is how many bytes of stdout are kept; 0 is 8 MiB, more than 32 MiB is of no use.
	MaxOutput int64
	Limit     *proc.Limit // of programs that run at once; nil: there is none
	// Known are the secrets that are taken out of what the program writes; nil: there are none.
	Known *secret.Redactor
}

// NewExec makes a tool of a program, or returns config-invalid. It starts nothing.
//
// The program gets the arguments as a line of JSON on stdin. What it writes to stdout is the result, JSON if it parses
// and text else, and is streamed as text while it runs. Its environment has AGENTD_CALL_ID (the idempotency key of the
// call), AGENTD_RUN_ID and AGENTD_AGENT_ID besides. Another exit status than 0 is an error with the end of stderr; of a
// program that did not end by itself, the outcome is unknown. Output
// beyond the limit is read and dropped, and the result is flagged as truncated: the program has had its effect, and ends by
// itself. The end of the call's context ends the whole process group.
func NewExec(opts ExecOptions) (Tool, error) {
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		return nil, fault.Invalid("The exec tool is not valid.", fault.At("names no program", "command"))
	}
	if opts.MaxOutput < 0 {
		return nil, fault.Invalid("The exec tool is not valid.", fault.At("want a positive number of bytes", "maxOutputBytes"))
	}
	opts.MaxOutput = min(cmp.Or(opts.MaxOutput, proc.DefaultMaxOutput), maxOutput)
	return execTool{opts}, nil
}

type execTool struct{ ExecOptions }

func (t execTool) Spec() Spec { return t.ExecOptions.Spec }

func (t execTool) Execute(ctx context.Context, call Call) (Result, error) {
	env := append([]string(nil), t.Env...)
	env = append(env, "AGENTD_CALL_ID="+call.Key, "AGENTD_RUN_ID="+call.RunID, "AGENTD_AGENT_ID="+call.AgentID)
	p, err := proc.Start(ctx, proc.Command{Argv: t.Command, Dir: t.Dir, Env: proc.Environ(nil, nil, env...),
		Input: append(append([]byte(nil), call.Args...), '\n'), MaxOutput: math.MaxInt64 - 1, Limit: t.Limit, Payer: call.Payer})
	if err != nil {
		return Result{}, t.notStarted(ctx, err)
	}
	output, cut := collect(p, t.MaxOutput, t.Known.Flow(), call.Stream)
	status, err := p.Wait()
	switch {
	case err != nil && ctx.Err() == nil:
		return Result{}, &Error{Message: "The tool's program could not be followed to its end: " + err.Error() + ".", Unknown: true}
	case err != nil:
		return Result{}, err
	}
	if !status.OK() {
		e := &Error{Message: fmt.Sprintf("The tool's program ended with %v", status), Unknown: status.Signal != 0} // by somebody else
		if said := strings.TrimSpace(t.Known.Piece(status.Stderr)); said != "" {
			e.Message += ": " + said
		} else {
			e.Message += " and an empty standard error."
		}
		return Result{}, e
	}
	if len(output) == 0 || !cut && json.Valid(output) {
		return Result{Output: output}, nil
	}
	res, err := JSON(strings.ToValidUTF8(string(output), "\uFFFD"))
	res.Truncated = cut
	return res, err
}

// notStarted is the error for a program that was not started, so that the call has had no effect.
func (t execTool) notStarted(ctx context.Context, err error) error {
	e := &Error{Message: "The tool's program could not be started: " + err.Error() + ".", NotBegun: true}
	failed, _ := errors.AsType[*proc.StartError](err)
	switch {
	case context.Cause(ctx) == errTimeout:
		e.Kind, e.Message = message.RateLimited, "Too many programs run, and none of them ended in time for the tool's program to start."
	case ctx.Err() != nil:
		e.Kind, e.Message = message.AbortedCall, "The call was aborted before it began."
	case failed != nil && failed.Busy:
		e.Kind = message.RateLimited
	}
	return e
}

// collect reads all of r, streams its first limit bytes as text, cut between characters and but for what shown hides, and
// returns them. More than that is dropped.
func collect(r io.Reader, limit int64, shown *secret.Flow, stream func(Chunk)) (all []byte, cut bool) {
	var text runes
	read := int64(0)
	emit := func(s string) {
		if s != "" {
			all = append(all, s...)
			stream(Chunk{Kind: Text, Text: s})
		}
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		keep := min(int64(n), limit-read)
		read += keep
		cut = cut || keep < int64(n)
		emit(shown.Push(text.push(buf[:keep])))
		if err != nil { // the end of it: Wait tells why
			emit(shown.Push(string(text.held)) + shown.Rest(cut))
			return all, cut
		}
	}
}
