package message

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"agentd/server/canonical"
)

// argumentsForm is the form in which arguments are matched, shown, hashed, stored and given to programs.
var argumentsForm = canonical.Rules{Depth: MaxDepth, Exact: true}

// Arguments returns the arguments of a call in canonical form (RFC 8785), which is the same for each spelling of a value;
// absent ones are {}. Arguments of which two readers could make different values are an error: a name that is there
// twice, a number that a double changes, a text that is not Unicode.
func Arguments(args json.RawMessage) (json.RawMessage, error) {
	if len(bytes.TrimSpace(args)) == 0 {
		return json.RawMessage("{}"), nil
	}
	return argumentsForm.Append(nil, args)
}

// Limits of the texts of a failed outcome, in bytes.
const (
	maxFailure = 8 << 10
	maxHint    = 1 << 10
)

// recovery is what to try after a failure of a kind. The same call may succeed later where that is RetryLater.
var recovery = map[ErrorKind]RecoveryHint{
	RateLimited:       RetryLater,
	Timeout:           RetryLater,
	InvalidInput:      CheckInput,
	InvalidOutput:     TryAlternative,
	UnknownTool:       TryAlternative,
	ExecutionFailed:   TryAlternative,
	ApprovalDenied:    ReportToUser,
	CapabilityBlocked: ReportToUser,
}

// Fail makes the outcome of a failed call, with the recovery that its kind allows. The texts are sentences; they are cut
// at 8 KiB and 1 KiB.
func Fail(id, name string, kind ErrorKind, text, hint string) *Outcome {
	return &Outcome{ToolCallID: id, ToolName: name, Kind: kind, Message: Clean(text, maxFailure), Hint: Clean(hint, maxHint),
		Recoverable: recovery[kind] == RetryLater, RecoveryHint: recovery[kind]}
}

// AddHint adds to the hint of a failed outcome.
func (o *Outcome) AddHint(more string) {
	o.Hint = Clean(strings.TrimSpace(o.Hint+" "+more), maxHint)
}

// Clean returns the longest beginning of a text, made valid UTF-8, that has at most limit bytes and no half character.
func Clean(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// Estimate guesses how many tokens a text takes: one for four characters.
func Estimate(text string) int { return (utf8.RuneCountInString(text) + 3) / 4 }

// ReadResultName is the name of the tool with which a model reads on in a result that is kept beside the transcript.
const ReadResultName = "read_result"
