package runstate

import (
	"cmp"
	"strings"

	"agentd/server/message"
)

// state reads the state of the run or of a pending child run of it.
func (r *reader) state(v value) (s State) {
	outer := *r
	r.base, r.extra, r.depth = len(r.path), nil, outer.depth+1
	defer func() { r.base, r.extra, r.depth = outer.base, outer.extra, outer.depth }()
	if outer.depth > maxDepth {
		r.bad("is a child run nested too deeply")
		return s
	}
	r.object(v, func(f fields) {
		old, ok := r.version(f)
		if !ok {
			return
		}
		s.Version = Version
		s.ID = need(r, f, "id", r.text)
		s.AgentID = need(r, f, "agentId", r.text)
		s.CurrentAgentID = cmp.Or(may(r, f, "currentAgentId", r.text), s.AgentID)
		s.SessionID = need(r, f, "sessionId", r.text)
		s.UserID = textOr(f, "userId", "")
		s.Status = need(r, f, "status", r.text)
		s.Steps = need(r, f, "steps", r.steps)
		for i := range s.Steps {
			s.Steps[i].AgentID = cmp.Or(s.Steps[i].AgentID, s.AgentID)
		}
		s.Messages = need(r, f, "messages", r.messages)
		approvals, handoffs := need[[]message.Approval], need[[]Handoff]
		if old {
			approvals, handoffs = may[[]message.Approval], may[[]Handoff]
		}
		if s.PendingApprovals = approvals(r, f, "pendingApprovals", r.approvals); s.PendingApprovals == nil {
			s.PendingApprovals = []message.Approval{}
		}
		if s.Handoffs = handoffs(r, f, "handoffs", r.handoffs); s.Handoffs == nil {
			s.Handoffs = []Handoff{}
		}
		s.Usage = need(r, f, "usage", r.usage)
		if s.UsageByModel = may(r, f, "usageByModel", r.usageByModel); s.UsageByModel == nil {
			s.UsageByModel = map[string]message.ModelUsage{s.AgentID: {Usage: s.Usage, AttemptCount: 1}}
		}
		s.TaintSummary = maybe(r, f, "taintSummary", r.taint)
		s.PromotedTools = orNil(may(r, f, "promotedTools", r.onlyTexts))
		s.Todos = orNil(may(r, f, "todos", r.todos))
		s.PendingSubRuns = orNil(may(r, f, "pendingSubRuns", r.subRuns))
		s.StartedAt = need(r, f, "startedAt", r.text)
		s.FinishedAt = textOr(f, "finishedAt", "")
		s.Error = maybe(r, f, "error", r.failure)
	})
	s.Extra = r.extra
	return s
}

