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

// is reports whether it is a decision on a call, and whether the call and the reason are those that it was for.
func (w word) is(k *callLine, said *journal.Decided) (same, bound bool) {
	same = w.granted == said.Granted && isName(w.by, said.By)
	return same, same && (w.digest == "" || w.digest == k.ArgsSHA256 && w.tool == k.ToolName && sameReason(w.reason, said.Reason))
}

// words are those on a call, in the order of their entries.
type words struct {
	told  []word // by entries of their own
	asked []word // by the requests that made them; each may come late, since it waits for what the run does next
}

// implied reports whether it is the denial that an abort implies: the journal keeps no decision then.
func (w word) implied() bool { return w.action == audit.ApprovalDenied && w.by == "abort" }

// takeBack forgets the latest word that says the same: it was recorded, and then not made.
func (s *words) takeBack(w word) {
	for i := range slices.Backward(s.told) {
		if s.told[i].action == w.action && s.told[i].by == w.by {
			s.told = slices.Delete(s.told, i, i+1)
			return
		}
	}
}

// decisions holds the decisions of the journal and those of the chain to each other, by the id of the call. A program may
// use an id again: then one of the words on it is that of each call. Else it is the last one, which is what the journal
// keeps of a call that was asked for twice.
func (v *verifier) decisions() {
	said := v.words()
	uses, decided, waiting := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, k := range v.calls {
		uses[k.ToolCallID]++
		decided[k.ToolCallID] = decided[k.ToolCallID] || len(k.Decision) > 0
		waiting[k.ToolCallID] = waiting[k.ToolCallID] || k.Phase == store.CallAwaiting
	}
	for _, k := range v.calls {
		if len(k.Decision) == 0 {
			continue
		}
		w := words{}
		if s := said[k.ToolCallID]; s != nil {
			w = *s
		}
		if n := len(w.told); uses[k.ToolCallID] == 1 && n > 0 {
			last := w.told[n-1]
			w.told = w.told[n-1:]
			w.asked = slices.DeleteFunc(slices.Clone(w.asked), func(a word) bool { return a.seq < last.seq })
		}
		v.decision(k, w)
	}
	for _, id := range slices.Sorted(maps.Keys(said)) {
		all := slices.Concat(said[id].told, said[id].asked)
		aborted := slices.ContainsFunc(all, word.implied)
		for _, w := range all {
			switch {
			case uses[id] == 0:
				v.bad(memberCalls, "the call %.128q, which entry %d (%s) is about, is not in the journal", id, w.seq, w.action)
			case decided[id], w.implied():
			case waiting[id] || aborted: // it is recorded first, and a crash may have come in between
				v.report.Unmade = append(v.report.Unmade, w.seq)
			default:
				v.bad(memberCalls, "the call %.128q has no decision, and entry %d is one (%s)", id, w.seq, w.action)
			}
		}
	}
}

// words are the decisions in the chain, by call.
func (v *verifier) words() map[string]*words {
	said := map[string]*words{}
	for _, a := range v.accounts {
		for _, w := range a.words {
			if w.action != audit.ApprovalGranted && w.action != audit.ApprovalDenied {
				continue
			}
			if said[w.id] == nil {
				said[w.id] = &words{}
			}
			switch of := said[w.id]; {
			case w.asked:
				of.asked = append(of.asked, w)
			case w.void:
				of.takeBack(w)
			default:
				of.told = append(of.told, w)
			}
		}
	}
	return said
}

// decision holds that on a call to what the chain says about it. A request stands for an entry of the decision's own only
// where the server that it was made to says, in the chain too, that it recorded no tool events.
func (v *verifier) decision(k callLine, said words) {
	var is journal.Decided
	same := func(w word) bool { same, _ := w.is(&k, &is); return same }
	bound := func(w word) bool { _, bound := w.is(&k, &is); return bound }
	switch {
	case json.Unmarshal(k.Decision, &is) != nil:
		v.bad(memberCalls, "the decision on the call %.128q cannot be read", k.ToolCallID)
	case is.ArgsSHA256 != k.ArgsSHA256:
		v.bad(memberCalls, "the decision on the call %.128q was for other arguments", k.ToolCallID)
	case is.Args != nil && journal.ArgsDigest(is.Args) != k.ArgsSHA256:
		v.bad(memberCalls, "the decision on the call %.128q gave it other arguments than the digest", k.ToolCallID)
	case slices.ContainsFunc(said.told, bound):
		v.report.Decisions++
	case slices.ContainsFunc(said.asked, func(w word) bool { return bound(w) && v.silent(w.seq) }):
		v.report.Decisions++
		v.report.Asked++
	case len(said.told)+len(said.asked) == 0:
		v.bad(memberEntries, "there is no entry for the decision on the call %.128q", k.ToolCallID)
	case slices.ContainsFunc(slices.Concat(said.told, said.asked), func(w word) bool { return same(w) && !bound(w) }):
		v.bad(memberCalls, "the decision on the call %.128q of %.128q is not the one in the chain: its arguments, tool or reason are others", k.ToolCallID, k.ToolName)
	case slices.ContainsFunc(said.asked, same):
		v.bad(memberEntries, "the decision on the call %.128q has only the entry of a request, although tool events were recorded at that time", k.ToolCallID)
	default:
		of := said.told
		if len(of) == 0 {
			of = said.asked
		}
		w := of[len(of)-1]
		v.bad(memberCalls, "the call %.128q was decided by %.128q (granted: %t), and entry %d says %s by %.128q",
			k.ToolCallID, is.By, is.Granted, w.seq, w.action, w.by)
	}
}

// silent reports whether the server that made an entry recorded no tool events.
func (v *verifier) silent(seq int64) bool {
	i, _ := slices.BinarySearchFunc(v.servers, seq, func(s configLine, seq int64) int { return cmp.Compare(s.Seq, seq) })
	return i > 0 && v.servers[i-1].ToolEvents == "off"
}

// started holds who is said to have started the run to what the chain says. Of several entries the last one counts, since
// a run that was erased may have been imported again; the entry of a request counts only where the start has none of its
// own, and of one that was sent again only where there is no other. Where the chain says nothing, the report says so.
func (v *verifier) started() {
	worth := func(a *account) int {
		switch {
		case !a.started:
			return 0
		case a.replayed:
			return 1
		case a.earlier:
			return 2
		}
		return 3
	}
	by, best := "", 1
	for i := range v.accounts {
		if n := worth(&v.accounts[i]); n >= best {
			v.report.StartEntry, by, best = v.entries[i].Seq, nameOf(v.entries[i].Actor), n
		}
	}
	if v.report.StartEntry != 0 && !isName(by, v.report.StartedBy) {
		v.bad(memberRun, "it says that %.128q started it, and entry %d names %.128q", v.report.StartedBy, v.report.StartEntry, by)
	}
}
