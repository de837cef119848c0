package workflow

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// A letter asks a thread for something. Its sender gets one reply: after the commit that makes it count, or when it is
// refused.
type letter struct {
	do    func(t *thread) error // changes the thread, or returns why it does not
	why   string                // the span of the resumption says
	also  func(*store.Tx) error
	reply chan error
}

// Refuse is a part of [run.Letter].
func (l *letter) Refuse(err error) { l.reply <- err }

func newLetter(why string, also func(*store.Tx) error, do func(t *thread) error) *letter {
	return &letter{do: do, why: why, also: also, reply: make(chan error, 1)}
}

// send gives a letter to a run and waits for the reply.
func (w *Workflows) send(ctx context.Context, runID string, l *letter) error {
	if err := w.kernel.Post(ctx, runID, l); err != nil {
		return err
	}
	select {
	case err := <-l.reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open acts upon the letters that wait. Each that counts has a commit of its own, together with what had happened before.
func (t *thread) open() error {
	for _, l := range t.r.Letters() {
		switch l := l.(type) {
		case *run.Due:
			t.unheard = true
			t.tick()
		case *letter:
			if err := t.heed(l); err != nil {
				return err
			}
		default:
			l.Refuse(fault.New(fault.RunNotSuspended, "The run does not know the letter."))
		}
	}
	return nil
}

// tick does what is due, unless the workflow has changed under a thread that asks before it goes on.
func (t *thread) tick() {
	if due := t.due(); due != 0 && due <= t.now() {
		if err := t.pinned(false); err != nil {
			if t.row.Blocked = fault.Of(err).Kind.Code; t.m == nil {
				t.m = t.r.Move() // a run that is parked stays so
			}
			t.also = append(t.also, func(*store.Tx) error { return nil })
			return
		}
	}
	t.look()
	t.elapse()
}

// heed acts upon one letter. An error ends the drive.
func (t *thread) heed(l *letter) error {
	if t.dirty() {
		if err := t.commit(); err != nil {
			l.reply <- err
			return err
		}
	}
	t.why = l.why
	err := l.do(t)
	if err == nil && l.also != nil {
		t.also = append(t.also, l.also)
	}
	if err == nil && t.dirty() {
		if err = t.commit(); errors.Is(err, run.ErrLeft) {
			if f, ok := errors.AsType[*fault.Error](err); !ok || f.Kind == fault.StorageFailed || f.Kind == fault.StorageCorrupt {
				l.reply <- err
				return err
			}
		}
	}
	t.why = ""
	l.reply <- err
	if err != nil {
		return t.reload()
	}
	return nil
}

// reload forgets what has not been committed.
func (t *thread) reload() error {
	if !t.dirty() && t.m == nil {
		return nil
	}
	var again *thread
	err := t.w.runs.View(context.WithoutCancel(t.r.Context()), func(tx *store.Tx) error {
		row, err := t.w.threads.Number(tx, t.row.N)
		if err == nil {
			again, err = t.w.load(tx, row)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: %w", run.ErrLeft, err)
	}
	again.r, again.inFlight, again.results, again.late, again.over, again.unheard = t.r, t.inFlight, t.results, t.late, t.over, t.unheard
	*t = *again
	return nil
}

// pinned returns why the thread may not go on under the workflow as it is now; nil where it may. With move, it goes over to
// that.
func (t *thread) pinned(move bool) error {
	reg := t.w.registration(t.row.Workflow)
	if reg == nil || reg.graph == nil {
		return nil
	}
	now := reg.graph
	if !move {
		if t.p != nil && !bytes.Equal(now.Digest, t.row.Digest) && t.row.Pin == now.Form.Version {
			return fault.New(fault.WorkflowVersionMismatch, "The nodes, edges or channels of the workflow %q have changed since the thread began.", t.row.Workflow).With("threadId", t.row.ID)
		}
		if t.row.Pin == "" || now.Form.Version == "" || now.Form.Version == t.row.Pin {
			return nil
		}
		return fault.New(fault.WorkflowVersionMismatch, "The thread began with version %q of the workflow; now it is %q.", t.row.Pin, now.Form.Version).
			With("threadId", t.row.ID).With("recorded", t.row.Pin).With("current", now.Form.Version)
	}
	if bytes.Equal(now.Digest, t.row.Digest) && t.row.Pin == now.Form.Version {
		return nil
	}
	if node := t.gone(); node != "" {
		return fault.New(fault.WorkflowDivergence, "The thread stands at the node %q, which the workflow no longer has.", node).With("threadId", t.row.ID).With("nodeName", node)
	}
	for _, id := range t.ids() {
		k := t.tasks[id]
		if k.Node == "end" || t.p != nil {
			continue
		}
		n, before := now.Nodes[k.Node], t.g.Nodes[k.Node]
		if n == nil || before != nil && (n.Kind != before.Kind || n.Parallel != before.Parallel || n.Branch != before.Branch || n.Kind == "map" && n.Do.Kind != before.Do.Kind) {
			return fault.New(fault.WorkflowDivergence, "The thread stands at the node %q, which the workflow no longer has in this form.", k.Node).
				With("threadId", t.row.ID).With("nodeName", k.Node)
		}
	}
	for key, v := range t.values {
		if now.Keys[key] == nil && string(v.raw) == "null" {
			delete(t.values, key)
		}
	}
	for key, k := range now.Keys {
		if t.values[key] == nil {
			t.values[key] = &value{raw: k.Initial}
			t.size += len(k.Initial)
		}
	}
	for _, v := range t.values {
		v.since = max(v.since, 1) // all bases are written anew: merges may be others
	}
	t.g, t.moved = now, true
	t.row.Digest, t.row.Pin = now.Digest, now.Form.Version
	return nil
}

// unblock checks the version for somebody who resumes the thread.
func (t *thread) unblock(move bool) error {
	if err := t.pinned(move); err != nil {
		return err
	}
	if t.row.Blocked != "" {
		t.row.Blocked = ""
		t.touch()
		t.elapse()
	}
	return nil
}

// touch has the next commit write the thread, also where no task changes.
func (t *thread) touch() {
	t.move()
	t.also = append(t.also, func(*store.Tx) error { return nil })
}

// maxAnswers is how many answers are kept for awaits that have not been reached.
const maxAnswers = 100

// answer gives a value to a wait. kept is set where the wait has not been reached.
func (t *thread) answer(ctx context.Context, req *ResumeRequest, s *Started) error {
	wasBlocked := t.row.Blocked != ""
	if err := t.unblock(req.AllowVersionMismatch); err != nil {
		return err
	}
	raw := req.Value
	if len(raw) == 0 {
		raw = json.RawMessage("null")
	}
	if req.Update != nil || req.Goto != "" {
		if err := t.direct(req); err != nil || req.Goto != "" {
			return err
		}
	}
	name := req.Name
	if name == "" {
		var waits []*task
		for _, id := range t.ids() {
			if k := t.waits[id]; k != nil && (k.Phase == awaiting || k.Phase == asking && t.waitName(k) != "") {
				waits = append(waits, k)
			}
		}
		switch len(waits) {
		case 1:
			name = t.waitName(waits[0])
		case 0:
			if wasBlocked || t.moved {
				return nil // it goes on
			}
			return t.none()
		default:
			names := []string{}
			for _, k := range waits {
				names = append(names, t.waitName(k))
			}
			return fault.New(fault.PauseAmbiguous, "%d waits of the thread can be answered.", len(waits)).With("waiting", names).With("threadId", t.row.ID)
		}
	}
	for _, id := range t.ids() {
		k := t.waits[id]
		if k == nil || t.waitName(k) != name {
			continue
		}
		switch k.Phase {
		case awaiting:
			if err := t.fits(k, raw); err != nil {
				return err
			}
			k.Steps = 0
			t.finish(k, raw)
			return nil
		case asking:
			return t.approve(ctx, k, req, raw, s)
		}
	}
	if !t.g.Awaits(name) {
		return fault.New(fault.PauseNotFound, "No await of the workflow %q has the name %q.", t.row.Workflow, journal.Clip(name, 128)).With("threadId", t.row.ID)
	}
	if !t.ahead(name) {
		return fault.New(fault.ConcurrentResume, "The thread has no wait %q, and does not reach one any more.", journal.Clip(name, 128)).With("threadId", t.row.ID)
	}
	if len(t.answers) >= maxAnswers {
		return fault.New(fault.AnswersFull, "%d answers already wait for their awaits.", maxAnswers).With("threadId", t.row.ID)
	}
	if t.size+len(raw) > t.g.MaxStateBytes {
		return tooLarge(name, t.size+len(raw), t.g.MaxStateBytes).fault()
	}
	seq := 1
	if n := len(t.answers); n > 0 {
		seq = t.answers[n-1].Seq + 1
	}
	a := store.ThreadAnswer{Seq: seq, Name: name, Value: raw}
	t.move()
	t.answers, t.kept = append(t.answers, a), append(t.kept, a)
	t.size += len(raw)
	s.Kept = true
	return nil
}

// ahead reports whether the thread can still reach an await of a name.
func (t *thread) ahead(name string) bool {
	if root := t.frontier(); root != nil {
		return !slices.Contains(root.Graph.Answered, name) // a first answer may come before its wait
	}
	var begin, after []string
	for _, k := range t.tasks {
		switch {
		case k.Phase == ready:
			begin = append(begin, k.Node)
		case k.Phase == open && k.List != nil && len(k.List) > t.members[k.ID]: // elements are still to begin
			begin = append(begin, k.Node)
		default:
			after = append(after, k.Node)
		}
	}
	return t.g.Ahead(name, begin, after)
}

// approve decides an approval with an answer: true, false, or {granted, reason}.
func (t *thread) approve(ctx context.Context, k *task, req *ResumeRequest, raw json.RawMessage, s *Started) error {
	word := run.Decision{ToolCallID: k.Approval.ToolCallID}
	if json.Unmarshal(raw, &word.Granted) != nil {
		var long struct {
			Granted *bool
			Reason  string
		}
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&long); err != nil || long.Granted == nil {
			return fault.Invalid("The request is not valid.", fault.At("must be true, false or {granted, reason}, to decide an approval", "resume"))
		}
		word.Granted, word.Reason = *long.Granted, long.Reason
	}
	if req.MayApprove == nil {
		return fault.New(fault.ScopeDenied, "An approval is decided with the scope workflows:approve:%s.", t.row.Workflow).With("required", "workflows:approve:"+t.row.Workflow)
	}
	if err := req.MayApprove(); err != nil {
		return err
	}
	by, err := t.w.kernel.Decider(ctx, req.By, t.pending())
	if err != nil {
		return err
	}
	d := &decisions{by: by}
	err = t.rule(k, word, d)
	s.Decided = d.made
	return err
}

// none is the error of a resumption where nothing waits.
func (t *thread) none() error {
	return fault.New(fault.ResumeWithoutSuspension, "No wait of the thread can be answered.").With("threadId", t.row.ID).With("runId", t.r.ID()).With("status", t.r.Row.Status)
}

// fits checks an answer against the schema of its await.
func (t *thread) fits(k *task, raw json.RawMessage) error {
	n := t.node(k)
	if n.Schema == nil {
		return nil
	}
	if problems := n.Schema.Validate(raw); len(problems) > 0 {
		f := fault.New(fault.AwaitPayloadInvalid, "The value does not fit what %q awaits.", t.waitName(k))
		for _, p := range problems {
			f.Issues = append(f.Issues, fault.At(p.Message, "resume"))
		}
		return f
	}
	return nil
}

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
	for _, id := range t.ids() {
		k := t.tasks[id]
		if k == nil || k.Phase != asking {
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
	value, err := json.Marshal(map[string]any{"granted": kept.Granted, "by": kept.By, "reason": kept.Reason})
	if err != nil {
		t.fail(k, broken(k.Node, err))
		return
	}
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
	p := &problem{Code: "approval-denied", Message: "The approval was denied."}
	if kept.Reason != "" {
		p.Message = "The approval was denied: " + kept.Reason + "."
	}
	return p
}

// deny denies what nobody has decided in time.
func (t *thread) deny(k *task, kept journal.Decided) {
	t.conclude(k, run.Decision{Reason: kept.Reason}, kept, nil)
}
