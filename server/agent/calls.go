package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
)

// Calls are tools with the policy on their calls: those of an agent, or those that workflows name.
type Calls struct {
	*tool.Set
	Policy Policy
}

// Judge takes in a call: it can be made, a person must grant it first, or it is refused. From here on its arguments are in
// their one canonical form: what the policy looks at is what a person is shown, what is hashed and kept, and what the
// tool gets. The arguments of a refused call may have none.
func (c Calls) Judge(callID, name string, args json.RawMessage) (canonical json.RawMessage, gated bool, refusal *message.Outcome) {
	call := message.ToolCall{ID: callID, Name: name, Args: args}
	if refusal = c.Check(&call); refusal != nil {
		return call.Args, false, refusal
	}
	switch c.Policy.decide(name, call.Args) {
	case refused:
		refusal = &message.Outcome{ToolCallID: callID, ToolName: name, Kind: message.CapabilityBlocked,
			Message: "This agent may not make this call.", RecoveryHint: message.ReportToUser}
	case asked:
		gated = true
	}
	return call.Args, gated, refusal
}

// Terms completes an approval of a call, asked for at a time in a run that the named principal started.
func (c Calls) Terms(a journal.Approval, startedBy string, at int64) journal.Approval {
	return c.Policy.Tools[a.ToolName].Complete(a, at, cmp.Or(startedBy, run.Anonymous))
}

// Edit checks arguments that a person gives a call instead of its own, and returns their canonical form. The text of an error
// is the reason for refusing them, as a clause.
func (c Calls) Edit(callID, name string, args json.RawMessage) (json.RawMessage, error) {
	if !c.Policy.Tools[name].Edit {
		return nil, fmt.Errorf("the tool %s does not have approval.edit.", name)
	}
	args, _, refusal := c.Judge(callID, name, args)
	if refusal != nil {
		return nil, errors.New(refusal.Message)
	}
	return args, nil
}

// Doubt says what becomes of a call of a tool whose outcome is unknown.
func (c Calls) Doubt(name string) run.Doubt {
	spec, ok := c.Spec(name)
	switch {
	case !ok:
		return run.Departed
	case spec.Repeatable():
		return run.MakeAgain
	case spec.OnUnknownOutcome == tool.ReportError:
		return run.SettleFailed
	}
	return run.AskPerson
}
