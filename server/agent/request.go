package agent

import (
	"cmp"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tool"
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

// requested reports whether an opaque agent asked for a call itself.
func requested(c store.Call) bool { return c.Asked < 0 }

// openRequest is one that waits, or whose decision the agent has not acted upon.
func openRequest(c store.Call) bool { return requested(c) && c.Phase != store.CallDone }

func (s *sink) RequestApproval(q ApprovalRequest) error {
	args, err := message.Encode(q.Args)
	if err != nil {
		return fault.New(fault.AgentProtocol, "The arguments of the call %q are not JSON.", clip(q.ToolCallID, maxRequestName))
	}
	if args, err = tool.Canonical(args); err != nil {
		return fault.New(fault.AgentProtocol, "The arguments of the call %q can be read in more than one way: %v.", clip(q.ToolCallID, maxRequestName), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.closed:
		return errClosed
	}
	if _, can := s.r.reg.Agent.(Resumer); !can {
		return fault.New(fault.AgentProtocol, "An agent that cannot resume a run cannot ask for an approval.")
	}
	waiting := slices.Concat(s.r.rec.pending, s.asked)
	size := len(args) + len(q.Reason)
	for _, a := range waiting {
		size += len(a.Args) + len(a.Reason)
	}
	named := func(a Approval) bool { return a.ToolCallID == q.ToolCallID }
	switch {
	case q.ToolCallID == "" || len(q.ToolCallID) > maxRequestName:
		return fault.New(fault.AgentProtocol, "The id of a call has 1 to %d bytes.", maxRequestName)
	case q.ToolName == "" || len(q.ToolName) > maxRequestName:
		return fault.New(fault.AgentProtocol, "The tool's name in the call %q has not 1 to %d bytes.", q.ToolCallID, maxRequestName)
	case !utf8.ValidString(q.ToolCallID + q.ToolName + q.Reason):
		return fault.New(fault.AgentProtocol, "The call %q is not told in UTF-8.", q.ToolCallID)
	case slices.ContainsFunc(waiting, named), s.r.rec.callByID(q.ToolCallID) != nil:
		return fault.New(fault.AgentProtocol, "The run has asked for a call with the id %q before.", q.ToolCallID)
	case len(waiting) == maxRequests:
		return fault.New(fault.AgentProtocol, "%d approvals wait already, and no more can.", maxRequests)
	case size > maxRequestSize:
		return fault.New(fault.AgentProtocol, "The arguments of the call %q and of those that wait have more than %d bytes.", q.ToolCallID, maxRequestSize)
	}
	s.asked = append(s.asked, Approval{ToolCallID: q.ToolCallID, ToolName: q.ToolName, Args: args, ArgsDigest: ArgsDigest(args), Reason: q.Reason})
	return nil
}

// request adds requests to a move and returns all that wait then.
func (m *move) request(r *run, asked []Approval) []Approval {
	pending := slices.Clone(r.rec.pending)
	for _, a := range asked {
		a.RequestedAt, a.RequestedBy, a.RequestedByAgent = message.Millis(m.at), cmp.Or(r.row.StartedBy, anonymous), r.row.Owner
		hash, canonical := digest(a.Args)
		m.calls = append(m.calls, store.Call{Index: m.row.Calls, ID: a.ToolCallID, Name: a.ToolName, Phase: store.CallAwaiting,
			ArgsHash: hash, Canonical: canonical, Asked: -1, Answered: -1, Claimed: m.at})
		m.row.Calls++
		m.sayRequested(a)
		pending = append(pending, a)
	}
	return pending
}

// await parks a run whose agent has returned with requests.
func (r *run) await(asked []Approval, res Result) error {
	if res.Output != nil {
		return fault.New(fault.AgentProtocol, "The agent gave an answer although approvals that it asked for are pending.")
	}
	m := r.move()
	m.acknowledge(r)
	return r.park(m, m.request(r, asked))
}

func (r *run) park(m *move, pending []Approval) error {
	m.row.Status = store.Awaiting
	return r.commitEnd(m, pending)
}

// waitOn parks a run again that was taken up while requests wait, or a grant is of unknown outcome.
func (r *run) waitOn() (waits bool, err error) {
	m, pending := r.move(), slices.Clone(r.rec.pending)
	unknown := func(a Approval) bool {
		c := r.rec.callByID(a.ToolCallID)
		return c != nil && c.Phase == store.CallDispatching && c.Attempts > 0
	}
	for _, a := range r.rec.granted {
		if !unknown(a) {
			continue
		}
		c := *r.rec.callByID(a.ToolCallID)
		c.Phase, c.Reason, c.Attempts = store.CallAwaiting, OutcomeUnknown, 0
		m.calls = append(m.calls, c)
		again := r.asks(&c, a.Args, m.at)
		m.sayRequested(again)
		pending = append(pending, again)
	}
	if len(pending) == 0 {
		return false, nil
	}
	if len(m.calls) > 0 {
		m.keepGranted(slices.DeleteFunc(slices.Clone(r.rec.granted), unknown))
	}
	return true, r.park(m, pending)
}

// deliver prepares what the agent goes on from, and marks the grants in it as handed over. It is nil when there is
// neither a checkpoint nor a decision.
func (opaque) deliver(r *run) (*Resumption, error) {
	from := &Resumption{State: r.rec.checkpoint}
	m := r.move()
	for _, c := range r.rec.calls {
		if !requested(c) || c.Phase != store.CallDispatching {
			continue
		}
		var d Decided
		if err := json.Unmarshal(c.Decision, &d); err != nil {
			return nil, err
		}
		word := Decision{ToolCallID: c.ID, Granted: d.Granted}
		switch {
		case d.Granted:
			c.Attempts = 1
			m.calls = append(m.calls, c)
		case c.Reason == OutcomeUnknown:
			word.Reason = denied(&c, d.Reason, serverStopped).Message
		default:
			word.Reason = d.Reason
		}
		from.Approvals = append(from.Approvals, word)
	}
	if from.State == nil && from.Approvals == nil {
		return nil, nil
	}
	if len(m.calls) > 0 {
		if err := r.commit(m); err != nil {
			return nil, err
		}
	}
	return from, nil
}

// acknowledge settles the decisions that the agent was told: it has gone on since.
func (m *move) acknowledge(r *run) {
	for _, c := range r.rec.calls {
		if requested(c) && c.Phase == store.CallDispatching {
			m.calls = append(m.calls, acknowledged(c, m.at))
		}
	}
	if len(r.rec.granted) > 0 {
		m.keepGranted(nil)
	}
}

func acknowledged(c store.Call, at int64) store.Call {
	c.Phase, c.Settled, c.Reason, c.Reported = store.CallDone, at, "", true
	return c
}

func (m *move) keepGranted(list []Approval) {
	m.granted = list
	kept, _ := message.Encode(list)
	m.slot(store.GrantedSlot, kept)
}
