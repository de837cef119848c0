package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"agentd/server"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/rest"
	"agentd/store"
)

func (c *call) approve(ctx context.Context) error { return c.decide(ctx, true) }

func (c *call) deny(ctx context.Context) error { return c.decide(ctx, false) }

// decide decides on calls of a run and prints what the run says from there on.
func (c *call) decide(ctx context.Context, granted bool) error {
	if err := checkText(c.flags.reason); err != nil {
		return err
	}
	defer surviveClosedPipe()()
	return interruptible(ctx, func(ctx context.Context) error {
		begun := false
		err := c.through(ctx, server.Run, func(d *door) error {
			s, err := state(ctx, d.Client, c.args[0])
			if err != nil {
				return err
			}
			if s.WorkflowID != "" {
				return c.decideWorkflow(ctx, d, s, granted)
			}
			if held := s.Status == store.Aborted && len(s.PendingApprovals) > 0; s.Status != store.Awaiting && !held {
				return fault.New(fault.RunNotSuspended, "The run is %s.", s.Status).Advise(runState)
			}
			f := c.newFollower(d, s.RunID, nil)
			if f.decisions, err = c.decisions(s.PendingApprovals, granted); err != nil {
				return err
			}
			begun, f.spared = true, true
			f.past = func(e ending) bool {
				return e.Result.Status == s.Status && samePending(e.Result.State.PendingApprovals, s.PendingApprovals)
			}
			return f.follow(ctx)
		})
		if err != nil && !begun && ctx.Err() != nil {
			return fault.New(fault.RunAborted, "Interrupted before a decision.").Advise("Run the command again.")
		}
		return err
	})
}

// decideWorkflow decides on approvals of a workflow, some of which may wait while other branches run.
func (c *call) decideWorkflow(ctx context.Context, d *door, s rest.RunState, granted bool) error {
	if len(s.PendingApprovals) == 0 {
		return fault.New(fault.RunNotSuspended, "The run waits for no approval: it is %s.", s.Status).Advise(runState)
	}
	decisions, err := c.decisions(s.PendingApprovals, granted)
	if err == nil {
		err = d.decide(ctx, s.RunID, decisions)
	}
	if err != nil {
		return err
	}
	if s, err = state(ctx, d.Client, s.RunID); err != nil {
		return err
	}
	if err := c.show(true, s, func(w sheet) { c.describe(w, s) }); err != nil {
		return err
	}
	switch {
	case s.Status.Parked():
		return exitCode(exitAwaiting)
	case s.Status == store.Failed, s.Status == store.Aborted:
		return exitCode(exitFailed)
	}
	return nil
}

// samePending reports whether two lists of approvals are those of the same moment.
func samePending(a, b []journal.Approval) bool {
	return slices.EqualFunc(a, b, func(a, b journal.Approval) bool { return a.Same(b) && a.RequestedAt == b.RequestedAt })
}

// decisions are those that the command line asks for.
func (c *call) decisions(pending []journal.Approval, granted bool) ([]rest.DecisionBody, error) {
	var waiting []string
	for _, a := range pending {
		waiting = append(waiting, callName(a))
	}
	calls := c.args[1:]
	if len(calls) == 0 {
		calls = waiting
	}
	args, err := c.givenArgs()
	if err != nil {
		return nil, err
	}
	if args != nil && len(calls) != 1 {
		return nil, c.cmd.misused("--args changes one call, and the run waits for %d: name the call.", len(calls))
	}
	var decisions []rest.DecisionBody
	for _, id := range calls {
		at := slices.Index(waiting, id)
		if at < 0 {
			return nil, fault.Invalid(fmt.Sprintf("The run does not wait for the call %q.", id)).
				Advise("Name one of: " + strings.Join(waiting, ", ") + ". Without a name, the command decides on all.")
		}
		a := pending[at]
		if granted && !c.flags.again && a.MayHaveHappened() {
			return nil, fault.New(fault.OutcomeUnknown, "The call %s of %s may already have taken effect. Nothing was decided.", id, a.ToolName).
				Advise("Find out whether it did. If so, deny it. To make the call once more, add --again.")
		}
		decisions = append(decisions, rest.DecisionBody{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: granted, Reason: c.flags.reason,
			Again: granted && c.flags.again, Args: args})
	}
	return decisions, nil
}

// givenArgs are the arguments that --args gives; nil without it.
func (c *call) givenArgs() (json.RawMessage, error) {
	text := []byte(c.flags.args)
	if name, isFile := strings.CutPrefix(c.flags.args, "@"); isFile {
		var err error
		if text, err = c.readFile(name, maxArgs); err != nil {
			return nil, err
		}
	}
	if len(text) == 0 {
		return nil, nil
	}
	if !json.Valid(text) {
		return nil, c.cmd.misused("--args is not JSON.")
	}
	return text, nil
}

// maxArgs is how long arguments may be that a person gives.
const maxArgs = 1 << 20

// callName is how a command line names a call that waits: its id, after the path of the run that it belongs to.
func callName(a journal.Approval) string {
	if a.SubRunToolCallID != "" {
		return a.SubRunToolCallID + "/" + a.ToolCallID
	}
	return a.ToolCallID
}
