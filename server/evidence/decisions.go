package evidence

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"agentd/server/audit"
	"agentd/server/journal"
	"agentd/store"
)

// A topic is what a bundle says under the id of a call. A program may use an id again: then it is about several calls.
type topic struct {
	calls []*callLine // of the journal
	shown []shownCall // by other members
	words []word      // of the chain, in the order of their entries

	// Of the words, the decisions that were made:
	told  []word // by entries of their own
	asked []word // by the requests that made them; each may come late, since it waits for what the run does next
}

func (v *verifier) topic(id string) *topic {
	t := v.topics[id]
	if t == nil {
		t = &topic{}
		v.topics[id] = t
	}
	return t
}

// hear notes a word of the chain.
func (t *topic) hear(w word) {
	t.words = append(t.words, w)
	switch {
	case w.action != audit.ApprovalGranted && w.action != audit.ApprovalDenied:
	case w.asked:
		t.asked = append(t.asked, w)
	case !w.void:
		t.told = append(t.told, w)
	default: // the latest that says the same was recorded, and then not made
		for i := range slices.Backward(t.told) {
			if t.told[i].action == w.action && t.told[i].by == w.by {
				t.told = slices.Delete(t.told, i, i+1)
				return
			}
		}
	}
}

// said compares everything that the bundle says about calls.
func (v *verifier) said() {
	for _, id := range slices.Sorted(maps.Keys(v.topics)) {
		v.decisions(id, v.topics[id])
		v.arguments(id, v.topics[id])
	}
}

// decisions compares the decisions of the journal with those of the chain. If an id has one call, the last decision of the
// chain is the one that the journal keeps. If an id has several calls, each has one of the decisions.
func (v *verifier) decisions(id string, t *topic) {
	told, asked := t.told, t.asked
	if n := len(told); n > 0 && len(t.calls) == 1 {
		told = told[n-1:]
		asked = slices.DeleteFunc(slices.Clone(asked), func(w word) bool { return w.seq < told[0].seq })
	}
	decided, waiting := false, false
	for _, k := range t.calls {
		if waiting = waiting || k.Phase == store.CallAwaiting; len(k.Decision) > 0 {
			decided = true
			v.decision(k, told, asked)
		}
	}
	all := slices.Concat(t.told, t.asked)
	aborted := slices.ContainsFunc(all, word.implied)
	for _, w := range all {
		switch {
		case len(t.calls) == 0 && v.manifest.FirstEvent != 0:
			v.report.Folded = append(v.report.Folded, w.seq)
		case len(t.calls) == 0:
			v.bad(memberCalls, "the call %.128q, which entry %d (%s) is about, is not in the journal", id, w.seq, w.action)
		case decided, w.implied():
		case waiting || aborted: // earlier versions recorded it first, and a crash may have come in between
			v.report.Unmade = append(v.report.Unmade, w.seq)
		default:
			v.bad(memberCalls, "the call %.128q has no decision, and entry %d is one (%s)", id, w.seq, w.action)
		}
	}
}

// decision compares the decision on a call with the chain. The entry of a request suffices only if the server that received the
// request says in the chain that it recorded no tool events.
func (v *verifier) decision(k *callLine, told, asked []word) {
	var is journal.Decided
	same := func(w word) bool { return (w.action == audit.ApprovalGranted) == is.Granted && isName(w.by, is.By) }
	bound := func(w word) bool { // it also was for this call, and for this reason, which the event of a workflow's grant does not hold
		return same(w) && (w.digest == "" || w.digest == k.ArgsSHA256 && w.tool == k.ToolName && (v.workflow && is.Granted || sameReason(w.reason, is.Reason)))
	}
	all := slices.Concat(told, asked)
	switch {
	case json.Unmarshal(k.Decision, &is) != nil:
		v.bad(memberCalls, "the decision on the call %.128q cannot be read", k.ToolCallID)
	case is.ArgsSHA256 != k.ArgsSHA256:
		v.bad(memberCalls, "the decision on the call %.128q was for other arguments", k.ToolCallID)
	case is.Args != nil && journal.ArgsDigest(is.Args) != k.ArgsSHA256:
		v.bad(memberCalls, "the decision on the call %.128q gave it other arguments than the digest", k.ToolCallID)
	case slices.ContainsFunc(told, bound):
		v.report.Decisions++
	case slices.ContainsFunc(asked, func(w word) bool { return bound(w) && v.silent(w.seq) }):
		v.report.Decisions++
		v.report.Asked++
	case len(all) == 0:
		v.bad(memberEntries, "there is no entry for the decision on the call %.128q", k.ToolCallID)
	case slices.ContainsFunc(all, func(w word) bool { return same(w) && !bound(w) }):
		v.bad(memberCalls, "the decision on the call %.128q of %.128q is not the one in the chain: its arguments, tool or reason are others", k.ToolCallID, k.ToolName)
	case slices.ContainsFunc(asked, same):
		v.bad(memberEntries, "the decision on the call %.128q has only the entry of a request, although tool events were recorded at that time", k.ToolCallID)
	default:
		w := all[len(all)-1]
		if n := len(told); n > 0 {
			w = told[n-1]
		}
		v.bad(memberCalls, "the call %.128q was decided by %.128q (granted: %t), and entry %d says %s by %.128q",
			k.ToolCallID, is.By, is.Granted, w.seq, w.action, w.by)
	}
}

// silent reports whether the server that made an entry recorded no tool events.
func (v *verifier) silent(seq int64) bool {
	i, _ := slices.BinarySearchFunc(v.servers, seq, func(s configLine, seq int64) int { return cmp.Compare(s.Seq, seq) })
	return i > 0 && v.servers[i-1].ToolEvents == "off"
}

// arguments compares the journal with the digests in the chain, and what other members show of calls with the journal.
func (v *verifier) arguments(id string, t *topic) {
	if len(t.calls) == 0 { // decisions checks that there is such a call
		return
	}
	calls, proven := t.calls, false
	for _, w := range t.words {
		if w.digest == "" || w.void {
			continue
		}
		proven = true
		if !slices.ContainsFunc(calls, func(k *callLine) bool {
			return k.ToolName == w.tool && (k.ArgsSHA256 == w.digest || k.asked() == w.digest)
		}) {
			v.bad(memberCalls, "the call %.128q of %.128q has other arguments, or another tool, than entry %d (%s) says", id, calls[0].ToolName, w.seq, w.action)
		}
	}
	if proven {
		v.report.Arguments += len(calls)
	} else {
		calls = slices.DeleteFunc(slices.Clone(calls), func(k *callLine) bool { return !k.Canonical })
	}
	for i, s := range t.shown {
		// The messages from before an import may use ids again that calls of the run have.
		before := v.imported && slices.ContainsFunc(t.shown[i+1:], func(later shownCall) bool { return later.member == s.member && later.fits(calls) })
		if len(calls) > 0 && !s.fits(calls) && !before {
			v.bad(s.member, "it shows other arguments, or another tool, of the call %.128q of %.128q than the journal of calls", id, t.calls[0].ToolName)
		}
	}
}
