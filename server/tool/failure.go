package tool

import (
	"cmp"
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

// recovery is what to try after a failure of a kind. The same call may succeed later where that is RetryLater.
var recovery = map[message.ErrorKind]message.RecoveryHint{
	message.RateLimited:       message.RetryLater,
	message.Timeout:           message.RetryLater,
	message.InvalidInput:      message.CheckInput,
	message.InvalidOutput:     message.TryAlternative,
	message.UnknownTool:       message.TryAlternative,
	message.ExecutionFailed:   message.TryAlternative,
	message.ApprovalDenied:    message.ReportToUser,
	message.CapabilityBlocked: message.ReportToUser,
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
	o := &message.Outcome{Kind: cmp.Or(e.Kind, message.ExecutionFailed), Message: cmp.Or(clean(e.Message, maxMessage), "The tool failed without saying why."),
		Hint: clean(e.Hint, maxHint), Recoverable: e.Recoverable, RecoveryHint: e.RecoveryHint}
	if o.RecoveryHint == "" {
		o.RecoveryHint = recovery[o.Kind]
		o.Recoverable = o.Recoverable || o.RecoveryHint == message.RetryLater
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
