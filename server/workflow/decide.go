package workflow

import (
	"cmp"
	"slices"
	"strings"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
)

// decisions are words of people on what the thread waits for.
type decisions struct {
	words     []run.Decision
	by        run.Decider
	made      []run.Verdict
	unmatched []run.Decision
	below     map[string][]run.Decision // by the call id of the task whose hosted run they are for
}

// decide applies decisions to the approvals of the thread itself, and finds those that are for what it hosts.
func (t *thread) decide(d *decisions) error {
	if err := t.unblock(false); err != nil {
		return err
	}
	d.below = map[string][]run.Decision{}
	pending := t.pending()
	byCall := map[string]*task{}
	for _, k := range t.waits {
		if k.Phase == asking {
			byCall[k.Approval.ToolCallID] = k
		}
	}
	matched := false
	own := map[string]run.Decision{}
	for _, word := range d.words {
		is := func(a journal.Approval) bool {
			return a.ToolCallID == word.ToolCallID && a.SubRunToolCallID == word.SubRunToolCallID
		}
		switch head, rest, _ := strings.Cut(word.SubRunToolCallID, "/"); {
		case !slices.ContainsFunc(pending, is):
			d.unmatched = append(d.unmatched, word)
		case head == "":
			own[word.ToolCallID], matched = word, true
		default:
			word.SubRunToolCallID, matched = rest, true
			d.below[head] = append(d.below[head], word)
		}
	}
	if !matched {
		waiting := []map[string]string{}
		for _, a := range pending[:min(len(pending), 100)] {
			waiting = append(waiting, map[string]string{"toolCallId": a.ToolCallID, "toolName": a.ToolName, "subRunToolCallId": a.SubRunToolCallID})
		}
		return fault.New(fault.ApprovalNotWaiting, "None of the decisions is for an approval that run %s waits for.", t.r.ID()).With("runId", t.r.ID()).With("waiting", waiting)
	}
	for _, k := range t.waiting() {
		if t.waits[k.ID] != k || k.Phase != asking { // a decision before may have ended it
			continue
		}
		word, is := own[k.Approval.ToolCallID]
		if !is {
			continue
		}
		if err := t.rule(k, word, d); err != nil {
			return err
		}
	}
	return nil
}

// rule applies one decision.
func (t *thread) rule(k *task, word run.Decision, d *decisions) error {
	a := k.Approval
	doubtful := k.doubtful()
	switch {
	case journal.ArgsDigest(a.Args) != a.ArgsDigest:
		return fault.New(fault.CallAltered, "The stored arguments of %s differ from the requested ones.", a.ToolCallID).With("toolCallId", a.ToolCallID)
	case word.Granted && doubtful && !word.Again:
		return fault.New(fault.OutcomeUnknown, "The call %s of %s may already have taken effect. Nothing was decided.", a.ToolCallID, a.ToolName).
			With("toolCallId", a.ToolCallID).With("toolName", a.ToolName)
	case word.Result != nil && (word.Granted || !doubtful):
		return fault.New(fault.EditRefused, "A result is given with the denial of a call whose outcome is unknown.").With("toolCallId", a.ToolCallID)
	case word.Args != nil:
		return t.edit(k, word, d)
	}
	if word.Granted {
		more, err := d.by.Vote(a)
		if err != nil {
			return err
		}
		t.change(k)
		if more {
			t.move()
			return nil
		}
	}
	t.conclude(k, word, journal.Decided{By: d.by.Name(), Granted: word.Granted, Reason: word.Reason}, d)
	return nil
}

// edit grants a call with other arguments.
func (t *thread) edit(k *task, word run.Decision, d *decisions) error {
	refuse := func(why string) error {
		return fault.New(fault.EditRefused, "The arguments of the call %s cannot be changed: %s", k.Approval.ToolCallID, why).With("toolCallId", k.Approval.ToolCallID).With("toolName", k.Approval.ToolName)
	}
	n := t.node(k)
	switch {
	case !word.Granted:
		return refuse("a denial changes nothing.")
	case n.Kind != "tool" || k.doubtful() || k.Approval.ApproversNeeded > 1:
		return refuse("only a call that has not been made, of one approver, can be changed.")
	}
	args, err := t.w.tools.Edit(k.callID(), n.Tool, word.Args)
	if err != nil {
		return refuse(err.Error())
	}
	if _, err := d.by.Vote(k.Approval); err != nil {
		return err
	}
	kept := journal.Decided{By: d.by.Name(), Granted: true, Reason: word.Reason, Args: args, AskedSHA256: k.Approval.ArgsDigest}
	k.Args = args
	t.conclude(k, word, kept, d)
	return nil
}

// conclude acts upon a final decision.
func (t *thread) conclude(k *task, word run.Decision, kept journal.Decided, d *decisions) {
	m := t.move()
	a, doubtful := k.Approval, k.doubtful()
	kept.At, kept.ArgsSHA256 = message.Millis(m.At), a.ArgsDigest
	if kept.Args != nil {
		kept.ArgsSHA256 = journal.ArgsDigest(kept.Args)
	}
	if a.ApproversNeeded > 1 {
		kept.GrantedBy = a.GrantedBy
	}
	m.SayDecided(a.ToolCallID, "", word, kept.By)
	m.Done.Decided(*a, t.row.Step, kept)
	typ := event.ApprovalDenied
	if kept.Granted {
		typ = event.ApprovalGranted
	}
	t.happened(k, typ, func(h *happening) {
		h.By, h.GrantedBy, h.Reason, h.AskedDigest, h.ArgsDigest = kept.By, kept.GrantedBy, kept.Reason, kept.AskedSHA256, kept.ArgsSHA256
	})
	if d != nil {
		d.made = append(d.made, run.Verdict{RunID: t.r.ID(), ToolCallID: a.ToolCallID, ToolName: a.ToolName, ArgsDigest: kept.ArgsSHA256, Granted: kept.Granted, Reason: kept.Reason})
	}
	n := t.node(k)
	k.Approval, k.Decided, k.Steps = nil, &kept, 0
	switch {
	case n.Kind == "approval":
		t.answered(k, kept)
	case kept.Granted:
		if doubtful {
			k.Decided = nil
		}
		t.dispatch(k)
	case doubtful && word.Result != nil:
		t.finish(k, word.Result)
	case doubtful:
		t.fail(k, unknownOutcome(cmp.Or(kept.Reason, "a person decided not to repeat the call")+"."))
	default:
		t.fail(k, denied(kept))
	}
}

// answered ends an approval: what was decided is saved either way.
func (t *thread) answered(k *task, kept journal.Decided) {
	n := t.node(k)
	value := encoded(map[string]any{"granted": kept.Granted, "by": kept.By, "reason": kept.Reason})
	if kept.Granted || k.Ask != nil {
		t.finish(k, value)
		return
	}
	if n.Save != "" {
		if p := t.write(k, n.Save, value); p != nil {
			t.fail(k, p)
			return
		}
	}
	if n.Denied == "" {
		t.fail(k, denied(kept))
		return
	}
	t.step(k, "completed")
	t.follow(k, n.Denied)
}

func denied(kept journal.Decided) *problem {
	if kept.Reason == "" {
		return trouble(fault.ApprovalDenied, "The approval was denied.")
	}
	return trouble(fault.ApprovalDenied, "The approval was denied: %s.", kept.Reason)
}

// deny denies what nobody has decided in time.
func (t *thread) deny(k *task, kept journal.Decided) {
	t.conclude(k, run.Decision{Reason: kept.Reason}, kept, nil)
}
