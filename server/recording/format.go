package recording

import (
	"encoding/json"

	"agentd/server/message"
)

// A file of the format `svc-tool-cassette` 1.0 has one JSON object on each line:
//
//	meta          first: the format, its version, the run
//	input         the run's input, and the session's transcript before it
//	model-call    one for each: the request, as far as it differs from the previous one, and the answer
//	tool-call     one for each: its arguments and its outcome
//	approval      one for each request for approval of a tool call
//	result        how the run ended
//	footer        last: counts and a checksum over the lines between the first and the last
//
// Steps never go backwards, and no tool call or model call occurs twice in one step. A reader skips lines of unknown
// kinds. Other programs write only meta, tool-call and footer; a replay needs the other kinds too.
//
// The file holds everything that was said in a run: it is as confidential as the run. It holds no more secrets than the
// transcript does. [Read] reads this major version and the two before it.
const (
	Format  = "svc-tool-cassette"
	Version = "1.0"
)

// A Recording is a file in memory. Its lists are in the order of the file.
type Recording struct {
	Meta       Meta
	Input      *Input // nil: the file has none
	ModelCalls []ModelCall
	ToolCalls  []ToolCall
	Approvals  []Approval
	Result     *Result // nil: the file has none

	Warnings []string // what [Read] skipped
}

// Meta is the first line.
type Meta struct {
	Kind              string `json:"kind"`
	Version           string `json:"version"`
	Format            string `json:"format"`
	CreatedAt         string `json:"createdAt"` // of the run
	Writer            string `json:"writer"`
	RunID             string `json:"runId"`
	SessionID         string `json:"sessionId"`
	AgentID           string `json:"agentId,omitempty"`
	MinRuntimeVersion string `json:"minRuntimeVersion"`
}

// Input is what a run was given.
type Input struct {
	Kind    string          `json:"kind"`
	Input   json.RawMessage `json:"input"` // a text, or a list of messages
	UserID  string          `json:"userId,omitempty"`
	History []Past          `json:"history,omitempty"` // of its session, oldest first, as far as the run saw it
}

// Past is a message that came before the run, with the number of tokens that it counts as.
type Past struct {
	Tokens  int             `json:"tokens"`
	Message message.Message `json:"message"`
}

// A ModelCall is one call of a model, with all attempts to have it answered.
type ModelCall struct {
	Kind         string    `json:"kind"`
	StepNumber   int       `json:"stepNumber"`
	AgentID      string    `json:"agentId"`
	TimestampISO string    `json:"timestampIso"`
	DurationMS   int64     `json:"durationMs"`
	Provider     string    `json:"provider"` // of the last attempt, and so is Model
	Model        string    `json:"model"`
	Failed       []Attempt `json:"failed,omitempty"` // those before the answer, or all of them

	RequestSHA256 string            `json:"requestSha256"`      // see [Request.Hash]
	MessageCount  int               `json:"messageCount"`       // of the request
	Kept          int               `json:"kept"`               // the first so many messages of the call before come first
	Messages      []message.Message `json:"messages,omitempty"` // and then these
	Terms         *Terms            `json:"terms,omitempty"`    // nil: those of the call before

	Answer *Answer `json:"answer,omitempty"` // nil: there was none
	Cut    bool    `json:"cut,omitempty"`    // the call was ended from outside
}

// An Attempt is a model that did not answer.
type Attempt struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Code     string `json:"code"`
	Message  string `json:"message"`
}

// Answer is what a model answered.
type Answer struct {
	Model      string             `json:"model"` // as its server names it
	Text       string             `json:"text,omitempty"`
	Reasoning  string             `json:"reasoning,omitempty"`
	ToolCalls  []message.ToolCall `json:"toolCalls,omitempty"`
	Incomplete *Incomplete        `json:"incomplete,omitempty"`
	Finish     string             `json:"finishReason"`
	Usage      message.Usage      `json:"usage"`
}

// Incomplete is a tool call that an answer's end cut off. ArgsPrefix may be cut shorter still.
type Incomplete struct {
	ToolCallID string `json:"toolCallId"`
	ToolName   string `json:"toolName"`
	ArgsPrefix string `json:"argsPrefix"`
}

// Statuses of a tool call.
const (
	Completed = "completed"
	Failed    = "failed"
	Cancelled = "cancelled" // it was aborted, or never made
)

