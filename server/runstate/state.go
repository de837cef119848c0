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
	Version          string                        `json:"version" check:"lenient"`
	ID               string                        `json:"id" check:"given"`
	AgentID          string                        `json:"agentId" check:"given" doc:"The agent that the run was started with."`
	CurrentAgentID   string                        `json:"currentAgentId" doc:"The agent that drives the next step."`
	SessionID        string                        `json:"sessionId" check:"given"`
	UserID           string                        `json:"userId,omitempty" check:"lenient"`
	Status           string                        `json:"status" check:"given" enum:"pending|running|awaiting_approval|completed|failed|aborted"`
	Steps            []Step                        `json:"steps" check:"given"`
	Messages         []message.Message             `json:"messages" check:"given" doc:"The whole transcript, with the system prompt."`
	PendingApprovals []message.Approval            `json:"pendingApprovals" check:"given" doc:"In the order of the requests; those of suspended child runs included."`
	Handoffs         []Handoff                     `json:"handoffs" check:"given"`
	Usage            message.Usage                 `json:"usage" check:"given" doc:"With that of child runs."`
	UsageByModel     map[string]message.ModelUsage `json:"usageByModel,omitzero" check:"lenient" doc:"By model; under the agent's id where a state of version 1.0 did not tell."`
	TaintSummary     *Taint                        `json:"taintSummary,omitempty"`
	PromotedTools    []string                      `json:"promotedTools,omitempty" check:"lenient"`
	Todos            []Todo                        `json:"todos,omitempty" check:"lenient"`
	PendingSubRuns   []SubRun                      `json:"pendingSubRuns,omitempty" check:"lenient" doc:"Child runs that wait for a decision."`
	StartedAt        string                        `json:"startedAt" check:"given"`
	FinishedAt       string                        `json:"finishedAt,omitempty" check:"lenient"`
	Error            *message.RunError             `json:"error,omitempty"`

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
	StepNumber       int               `json:"stepNumber" check:"given 0.." doc:"Grows strictly, also across suspension and resumption."`
	StartedAt        string            `json:"startedAt" check:"given"`
	EndedAt          string            `json:"endedAt,omitempty"`
	Usage            *message.Usage    `json:"usage,omitempty" doc:"Of this step alone."`
	ToolCalls        []CompletedCall   `json:"toolCalls" check:"given"`
	AgentID          string            `json:"agentId"`
	ProviderResponse *ProviderResponse `json:"providerResponse,omitempty"`
}

// CompletedCall is a tool call with its outcome.
type CompletedCall struct {
	Call       message.ToolCall `json:"call" check:"given"`
	Outcome    message.Outcome  `json:"outcome" check:"given"`
	StepNumber int              `json:"stepNumber" check:"given 0.."`
}

// ProviderResponse is what a model answered in a step.
type ProviderResponse struct {
	ModelID   string             `json:"modelId" check:"given"`
	Text      string             `json:"text,omitempty"`
	ToolCalls []message.ToolCall `json:"toolCalls,omitempty"`
}

// Handoff is the record of a child agent that took over for a while.
type Handoff struct {
	FromAgentID           string       `json:"fromAgentId" check:"given"`
	ToAgentID             string       `json:"toAgentId" check:"given"`
	StepNumber            int          `json:"stepNumber" check:"given 0.."`
	At                    string       `json:"at" check:"given"`
	Reason                string       `json:"reason,omitempty"`
	InputFilter           *InputFilter `json:"inputFilter,omitempty"`
	SecretsInheritance    string       `json:"secretsInheritance,omitempty" enum:"inherit-allowlist|isolated|forward-explicit"`
	InheritedSecrets      []string     `json:"inheritedSecrets,omitzero" doc:"Names only."`
	SecretsOverrideReason string       `json:"secretsOverrideReason,omitempty"`
}

// InputFilter tells how the history was cut before the child saw it.
type InputFilter struct {
	Kind string          `json:"kind" check:"given"`
	Meta json.RawMessage `json:"meta,omitempty"`
}

// SubRun is a child run that waits for a decision inside a call of its parent.
type SubRun struct {
	ToolCallID      string `json:"toolCallId" check:"given"`
	ToolName        string `json:"toolName" check:"given"`
	TargetAgentName string `json:"targetAgentName" check:"lenient"`
	State           State  `json:"state"`
}

// Taint sums up what kinds of data the run has seen.
type Taint struct {
	UntrustedSeen        bool     `json:"untrustedSeen" check:"lenient"`
	SensitiveSeen        bool     `json:"sensitiveSeen" check:"lenient"`
	UntrustedSourceKinds []string `json:"untrustedSourceKinds" check:"lenient"`
	SpanTileHashes       []string `json:"spanTileHashes,omitempty" check:"lenient"`
}

// Todo is an item of the agent's own list of work.
type Todo struct {
	ID      string `json:"id" check:"given"`
	Content string `json:"content" check:"given"`
	Status  string `json:"status" check:"given"`
}
