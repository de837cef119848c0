package external

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
)

// The words of the protocol that are not events.
const (
	sayResult     = "result"
	sayCheckpoint = "checkpoint"
	sayApproval   = "approval.request"
)

// What relay returns when the agent has ended without a result: with and without requests for approvals.
var (
	errNoResult = errors.New("no result")
	errAsks     = errors.New("no result, but requests for approvals")
)

// relay gives what an agent says to out, until its result. next returns io.EOF at the end. An agent that resumes may have
// checkpoints and ask for approvals.
func relay(next func() (frame, error), out agent.Sink, resumes bool) (agent.Result, error) {
	asked := "" // the frame that last asked for an approval
	for {
		f, err := next()
		switch {
		case err == io.EOF && asked != "":
			return agent.Result{}, errAsks
		case err == io.EOF:
			return agent.Result{}, errNoResult
		case err != nil:
			return agent.Result{}, err
		}
		rec, err := parseRecord(f)
		if err != nil {
			return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's %s %v.", f.at, err)
		}
		switch typ := rec.event.Type; {
		case typ == sayResult && asked != "":
			return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's %s is a result, but the approval that its %s asks for is pending.", f.at, asked).
				Advise("End without a result after asking for approvals; the run continues with `resume` when they are decided.")
		case typ == sayResult:
			return rec.result, nil
		case !resumes && (typ == sayCheckpoint || typ == sayApproval):
			return agent.Result{}, fault.New(fault.AgentProtocol, "The agent's %s is of type %s, but a run of an http agent cannot be resumed.", f.at, typ)
		case typ == sayCheckpoint:
			err = out.Checkpoint(rec.state)
		case typ == sayApproval:
			asked = f.at
			if err = out.RequestApproval(rec.approval); fault.Is(err, fault.AgentProtocol) {
				err = fault.New(fault.AgentProtocol, "The agent's %s cannot ask for an approval: %s", f.at, fault.Of(err).Message)
			}
		default:
			err = out.Emit(rec.event)
		}
		if err != nil {
			return agent.Result{}, err
		}
	}
}

// A record is what a frame means. Of type sayCheckpoint it has a state, of sayResult a result, of sayApproval an approval.
type record struct {
	event    event.Event
	state    json.RawMessage
	result   agent.Result
	approval agent.ApprovalRequest
}

// parseRecord reads a frame, which has at most maxFrame bytes. It takes it apart, encodes it again and reads that as an
// event, with up to a hundred bytes of memory for each byte. Its errors complete "line 7 ".
func parseRecord(f frame) (record, error) {
	members, err := object(f.data)
	if err != nil {
		return record{}, err
	}
	payload := f.data
	typ := f.typ
	if raw, ok := members["type"]; ok {
		if json.Unmarshal(raw, &typ) != nil || string(raw) == "null" {
			return record{}, errors.New(`has a "type" that is not text`)
		}
		// Encoding makes it one line, which event streams need.
		payload, err = message.Encode(json.RawMessage(f.data))
	} else {
		members["type"], err = message.Encode(typ)
		if err == nil {
			payload, err = message.Encode(members)
		}
	}
	if err != nil {
		return record{}, fmt.Errorf("cannot be encoded again: %w", err)
	}
	var rec record
	if rec.event, err = event.Parse(payload); err != nil {
		return record{}, fmt.Errorf("is not an event: %w", err)
	}
	switch typ {
	case sayResult:
		rec.result, err = resultOf(members)
	case sayCheckpoint:
		if rec.state = members["state"]; rec.state == nil {
			err = errors.New(`is a checkpoint without "state"`)
		}
	case sayApproval:
		rec.approval, err = approvalOf(members)
	}
	return rec, err
}

// approvalOf reads {toolCallId, toolName, args, reason?}; other members are ignored.
func approvalOf(members map[string]json.RawMessage) (q agent.ApprovalRequest, err error) {
	q.Args = members["args"]
	var problems []string
	for _, m := range []struct {
		name     string
		value    *string
		required bool
	}{{"toolCallId", &q.ToolCallID, true}, {"toolName", &q.ToolName, true}, {"reason", &q.Reason, false}} {
		switch raw := members[m.name]; {
		case raw == nil && m.required:
			problems = append(problems, fmt.Sprintf("has no %q", m.name))
		case raw != nil && json.Unmarshal(raw, m.value) != nil:
			problems = append(problems, fmt.Sprintf("has a %q that is not text", m.name))
		}
	}
	if q.Args == nil {
		problems = append(problems, `has no "args"`)
	}
	if problems != nil {
		err = fmt.Errorf("asks for an approval but %s", strings.Join(problems, " and "))
	}
	return q, err
}

// object splits a JSON object into its members. Its errors complete "line 7 ".
func object(data []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("is not UTF-8")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return nil, fmt.Errorf("is not JSON: %v", syntax)
		}
		return nil, errors.New("is not a JSON object")
	}
	if members == nil {
		return nil, errors.New("is not a JSON object")
	}
	return members, nil
}

// resultOf reads {output, usage?}; other members are ignored. A total that is not given is the sum of its parts.
func resultOf(members map[string]json.RawMessage) (agent.Result, error) {
	output := members["output"]
	if output == nil {
		return agent.Result{}, errors.New(`has no "output"`)
	}
	var u message.Usage
	if raw := members["usage"]; raw != nil && json.Unmarshal(raw, &u) != nil {
		return agent.Result{}, errors.New(`has a "usage" that is not an object of counts`)
	}
	for _, n := range []int64{u.PromptTokens, u.CompletionTokens, u.TotalTokens,
		message.Value(u.ReasoningTokens), u.CachedReadTokens, u.CacheWriteTokens} {
		if n < 0 {
			return agent.Result{}, errors.New(`has a "usage" with a negative count`)
		}
	}
	if u.TotalTokens == 0 {
		u.TotalTokens = u.PromptTokens + u.CompletionTokens
	}
	return agent.Result{Output: output, Usage: u}, nil
}