// version reads the label. It reports whether it is 1.0 or older, and whether the rest can be read.
func (r *reader) version(f fields) (old, ok bool) {
	numbers, labelled := strings.CutPrefix(textOr(f, "version", ""), "svc-run-state/")
	major, minor, _ := strings.Cut(numbers, ".")
	if !labelled || !digits(major) || !digits(minor) {
		r.bad("is not svc-run-state/ and a version such as 1.2", "version")
		return false, false
	}
	switch strings.TrimLeft(major, "0") {
	case "":
		return true, true
	case "1":
		return strings.TrimLeft(minor, "0") == "", true
	}
	r.unsupported = true
	r.bad("is a version that this program does not know", "version")
	return false, false
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// textOr takes a member that counts only when it is a string.
func textOr(f fields, name, fallback string) string {
	if v := f.take(name); v != "" && v.isString() {
		return v.text()
	}
	return fallback
}

func (r *reader) steps(v value) []Step { return list(r, v, nil, r.step) }

func (r *reader) step(v value) (s Step) {
	r.object(v, func(f fields) {
		s.StepNumber = need(r, f, "stepNumber", r.whole)
		s.StartedAt = need(r, f, "startedAt", r.text)
		s.EndedAt = may(r, f, "endedAt", r.text)
		s.Usage = maybe(r, f, "usage", r.usage)
		s.ToolCalls = need(r, f, "toolCalls", r.completedCalls)
		s.AgentID = may(r, f, "agentId", r.text)
		s.ProviderResponse = maybe(r, f, "providerResponse", r.response)
	})
	return s
}

func (r *reader) completedCalls(v value) []CompletedCall { return list(r, v, nil, r.completedCall) }

func (r *reader) completedCall(v value) (c CompletedCall) {
	r.object(v, func(f fields) {
		c.Call = need(r, f, "call", r.call)
		c.Outcome = need(r, f, "outcome", r.outcome)
		c.StepNumber = need(r, f, "stepNumber", r.whole)
	})
	return c
}

func (r *reader) response(v value) (p ProviderResponse) {
	r.object(v, func(f fields) {
		p.ModelID = need(r, f, "modelId", r.text)
		p.Text = may(r, f, "text", r.text)
		p.ToolCalls = orNil(may(r, f, "toolCalls", r.calls))
	})
	return p
}

func (r *reader) approvals(v value) []message.Approval { return list(r, v, approvalIDs, r.approval) }

func (r *reader) approval(v value) (a message.Approval) {
	r.object(v, func(f fields) {
		a.ToolCallID = need(r, f, "toolCallId", r.text)
		a.ToolName = need(r, f, "toolName", r.text)
		a.Args = r.args(f)
		a.Reason = may(r, f, "reason", r.text)
		a.RequestedAt = need(r, f, "requestedAt", r.text)
		a.RequestedBy = may(r, f, "requestedBy", r.text)
		a.RequestedByAgent = may(r, f, "requestedByAgent", r.text)
		a.Previous = maybe(r, f, "previous", r.previous)
		a.SubRunToolCallID = may(r, f, "subRunToolCallId", r.text)
		a.ExpiresAt = may(r, f, "expiresAt", r.text)
		a.GrantedBy = orNil(may(r, f, "grantedBy", r.texts))
		a.ApproversNeeded = may(r, f, "approversNeeded", r.whole)
		a.NotBy = may(r, f, "notBy", r.text)
		a.Imported = may(r, f, "imported", r.flag)
		a.ArgsDigest = may(r, f, "argsDigest", r.text)
	})
	return a
}

func (r *reader) previous(v value) (p message.Previous) {
	r.object(v, func(f fields) {
		p.Attempts = need(r, f, "attempts", r.whole)
		p.BegunAt = need(r, f, "begunAt", r.text)
		p.Known = need(r, f, "known", r.text)
	})
	return p
}

func (r *reader) handoffs(v value) []Handoff { return list(r, v, nil, r.handoff) }

func (r *reader) handoff(v value) (h Handoff) {
	r.object(v, func(f fields) {
		h.FromAgentID = need(r, f, "fromAgentId", r.text)
		h.ToAgentID = need(r, f, "toAgentId", r.text)
		h.StepNumber = need(r, f, "stepNumber", r.whole)
		h.At = need(r, f, "at", r.text)
		h.Reason = may(r, f, "reason", r.text)
		h.InputFilter = maybe(r, f, "inputFilter", r.filter)
		h.SecretsInheritance = may(r, f, "secretsInheritance", r.text)
		h.InheritedSecrets = may(r, f, "inheritedSecrets", r.texts)
		h.SecretsOverrideReason = may(r, f, "secretsOverrideReason", r.text)
	})
	return h
}

func (r *reader) filter(v value) (i InputFilter) {
	r.object(v, func(f fields) {
		i.Kind = need(r, f, "kind", r.text)
		i.Meta = anything(f, "meta")
	})
	return i
}

// subRuns drops what names no call.
func (r *reader) subRuns(v value) []SubRun {
	return some(r, v, subRunIDs, func(e value) bool { return hasTexts(e, "toolCallId", "toolName") }, r.subRun)
}

func (r *reader) subRun(v value) (s SubRun) {
	r.object(v, func(f fields) {
		s.ToolCallID = need(r, f, "toolCallId", r.text)
		s.ToolName = need(r, f, "toolName", r.text)
		s.TargetAgentName = textOr(f, "targetAgentName", s.ToolName)
		s.State = need(r, f, "state", r.state)
	})
	return s
}

// taint counts only what is plainly said: true, and lists of strings.
func (r *reader) taint(v value) (t Taint) {
	r.object(v, func(f fields) {
		t.UntrustedSeen = f.take("untrustedSeen") == "true"
		t.SensitiveSeen = f.take("sensitiveSeen") == "true"
		if t.UntrustedSourceKinds = may(r, f, "untrustedSourceKinds", r.onlyTexts); t.UntrustedSourceKinds == nil {
			t.UntrustedSourceKinds = []string{}
		}
		t.SpanTileHashes = orNil(may(r, f, "spanTileHashes", r.onlyTexts))
	})
	return t
}

// onlyTexts drops what is no string.
func (r *reader) onlyTexts(v value) []string { return some(r, v, nil, value.isString, r.text) }

// todos drops what is not made of three strings.
func (r *reader) todos(v value) []Todo {
	return some(r, v, todoIDs, func(e value) bool { return hasTexts(e, "id", "content", "status") }, r.todo)
}

func (r *reader) todo(v value) (t Todo) {
	r.object(v, func(f fields) {
		t = Todo{ID: r.text(f.take("id")), Content: r.text(f.take("content")), Status: r.text(f.take("status"))}
	})
	return t
}

// hasTexts reports whether v is an object in which all these members are strings.
func hasTexts(v value, names ...string) bool {
	if !v.isObject() {
		return false
	}
	for _, name := range names {
		if m := v.member(name); m == "" || !m.isString() {
			return false
		}
	}
	return true
}

// failure reads why the run failed. Old writers left out what they did not know.
func (r *reader) failure(v value) (e message.RunError) {
	r.object(v, func(f fields) {
		e.Message = textOr(f, "message", "unknown")
		e.Code = textOr(f, "code", "unknown")
		e.Hint = may(r, f, "hint", r.text)
		e.Details = anything(f, "details")
	})
	return e
}
