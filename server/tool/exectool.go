package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

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
// program that did not end by itself, the outcome is unknown. Output
// beyond the limit is read and dropped, and the result is flagged as truncated: the program has had its effect, and ends by
// itself. The end of the call's context ends the whole process group.
func NewExec(opts ExecOptions) Tool {
	return execTool{opts, min(cmp.Or(opts.Program.MaxOutput, proc.DefaultMaxOutput), maxOutput)}
}

type execTool struct {
	o     ExecOptions
	limit int64
}

func (t execTool) Spec() Spec { return t.o.Spec }

func (t execTool) Execute(ctx context.Context, call Call) (Result, error) {
	c := t.o.Program
	c.Env = append(slices.Clip(c.Env), "AGENTD_CALL_ID="+call.Key, "AGENTD_RUN_ID="+call.RunID, "AGENTD_AGENT_ID="+call.AgentID)
	c.Input, c.Payer, c.MaxOutput = append(slices.Clip(call.Args), '\n'), call.Payer, math.MaxInt64-1
	p, err := proc.Start(ctx, c)
	if err != nil {
		return Result{}, t.notStarted(ctx, err)
	}
	output, cut := t.collect(p, call.Stream)
	status, err := p.Wait()
	switch {
	case err != nil && ctx.Err() == nil:
		return Result{}, &Error{Message: "The tool's program could not be followed to its end: " + err.Error() + ".", Unknown: true}
	case err != nil:
		return Result{}, err
	}
	if !status.OK() {
		e := &Error{Message: fmt.Sprintf("The tool's program ended with %v", status), Unknown: status.Signal != 0} // by somebody else
		if said := strings.TrimSpace(t.o.Known.Piece(status.Stderr)); said != "" {
			e.Message += ": " + said
		} else {
			e.Message += " and an empty standard error."
		}
		return Result{}, e
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

// collect reads all of r, streams its first bytes up to the limit as text without known secrets, and returns them. It drops the
// rest.
func (t execTool) collect(r io.Reader, stream func(Chunk)) (all []byte, cut bool) {
	shown := t.o.Known.Flow()
	emit := func(s string) {
		if s != "" {
			all = append(all, s...)
			stream(Chunk{Kind: Text, Text: s})
		}
	}
	left := int(t.limit)
	for text := range proc.Texts(r) { // Wait returns the error
		if cut {
			continue
		}
		kept := message.Clean(text, left)
		left, cut = left-len(kept), len(kept) < len(text)
		emit(shown.Push(kept))
	}
	emit(shown.Rest(cut))
	return all, cut
}
