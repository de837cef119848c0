package agent

import (
	"encoding/json"
	"strconv"
	"strings"

	"agentd/server/journal"
	"agentd/server/runstate"
)

// Imported is the part of a state that was imported and that no row of its run holds, so that GET of the state shows the
// same document. It never changes, also when the run continues.
type Imported struct {
	Schema        string                     `json:"schema"`
	Steps         int                        `json:"steps"`               // how many were imported
	KeptSteps     map[int]runstate.Step      `json:"keptSteps,omitempty"` // by index: those that the rows would tell otherwise
	TaintSummary  *runstate.Taint            `json:"taintSummary,omitempty"`
	PromotedTools []string                   `json:"promotedTools,omitempty"`
	Todos         []runstate.Todo            `json:"todos,omitempty"`
	Targets       map[string]string          `json:"targets,omitempty"` // names of child runs' agents that are not their ids, by the call
	Extra         map[string]json.RawMessage `json:"extra,omitempty"`   // as in a state, but messages have the indices of their rows
}

// ImportedSchema is the schema of [Imported].
const ImportedSchema = "agentd-imported-run/1"

// show adds what is kept to a state; msgs are the messages that the state shows.
func (im *Imported) show(st *State, msgs []journal.Entry) {
	for i, s := range im.KeptSteps {
		if i < len(st.Steps) {
			st.Steps[i] = s
		}
	}
	st.TaintSummary, st.PromotedTools, st.Todos = im.TaintSummary, im.PromotedTools, im.Todos
	for i := range st.PendingSubRuns {
		if name, ok := im.Targets[st.PendingSubRuns[i].ToolCallID]; ok {
			st.PendingSubRuns[i].TargetAgentName = name
		}
	}
	if im.Extra == nil {
		return
	}
	shown := make(map[int]int, len(msgs))
	for i, e := range msgs {
		shown[e.Index] = i
	}
	st.Extra = Renumbered(im.Extra, func(i int) (int, bool) {
		at, ok := shown[i]
		return at, ok
	})
	if len(st.Steps) > im.Steps { // an error is of the present, not of the time before
		for pointer := range st.Extra {
			if name, _, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/"); name == "error" {
				delete(st.Extra, pointer)
			}
		}
	}
}

// Renumbered is extra with other indices of messages; what belongs to a message without one is left out.
func Renumbered(extra map[string]json.RawMessage, number func(int) (int, bool)) map[string]json.RawMessage {
	if extra == nil {
		return nil
	}
	out := make(map[string]json.RawMessage, len(extra))
	for pointer, members := range extra {
		if rest, ok := strings.CutPrefix(pointer, "/messages/"); ok {
			text, below, nested := strings.Cut(rest, "/")
			i, err := strconv.Atoi(text)
			if err != nil {
				continue
			}
			n, known := number(i)
			if !known {
				continue
			}
			if pointer = "/messages/" + strconv.Itoa(n); nested {
				pointer += "/" + below
			}
		}
		out[pointer] = members
	}
	return out
}
