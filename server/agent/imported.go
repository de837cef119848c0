package agent

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"agentd/server/message"
	"agentd/server/runstate"
	"agentd/store"
)

// imported is what a run that was begun elsewhere keeps of its state and no row holds. It never changes: it tells what
// was imported, also of a run that has gone on since.
type imported struct {
	Schema        string                     `json:"schema"`
	Steps         int                        `json:"steps"`               // how many were imported
	KeptSteps     map[int]runstate.Step      `json:"keptSteps,omitempty"` // by index: those that the rows would tell otherwise
	TaintSummary  *runstate.Taint            `json:"taintSummary,omitempty"`
	PromotedTools []string                   `json:"promotedTools,omitempty"`
	Todos         []runstate.Todo            `json:"todos,omitempty"`
	Targets       map[string]string          `json:"targets,omitempty"` // names of child runs' agents that are not their ids, by the call
	Extra         map[string]json.RawMessage `json:"extra,omitempty"`   // as in a state, but messages have the indices of their rows
}

const importedSchema = "agentd-imported-run/1"

// keepsake is what is to be kept of a state for it to be shown again, where the rows alone show another. places are the
// rows' indices of its messages.
func keepsake(st, shown *State, places []int) *imported {
	im := &imported{Schema: importedSchema, Steps: len(st.Steps), TaintSummary: st.TaintSummary, PromotedTools: st.PromotedTools, Todos: st.Todos}
	for i, s := range st.Steps {
		if !sameJSON(s, shown.Steps[i]) {
			if im.KeptSteps == nil {
				im.KeptSteps = map[int]runstate.Step{}
			}
			im.KeptSteps[i] = s
		}
	}
	for i, s := range st.PendingSubRuns {
		if i < len(shown.PendingSubRuns) && s.TargetAgentName != shown.PendingSubRuns[i].TargetAgentName {
			if im.Targets == nil {
				im.Targets = map[string]string{}
			}
			im.Targets[s.ToolCallID] = s.TargetAgentName
		}
	}
	im.Extra = renumbered(st.Extra, func(i int) (int, bool) {
		if i >= len(places) {
			return 0, false
		}
		return places[i], true
	})
	return im
}

// show adds what is kept to a state; msgs are the messages that the state shows.
func (im *imported) show(st *State, msgs []entry) {
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
		shown[e.index] = i
	}
	st.Extra = renumbered(im.Extra, func(i int) (int, bool) {
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

// came reports whether a call came with the state that was imported, so that no model asked for it here.
func (rec *record) came(c *store.Call) bool {
	if rec.imported == nil {
		return false
	}
	last := 0
	if n := min(rec.imported.Steps, len(rec.steps)); n > 0 {
		last = rec.steps[n-1].Number
	}
	return c.Origin <= last
}

// renumbered is extra with other indices of messages; what belongs to a message without one is left out.
func renumbered(extra map[string]json.RawMessage, number func(int) (int, bool)) map[string]json.RawMessage {
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

func sameJSON(a, b any) bool {
	x, err := message.Encode(a)
	y, other := message.Encode(b)
	return err == nil && other == nil && bytes.Equal(x, y)
}
