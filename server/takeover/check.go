package takeover

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/store"
)

// Limits of what is taken over, beside that of the depth of child runs: what a run shows is built from its steps and
// calls each time somebody looks.
const (
	maxImportSteps = 10_000
	maxImportCalls = 10_000
)

// family is what a state is checked for as a part of another.
type family struct {
	live  bool // a decision lets the run go on
	depth int
	above map[identity]mirror // the approvals of the parent that lead here; nil for a root
}

// identity is what tells pending approvals of a run apart.
type identity struct{ call, path string }

// mirror is an approval as the parent shows it.
type mirror struct {
	*journal.Approval
	path []any // its place in the document
}

// check reports what keeps a state from being taken over, and brings its times and approvals to what they are here.
func (t *takeover) check(st *runstate.State, f family, path []any) {
	bad := func(problem string, name ...any) { t.bad(problem, join(path, name...)...) }
	switch {
	case !event.ValidID(st.ID):
		bad("is no id of a run here: it has 1 to 128 characters of A-Z a-z 0-9 _ -", "id")
	case t.ids[st.ID]:
		bad("is the id of another run in the state", "id")
	}
	t.ids[st.ID] = true
	if f.depth > run.MaxDepth {
		bad(fmt.Sprintf("is a child run nested more than %d deep", run.MaxDepth))
		return
	}
	reg := t.e.Agents().Agent(st.AgentID)
	switch {
	case reg == nil && (f.live || f.depth == 0):
		bad("is no agent that is registered here", "agentId")
	case !event.ValidID(st.AgentID):
		bad("is no id of an agent here: it has 1 to 128 characters of A-Z a-z 0-9 _ -", "agentId")
	case reg != nil && reg.LLM == nil && f.live:
		bad("is no agent of kind llm here, so its run cannot go on from a state", "agentId")
	}
	t.checkTimes(st, path)
	t.checkSteps(st, path)
	t.checkMessages(st, path)
	if f.live && reg != nil && reg.LLM != nil {
		t.instruct(st, reg.LLM.Instructions)
	}
	l := layoutOf(st, f.live)
	if len(l.journal) > maxImportCalls {
		bad(fmt.Sprintf("has more than %d tool calls", maxImportCalls), "messages")
	}
	for i, c := range l.parked {
		switch {
		case c == nil:
			bad("is no tool call in the messages that waits for its outcome", "pendingSubRuns", i, "toolCallId")
		case c.Name != st.PendingSubRuns[i].ToolName:
			bad(fmt.Sprintf("is not %.80q, the tool that the messages name", c.Name), "pendingSubRuns", i, "toolName")
		}
	}
	below := t.checkSubRuns(st, f, path)
	if !f.live {
		return
	}
	for _, i := range l.orphans {
		bad("answers no tool call before it", "messages", i, "toolCallId")
	}
	t.checkOpen(l, path)
	if len(st.PendingApprovals) == 0 {
		bad("is empty, so the run would wait for ever", "pendingApprovals")
	}
	if reg == nil || reg.LLM == nil {
		return
	}
	for i, s := range st.PendingSubRuns {
		if callee := reg.LLM.Callee(s.ToolName); callee == "" {
			bad(fmt.Sprintf("is no tool with which the agent %s calls another agent", reg.ID), "pendingSubRuns", i, "toolName")
		} else if callee != s.State.AgentID {
			bad(fmt.Sprintf("is not %s, the agent that the tool %s calls here", callee, s.ToolName), "pendingSubRuns", i, "state", "agentId")
		}
	}
	t.checkApprovals(st, reg.LLM, l, f, below, path)
}

// checkTimes brings the times to the form that they have here.
func (t *takeover) checkTimes(st *runstate.State, path []any) {
	t.moment(&st.StartedAt, path, "startedAt")
	if st.StartedAt == "" {
		t.bad("is empty", join(path, "startedAt")...)
	}
	if !store.Status(st.Status).Terminal() {
		st.FinishedAt = ""
	}
	t.moment(&st.FinishedAt, path, "finishedAt")
	for i := range st.Steps {
		t.moment(&st.Steps[i].StartedAt, path, "steps", i, "startedAt")
		t.moment(&st.Steps[i].EndedAt, path, "steps", i, "endedAt")
	}
	for i := range st.PendingApprovals {
		t.moment(&st.PendingApprovals[i].RequestedAt, path, "pendingApprovals", i, "requestedAt")
		t.moment(&st.PendingApprovals[i].ExpiresAt, path, "pendingApprovals", i, "expiresAt")
	}
	for i := range st.Handoffs {
		t.moment(&st.Handoffs[i].At, path, "handoffs", i, "at")
	}
}

