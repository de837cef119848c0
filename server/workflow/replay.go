package workflow

import (
	"encoding/json"
	"fmt"
	"slices"

	"agentd/server/fault"
	"agentd/server/journal"
)

// Kinds of what a node asks of its thread. Those of pauses are as lists show them.
const (
	pausePlain    = "pause"
	pauseTimer    = "timer"
	pauseAwait    = "awakeable"
	pauseApproval = "approval"
	pauseBefore   = "static-before"
	pauseAfter    = "static-after"
	askAgent      = "agent"
	askTool       = "tool"
	askStep       = "step"
)

// A wish is what a task asks of its thread.
type wish struct {
	Kind   string          `json:"kind"`
	Name   string          `json:"name,omitempty"`
	Value  json.RawMessage `json:"value,omitempty"` // what a pause shows, the arguments of a tool, the input of an agent
	WakeAt int64           `json:"wakeAt,omitempty"`
}

// failure is an error as it is stored.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func failureOf(err error) *failure {
	f := fault.Of(err)
	return &failure{Code: f.Kind.Code, Message: journal.Clip(f.Message, 2000), Hint: f.NextStep()}
}

func (f *failure) fault() error { return fault.Told(f.Code, f.Message, f.Hint) }

// An entry is what one call of a node gave. When the node runs again, its calls are answered from the entries, in their
// order.
type entry struct {
	Kind  string          `json:"kind"`
	Name  string          `json:"name,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
	Error *failure        `json:"error,omitempty"`
}

// Bounds of what a task keeps for its replay.
const (
	maxEntries    = 1000
	maxEntryBytes = 4 << 20
)

// replays returns the answer to the call of the given kind and name that comes after at others; nil: it is made now.
func replays(journal []entry, at int, node, kind, name string) (*entry, error) {
	if at >= len(journal) {
		return nil, nil
	}
	e := &journal[at]
	if e.Kind == kind && (e.Name == name || kind == pausePlain || kind == pauseTimer) {
		return e, nil
	}
	return nil, fault.New(fault.PauseReplayDivergence, "Call %d of the node %q was %s before, and is %s now.", at+1, node, ask(e.Kind, e.Name), ask(kind, name))
}

func ask(kind, name string) string {
	if name == "" {
		return kind
	}
	return fmt.Sprintf("%s %q", kind, name)
}

// room reports a journal that cannot take another entry.
func room(journal []entry, node string, value json.RawMessage) error {
	size := len(value)
	for _, e := range journal {
		size += len(e.Value)
	}
	if len(journal) >= maxEntries || size > maxEntryBytes {
		return fault.New(fault.StateTooLarge, "The calls of the node %q exceed %d, or their results %d bytes.", node, maxEntries, maxEntryBytes).
			Advise("Divide the work among several nodes or dispatched tasks.")
	}
	return nil
}

// forget drops what failed last, so that another attempt makes those calls again. What failed earlier stays: the node
// went on from there.
func (t *nodeTask) forget() {
	for n := len(t.Journal); n > 0 && t.Journal[n-1].Error != nil; n-- {
		t.Journal = slices.Delete(t.Journal, n-1, n)
	}
}

// answer adds what a wish has given to the journal.
func (t *nodeTask) answer(w *wish, value json.RawMessage, failed *failure) {
	t.Journal = append(t.Journal, entry{Kind: w.Kind, Name: w.Name, Value: value, Error: failed})
}
