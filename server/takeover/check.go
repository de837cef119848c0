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

// A place is a part of the document, where problems are reported.
type place struct {
	*takeover
	path []any
}

func (p place) at(more ...any) place {
	return place{p.takeover, append(p.path[:len(p.path):len(p.path)], more...)}
}

func (p place) bad(problem string, more ...any) { p.takeover.bad(problem, p.at(more...).path...) }

const invalidID = " here: it has 1 to 128 characters of A-Z a-z 0-9 _ -"

// check reports what keeps a state from being taken over, and brings its times and approvals to their form here. live says
// that a decision lets the run continue; depth is how deep the run lies below the root.
func (p place) check(st *runstate.State, live bool, depth int) {
	switch {
	case !event.ValidID(st.ID):
		p.bad("is no id of a run"+invalidID, "id")
	case p.ids[st.ID]:
		p.bad("is the id of another run in the state", "id")
	}
	p.ids[st.ID] = true
	if depth > run.MaxDepth {
		p.bad(fmt.Sprintf("is a child run nested more than %d deep", run.MaxDepth))
		return
	}
	reg := p.e.Agents().Agent(st.AgentID)
	switch {
	case reg == nil && (live || depth == 0):
		p.bad("is no agent that is registered here", "agentId")
	case !event.ValidID(st.AgentID):
		p.bad("is no id of an agent"+invalidID, "agentId")
	case reg != nil && reg.LLM == nil && live:
		p.bad("is no agent of kind llm here, so its run cannot continue from a state", "agentId")
	}
	var llm *agent.LLM
	if live && reg != nil {
		llm = reg.LLM
	}
	p.checkTimes(st)
	p.checkSteps(st)
	p.checkMessages(st)
	if llm != nil && len(st.Messages) > 0 && st.Messages[0].Withheld && llm.Instructions != "" {
		st.Messages[0].Content, st.Messages[0].Withheld = message.Text(llm.Instructions), false
	}
	l := layoutOf(st, live)
	if len(l.journal) > maxImportCalls {
		p.bad(fmt.Sprintf("has more than %d tool calls", maxImportCalls), "messages")
	}
	for i, c := range l.parked {
		switch {
		case c == nil:
			p.bad("is no tool call in the messages that waits for its outcome", "pendingSubRuns", i, "toolCallId")
		case c.Name != st.PendingSubRuns[i].ToolName:
			p.bad(fmt.Sprintf("is not %.80q, the tool that the messages name", c.Name), "pendingSubRuns", i, "toolName")
		}
	}
	var leaves []*message.Approval
	if live {
		leaves = leavesOf(st)
	}
	p.checkSubRuns(st, live, depth)
	if !live {
		return
	}
	for _, i := range l.orphans {
		p.bad("answers no tool call before it", "messages", i, "toolCallId")
	}
	p.checkOpen(l)
	if len(st.PendingApprovals) == 0 {
		p.bad("is empty, so the run would wait for ever", "pendingApprovals")
	}
	if llm == nil {
		return
	}
	for i, s := range st.PendingSubRuns {
		if callee := llm.Callee(s.ToolName); callee == "" {
			p.bad(fmt.Sprintf("is no tool with which the agent %s calls another agent", reg.ID), "pendingSubRuns", i, "toolName")
		} else if callee != s.State.AgentID {
			p.bad(fmt.Sprintf("is not %s, the agent that the tool %s calls here", callee, s.ToolName), "pendingSubRuns", i, "state", "agentId")
		}
	}
	p.checkApprovals(st, llm, l, leaves)
}

// checkTimes brings the times to the form that they have here.
func (p place) checkTimes(st *runstate.State) {
	p.moment(&st.StartedAt, "startedAt")
	if st.StartedAt == "" {
		p.bad("is empty", "startedAt")
	}
	if !store.Status(st.Status).Terminal() {
		st.FinishedAt = ""
	}
	p.moment(&st.FinishedAt, "finishedAt")
	for i := range st.Steps {
		p.moment(&st.Steps[i].StartedAt, "steps", i, "startedAt")
		p.moment(&st.Steps[i].EndedAt, "steps", i, "endedAt")
	}
	for i := range st.PendingApprovals {
		p.moment(&st.PendingApprovals[i].RequestedAt, "pendingApprovals", i, "requestedAt")
		p.moment(&st.PendingApprovals[i].ExpiresAt, "pendingApprovals", i, "expiresAt")
	}
	for i := range st.Handoffs {
		p.moment(&st.Handoffs[i].At, "handoffs", i, "at")
	}
}

