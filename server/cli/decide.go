package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/rest"
	"agentd/store"
)

// maxDecisions is how many calls one command line may name.
const maxDecisions = 1000

func (c *call) approve(ctx context.Context) error { return c.decide(ctx, true) }

func (c *call) deny(ctx context.Context) error { return c.decide(ctx, false) }

// decide decides on calls of a run and prints what the run says from there on.
func (c *call) decide(ctx context.Context, granted bool) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if err := checkText(c.flags.reason); err != nil {
		return err
	}
	defer surviveClosedPipe()()
	return interruptible(ctx, func(ctx context.Context) error {
		f, pending, err := c.attach(ctx, cfg, c.args[0])
		if err != nil && ctx.Err() != nil {
			return fault.New(fault.RunAborted, "Interrupted before anything was decided.").Advise("Run it again.")
		}
		if err != nil {
			return runHint(err)
		}
		decisions, err := c.decisions(pending, granted)
		if err == nil {
			err = c.watch(ctx, unharmed{f, c}, nil, func(ctx context.Context, yield func(*hub.Entry)) error {
				return runHint(f.resume(ctx, decisions, yield))
			})
		}
		return errors.Join(err, f.close())
	})
}

// attach finds a run that waits, or was aborted while its approvals were held, here or in the server that holds the
// store, and what it waits for.
func (c *call) attach(ctx context.Context, cfg *config.Config, runID string) (following, []agent.Approval, error) {
	local, remote, err := c.open(ctx, cfg)
	switch {
	case err != nil:
		return nil, nil, err
	case remote != nil:
		s, err := remote.show(ctx, runID)
		if held := s.Status == store.Aborted && len(s.PendingApprovals) > 0; err == nil && s.Status != store.Awaiting && !held {
			err = fault.New(fault.RunNotSuspended, "The run is %s.", s.Status)
		}
		var f *remoteRun
		if err == nil {
			f, err = attachRemote(ctx, remote, s)
		}
		if err != nil {
			return nil, nil, errors.Join(err, remote.close())
		}
		return f, s.PendingApprovals, nil
	}
	f, err := attachLocal(ctx, local, runID)
	var s agent.Snapshot
	if err == nil {
		s, err = local.Engine().Snapshot(ctx, runID)
	}
	if err != nil {
		return nil, nil, errors.Join(err, local.Close())
	}
	return f, s.PendingApprovals, nil
}

// decisions are those that the command line asks for.
func (c *call) decisions(pending []agent.Approval, granted bool) ([]agent.Decision, error) {
	var waiting []string
	byName := map[string]agent.Approval{}
	for _, a := range pending {
		waiting = append(waiting, callName(a))
		byName[callName(a)] = a
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
		return nil, c.cmd.misused("--args is for one call, and the run waits for %d: name it.", len(calls))
	}
	var decisions []agent.Decision
	for _, id := range calls {
		if !slices.Contains(waiting, id) {
			return nil, fault.Invalid(fmt.Sprintf("The run does not wait for the call %q.", id)).
				Advise("Name one of: " + strings.Join(waiting, ", ") + "; or none, for all.")
		}
		a := byName[id]
		if granted && !c.flags.again && a.MayHaveHappened() {
			return nil, fault.New(fault.OutcomeUnknown, "The call %s of %s may have happened already, and nobody knows. Nothing was decided.", id, a.ToolName).
				Advise("Find out whether it happened. If so, deny it; to make it once more, add --again.")
		}
		decisions = append(decisions, agent.Decision{ToolCallID: a.ToolCallID, SubRunToolCallID: a.SubRunToolCallID, Granted: granted, Reason: c.flags.reason,
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
func callName(a agent.Approval) string {
	if a.SubRunToolCallID != "" {
		return a.SubRunToolCallID + "/" + a.ToolCallID
	}
	return a.ToolCallID
}

// unharmed is a run that goes on when nobody watches it any more.
type unharmed struct {
	following
	c *call
}

func (u unharmed) abort(context.Context) error {
	where := "the next `agentd start` takes it up"
	if _, remote := u.following.(*remoteRun); remote {
		where = "it goes on in the server"
	}
	fmt.Fprintf(u.c.stderr, "agentd: run %s is not watched any more; %s\n", u.id(), where)
	return exitCode(exitFailed)
}

func (c *call) abortRun(ctx context.Context) error {
	opts := agent.AbortOptions{Drain: c.flags.drain, OnPending: c.flags.onPending, Reason: "agentd runs abort"}
	if !slices.Contains([]string{"deny", "hold", "fail"}, opts.OnPending) {
		return c.cmd.misused("--on-pending is %q, want deny, hold or fail.", opts.OnPending)
	}
	cfg, err := c.load()
	if err != nil {
		return err
	}
	local, remote, err := c.open(ctx, cfg)
	if err != nil {
		return err
	}
	answer := rest.AbortAnswer{RunID: c.args[0]}
	if remote != nil {
		body := rest.AbortBody{Drain: opts.Drain, OnPendingApprovals: opts.OnPending, Reason: opts.Reason}
		err = errors.Join(remote.call(ctx, "POST", runPath(answer.RunID)+"/abort", body, &answer), remote.close())
	} else {
		answer.Status, err = c.abortHere(ctx, local, answer.RunID, opts)
		err = errors.Join(err, local.Close())
	}
	if err != nil {
		return runHint(err)
	}
	return c.tellAborted(answer, remote != nil)
}

// abortHere ends a run of this process's store. One that has ended stays as it is, and nothing is recorded.
func (c *call) abortHere(ctx context.Context, local *server.Local, runID string, opts agent.AbortOptions) (store.Status, error) {
	row, err := local.Engine().Find(ctx, runID)
	if err != nil || row.Status.Terminal() {
		return local.Engine().Abort(ctx, runID, opts)
	}
	s := &scribe{log: local.Audit()}
	if err := s.begin(ctx, runRecord("run:abort", runID, row.Owner)); err != nil {
		return "", err
	}
	status, err := local.Engine().Abort(ctx, runID, opts)
	return status, s.end(ctx, c, err)
}

// tellAborted tells what came of an abort. That the run has ended otherwise, or that nobody is there to end it, is an
// error.
func (c *call) tellAborted(answer rest.AbortAnswer, server bool) error {
	text := fmt.Sprintf("Run %s is %s.", answer.RunID, answer.Status)
	switch {
	case answer.Status == store.Aborted, answer.Status == store.Failed && c.flags.onPending == "fail":
	case answer.Status == store.Running && server:
		text = fmt.Sprintf("Run %s ends after its current step.", answer.RunID)
	case answer.Status == store.Running:
		return fault.New(fault.RunConflict, "Run %s was left behind by a process that was killed.", answer.RunID).
			Advise("Run `agentd start`, which takes it up, and abort it there.")
	default:
		return fault.New(fault.RunConflict, "Run %s has ended already: it is %s.", answer.RunID, answer.Status).
			Advise("Read what became of it with `agentd runs show " + answer.RunID + "`.")
	}
	if c.flags.json {
		return c.printJSON(answer)
	}
	_, err := fmt.Fprintln(c.stdout, text)
	return err
}
