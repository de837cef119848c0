package external

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/proc"
	"agentd/server/secret"
)

// ExecOptions is what NewExec needs.
type ExecOptions struct {
	ID       string
	Program  proc.Command  // without input
	Protocol string        // "text" or "jsonl"
	Timeout  time.Duration // of a whole run, from the start of the program
	// Known are the secrets that are taken out of what the program writes, but not out of its checkpoints and requests for
	// approvals; nil: there are none.
	Known *secret.Redactor
}

// NewExec makes an agent of a program. It starts nothing: each run is a process with its own process group, and with
// AGENTD_RUN_ID and AGENTD_AGENT_ID in its environment. A program that could not be started fails its run with
// agent-unreachable, or with overloaded where the system or the queue for a place is full: then nothing has happened.
//
// With protocol "text" the program gets the input's text on stdin. Its stdout becomes text.delta events, a final
// text.complete when there is any text, and the output, a string: what was written, without secrets.
//
// With protocol "jsonl" the agent is an [agent.Resumer] that exchanges lines of at most 1 MiB with the program, each a JSON
// object: `agentd help protocols` has them. What the program writes after its result is ignored, its stdin ends, and it has two
// seconds to exit. Before it starts, its stdin has as much of the first line as a pipe holds. The rest is cut when the server
// dies, so a program must not act on a line without a line feed.
//
// In place of a result, the program can ask for approvals, as often as [agent.ApprovalRequest] allows, and exit with 0.
// Arguments that can be read in more than one way, such as those with a duplicate name, end the run. When all is decided, the
// program is started again with the state of its last checkpoint and the decisions in the order of the requests. It gets them
// until its next checkpoint, request or result; it gets a grant a second time only if a person decides that, see
// [agent.Resumption].
func NewExec(opts ExecOptions) agent.Streamer {
	if opts.Protocol == "text" {
		return &textAgent{program{opts}}
	}
	return &lineAgent{program{opts}}
}

// A program is what the agents of both protocols start.
type program struct{ o ExecOptions }

// ID is the agent's id.
func (p *program) ID() string { return p.o.ID }

// start starts a process for the run, which ends with ctx. It takes Pipe and Input from stdin.
func (p *program) start(ctx context.Context, in agent.Input, stdin proc.Command) (*proc.Process, error) {
	c := p.o.Program
	c.Pipe, c.Input, c.Payer = stdin.Pipe, stdin.Input, in.Payer
	c.Env = append(slices.Clip(c.Env), "AGENTD_RUN_ID="+in.RunID, "AGENTD_AGENT_ID="+in.AgentID)
	process, err := proc.Start(ctx, c)
	if err == nil {
		return process, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	kind := fault.AgentUnreachable
	if failed, ok := errors.AsType[*proc.StartError](err); ok && failed.Busy {
		kind = fault.Overloaded
	}
	return nil, fault.New(kind, "The agent's program could not be started: %s.", outbound.Line(err.Error(), 200))
}

// startTimer ends a run, with the cause agent-timeout, when the agent's time is over.
func (p *program) startTimer(end context.CancelCauseFunc) *time.Timer {
	return time.AfterFunc(p.o.Timeout, func() { end(timedOut(p.o.Timeout)) })
}

// classify gives an error of reading from or waiting for a process its code.
func classify(err error) error {
	if over, ok := errors.AsType[*proc.OverflowError](err); ok {
		return tooLarge(over.Limit)
	}
	return err
}

// exited is the error for a program that failed.
func (p *program) exited(s proc.Status) error {
	return fault.New(fault.AgentExited, "The agent's program ended with %s", s.Said(p.o.Known.Piece))
}

// A textAgent is a program with protocol "text". It has no state to resume from, so it is no Resumer.
type textAgent struct{ program }

var _ agent.Streamer = (*textAgent)(nil)

func (a *textAgent) Run(ctx context.Context, in agent.Input) (agent.Result, error) {
	return a.Stream(ctx, in, discard{})
}

func (a *textAgent) Stream(ctx context.Context, in agent.Input, out agent.Sink) (agent.Result, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p, err := a.start(ctx, in, proc.Command{Input: []byte(in.Text())})
	if err != nil {
		return agent.Result{}, err
	}
	defer a.startTimer(end).Stop()
	var all strings.Builder
	var failure error
	for text, err := range proc.Texts(p, a.o.Known.Flow()) {
		if failure = err; err == nil {
			all.WriteString(text)
			failure = out.Emit(event.New(event.TextDelta, map[string]string{"delta": text}))
		}
		if failure != nil {
			break
		}
	}
	if failure != nil && ctx.Err() != nil {
		failure = context.Cause(ctx)
	}
	if failure != nil {
		end(failure)
	}
	status, err := p.Wait()
	switch {
	case failure != nil:
		return agent.Result{}, classify(failure)
	case err != nil:
		return agent.Result{}, classify(err)
	case !status.Success():
		return agent.Result{}, a.exited(status)
	}
	text := all.String()
	if text != "" {
		if err := out.Emit(event.New(event.TextComplete, map[string]string{"text": text})); err != nil {
			return agent.Result{}, err
		}
	}
	return agent.Result{Output: text}, nil
}