// moment brings one time to the form that it has here; an empty one stays.
func (p place) moment(text *string, name ...any) {
	if *text == "" {
		return
	}
	at := journal.Millis(*text)
	if at <= 0 || at > latest {
		p.bad(fmt.Sprintf("is no time: %.40q", *text), name...)
		return
	}
	*text = message.Millis(at)
}

// latest is the last millisecond of the year 9999.
const latest = 253402300799999

func (p place) checkSteps(st *runstate.State) {
	if len(st.Steps) > maxImportSteps {
		p.bad(fmt.Sprintf("has more than %d steps", maxImportSteps), "steps")
		return
	}
	before := 0
	for i, s := range st.Steps {
		if s.StepNumber <= before || s.StepNumber > 1<<20 {
			p.bad(fmt.Sprintf("is not above %d, the number before it", before), "steps", i, "stepNumber")
		}
		before = max(before, s.StepNumber)
		if s.StartedAt == "" {
			p.bad("is empty", "steps", i, "startedAt")
		}
		for _, c := range s.ToolCalls {
			if c.Outcome.ResultHandle != nil {
				p.spills++
			}
		}
	}
}

func (p place) checkMessages(st *runstate.State) {
	for i, m := range st.Messages {
		at := p.at("messages", i)
		switch m.Role {
		case message.System, message.User, message.Assistant, message.Tool:
		default:
			at.bad(fmt.Sprintf("is %.40q; it is system, user, assistant or tool", m.Role), "role")
		}
		if m.Role != message.Assistant && m.ToolCalls != nil {
			at.bad("is there, but only an assistant calls tools", "toolCalls")
		}
		if m.Role != message.System && (m.Withheld || m.Caller) {
			at.bad("is withheld or the caller's, but only a system message can be")
		}
		if m.Withheld {
			p.withheld++
			if m.Content.Text != "" || m.Content.Parts != nil {
				at.bad("is there, but the message is withheld", "content")
			}
		}
		for j, c := range m.ToolCalls {
			if c.ID == "" || c.Name == "" {
				at.bad("has an empty toolCallId or toolName", "toolCalls", j)
			}
		}
	}
}

// checkOpen reports calls without an outcome in the messages from the first call on that waits. Earlier ones belong to runs
// that ended in the midst of a step.
func (p place) checkOpen(l *layout) {
	first := -1
	for _, c := range l.journal {
		if c.waits() && (first < 0 || c.asked < first) {
			first = c.asked
		}
	}
	for _, c := range l.dead {
		if first >= 0 && c.asked >= first {
			p.bad("has neither an outcome nor an approval that it waits for", "messages", c.asked, "toolCalls", c.nth)
		}
	}
}

func (p place) checkSubRuns(st *runstate.State, live bool, depth int) {
	seen := map[string]bool{}
	for i := range st.PendingSubRuns {
		s := &st.PendingSubRuns[i]
		at := p.at("pendingSubRuns", i)
		if seen[s.ToolCallID] || s.ToolCallID == "" || strings.Contains(s.ToolCallID, "/") {
			at.bad("is empty, there twice, or has a slash, which separates calls in the path of an approval", "toolCallId")
		}
		seen[s.ToolCallID] = true
		status := store.Status(s.State.Status)
		if ok := status == store.Awaiting || status.Terminal() && !live || status == store.Aborted && st.Status == string(store.Aborted); !ok {
			at.bad(fmt.Sprintf("is %.40q, which it cannot be while the run is %s", status, st.Status), "state", "status")
		}
		s.State.SessionID = st.SessionID
		at.at("state").check(&s.State, live, depth+1)
	}
}

// identity identifies a pending approval within a run.
type identity struct{ call, path string }

