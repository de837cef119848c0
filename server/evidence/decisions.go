package evidence

import (
	"encoding/json"
	"maps"
	"slices"

	"agentd/server/agent"
	"agentd/server/audit"
)

// decisions holds the decisions of the journal and those of the chain to each other, by the id of the call. A program may
// use an id again: then one of the words on it is that of each call. Else it is the last one, which is what the journal
// keeps of a call that was asked for twice.
func (v *verifier) decisions() {
	words := v.words()
	uses, decided := map[string]int{}, map[string]bool{}
	for _, k := range v.calls {
		uses[k.ToolCallID]++
		decided[k.ToolCallID] = decided[k.ToolCallID] || len(k.Decision) > 0
	}
	for _, k := range v.calls {
		if len(k.Decision) == 0 {
			continue
		}
		said := words[k.ToolCallID]
		if uses[k.ToolCallID] == 1 && len(said) > 0 {
			said = said[len(said)-1:]
		}
		v.decision(k, said)
	}
	for _, id := range slices.Sorted(maps.Keys(words)) {
		for _, e := range words[id] {
			switch {
			case uses[id] == 0:
				v.bad(memberCalls, "the call %.128q, which entry %d (%s) is about, is not in the journal", id, e.Seq, e.Action)
			case !decided[id] && !(e.Action == denied && by(e.Actor) == "abort"): // the journal keeps no decision that an abort implies
				v.bad(memberCalls, "the call %.128q has no decision, and entry %d is one (%s)", id, e.Seq, e.Action)
			}
		}
	}
}

// words are the decisions that the chain tells of, by call.
func (v *verifier) words() map[string][]audit.Entry {
	words := map[string][]audit.Entry{}
	for _, e := range v.entries {
		if own, _ := concerns(&e, v.runID); !own || e.Action != granted && e.Action != denied {
			continue
		}
		var of struct{ ToolCallID string }
		if json.Unmarshal(e.Metadata, &of) != nil {
			v.bad(memberEntries, "entry %d (%s) names no call", e.Seq, e.Action)
			continue
		}
		words[of.ToolCallID] = append(words[of.ToolCallID], e)
	}
	return words
}

// decision holds that on a call to what the chain says about it.
func (v *verifier) decision(k callLine, said []audit.Entry) {
	var word agent.Decided
	switch {
	case json.Unmarshal(k.Decision, &word) != nil:
		v.bad(memberCalls, "the decision on the call %.128q cannot be read", k.ToolCallID)
	case word.ArgsSHA256 != k.ArgsSHA256:
		v.bad(memberCalls, "the decision on the call %.128q was for other arguments", k.ToolCallID)
	case len(said) == 0:
		v.bad(memberEntries, "there is no entry for the decision on the call %.128q", k.ToolCallID)
	case !slices.ContainsFunc(said, func(e audit.Entry) bool { return (e.Action == granted) == word.Granted && by(e.Actor) == word.By }):
		e := said[len(said)-1]
		v.bad(memberCalls, "the call %.128q was decided by %.128q (granted: %t), and entry %d says %s by %.128q",
			k.ToolCallID, word.By, word.Granted, e.Seq, e.Action, by(e.Actor))
	default:
		v.report.Decisions++
	}
}

// Actions of the entries that tell of a decision.
const (
	granted = "tool:approval:granted"
	denied  = "tool:approval:denied"
)

// by is an actor as the journal names who decided.
func by(a audit.Actor) string {
	switch a.Kind {
	case audit.ActorToken:
		return "token:" + a.ID
	case audit.ActorCLI:
		return "cli"
	}
	return a.ID
}