func (t *takeover) checkSteps(st *runstate.State, path []any) {
	if len(st.Steps) > maxImportSteps {
		t.bad(fmt.Sprintf("has more than %d steps", maxImportSteps), join(path, "steps")...)
		return
	}
	before := 0
	for i, s := range st.Steps {
		if s.StepNumber <= before || s.StepNumber > 1<<20 {
			t.bad(fmt.Sprintf("is not above %d, the number before it", before), join(path, "steps", i, "stepNumber")...)
		}
		before = max(before, s.StepNumber)
		if s.StartedAt == "" {
			t.bad("is empty", join(path, "steps", i, "startedAt")...)
		}
		for _, c := range s.ToolCalls {
			if c.Outcome.ResultHandle != nil {
				t.spills++
			}
		}
	}
}

func (t *takeover) checkMessages(st *runstate.State, path []any) {
	for i, m := range st.Messages {
		switch m.Role {
		case message.System, message.User, message.Assistant, message.Tool:
		default:
			t.bad(fmt.Sprintf("is %.40q; it is system, user, assistant or tool", m.Role), join(path, "messages", i, "role")...)
		}
		if m.Role != message.Assistant && m.ToolCalls != nil {
			t.bad("is there, but only an assistant calls tools", join(path, "messages", i, "toolCalls")...)
		}
		if m.Role != message.System && (m.Withheld || m.Caller) {
			t.bad("is withheld or the caller's, but only a system message can be", join(path, "messages", i)...)
		}
		if m.Withheld {
			t.withheld++
			if m.Content.Text != "" || m.Content.Parts != nil {
				t.bad("is there, but the message is withheld", join(path, "messages", i, "content")...)
			}
		}
		for j, c := range m.ToolCalls {
			if c.ID == "" || c.Name == "" {
				t.bad("has an empty toolCallId or toolName", join(path, "messages", i, "toolCalls", j)...)
			}
		}
	}
}

// instruct puts instructions where the state's own were withheld.
func (t *takeover) instruct(st *runstate.State, instructions string) {
	if len(st.Messages) == 0 || instructions == "" {
		return
	}
	if m := &st.Messages[0]; m.Withheld {
		m.Content, m.Withheld = message.Text(instructions), false
	}
}

// checkOpen reports calls from whose message on nothing tells what became of them. Earlier ones are those of runs that
// ended in the midst of a step.
func (t *takeover) checkOpen(l *layout, path []any) {
	first := -1
	for _, c := range l.journal {
		if c.waits() && (first < 0 || c.asked < first) {
			first = c.asked
		}
	}
	for _, c := range l.dead {
		if first >= 0 && c.asked >= first {
			t.bad("has neither an outcome nor an approval that it waits for", join(path, "messages", c.asked, "toolCalls", c.nth)...)
		}
	}
}

// checkSubRuns checks the child runs and returns their approvals by the calls that they are. Ids can be long and
// approvals many, so the path of an approval is not put together before it is known to be in the state.
func (t *takeover) checkSubRuns(st *runstate.State, f family, path []any) map[string]map[identity]*journal.Approval {
	below := map[string]map[identity]*journal.Approval{}
	above := map[string]map[identity]mirror{}
	if f.live {
		for i := range st.PendingApprovals {
			a := &st.PendingApprovals[i]
			f.stricter(a)
			if head, rest, _ := strings.Cut(a.SubRunToolCallID, "/"); head != "" {
				if above[head] == nil {
					above[head] = map[identity]mirror{}
				}
				above[head][identity{a.ToolCallID, rest}] = mirror{a, join(path, "pendingApprovals", i)}
			}
		}
	}
	seen := map[string]bool{}
	for i := range st.PendingSubRuns {
		s := &st.PendingSubRuns[i]
		at := join(path, "pendingSubRuns", i)
		if seen[s.ToolCallID] || s.ToolCallID == "" || strings.Contains(s.ToolCallID, "/") {
			t.bad("is empty, there twice, or has a slash, which separates calls in the path of an approval", join(at, "toolCallId")...)
		}
		seen[s.ToolCallID] = true
		status := store.Status(s.State.Status)
		if ok := status == store.Awaiting || status.Terminal() && !f.live || status == store.Aborted && st.Status == string(store.Aborted); !ok {
			t.bad(fmt.Sprintf("is %.40q, which it cannot be while the run is %s", status, st.Status), join(at, "state", "status")...)
		}
		s.State.SessionID = st.SessionID
		t.check(&s.State, family{live: f.live, depth: f.depth + 1, above: above[s.ToolCallID]}, join(at, "state"))
		if !f.live {
			continue
		}
		below[s.ToolCallID] = map[identity]*journal.Approval{}
		for j := range s.State.PendingApprovals {
			a := &s.State.PendingApprovals[j]
			below[s.ToolCallID][identity{a.ToolCallID, a.SubRunToolCallID}] = a
		}
	}
	return below
}