// leavesOf returns, for each approval that the run shows, the approval in the child run below it, with the stricter terms of
// both; nil for the run's own approvals, and if the child run has no such approval. It builds no path, since ids can be
// long and approvals many.
func leavesOf(st *runstate.State) []*message.Approval {
	below := map[string]map[identity]*message.Approval{}
	for i := range st.PendingSubRuns {
		s := &st.PendingSubRuns[i]
		byID := map[identity]*message.Approval{}
		for j := range s.State.PendingApprovals {
			a := &s.State.PendingApprovals[j]
			byID[identity{a.ToolCallID, a.SubRunToolCallID}] = a
		}
		below[s.ToolCallID] = byID
	}
	leaves := make([]*message.Approval, len(st.PendingApprovals))
	for i, a := range st.PendingApprovals {
		head, rest, _ := strings.Cut(a.SubRunToolCallID, "/")
		if leaf := below[head][identity{a.ToolCallID, rest}]; leaf != nil && head != "" {
			leaves[i] = leaf
			stricter(leaf, a)
		}
	}
	return leaves
}

// checkApprovals checks that each approval has a call that can be made here, and brings it to its form here. leaves are
// the approvals of child runs, which have that form.
func (p place) checkApprovals(st *runstate.State, llm *agent.LLM, l *layout, leaves []*message.Approval) {
	seen := map[identity]bool{}
	shown := map[*message.Approval]bool{}
	for i := range st.PendingApprovals {
		a, leaf := &st.PendingApprovals[i], leaves[i]
		at := p.at("pendingApprovals", i)
		id := identity{a.ToolCallID, a.SubRunToolCallID}
		switch {
		case seen[id]:
			at.bad("is there twice")
		case leaf != nil:
			if shown[leaf] = true; leaf.ToolName != a.ToolName || !sameArgs(leaf.Args, a.Args) {
				at.bad("has another tool or other arguments than in the child run")
			}
			head, _, _ := strings.Cut(a.SubRunToolCallID, "/")
			*a = leaf.Under(head)
		case a.SubRunToolCallID != "":
			at.bad("leads to no approval of a pending child run", "subRunToolCallId")
		case l.own[i] == nil:
			at.bad("is no tool call in the messages that waits for its outcome", "toolCallId")
		default:
			at.checkCall(a, l.own[i], llm)
			p.grants += len(a.GrantedBy)
			a.GrantedBy, a.Imported = nil, true
			stricter(a, llm.Policy.Tools[a.ToolName].Complete(message.Approval{ToolName: a.ToolName}, p.now, p.by))
			if a.NotBy != "" {
				a.NotBy = p.by
			}
			a.RequestedBy, a.RequestedByAgent = p.by, st.AgentID
		}
		seen[id] = true
	}
	for i := range st.PendingSubRuns {
		below := st.PendingSubRuns[i].State.PendingApprovals
		for j := range below {
			if !shown[&below[j]] {
				p.bad("is not among the pending approvals of the run above", "pendingSubRuns", i, "state", "pendingApprovals", j)
			}
		}
	}
}

// checkCall checks that a call that waits can be made, and that its approval shows what would be done.
func (p place) checkCall(a *message.Approval, c *laid, llm *agent.LLM) {
	switch {
	case a.ToolName != c.Name:
		p.bad(fmt.Sprintf("is not %.80q, the tool that the messages name", c.Name), "toolName")
		return
	case !sameArgs(a.Args, c.Args):
		p.bad("are not the arguments that the messages name", "args")
		return
	case hides(c.Args):
		p.bad("were made unreadable where the state comes from, so the call cannot be made with them", "args")
	}
	w := llm.Judge(c.ToolCall)
	a.Args = w.Args
	digest := journal.ArgsDigest(a.Args)
	if cmp.Or(a.ArgsDigest, digest) != digest {
		p.bad("is not the digest of the arguments", "argsDigest")
	}
	a.ArgsDigest = digest
	if o := w.Refusal; o != nil {
		name := "toolName"
		if o.Kind == message.InvalidInput {
			name = "args"
		}
		p.bad("cannot be called here: "+o.Message, name)
	}
}

// stricter adds the terms of another approval.
func stricter(a *message.Approval, other message.Approval) {
	if b := other.ExpiresAt; a.ExpiresAt == "" || b != "" && journal.Millis(b) < journal.Millis(a.ExpiresAt) {
		a.ExpiresAt = b
	}
	a.ApproversNeeded = max(a.ApproversNeeded, other.ApproversNeeded)
	a.NotBy = cmp.Or(a.NotBy, other.NotBy)
}

func sameArgs(a, b json.RawMessage) bool { return journal.ArgsDigest(a) == journal.ArgsDigest(b) }

// hides reports whether arguments hold the mark that some writers of states leave in the place of secrets.
func hides(args json.RawMessage) bool { return bytes.Contains(args, []byte(`:"[redacted]"`)) }
