package tool

import (
	"errors"
	"strings"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/message"
)

// Limits of the texts of a failed outcome, in bytes.
const (
	maxMessage = 8 << 10
	maxHint    = 1 << 10
)

const mayHaveHappened = "Its effect may have happened; check before calling it again."

// recovery is what a failure of the given kind allows: whether the same call may succeed later, and what to try.
func recovery(kind message.ErrorKind) (recoverable bool, hint message.RecoveryHint) {
	switch kind {
	case message.RateLimited, message.Timeout:
		return true, message.RetryLater
	case message.InvalidInput:
		return false, message.CheckInput
	case message.InvalidOutput, message.UnknownTool, message.ExecutionFailed:
		return false, message.TryAlternative
	case message.ApprovalDenied, message.CapabilityBlocked:
		return false, message.ReportToUser
	}
	return false, ""
}

// Fail makes the outcome of a failed call, with the recovery that its kind allows. The texts are sentences; they are
// cut at 8 KiB and 1 KiB.
func Fail(id, name string, kind message.ErrorKind, text, hint string) *message.Outcome {
	o := failed(&Error{Kind: kind, Message: text, Hint: hint})
	o.ToolCallID, o.ToolName = id, name
	return o
}

// failed turns what a tool returned into an outcome.
func failed(err error) *message.Outcome {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Message: err.Error()}
		if f, ok := errors.AsType[*fault.Error](err); ok { // its cause is for the log only
			e = &Error{Message: f.Message, Hint: f.NextStep()}
		}
	}
	o := &message.Outcome{Kind: e.Kind, Message: clean(e.Message, maxMessage), Hint: clean(e.Hint, maxHint),
		Recoverable: e.Recoverable, RecoveryHint: e.RecoveryHint}
	if o.Kind == "" {
		o.Kind = message.ExecutionFailed
	}
	if o.Message == "" {
		o.Message = "The tool failed without saying why."
	}
	if o.RecoveryHint == "" {
		recoverable, hint := recovery(o.Kind)
		o.Recoverable, o.RecoveryHint = o.Recoverable || recoverable, hint
	}
	return o
}

// clean makes valid UTF-8 of at most limit bytes.
func clean(s string, limit int) string {
	return cutBytes(strings.ToValidUTF8(s, "\uFFFD"), limit)
}

// cutBytes is the longest beginning of valid text that has at most limit bytes and no half character.
func cutBytes(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