// A ToolCall is a call of a tool and its outcome. StepNumber is the step in which it was settled, which is later than
// the one in which the model asked for it when a person was asked in between.
type ToolCall struct {
	Kind            string          `json:"kind"`
	StepNumber      int             `json:"stepNumber"`
	ToolCallID      string          `json:"toolCallId"`
	ToolName        string          `json:"toolName"`
	SideEffectClass string          `json:"sideEffectClass,omitempty"` // empty: there was no such tool
	IdempotencyKey  string          `json:"idempotencyKey,omitempty"`
	Args            json.RawMessage `json:"args"`
	Output          json.RawMessage `json:"output,omitempty"`
	ContentParts    []message.Part  `json:"contentParts,omitempty"`
	ResultHandle    *message.Handle `json:"resultHandle,omitempty"`
	Truncated       bool            `json:"bufferTruncated,omitempty"`
	Error           *ToolError      `json:"error,omitempty"`
	Status          string          `json:"status"`
	DurationMS      int64           `json:"durationMs"`
	AgentID         string          `json:"agentId"`
	ChildRunID      string          `json:"childRunId,omitempty"` // the run that the call was
	TimestampISO    string          `json:"timestampIso"`
	SHA256OfArgs    string          `json:"sha256OfArgs"`
	SHA256OfOutput  string          `json:"sha256OfOutput,omitempty"`
}

// ToolError is why a call failed.
type ToolError struct {
	Kind         message.ErrorKind    `json:"kind"`
	Message      string               `json:"message"`
	Hint         string               `json:"hint,omitempty"`
	Recoverable  bool                 `json:"recoverable,omitempty"`
	RecoveryHint message.RecoveryHint `json:"recoveryHint,omitempty"`
}

// settle puts an outcome into the line; nil is that of a call that was never made.
func (c *ToolCall) settle(o *message.Outcome) {
	if o == nil {
		c.Status = Cancelled
		return
	}
	c.Status, c.DurationMS, c.Output, c.ContentParts = Completed, o.DurationMS, o.Output, o.ContentParts
	c.ResultHandle, c.Truncated = o.ResultHandle, o.Truncated
	if o.Output != nil {
		c.SHA256OfOutput = hashOf(o.Output)
	}
	if o.Failed() {
		c.Status, c.Error = Failed, &ToolError{o.Kind, o.Message, o.Hint, o.Recoverable, o.RecoveryHint}
		if o.Kind == message.AbortedCall {
			c.Status = Cancelled
		}
	}
}

// outcome is what became of the call; nil when it was never made.
func (c *ToolCall) outcome() *message.Outcome {
	if c.Status == Cancelled && c.Error == nil {
		return nil
	}
	o := &message.Outcome{ToolCallID: c.ToolCallID, ToolName: c.ToolName, Output: c.Output, ContentParts: c.ContentParts,
		DurationMS: c.DurationMS, ResultHandle: c.ResultHandle, Truncated: c.Truncated}
	switch e := c.Error; {
	case e != nil:
		o.Kind, o.Message, o.Hint, o.Recoverable, o.RecoveryHint = e.Kind, e.Message, e.Hint, e.Recoverable, e.RecoveryHint
	case c.Status != Completed: // of another writer, which does not tell why
		o.Kind, o.Message = message.ExecutionFailed, "The recorded call ended as "+c.Status+"."
	}
	return o
}

// An Approval is a question to a person about a tool call. StepNumber is the step that the decision began; of a
// question that nobody decided, the last one.
type Approval struct {
	Kind             string `json:"kind"`
	StepNumber       int    `json:"stepNumber"`
	ToolCallID       string `json:"toolCallId"`
	SubRunToolCallID string `json:"subRunToolCallId,omitempty"` // set for calls of a child run
	ToolName         string `json:"toolName,omitempty"`
	Asked            string `json:"asked,omitempty"`   // why, unless the tool or the agent requires it
	Granted          *bool  `json:"granted,omitempty"` // nil: nobody decided
	Reason           string `json:"reason,omitempty"`
	By               string `json:"by,omitempty"`
	TimestampISO     string `json:"timestampIso"` // of the decision or, without one, of the question
}

// Result is how a run ended.
type Result struct {
	Kind         string          `json:"kind"`
	StepNumber   int             `json:"stepNumber"` // the last one
	Status       string          `json:"status"`
	Output       json.RawMessage `json:"output,omitempty"`
	Error        *Failure        `json:"error,omitempty"`
	Usage        message.Usage   `json:"usage"`
	Cut          bool            `json:"cut,omitempty"` // it was ended from outside: by an abort, a crash or the clock
	TimestampISO string          `json:"timestampIso"`
}

// Failure is why a run failed or was aborted.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// Footer is the last line.
type Footer struct {
	Kind          string `json:"kind"`
	RecordCount   int    `json:"recordCount"` // all lines
	ToolCallCount int    `json:"toolCallCount"`
	Checksum      string `json:"checksum,omitempty"` // sha256:<hex> of the lines but this and the first, ends of line included
	WrittenAtISO  string `json:"writtenAtIso"`
}
