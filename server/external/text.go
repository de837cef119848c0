package external

import (
	"context"
	"io"
	"strings"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/proc"
	"agentd/server/secret"
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
	text, failure := relayText(p, out, a.o.Known.Flow())
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
	case !status.OK():
		return agent.Result{}, a.exited(status)
	}
	if text != "" {
		if err := out.Emit(event.New(event.TextComplete, map[string]string{"text": text})); err != nil {
			return agent.Result{}, err
		}
	}
	return agent.Result{Output: text}, nil
}

// relayText gives what r reads to out, as deltas and without what shown hides, and returns all of it.
func relayText(r io.Reader, out agent.Sink, shown *secret.Flow) (string, error) {
	var all strings.Builder
	emit := func(delta string) error {
		if delta == "" {
			return nil
		}
		all.WriteString(delta)
		return out.Emit(event.New(event.TextDelta, map[string]string{"delta": delta}))
	}
	for text, err := range proc.Texts(r) {
		if err == nil {
			err = emit(shown.Push(text))
		}
		if err != nil {
			return "", err
		}
	}
	err := emit(shown.Rest(false))
	return all.String(), err
}
