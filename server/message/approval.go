package message

import "encoding/json"

// An Approval is a tool call that waits for a person's decision. ToolCallID and SubRunToolCallID together identify it.
type Approval struct {
	ToolCallID       string          `json:"toolCallId" check:"given"`
	ToolName         string          `json:"toolName" check:"given"`
	Args             json.RawMessage `json:"args" default:"{}"`
	ArgsDigest       string          `json:"argsDigest,omitempty" doc:"SHA-256 of the canonical form (RFC 8785) of the arguments, in hex."`
	Reason           string          `json:"reason,omitempty"`
	RequestedAt      string          `json:"requestedAt" check:"given"`
	RequestedBy      string          `json:"requestedBy,omitempty" doc:"The principal that started the run: token:<id>, anonymous, cli or trigger:<id>. Of a trigger that somebody fired: trigger:<id> for <principal>."`
	RequestedByAgent string          `json:"requestedByAgent,omitempty" doc:"The agent whose call it is; that of a child run, where the call belongs to one."`
	Previous         *Previous       `json:"previous,omitempty" doc:"What happened before, where the call may have had its effect already."`
	SubRunToolCallID string          `json:"subRunToolCallId,omitempty" doc:"The calls that lead to the child run, outermost first, joined by '/'; absent for a call of the run itself."`
	ExpiresAt        string          `json:"expiresAt,omitempty"`
	GrantedBy        []string        `json:"grantedBy,omitempty" doc:"Who has granted it so far."`
	ApproversNeeded  int             `json:"approversNeeded,omitempty" check:"0.." doc:"How many grants it takes; one where absent."`
	NotBy            string          `json:"notBy,omitempty" doc:"The principal that started the run and must not grant it. Of a trigger that somebody fired: trigger:<id> for <principal>, and neither must."`
	Imported         bool            `json:"imported,omitempty" doc:"No model asked for the call here: it came with a run state that was imported."`
}

// Previous is what is known of a call that was begun before.
type Previous struct {
	Attempts int    `json:"attempts" check:"given 0.." doc:"How often the call was begun."`
	BegunAt  string `json:"begunAt" check:"given" doc:"When it was begun first."`
	Known    string `json:"known" check:"given" doc:"What is known of the last attempt."`
}

// OutcomeUnknown is the reason of an approval whose call was made before, without anybody knowing what became of it.
const OutcomeUnknown = "outcome-unknown"

// MayHaveHappened reports whether the call may have had its effect already, so that a grant makes it once more.
func (a Approval) MayHaveHappened() bool { return a.Reason == OutcomeUnknown }

// Under is the approval as the parent of a child shows it, whose call has the given id.
func (a Approval) Under(callID string) Approval {
	if a.SubRunToolCallID != "" {
		callID += "/" + a.SubRunToolCallID
	}
	a.SubRunToolCallID = callID
	return a
}

// Same reports whether two approvals are for the same call.
func (a Approval) Same(b Approval) bool {
	return a.ToolCallID == b.ToolCallID && a.SubRunToolCallID == b.SubRunToolCallID
}

// A RunError says why a run failed or was aborted; its code is one of the fault table.
type RunError struct {
	Message string          `json:"message" check:"lenient" default:"unknown"`
	Code    string          `json:"code" check:"lenient" default:"unknown"`
	Hint    string          `json:"hint,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
}
