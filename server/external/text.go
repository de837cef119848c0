package external

import (
	"context"
	"strings"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/proc"
)

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
