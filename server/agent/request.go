package agent

import (
	"slices"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// What an opaque agent asks for itself is journalled like the calls that a model asks for, as a row of which no message
// tells. The agent makes the call, so the journal follows what it was told instead:
//
//	request: awaiting -- decided --> dispatching ------------> done, with the agent's next checkpoint, request or answer
//	            ^                       |
//	            +-- outcome-unknown ----+ it was granted and handed over (Attempts is 1) by a process that has ended
//
// The grant is marked as handed over in a commit before the agent is called. Whoever drives the run and finds such a
// mark does not know what became of the call, and a person decides again.

// Bounds of the requests that wait in one run.
const (
	maxRequests    = 100
	maxRequestName = 256     // bytes of an id or a name
	maxRequestSize = 1 << 20 // bytes of all arguments and reasons
)

func (s *sink) RequestApproval(q ApprovalRequest) error {
	args, err := message.Encode(q.Args)
	if err != nil {
		return fault.New(fault.AgentProtocol, "The arguments of the call %q are not JSON.", journal.Clip(q.ToolCallID, maxRequestName))
	}
	if args, err = message.Arguments(args); err != nil {
		return fault.New(fault.AgentProtocol, "The arguments of the call %q can be read in more than one way: %v.", journal.Clip(q.ToolCallID, maxRequestName), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.closed:
		return errClosed
	}
	if _, can := s.agent.(Resumer); !can {
		return fault.New(fault.AgentProtocol, "An agent that cannot resume a run cannot ask for an approval.")
	}
	waiting := slices.Concat(s.r.Record.Pending, s.asked)
	size := len(args) + len(q.Reason)
	for _, a := range waiting {
		size += len(a.Args) + len(a.Reason)
	}
	named := func(a journal.Approval) bool { return a.ToolCallID == q.ToolCallID }
	switch {
	case q.ToolCallID == "" || len(q.ToolCallID) > maxRequestName:
		return fault.New(fault.AgentProtocol, "The id of a call has 1 to %d bytes.", maxRequestName)
	case q.ToolName == "" || len(q.ToolName) > maxRequestName:
		return fault.New(fault.AgentProtocol, "The tool's name in the call %q does not have 1 to %d bytes.", q.ToolCallID, maxRequestName)
	case !utf8.ValidString(q.ToolCallID + q.ToolName + q.Reason):
		return fault.New(fault.AgentProtocol, "The call %q is not UTF-8.", q.ToolCallID)
	case slices.ContainsFunc(waiting, named), s.r.Record.CallByID(q.ToolCallID) != nil:
		return fault.New(fault.AgentProtocol, "The run has already asked for a call with the id %q.", q.ToolCallID)
	case len(waiting) == maxRequests:
		return fault.New(fault.AgentProtocol, "%d approvals already wait, the maximum.", maxRequests)
	case size > maxRequestSize:
		return fault.New(fault.AgentProtocol, "The arguments of the call %q and of the waiting calls have more than %d bytes.", q.ToolCallID, maxRequestSize)
	}
	s.asked = append(s.asked, journal.Approval{ToolCallID: q.ToolCallID, ToolName: q.ToolName, Args: args, ArgsDigest: journal.ArgsDigest(args), Reason: q.Reason})
	return nil
}

// await parks a run whose agent has returned with requests.
func await(r *run.Run, asked []journal.Approval, res Result) error {
	if res.Output != nil {
		return fault.New(fault.AgentProtocol, "The agent answered although approvals that it asked for are pending.")
	}
	m := r.Move()
	m.Acknowledge(r)
	return r.Park(m, m.Request(r, asked))
}

// waitOn parks a run again that was taken up while requests wait, or a grant is of unknown outcome.
func waitOn(r *run.Run) (waits bool, err error) {
	if len(r.Record.Calls) == 0 && len(r.Record.Pending) == 0 {
		return false, nil
	}
	m := r.Move()
	pending := m.Doubt(r)
	if len(pending) == 0 {
		return false, nil
	}
	return true, r.Park(m, pending)
}

// deliver prepares what the agent continues from, and marks the grants in it as handed over. It is nil when there is
// neither a checkpoint nor a decision.
func deliver(r *run.Run) (*Resumption, error) {
	decisions, err := r.HandOver()
	if err != nil {
		return nil, err
	}
	from := &Resumption{State: r.Record.Slots[store.CheckpointSlot], Approvals: decisions}
	if from.State == nil && from.Approvals == nil {
		return nil, nil
	}
	return from, nil
}