// checkApprovals checks that each approval has a call that can be made here, and brings it to what it takes here. below
// are the approvals of child runs, which are ready.
func (t *takeover) checkApprovals(st *runstate.State, a *agent.LLM, l *layout, f family, below map[string]map[identity]*journal.Approval, path []any) {
	seen := map[identity]bool{}
	for i := range st.PendingApprovals {
		p := &st.PendingApprovals[i]
		at := join(path, "pendingApprovals", i)
		id := identity{p.ToolCallID, p.SubRunToolCallID}
		if seen[id] {
			t.bad("is there twice", at...)
			continue
		}
		seen[id] = true
		if p.SubRunToolCallID != "" {
			head, rest, _ := strings.Cut(p.SubRunToolCallID, "/")
			id.path = rest
			leaf := below[head][id]
			if leaf == nil {
				t.bad("leads to no approval of a pending child run", join(at, "subRunToolCallId")...)
				continue
			}
			*p = leaf.Under(head)
			delete(below[head], id)
			continue
		}
		c := l.own[i]
		if c == nil {
			t.bad("is no tool call in the messages that waits for its outcome", join(at, "toolCallId")...)
			continue
		}
		t.checkCall(p, c, a, at)
		t.terms(p, a)
		p.RequestedBy, p.RequestedByAgent = cmp.Or(t.by, run.Anonymous), st.AgentID
	}
	for i, s := range st.PendingSubRuns {
		for j, p := range s.State.PendingApprovals {
			if below[s.ToolCallID][identity{p.ToolCallID, p.SubRunToolCallID}] != nil {
				t.bad("is not among the pending approvals of the run above", join(path, "pendingSubRuns", i, "state", "pendingApprovals", j)...)
			}
		}
	}
	if f.above == nil {
		return
	}
	for _, p := range st.PendingApprovals {
		m, ok := f.above[identity{p.ToolCallID, p.SubRunToolCallID}]
		if ok && (m.ToolName != p.ToolName || !equalJSON(m.Args, p.Args)) {
			t.bad("has another tool or other arguments than in the child run", m.path...)
		}
	}
}

// checkCall checks that a call that waits can be made, and that its approval shows what would be done.
func (t *takeover) checkCall(p *journal.Approval, c *laid, a *agent.LLM, at []any) {
	switch {
	case p.ToolName != c.Name:
		t.bad(fmt.Sprintf("is not %.80q, the tool that the messages name", c.Name), join(at, "toolName")...)
		return
	case !equalJSON(p.Args, c.Args):
		t.bad("are not the arguments that the messages name", join(at, "args")...)
		return
	case hides(c.Args):
		t.bad("were made unreadable where the state comes from, so the call cannot be made with them", join(at, "args")...)
	}
	w := a.Judge(c.ToolCall)
	p.Args = w.Args
	if was := p.ArgsDigest; was != "" && was != journal.ArgsDigest(p.Args) {
		t.bad("is not the digest of the arguments", join(at, "argsDigest")...)
	}
	p.ArgsDigest = journal.ArgsDigest(p.Args)
	if o := w.Refusal; o != nil {
		name := "toolName"
		if o.Kind == message.InvalidInput {
			name = "args"
		}
		t.bad("cannot be called here: "+o.Message, join(at, name)...)
	}
}

// terms brings what an approval takes to the stricter of what the state and the agent here ask for.
func (t *takeover) terms(p *journal.Approval, a *agent.LLM) {
	ours := a.Policy.Complete(journal.Approval{ToolName: p.ToolName}, t.at, t.by)
	t.grants += len(p.GrantedBy)
	p.GrantedBy, p.Imported = nil, true
	p.ExpiresAt = earliest(p.ExpiresAt, ours.ExpiresAt)
	p.ApproversNeeded = max(p.ApproversNeeded, ours.ApproversNeeded)
	if p.NotBy != "" || ours.NotBy != "" {
		p.NotBy = t.by
	}
}

// stricter adds what the parent's mirror of an approval asks for.
func (f family) stricter(p *journal.Approval) {
	if m, ok := f.above[identity{p.ToolCallID, p.SubRunToolCallID}]; ok {
		p.ExpiresAt = earliest(p.ExpiresAt, m.ExpiresAt)
		p.ApproversNeeded = max(p.ApproversNeeded, m.ApproversNeeded)
		p.NotBy = cmp.Or(p.NotBy, m.NotBy)
	}
}

// earliest is the earlier of two times in the form of run states; an empty one is none.
func earliest(a, b string) string {
	if a == "" || b != "" && b < a {
		return b
	}
	return a
}

// equalJSON reports whether two values are the same, whatever the order of members; numbers are compared as written.
func equalJSON(a, b json.RawMessage) bool {
	return bytes.Equal(a, b) || bytes.Equal(ordered(a), ordered(b))
}

// ordered is a value with the members of its objects in order.
func ordered(v json.RawMessage) []byte {
	dec := json.NewDecoder(bytes.NewReader(v))
	dec.UseNumber()
	var x any
	if dec.Decode(&x) != nil {
		return v
	}
	b, _ := json.Marshal(x)
	return b
}

// hides reports whether arguments hold the mark that some writers of states leave in the place of secrets.
func hides(args json.RawMessage) bool { return bytes.Contains(args, []byte(`:"[redacted]"`)) }
