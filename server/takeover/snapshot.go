package takeover

import (
	"bytes"

	"agentd/server/agent"
	"agentd/server/message"
	"agentd/server/runstate"
)

// snapshot holds the fields of an imported state that the rows do not, so that the run shows the same document. places are
// the rows' indices of the state's messages.
func snapshot(st, shown *runstate.State, places []int) *agent.Imported {
	im := &agent.Imported{Schema: agent.ImportedSchema, Steps: len(st.Steps), TaintSummary: st.TaintSummary, PromotedTools: st.PromotedTools, Todos: st.Todos}
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
	im.Extra = agent.Renumbered(st.Extra, func(i int) (int, bool) {
		if i >= len(places) {
			return 0, false
		}
		return places[i], true
	})
	return im
}

func sameJSON(a, b any) bool {
	x, err := message.Encode(a)
	y, other := message.Encode(b)
	return err == nil && other == nil && bytes.Equal(x, y)
}
