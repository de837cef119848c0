package server_test

import (
	"context"
	"encoding/json"
	"errors"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
)

// testAgents are the agents that every server of these tests has, in the order of their registration.
func testAgents(released <-chan struct{}) []agent.Registration {
	list := []agent.Registration{
		{ID: "echo", Description: "Says what it is told", Tags: []string{"test"}, Agent: plain{"echo", echo}},
		{ID: "stream", Description: "Answers piece by piece", Agent: streaming{"stream", pieces}},
		{ID: "fail", Agent: plain{"fail", func(context.Context, agent.Input) (agent.Result, error) {
			return agent.Result{}, errors.New("the printer is on fire")
		}}},
		{ID: "refuse", Agent: plain{"refuse", func(context.Context, agent.Input) (agent.Result, error) {
			return agent.Result{}, fault.New(fault.BudgetExceeded, "The run used 11 of 10 tokens.")
		}}},
		{ID: "crash", Agent: plain{"crash", func(context.Context, agent.Input) (agent.Result, error) { panic("secret of the agent") }}},
		{ID: "slow", Agent: streaming{"slow", slow}},
	}
	hold := func(ctx context.Context, _ agent.Input) (agent.Result, error) {
		select {
		case <-released:
			return agent.Result{Output: "released"}, nil
		case <-ctx.Done():
			return agent.Result{}, context.Cause(ctx)
		}
	}
	return append(list, agent.Registration{ID: "hold", Agent: plain{"hold", hold}})
}

// plain is an agent that only runs.
type plain struct {
	id  string
	run func(context.Context, agent.Input) (agent.Result, error)
}

func (p plain) ID() string { return p.id }

func (p plain) Run(ctx context.Context, in agent.Input) (agent.Result, error) { return p.run(ctx, in) }

// streaming is an agent that reports while it works.
type streaming struct {
	id     string
	stream func(context.Context, agent.Input, agent.Sink) (agent.Result, error)
}

func (s streaming) ID() string { return s.id }

func (s streaming) Run(context.Context, agent.Input) (agent.Result, error) {
	return agent.Result{}, errors.New("Run was called, though there is Stream")
}

func (s streaming) Stream(ctx context.Context, in agent.Input, out agent.Sink) (agent.Result, error) {
	return s.stream(ctx, in, out)
}

func echo(_ context.Context, in agent.Input) (agent.Result, error) {
	return agent.Result{Output: map[string]json.RawMessage{"echo": in.Input}}, nil
}

func pieces(_ context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
	for _, d := range []string{"one ", "two ", "three"} {
		if err := out.Emit(event.New(event.TextDelta, map[string]string{"delta": d})); err != nil {
			return agent.Result{}, err
		}
	}
	const text = "one two three"
	err := out.Emit(event.New(event.TextComplete, map[string]string{"text": text}))
	return agent.Result{Output: text, Usage: message.Usage{PromptTokens: 2, CompletionTokens: 3, TotalTokens: 5}}, err
}

// slow says that it works, and does so until it is aborted.
func slow(ctx context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
	if err := out.Emit(event.New("note.working", map[string]int{"percent": 1})); err != nil {
		return agent.Result{}, err
	}
	<-ctx.Done()
	return agent.Result{}, context.Cause(ctx)
}
