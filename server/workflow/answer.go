package workflow

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"agentd/server/canonical"
	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

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
		for _, k := range t.waiting() {
			if k.Phase == awaiting || k.Phase == asking && t.waitName(k) != "" {
				waits = append(waits, k)
			}
		}
		switch len(waits) {
		case 1:
			name = t.waitName(waits[0])
		case 0:
			if wasBlocked || t.moved {
				return nil // it continues
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
	for _, k := range t.waiting() {
		if t.waitName(k) != name {
			continue
		}
		switch k.Phase {
		case awaiting:
			if err := fits(t.node(k), name, raw); err != nil {
				return err
			}
			k.Steps = 0
			t.finish(k, raw)
			return nil
		case asking:
			return t.approve(ctx, k, req, raw, s)
		}
	}
	awaits := t.g.Awaits(name)
	if len(awaits) == 0 {
		return fault.New(fault.PauseNotFound, "No await of the workflow %q has the name %q.", t.row.Workflow, journal.Clip(name, 128)).With("threadId", t.row.ID)
	}
	if !slices.ContainsFunc(awaits, func(n *graph.Node) bool { return fits(n, name, raw) == nil }) {
		return fits(awaits[0], name, raw)
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

// fits checks an answer against the schema of an await.
func fits(n *graph.Node, name string, raw json.RawMessage) error {
	f := fault.New(fault.AwaitPayloadInvalid, "The value does not fit what %q awaits.", name)
	if canonical.Deeper(raw, expr.MaxDepth) >= 0 {
		f.Issues = append(f.Issues, fault.At(fmt.Sprintf("is nested more than %d levels deep", expr.MaxDepth), "resume"))
	} else if n.Schema != nil {
		for _, p := range n.Schema.Validate(raw) {
			f.Issues = append(f.Issues, fault.At(p.Message, "resume"))
		}
	}
	if f.Issues != nil {
		return f
	}
	return nil
}
