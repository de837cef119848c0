package agent

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tool"
	"agentd/store"
)

// AbortOptions say how a run is to be ended.
type AbortOptions struct {
	// Drain lets the current step finish; without it, the model call and the tools are cancelled at once.
	Drain bool
	// OnPending is what becomes of approvals that wait: deny (default) answers each as denied, hold keeps them, fail
	// makes the run failed. Without any, the run ends as aborted whatever this says.
	OnPending string
	// Reason goes into the log.
	Reason string
	// NoWait returns as soon as the abort is asked for.
	NoWait bool
}

var errAborted = fault.New(fault.RunAborted, "The run was aborted.")

// abortWait is how long Abort waits for a run to end.
const abortWait = 10 * time.Second

// Abort ends a run and returns its status: aborted, or what it had become before. Where the agent does not end in
// time, or has a step to drain, the status is still running. Errors: run-not-found, run-conflict, storage-failed.
func (e *Engine) Abort(ctx context.Context, runID string, opts AbortOptions) (store.Status, error) {
	opts.OnPending = cmp.Or(opts.OnPending, "deny")
	if r := e.moved(runID); r != nil {
		e.log.Info("abort", "run", runID, "drain", opts.Drain, "reason", opts.Reason)
		r.askAbort(opts)
		if opts.NoWait {
			return store.Running, nil
		}
		select {
		case <-r.done:
		case <-time.After(abortWait):
		case <-ctx.Done():
		}
	}
	row, err := e.opts.Runs.Get(ctx, runID)
	if errors.Is(err, store.ErrNotFound) {
		return "", fault.New(fault.RunNotFound, "No run %q.", runID)
	}
	if err != nil || row.Status.Terminal() || row.Status == store.Running {
		return statusOf(row), err
	}
	if row.Parent != 0 {
		return row.Status, e.childOf(ctx, row)
	}
	return e.abortParked(ctx, row, opts)
}

func statusOf(row *store.Run) store.Status {
	if row == nil {
		return ""
	}
	return row.Status
}

func (r *run) askAbort(opts AbortOptions) {
	r.mu.Lock()
	if r.abort == nil || r.abort.Drain && !opts.Drain {
		r.abort = &opts
	}
	kids := slices.Clone(r.kids)
	r.mu.Unlock()
	for _, kid := range kids {
		kid.askAbort(opts)
	}
	if !opts.Drain {
		r.cancel(errAborted)
	}
}

// aborting is what was asked of the run; nil when it is to go on.
func (r *run) aborting() *AbortOptions {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.abort
}

// abortParked ends a run that no goroutine moves.
func (e *Engine) abortParked(ctx context.Context, row *store.Run, opts AbortOptions) (store.Status, error) {
	r, err := e.takeUp(ctx, row, false)
	if err != nil {
		return row.Status, err
	}
	defer e.release(r)
	defer close(r.done)
	defer r.cancel(nil)
	if err := r.settleAbort(r.move(), &opts); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return row.Status, fault.New(fault.RunConflict, "The run has moved on.")
		}
		return row.Status, err
	}
	r.count()
	e.next(r.row.Session)
	return r.row.Status, nil
}

// settleAbort adds the end to a move that the run's abort asks for, and commits it.
func (r *run) settleAbort(m *move, opts *AbortOptions) error {
	if r.row.Started == 0 { // it waited for its session's turn
		m.say(event.AgentStart, startFields{r.row.ID, r.row.Owner})
	}
	m.say(event.AgentCancelling, cancelFields{r.row.ID, opts.Drain, opts.OnPending})
	pending := r.rec.pending
	kids, err := r.abortKids(opts)
	if err != nil {
		return err
	}
	switch {
	case len(pending) == 0:
	case opts.OnPending == "fail":
		return r.finish(m, store.Failed, fault.New(fault.RunAborted, "The run was aborted while %d approval(s) were pending.", len(pending)))
	case opts.OnPending == "hold":
		m.row.Status, m.row.Finished = store.Aborted, m.at
		return r.commitEnd(m, pending)
	default:
		for i := range r.rec.calls {
			c := r.rec.calls[i]
			if c.Phase != store.CallAwaiting {
				continue
			}
			if kid := kids[c.Index]; kid != nil {
				if err := r.buryKid(m, &c, kid); err != nil {
					return err
				}
				continue
			}
			m.say(event.ApprovalDenied, approvalFields{ToolCallID: c.ID, Reason: deniedByAbort})
			for _, a := range r.rec.pending {
				if a.ToolCallID == c.ID && a.SubRunToolCallID == "" {
					m.spanApproval(r, a, c.Step, Decided{By: "abort", Reason: deniedByAbort})
				}
			}
			if requested(c) {
				m.calls = append(m.calls, acknowledged(c, m.at)) // no message asked for it, so none answers
				continue
			}
			m.settle(&c, r.rec.place(&c), &message.Outcome{ToolCallID: c.ID, ToolName: c.Name, Kind: message.ApprovalDenied,
				Message: "Approval " + deniedByAbort + ".", RecoveryHint: message.ReportToUser})
			c.Reported = true
			m.calls = append(m.calls, c)
		}
	}
	return r.finish(m, store.Aborted, errAborted)
}

const deniedByAbort = "denied automatically, because the run was aborted"

// abortKids ends the children that wait, or holds them, as the abort asks. They are found ended should a crash come
// between their ends and their parent's.
func (r *run) abortKids(opts *AbortOptions) (map[int]*run, error) {
	kids := map[int]*run{}
	for _, c := range r.rec.calls {
		k := r.rec.parked[c.Index]
		if k == nil {
			continue
		}
		reg := r.e.registration(k.row.Owner)
		kid := r.newChild(*k.row, k.rec, reg, c.ID)
		kids[c.Index] = kid
		if kid.row.Status.Terminal() {
			continue
		}
		if err := kid.settleAbort(kid.move(), opts); err != nil {
			return nil, err
		}
		kid.count()
		k.row = &kid.row
	}
	return kids, nil
}

// buryKid settles the call of a child that was aborted while it waited.
func (r *run) buryKid(m *move, c *store.Call, kid *run) error {
	for _, a := range r.rec.pending {
		if head, _, _ := strings.Cut(a.SubRunToolCallID, "/"); head == c.ID {
			m.say(event.ApprovalDenied, approvalFields{a.ToolCallID, deniedByAbort, a.SubRunToolCallID})
		}
	}
	label := "the agent " + kid.row.Owner
	if r.reg.LLM != nil {
		if t, ok := r.reg.LLM.agentTool(c.Name); ok {
			label = t.label()
		}
	}
	m.settle(c, r.rec.place(c), tool.Fail(c.ID, c.Name, message.AbortedCall, label+" was aborted while it waited for an approval.", ""))
	c.Reported = true
	m.calls = append(m.calls, *c)
	return m.fold(&kid.row)
}
