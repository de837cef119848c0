package workflow

import (
	"agentd/server/fault"
	"agentd/server/run"
)

// direct writes channels of a Go graph from outside and sends it to another node, as a resumption asks for. The thread must
// wait: a directive does not reach into what runs.
func (t *thread) direct(req *ResumeRequest) error {
	root := t.frontier()
	if root == nil {
		return fault.Invalid("Only workflows written in Go take an update or another node.", fault.At("is for workflows written in Go", "goto"))
	}
	for _, k := range t.tasks {
		if k.busy() || req.Goto != "" && (k.Phase == hosting || k.doubtful()) {
			return fault.New(fault.ThreadOpen, "The node %q of the thread is active.", t.label(k)).With("threadId", t.row.ID).With("runId", t.r.ID()).
				Advise("Wait until it has ended, or abort the run.")
		}
	}
	s := &superstep{program: t.p, frontier: *root.Graph, state: t.held()}
	if req.Goto != "" {
		if err := s.goTo(req.Goto, t.nextID); err != nil {
			return err
		}
	}
	changes, err := s.update(req.Update)
	if err != nil {
		return err
	}
	if req.Goto != "" {
		for _, id := range t.ids() {
			k := t.tasks[id]
			if k == root {
				continue
			}
			if k.Phase == asking {
				t.move().SayDecided(k.Approval.ToolCallID, "", run.Decision{Reason: "a directive continues elsewhere"}, req.By)
			}
			if k.Phase != done { // else it is an entry of a journal
				t.said(k, "withdrawn")
			}
			t.drop(k)
		}
	}
	t.merged(root, byDirective, changes)
	if req.Goto != "" {
		t.plan(root, s)
		return nil
	}
	*root.Graph = s.frontier
	t.change(root)
	return nil
}
