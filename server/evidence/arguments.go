package evidence

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/event"
	"agentd/server/journal"
)

// A shownCall is what a member shows of a call beside the journal.
type shownCall struct {
	member, tool, digest string
	asked, made          bool // it is what the model asked for; it is what was made, perhaps after a person changed it
}

// fits reports whether it shows one of these calls correctly.
func (s *shownCall) fits(calls []*callLine) bool {
	return slices.ContainsFunc(calls, func(k *callLine) bool {
		return (s.tool == "" || s.tool == k.ToolName) && (s.asked && s.digest == k.asked() || s.made && s.digest == k.ArgsSHA256)
	})
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

func (v *verifier) show(member string, c toolCall, asked, made bool) {
	t := v.topic(c.ToolCallID)
	t.shown = append(t.shown, shownCall{member, c.ToolName, journal.ArgsDigest(c.Args), asked, made})
}

// showState notes what a state shows of the calls of its run.
func (v *verifier) showState(st *runState) {
	for _, m := range st.Messages {
		for _, c := range m.ToolCalls {
			v.show(memberRun, c, true, false)
		}
	}
	for _, s := range st.Steps {
		for _, c := range s.ToolCalls {
			v.show(memberRun, c.Call, false, true)
		}
	}
	for _, a := range st.PendingApprovals {
		if a.SubRunToolCallID == "" {
			v.show(memberRun, a.toolCall, true, true)
		}
	}
}

// showEvent notes what an event shows of a call of the run itself.
func (v *verifier) showEvent(e *eventLine) {
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
		v.show(memberEvents, said.toolCall, true, false)
	} else if said.Args != nil { // older servers did not show them
		v.show(memberEvents, said.toolCall, true, true)
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

// maxReason is how much of a reason an entry of a decision keeps.
const maxReason = 1024

// sameReason reports whether a reason matches the beginning that the chain keeps.
func sameReason(kept, reason string) bool {
	if !utf8.ValidString(reason) {
		reason = strings.ToValidUTF8(reason, "\uFFFD")
	}
	return kept == reason || len(reason) > maxReason && strings.HasPrefix(reason, strings.TrimRight(kept, "\uFFFD"))
}
