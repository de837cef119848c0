package runstate

import (
	"encoding/json"

	"agentd/server/message"
)

// Version is the label of what this package writes.
const Version = "svc-run-state/1.2"

// State is the full state of a run. Its lists without omitempty have to be lists, not nil; in what [Read] returns
// they are. Times are ISO-8601, UTC, with milliseconds.
//
// Encoding gives all of it. Decode with [Read]: json.Unmarshal reads 1.2 only, checks nothing and leaves Extra out.
type State struct {
	Version          string                        `json:"version"`
	ID               string                        `json:"id"`
	AgentID          string                        `json:"agentId" doc:"The agent that the run was started with."`
	CurrentAgentID   string                        `json:"currentAgentId" doc:"The agent that drives the next step."`
	SessionID        string                        `json:"sessionId"`
	UserID           string                        `json:"userId,omitempty"`
	Status           string                        `json:"status" enum:"pending|running|awaiting_approval|completed|failed|aborted"`
	Steps            []Step                        `json:"steps"`
	Messages         []message.Message             `json:"messages" doc:"The whole transcript, with the system prompt."`
	PendingApprovals []Approval                    `json:"pendingApprovals" doc:"In the order of the requests; those of suspended child runs included."`
	Handoffs         []Handoff                     `json:"handoffs"`
	Usage            message.Usage                 `json:"usage" doc:"With that of child runs."`
	UsageByModel     map[string]message.ModelUsage `json:"usageByModel,omitzero" doc:"By model; under the agent's id where a state of version 1.0 did not tell."`
	TaintSummary     *Taint                        `json:"taintSummary,omitempty"`
	PromotedTools    []string                      `json:"promotedTools,omitempty"`
	Todos            []Todo                        `json:"todos,omitempty"`
	PendingSubRuns   []SubRun                      `json:"pendingSubRuns,omitempty" doc:"Child runs that wait for a decision."`
	StartedAt        string                        `json:"startedAt"`
	FinishedAt       string                        `json:"finishedAt,omitempty"`
	Error            *Error                        `json:"error,omitempty"`

	// Extra holds the members that this version does not know: by the JSON Pointer (RFC 6901) of the object that
	// had them, one JSON object with all of them. The pointer of the state itself is "".
	//
	// An element of a list that shrinks is not named by its index but by its identity, so that nothing moves to a
	// neighbour: a pending approval by its toolCallId, with its subRunToolCallId and "/" before it where it has one,
	// a pending child run by its toolCallId, a todo by its id. A child's state has an Extra of its own.
	//
	// Encoding leaves out what belongs to an object that is gone, and a member that the object has meanwhile.
	Extra map[string]json.RawMessage `json:"-"`
}

// A Step is one model call and the tool calls it asked for, or the calls that a decision released.
type Step struct {
	StepNumber       int               `json:"stepNumber" doc:"Grows strictly, also across suspension and resumption."`
	StartedAt        string            `json:"startedAt"`
	EndedAt          string            `json:"endedAt,omitempty"`
	Usage            *message.Usage    `json:"usage,omitempty" doc:"Of this step alone."`
	ToolCalls        []CompletedCall   `json:"toolCalls"`
	AgentID          string            `json:"agentId"`
	ProviderResponse *ProviderResponse `json:"providerResponse,omitempty"`
}

// CompletedCall is a tool call with its outcome.
type CompletedCall struct {
	Call       message.ToolCall `json:"call"`
	Outcome    message.Outcome  `json:"outcome"`
	StepNumber int              `json:"stepNumber"`
}

// ProviderResponse is what a model answered in a step.
type ProviderResponse struct {
	ModelID   string             `json:"modelId"`
	Text      string             `json:"text,omitempty"`
	ToolCalls []message.ToolCall `json:"toolCalls,omitempty"`
}

// Approval is a tool call that waits for a person's decision. ToolCallID and SubRunToolCallID together identify it.
type Approval struct {
	ToolCallID       string          `json:"toolCallId"`
	ToolName         string          `json:"toolName"`
	Args             json.RawMessage `json:"args"`
	ArgsDigest       string          `json:"argsDigest,omitempty" doc:"SHA-256 of the canonical form (RFC 8785) of the arguments, in hex."`
	Reason           string          `json:"reason,omitempty"`
	RequestedAt      string          `json:"requestedAt"`
	RequestedBy      string          `json:"requestedBy,omitempty" doc:"The principal that started the run: token:<id>, anonymous or cli."`
	RequestedByAgent string          `json:"requestedByAgent,omitempty" doc:"The agent whose call it is; that of a child run, where the call belongs to one."`
	Previous         *Previous       `json:"previous,omitempty" doc:"What happened before, where the call may have had its effect already."`
	SubRunToolCallID string          `json:"subRunToolCallId,omitempty" doc:"The calls that lead to the child run, outermost first, joined by '/'; absent for a call of the run itself."`
	ExpiresAt        string          `json:"expiresAt,omitempty"`
	GrantedBy        []string        `json:"grantedBy,omitempty" doc:"Who has granted it so far."`
	ApproversNeeded  int             `json:"approversNeeded,omitempty" doc:"How many grants it takes; one where absent."`
	NotBy            string          `json:"notBy,omitempty" doc:"The principal that started the run and must not grant it."`
	Imported         bool            `json:"imported,omitempty" doc:"No model asked for the call here: it came with a run state that was imported."`
}

// Previous is what is known of a call that was begun before.
type Previous struct {
	Attempts int    `json:"attempts" doc:"How often the call was begun."`
	BegunAt  string `json:"begunAt" doc:"When it was begun first."`
	Known    string `json:"known" doc:"What is known of the last attempt."`
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

// Handoff is the record of a child agent that took over for a while.
type Handoff struct {
	FromAgentID           string       `json:"fromAgentId"`
	ToAgentID             string       `json:"toAgentId"`
	StepNumber            int          `json:"stepNumber"`
	At                    string       `json:"at"`
	Reason                string       `json:"reason,omitempty"`
	InputFilter           *InputFilter `json:"inputFilter,omitempty"`
	SecretsInheritance    string       `json:"secretsInheritance,omitempty" enum:"inherit-allowlist|isolated|forward-explicit"`
	InheritedSecrets      []string     `json:"inheritedSecrets,omitzero" doc:"Names only."`
	SecretsOverrideReason string       `json:"secretsOverrideReason,omitempty"`
}

// InputFilter tells how the history was cut before the child saw it.
type InputFilter struct {
	Kind string          `json:"kind"`
	Meta json.RawMessage `json:"meta,omitempty"`
}

// SubRun is a child run that waits for a decision inside a call of its parent.
type SubRun struct {
	ToolCallID      string `json:"toolCallId"`
	ToolName        string `json:"toolName"`
	TargetAgentName string `json:"targetAgentName"`
	State           State  `json:"state"`
}

// Taint sums up what kinds of data the run has seen.
type Taint struct {
	UntrustedSeen        bool     `json:"untrustedSeen"`
	SensitiveSeen        bool     `json:"sensitiveSeen"`
	UntrustedSourceKinds []string `json:"untrustedSourceKinds"`
	SpanTileHashes       []string `json:"spanTileHashes,omitempty"`
}

// Todo is an item of the agent's own list of work.
type Todo struct {
	ID      string `json:"id"`
	Content string `json:"content"`
	Status  string `json:"status"`
}

// Error says why a run failed or was aborted.
type Error struct {
	Message string          `json:"message"`
	Code    string          `json:"code"`
	Hint    string          `json:"hint,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
}
