package external

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/proc"
)

const (
	linger    = 2 * time.Second        // the time that a program has to exit after its last line
	abortWait = 200 * time.Millisecond // the time that it has to accept the abort line
)

// A lineAgent is a program with protocol "jsonl".
//
//	Start ─ "run" or "resume" ─┬─ events, checkpoints ─┬─ "result": stdin ends, it exits, or is ended after 2 s
//	                           │                       ├─ "approval.request", once or more, then exit 0: the run waits
//	                           │                       └─ exit without either, or something wrong: the run fails
//	                           └─ ctx ends: "abort", then SIGTERM, then SIGKILL: the run fails with the cause
type lineAgent struct{ program }

var _ agent.Resumer = (*lineAgent)(nil)

func (a *lineAgent) Run(ctx context.Context, in agent.Input) (agent.Result, error) {
	return a.Stream(ctx, in, discard{})
}

func (a *lineAgent) Stream(ctx context.Context, in agent.Input, out agent.Sink) (agent.Result, error) {
	return a.converse(ctx, in, "run", nil, out)
}

func (a *lineAgent) Resume(ctx context.Context, in agent.Input, from agent.Resumption, out agent.Sink) (agent.Result, error) {
	r := &resumption{State: from.State, Approvals: []decision{}}
	for _, d := range from.Approvals {
		answer := decision{ToolCallID: d.ToolCallID, Granted: d.Granted}
		if !d.Granted {
			answer.Reason = d.Reason
		}
		r.Approvals = append(r.Approvals, answer)
	}
	return a.converse(ctx, in, "resume", r, out)
}

// converse starts the program, sends the first line and relays what the program says until it has exited.
func (a *lineAgent) converse(ctx context.Context, in agent.Input, typ string, r *resumption, out agent.Sink) (agent.Result, error) {
	first, err := requestOf(in)
	if err != nil {
		return agent.Result{}, err
	}
	first.Type, first.resumption = typ, r
	line, err := first.encode()
	if err != nil {
		return agent.Result{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The process outlives ctx by the time that the abort line takes, but does not start after the end of ctx.
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	running := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	p, err := a.start(life, in, proc.Command{Pipe: true, Input: append(line, '\n')})
	running()
	if err != nil {
		return agent.Result{}, err
	}
	defer a.startTimer(cancel).Stop()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send(ctx, p.Stdin, p.Unsent)
		end(context.Cause(ctx))
	}()

	hidden := newHider(out, a.o.Known)
	result, err := relay(lines(p), hidden, true)
	if failed := hidden.flush(); err == nil {
		err = failed
	}
	if output, ok := result.Output.(json.RawMessage); ok {
		result.Output = hideJSON(a.o.Known, output)
	}
	switch {
	case ctx.Err() != nil: // send ends the program; what it answered to the abort is no result
		asked := err == errAsks
		result, err = agent.Result{}, context.Cause(ctx)
		if asked && fault.Is(err, fault.AgentTimeout) {
			err = fault.New(fault.AgentTimeout, "The agent asked for an approval and did not exit within %v.", a.o.Timeout).
				Advise("Exit with 0 after `approval.request`. A new process receives the decision in its `resume` line.")
		}
	case err == nil, err == errNoResult, err == errAsks:
		p.Stdin.Close()
		defer time.AfterFunc(linger, func() { end(errLingers) }).Stop()
	default:
		end(err)
	}
	status, failure := p.Wait()
	aborted := context.Cause(ctx) // before cancel, which is a cause too
	cancel(nil)
	<-sent
	if err != errNoResult && err != errAsks {
		return result, classify(err)
	}
	switch {
	case aborted != nil:
		return agent.Result{}, aborted
	case failure == nil && !status.Success():
		return agent.Result{}, a.exited(status)
	case err == errNoResult:
		return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's program ended without a result.")
	case failure != nil:
		return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's program asked for approvals and did not exit.")
	}
	return agent.Result{}, nil
}

var errLingers = errors.New("the agent's program did not exit")

// send writes what is left of the first line, and the abort when ctx ends. It returns soon after the end of ctx. It ignores
// errors: a program may answer without reading.
func send(ctx context.Context, stdin *os.File, rest []byte) {
	defer context.AfterFunc(ctx, func() { stdin.SetWriteDeadline(time.Now().Add(abortWait)) })()
	_, err := stdin.Write(rest)
	<-ctx.Done()
	if err != nil {
		return // half a line may be there already
	}
	abort, err := message.Encode(struct {
		Type   string `json:"type"`
		Reason string `json:"reason"`
	}{"abort", context.Cause(ctx).Error()})
	if err != nil {
		return
	}
	stdin.SetWriteDeadline(time.Now().Add(abortWait))
	stdin.Write(append(abort, '\n'))
}
