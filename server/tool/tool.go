// Package tool makes the calls of agents: validation, execution, http, exec and built-in tools, and results too large to show.
//
//	Check ── refused: an error outcome
//	  │
//	Execute ── attempts under one timeout ── assemble ── cap, cut or spill ── outcome
//	  │            (rate_limited only)
//	  └ live output and progress, as they come
//
// A call always ends as an outcome; nothing here returns an error to the engine. Policy (approvals, permissions,
// budgets) is the engine's.
package tool

import (
	"context"
	"encoding/json"
	"time"

	"agentd/server/message"
)

// A SideEffect says what a call does to the world. The zero value counts as SideEffecting.
type SideEffect string

const (
	Pure             SideEffect = "pure"
	ReadOnly         SideEffect = "read-only"
	SideEffecting    SideEffect = "side-effecting"
	ExternalStateful SideEffect = "external-stateful"
)

// An OnUnknown says what happens after a call that must not run twice and whose outcome is unknown: a crash or a time-out
// interrupted it, or no complete answer came. The zero value counts as Ask.
type OnUnknown string

const (
	Ask         OnUnknown = "ask"   // a person decides
	ReportError OnUnknown = "error" // the model gets an error
	Retry       OnUnknown = "retry" // it runs again, as often as RetryPolicy allows; only for idempotent tools
)

// A Truncation says what happens to a text that is longer than its tool's MaxResultTokens. Other JSON is always spilled,
// because a piece of it would not be JSON.
type Truncation string

const (
	Middle Truncation = "middle" // beginning and end stay; the zero value counts as this
	Tail   Truncation = "tail"   // the end stays
	Spill  Truncation = "spill"  // it is stored beside the transcript, which gets a preview and a handle
)

const (
	defaultTimeout         = 60 * time.Second
	defaultMaxResultTokens = 16384
)

// A Spec describes a tool to models and to the engine.
type Spec struct {
	Name        string // 1 to 64 letters, digits, _ and -
	Description string
	// Input is the JSON Schema of the arguments, as models get it; see package schema for what it may say. Absent, it
	// is an object without known properties. Arguments are always an object.
	Input            json.RawMessage
	SideEffect       SideEffect
	Idempotent       bool // a second call with the same Key does nothing more
	OnUnknownOutcome OnUnknown
	Sequential       bool          // not beside other calls of the same step
	Timeout          time.Duration // of a call with all its attempts; 0 is 60 s
	MaxResultTokens  int           // of the result that the model sees, estimated as characters / 4; 0 is 16384, < 0 no limit
	Truncation       Truncation
	Limit            *Limit // of its calls in all sets; nil: none
	Final            bool   // a call that succeeds is the last of its run, and its result is what the run answers
}

// Free reports whether a call has no effect: the tool is pure or read-only.
func (s Spec) Free() bool { return s.SideEffect == Pure || s.SideEffect == ReadOnly }

// Repeatable reports whether a call may run again when it is unknown whether it ran: the tool is pure, read-only or
// idempotent.
func (s Spec) Repeatable() bool {
	return s.Free() || s.Idempotent
}

// A Call is one call of a tool.
type Call struct {
	RunID, AgentID, SessionID, UserID string // SessionID and UserID may be empty
	Payer                             string // who uses up what is scarce
	StepNumber                        int
	ID                                string          // the tool call's id
	Key                               string          // idempotency key, `runId:stepNumber:toolCallId`
	Waited                            string          // the run that it has started before and waits for; empty: none
	Args                              json.RawMessage // an object that fits Input

	// Progress and Stream take what a tool reports while it runs. A tool may call them from any goroutine; calls after
	// Execute has returned have no effect. For a tool they are never nil. The caller of [Set.Execute] may leave them nil;
	// the set calls them one at a time, and they must return soon and must not call back.
	Progress func(current, total float64, note string) // total is 0 where it is not known
	Stream   func(Chunk)
}

// Waits is the error of a call that has not ended: it waits for the end of a run that it has started. It is made again then, with
// Waited.
type Waits struct{ RunID string }

func (w *Waits) Error() string { return "the call waits for the run " + w.RunID }

// A Chunk is a piece of live output. What it refers to must not change afterwards.
type Chunk struct {
	Kind      string          // Text, JSONDelta or Image
	Text      string          // Text
	Path      string          // JSONDelta: a JSON Pointer into the result; a last token "-" appends to an array
	Value     json.RawMessage // JSONDelta: what to put there
	Data      []byte          // Image
	MediaType string          // Image
}

// Kinds of chunks.
const (
	Text      = "text"
	JSONDelta = "json-delta"
	Image     = "image"
)

// A Tool can be called. Execute is called concurrently; it should return soon after ctx is done. Its error is an
// [*Error] or a *fault.Error, whose texts the model gets to see; any other error is execution_failed with the error's
// text. After the end of ctx, only an *Error without Unknown says that the tool knows what became of the call.
type Tool interface {
	Spec() Spec
	Execute(ctx context.Context, call Call) (Result, error)
}

// A Result is what a successful call gives. With Output nil and chunks streamed, the streamed texts together are the output,
// and the images are parts of it. Deltas are for those who watch the call only.
type Result struct {
	Output json.RawMessage
	Parts  []message.Part
	// Truncated says that the tool had more output than its limit, which is not in Output.
	Truncated bool
}

// An Error says why a call failed. A zero Kind is execution_failed.
type Error struct {
	Kind          message.ErrorKind
	Message, Hint string               // sentences for the model, without secrets
	RecoveryHint  message.RecoveryHint // "": that of the kind
	RetryAfter    time.Duration        // for rate_limited: how long to wait at least
	NotBegun      bool                 // nothing has happened: the call may be made again, whatever the tool is
	Unknown       bool                 // the call was begun, and may have had its effect or not
}

func (e *Error) Error() string { return e.Message }

// Func makes a tool of a function.
func Func(spec Spec, execute func(ctx context.Context, call Call) (Result, error)) Tool {
	return function{spec, execute}
}

type function struct {
	spec    Spec
	execute func(context.Context, Call) (Result, error)
}

func (f function) Spec() Spec                                          { return f.spec }
func (f function) Execute(ctx context.Context, c Call) (Result, error) { return f.execute(ctx, c) }

// JSON makes a result of a value that encodes as JSON.
func JSON(v any) (Result, error) {
	b, err := message.Encode(v)
	return Result{Output: b}, err
}
