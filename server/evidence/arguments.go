package evidence

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/event"
	"agentd/server/journal"
)

// A toldCall is what a member says of a call beside the journal.
type toldCall struct {
	member, id, tool, digest string
	asked                    bool // it is what the model asked for, and not what was made after a person changed it
	either                   bool // it may be one or the other
}

// A runState is the part of a run's state that shows its calls.
type runState struct {
	ID       string
	Messages []struct{ ToolCalls []toolCall }
	Steps    []struct {
		ToolCalls []struct{ Call toolCall }
	}
	PendingApprovals []struct {
		toolCall
		SubRunToolCallID string
	}
}

type toolCall struct {
	ToolCallID, ToolName string
	Args                 json.RawMessage
}

func (v *verifier) tell(member string, c toolCall, asked, either bool) {
	v.told = append(v.told, toldCall{member, c.ToolCallID, c.ToolName, journal.ArgsDigest(c.Args), asked, either})
}

// tellState notes what a state says of the calls of its run.
func (v *verifier) tellState(st *runState) {
	for _, m := range st.Messages {
		for _, c := range m.ToolCalls {
			v.tell(memberRun, c, true, false)
		}
	}
	for _, s := range st.Steps {
		for _, c := range s.ToolCalls {
			v.tell(memberRun, c.Call, false, false)
		}
	}
	for _, a := range st.PendingApprovals {
		if a.SubRunToolCallID == "" {
			v.tell(memberRun, a.toolCall, false, true)
		}
	}
}

// tellEvent notes what an event says of a call of the run itself.
func (v *verifier) tellEvent(e *eventLine) {
	var said struct {
		toolCall
		FinalArgs                    json.RawMessage
		ArgsDigest, SubRunToolCallID string
	}
	if e.Type != event.ToolCallEnd && e.Type != event.ApprovalRequested || json.Unmarshal(e.Payload, &said) != nil || said.SubRunToolCallID != "" {
		return
	}
	if e.Type == event.ToolCallEnd {
		said.Args = said.FinalArgs
		v.tell(memberEvents, said.toolCall, true, false)
	} else if said.Args != nil { // older servers did not show them
		v.tell(memberEvents, said.toolCall, false, true)
		if said.ArgsDigest != journal.ArgsDigest(said.Args) {
			v.bad(memberEvents, "the event %d (%s) has not the digest of the arguments of the call %.128q", e.Seq, e.Type, said.ToolCallID)
		}
	}
}

// asked is the digest of the arguments that the model asked for.
func (k *callLine) asked() string {
	var word journal.Decided
	if json.Unmarshal(k.Decision, &word) == nil && word.AskedSHA256 != "" {
		return word.AskedSHA256
	}
	return k.ArgsSHA256
}

// arguments holds what the members say of calls to the journal, and the journal to the digests in the chain. A program may
// use an id again: then what is said of it must be true of one of its calls.
func (v *verifier) arguments() {
	calls := map[string][]*callLine{}
	for i := range v.calls {
		k := &v.calls[i]
		calls[k.ToolCallID] = append(calls[k.ToolCallID], k)
	}
	proven := map[string]bool{}
	imported := false
	for _, a := range v.accounts {
		imported = imported || a.imported
		for _, w := range a.words {
			all := calls[w.id]
			if w.digest == "" || w.void || all == nil { // decisions checks that there is such a call
				continue
			}
			proven[w.id] = true
			if !slices.ContainsFunc(all, func(k *callLine) bool {
				return k.ToolName == w.tool && (k.ArgsSHA256 == w.digest || k.asked() == w.digest)
			}) {
				v.bad(memberCalls, "the call %.128q of %.128q has other arguments, or another tool, than entry %d (%s) says", w.id, all[0].ToolName, w.seq, w.action)
			}
		}
	}
	for id := range proven {
		v.report.Arguments += len(calls[id])
	}
	for i, t := range v.told {
		all := slices.DeleteFunc(slices.Clone(calls[t.id]), func(k *callLine) bool { return !k.Canonical && !proven[t.id] })
		fits := func(t toldCall) bool {
			return slices.ContainsFunc(all, func(k *callLine) bool {
				return (t.tool == "" || t.tool == k.ToolName) && ((t.asked || t.either) && t.digest == k.asked() || !t.asked && t.digest == k.ArgsSHA256)
			})
		}
		// The messages from before an import may use ids again that calls of the run have.
		before := imported && slices.ContainsFunc(v.told[i+1:], func(later toldCall) bool { return later.id == t.id && later.member == t.member && fits(later) })
		if len(all) > 0 && !fits(t) && !before {
			v.bad(t.member, "it shows other arguments, or another tool, of the call %.128q of %.128q than the journal of calls", t.id, all[0].ToolName)
		}
	}
}

// maxReason is how much of a reason an entry of a decision keeps.
const maxReason = 1024

// sameReason reports whether a reason is the one that the chain keeps the beginning of.
func sameReason(kept, reason string) bool {
	if !utf8.ValidString(reason) {
		reason = strings.ToValidUTF8(reason, "\uFFFD")
	}
	return kept == reason || len(reason) > maxReason && strings.HasPrefix(reason, strings.TrimRight(kept, "\uFFFD"))
}
