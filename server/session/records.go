package session

import (
	"cmp"
	"time"

	"agentd/server/event"
	"agentd/server/message"
	"agentd/server/transcript"
	"agentd/store"
)

func (a *archiveReader) takeSession(l sessionLine) {
	if a.session.ID != "" {
		a.problem("is a second session")
		return
	}
	if !event.ValidID(l.ID) {
		a.problem("has an invalid id: want 1 to 128 characters of A-Z a-z 0-9 _ -")
	}
	if l.UserID == "" || l.AgentID == "" {
		a.problem("has no userId or no agentId")
	}
	a.session = store.Session{ID: cmp.Or(l.ID, "-"), User: l.UserID, Agent: l.AgentID, Title: l.Title, Tags: l.Tags,
		Created: a.time("createdAt", l.CreatedAt), Updated: a.timeOrNone("updatedAt", l.UpdatedAt), Closed: a.timeOrNone("closedAt", l.ClosedAt)}
}

func (a *archiveReader) takeAgent(l agentLine) {
	if l.ID == "" {
		a.problem("has no id")
	}
}

func (a *archiveReader) takeHandoff(l handoffLine) {
	a.of(l.SessionID)
	if l.FromAgentID == "" || l.ToAgentID == "" {
		a.problem("has no fromAgentId or no toAgentId")
	}
	at := a.time("at", l.At)
	body, err := message.Encode(l.Transfer)
	if err != nil {
		a.problem("cannot be kept: %v", err)
	}
	a.handoffs = append(a.handoffs, store.Handoff{Index: len(a.handoffs), At: at, Body: body})
}

// of checks that a record belongs to the session.
func (a *archiveReader) of(sessionID string) {
	switch {
	case a.session.ID == "":
		a.problem("comes before the session")
	case sessionID != a.session.ID:
		a.problem("belongs to another session")
	}
}

// time reads a time from 1970 to 9999. Anything else is a problem.
func (a *archiveReader) time(name, text string) int64 {
	t, err := time.Parse(time.RFC3339, text)
	if t = t.UTC(); err != nil || t.Year() < 1970 || t.Year() > 9999 {
		a.problem("has an invalid time in %s: %.40q", name, text)
		return 0
	}
	return t.UnixMilli()
}

func (a *archiveReader) timeOrNone(name, text string) int64 {
	if text == "" {
		return 0
	}
	return a.time(name, text)
}

func (a *archiveReader) takeMessage(l messageLine) {
	a.of(l.SessionID)
	if l.Sequence <= a.sequence || l.Sequence >= maxSequence {
		a.problem("has the sequence %d after %d", l.Sequence, a.sequence)
	}
	a.sequence = max(a.sequence, l.Sequence)
	a.at = a.time("createdAt", cmp.Or(l.CreatedAt, l.PersistedAt))
	a.leftOut = l.LeftOut
	if l.LeftOut != "" && l.LeftOut != store.Failed && l.LeftOut != store.Aborted {
		a.problem("has leftOut %.20q, want failed or aborted", l.LeftOut)
	}
	msg := l.Message
	if l.Role != "" && l.Role != msg.Role {
		a.problem("has the role %.20q, but its message %.20q", l.Role, msg.Role)
	}
	switch {
	case l.DeletedAt != "":
		a.notes["Deleted messages left out"]++
		return
	case msg.Role == message.System:
		a.notes["System messages left out, which belong to agents and not to sessions"]++
		return
	case msg.Role == message.Tool:
		a.takeAnswer(l)
		return
	case msg.Role != message.User && msg.Role != message.Assistant:
		a.problem("has a message of the role %.20q, want user, assistant or tool", msg.Role)
		return
	}
	a.checkParts(msg.Content.Parts)
	a.unanswered("without an answer before the next message, which a model may refuse to continue from")
	for i := range msg.ToolCalls {
		c := &msg.ToolCalls[i]
		if c.ID == "" || c.Name == "" {
			a.problem("has a tool call without toolCallId or toolName")
		}
		c.Args = message.Args(string(c.Args))
	}
	if msg.Role == message.Assistant {
		msg.AgentID = cmp.Or(msg.AgentID, l.AgentID)
	}
	a.ask(msg.ToolCalls)
	a.keep(msg, nil)
}

// ask remembers calls, which need an answer each.
func (a *archiveReader) ask(calls []message.ToolCall) {
	a.calls, a.open, a.left = calls, map[string][]int{}, len(calls)
	for i, c := range calls {
		a.open[c.ID] = append(a.open[c.ID], i)
	}
}

// answered marks the first open call with an id as answered and returns it; nil: there is none.
func (a *archiveReader) answered(id string) *message.ToolCall {
	places := a.open[id]
	if len(places) == 0 {
		return nil
	}
	a.open[id] = places[1:]
	a.left--
	return &a.calls[places[0]]
}

// takeAnswer takes a tool message, which is stored as the outcome of its call.
func (a *archiveReader) takeAnswer(l messageLine) {
	id := l.Message.ToolCallID
	asked := a.answered(id)
	if asked == nil {
		a.notes["Answers of tools without a call before them, which a model may refuse to continue from"]++
	}
	o := l.Outcome
	if o == nil {
		name := ""
		if asked != nil {
			name = asked.Name
		}
		o = transcript.Outcome(l.Message, name)
		l.Message = transcript.Answer(o)
	}
	if id == "" || o.ToolCallID != id {
		a.problem("has a tool message without toolCallId, or with the outcome of another call")
	}
	a.checkParts(o.ContentParts)
	a.keep(message.Message{Role: message.Tool, ToolCallID: id, Content: l.Message.Content}, o)
}

// keep adds a message; o is the outcome that a tool message is made from.
func (a *archiveReader) keep(msg message.Message, o *message.Outcome) {
	b, err := transcript.Body(msg, o)
	if err != nil {
		a.problem("cannot be kept: %v", err)
		return
	}
	a.messages = append(a.messages, store.Message{Index: len(a.messages), Sequence: a.sequence, Role: string(msg.Role),
		Tokens: transcript.Tokens(msg), At: a.at, Body: b, LeftOut: a.leftOut})
}

// settle answers the calls that are open at the end: a model needs an answer to each, and no run will give it.
func (a *archiveReader) settle() {
	for i, c := range a.calls {
		places := a.open[c.ID]
		if len(places) == 0 || places[0] != i {
			continue
		}
		a.open[c.ID] = places[1:]
		a.sequence++
		o := &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.AbortedCall, Message: "The run had not ended when its session was exported."}
		a.keep(transcript.Answer(o), o)
	}
	a.unanswered("without an answer at the end, recorded as aborted")
}

// unanswered notes a warning about the calls that are open.
func (a *archiveReader) unanswered(what string) {
	if a.left > 0 {
		a.notes["Tool calls "+what] += a.left
	}
}

func (a *archiveReader) checkParts(parts []message.Part) {
	for _, p := range parts {
		media, known := p.Media()
		switch {
		case known && (media == nil || media.Enc != "base64" && media.Enc != "url"):
			a.problem(`has a part of type %s without {"enc": "base64", ...} or {"enc": "url", ...}`, p.Type)
		case !known && p.Type != "text" && p.Type != "reasoning":
			a.problem("has a part of the unknown type %.20q", p.Type)
		}
	}
}
