package tool

import (
	"cmp"
	"errors"

	"agentd/server/fault"
	"agentd/server/message"
)

const mayHaveHappened = "Its effect may have happened; check before calling it again."

// failed turns what a tool returned into an outcome.
func failed(err error) *message.Outcome {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Message: err.Error()}
		if f, ok := errors.AsType[*fault.Error](err); ok { // its cause is for the log only
			e = &Error{Message: f.Message, Hint: f.NextStep()}
		}
	}
	o := message.Fail("", "", cmp.Or(e.Kind, message.ExecutionFailed), cmp.Or(e.Message, "The tool failed without saying why."), e.Hint)
	if e.RecoveryHint != "" {
		o.Recoverable, o.RecoveryHint = false, e.RecoveryHint
	}
	o.Recoverable = o.Recoverable || e.Recoverable
	return o
}
