package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"agentd/server/message"
	"agentd/server/proc"
	"agentd/server/secret"
)

// ExecOptions is what NewExec needs.
type ExecOptions struct {
	Spec Spec
	// Program is the command without input. Of its output, MaxOutput bytes are kept, 8 MiB for 0 and 32 MiB at most.
	Program proc.Command
	Known   *secret.Redactor // secrets that are taken out of what the program writes; nil: there are none
}

// NewExec makes a tool of a program. It starts nothing.
//
// The program gets the arguments as a line of JSON on stdin. What it writes to stdout is the result, JSON if it parses
// and text else, and is streamed as text while it runs. Its environment has AGENTD_CALL_ID (the idempotency key of the
// call), AGENTD_RUN_ID and AGENTD_AGENT_ID besides. Another exit status than 0 is an error with the end of stderr; of a
// program that did not end by itself, the outcome is unknown. Output beyond the limit is dropped, and the result is flagged as
// truncated: the program has had its effect, and ends by itself. The end of the call's context ends the whole process group.
func NewExec(opts ExecOptions) Tool {
	c := &opts.Program
	c.MaxOutput, c.Drop = min(cmp.Or(c.MaxOutput, proc.DefaultMaxOutput), maxOutput), true
	return execTool{opts}
}

type execTool struct{ o ExecOptions }

func (t execTool) Spec() Spec { return t.o.Spec }

func (t execTool) Execute(ctx context.Context, call Call) (Result, error) {
	c := t.o.Program
	c.Env = append(slices.Clip(c.Env), "AGENTD_CALL_ID="+call.Key, "AGENTD_RUN_ID="+call.RunID, "AGENTD_AGENT_ID="+call.AgentID)
	c.Input, c.Payer = append(slices.Clip(call.Args), '\n'), call.Payer
	p, err := proc.Start(ctx, c)
	if err != nil {
		return Result{}, t.notStarted(ctx, err)
	}
	var output []byte
	cut := false
	for text, err := range proc.Texts(p, t.o.Known.Flow()) {
		if cut = err != nil; !cut {
			output = append(output, text...)
			call.Stream(Chunk{Kind: Text, Text: text})
		}
	}
	status, err := p.Wait()
	if err != nil { // the cause of ctx
		return Result{}, err
	}
	if !status.Success() {
		// This process has sent no signal.
		return Result{}, &Error{Message: "The tool's program ended with " + status.Said(t.o.Known.Piece), Unknown: !status.Exited()}
	}
	if len(output) == 0 || !cut && json.Valid(output) {
		return Result{Output: output}, nil
	}
	res, err := JSON(string(output))
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
