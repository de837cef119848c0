package tool

import (
	"context"
	"errors"

	"agentd/server/message"
)

// Recorded makes a tool that runs nothing: its calls end with what outcome returns, which is neither cut nor spilled. The
// replay of a recorded run uses it in place of the tool of that spec. outcome may be called concurrently.
func Recorded(spec Spec, outcome func(Call) message.Outcome) Tool {
	return recorded{spec, outcome}
}

type recorded struct {
	spec    Spec
	outcome func(Call) message.Outcome
}

func (r recorded) Spec() Spec { return r.spec }

func (r recorded) Execute(context.Context, Call) (Result, error) {
	return Result{}, errors.New("a recorded tool has outcomes only")
}
