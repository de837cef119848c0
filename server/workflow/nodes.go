package workflow

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"agentd/server/event"
	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/tool"
)

// maxInCommit is how many tasks begin in one transaction at most, so that others get their turn at the store.
const maxInCommit = 256

// advance begins what is ready, as far as nothing has to be durable or to happen first.
func (t *thread) advance() {
	for n := 0; n < maxInCommit && (len(t.ready) > 0 || t.superstep()); n++ {
		id := t.ready[0]
		t.ready = t.ready[1:]
		if k := t.tasks[id]; k != nil && k.Phase == ready {
			t.start(k)
		}
		t.settle()
	}
	t.settle()
}

// start begins a task whose turn has come.
func (t *thread) start(k *task) {
	if k.Withdraw || t.leaving(k) || t.failing != nil {
		t.takeBack(k)
		return
	}
	if t.over != nil && k.Scope == 0 { // the time of the run was over while the task before this one ended
		k.Error, t.failing = t.over, t.over
		t.enter(k, failed)
		return
	}
	if k.Began == 0 {
		k.Began = t.now()
	}
	if t.p != nil {
		t.proceed(k)
		return
	}
	if k.Node == graph.End {
		t.complete(k)
		return
	}
	n := t.node(k)
	if n == nil {
		t.failing = trouble(fault.WorkflowDivergence, "The workflow has no node %q any more.", k.Node).at(k.Node)
		k.Error = t.failing
		t.enter(k, failed)
		return
	}
	if k.Steps > t.g.MaxSteps {
		t.fail(k, trouble(fault.MaxStepsExceeded, "The branch took %d steps without waiting; maxSteps is %d.", k.Steps, t.g.MaxSteps))
		return
	}
	if n.Timeout > 0 && n.Kind != graph.KindTool && k.Deadline == 0 {
		k.Deadline = k.Began + n.Timeout.Milliseconds()
	}
	if err := t.execute(k, n); err != nil {
		t.fail(k, problemOf(err))
	}
}

// execute begins what a node does.
func (t *thread) execute(k *task, n *graph.Node) error {
	switch n.Kind {
	case kindNode:
		t.proceed(k)
	case graph.KindSet:
		return t.set(k, n)
	case graph.KindBranch:
		for i, c := range n.Cases {
			yes, err := c.If.Test(t.scope(k))
			if err != nil {
				return fmt.Errorf("case %d: %w", i, err)
			}
			if yes {
				t.step(k, "completed")
				t.follow(k, c.Next)
				return nil
			}
		}
		t.step(k, "completed")
		t.follow(k, n.Else)
	case graph.KindFail:
		text, err := t.text(k, n.Message)
		if err != nil {
			return err
		}
		t.fail(k, &problem{Code: n.Code, Message: text, Final: k.Scope == 0})
	case graph.KindParallel:
		t.began(k)
		t.enter(k, open)
		for i, first := range n.Branches {
			b := t.spawn(first, k.ID, i)
			b.Steps, b.Caught = k.Steps, k.Caught
		}
	case graph.KindMap:
		return t.spread(k, n)
	case graph.KindSleep:
		return t.sleep(k, n)
	case graph.KindAwait:
		return t.await(k, n)
	case graph.KindApproval:
		return t.ask(k, n)
	case graph.KindTool:
		return t.call(k, n)
	case graph.KindAgent, graph.KindWorkflow:
		return t.host(k, n)
	default:
		return fmt.Errorf("the node has the unknown kind %q", n.Kind)
	}
	return nil
}

// complete ends the run with its output.
func (t *thread) complete(k *task) {
	if t.g.Output != nil {
		out, err := t.eval(k, t.g.Output)
		if err != nil {
			t.failing = problemOf(err).at("output")
			k.Error = t.failing
			t.enter(k, failed)
			return
		}
		t.output = out
	} else {
		t.output = encoded(t.held())
	}
	t.drop(k)
	t.ended = true
}

func (t *thread) set(k *task, n *graph.Node) error {
	values := make([]json.RawMessage, len(n.Values))
	for i, v := range n.Values { // all of them see the state as the node began
		var err error
		if values[i], err = t.eval(k, v.Template); err != nil {
			return err
		}
	}
	for i, v := range n.Values {
		if p := t.write(k, v.Key, values[i]); p != nil {
			t.fail(k, p)
			return nil
		}
	}
	t.finish(k, nil)
	return nil
}

func (t *thread) spread(k *task, n *graph.Node) error {
	raw, err := t.eval(k, n.Over)
	if err != nil {
		return err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || list == nil {
		return fault.New(fault.ExpressionFailed, "over must give a list.")
	}
	switch {
	case len(list) > graph.MaxElements:
		return fault.New(fault.ExpressionFailed, "over gives %d elements; a map has at most %d.", len(list), graph.MaxElements)
	case len(raw)+t.size > t.g.MaxStateBytes:
		t.fail(k, tooLarge(n.Save, len(raw)+t.size, t.g.MaxStateBytes))
		return nil
	case len(list) == 0:
		t.finish(k, json.RawMessage("[]"))
		return nil
	}
	k.List = list
	t.began(k)
	t.enter(k, open)
	t.feed(k)
	return nil
}

func (t *thread) sleep(k *task, n *graph.Node) error {
	v, err := t.value(k, cmp.Or(n.For, n.Until))
	if err != nil {
		return err
	}
	ms := math.NaN()
	switch v := v.(type) {
	case int64:
		ms = float64(v)
	case float64:
		ms = v
	case time.Duration:
		if n.For != nil {
			ms = float64(v.Milliseconds())
		}
	case time.Time:
		if n.Until != nil {
			ms = float64(v.UnixMilli())
		}
	case string:
		if at, err := time.Parse(time.RFC3339Nano, v); err == nil && n.Until != nil {
			ms = float64(at.UnixMilli())
		}
	}
	if n.For != nil {
		ms += float64(k.Began)
	}
	switch valid := ms <= graph.MaxTime; { // NaN is not
	case !valid && n.For != nil:
		return fault.New(fault.ExpressionFailed, "forMs must be milliseconds or a duration, and the sleep must end before the year 10000.")
	case !valid:
		return fault.New(fault.ExpressionFailed, "until must be a time before the year 10000 like 2030-01-31T08:00:00+01:00, or milliseconds since 1970.")
	}
	until := int64(max(ms, 0))
	if until <= t.now() {
		t.finish(k, nil)
		return nil
	}
	k.Due, k.Steps = until, 0
	t.park(k, sleeping)
	return nil
}

// park has a task wait; its branch takes a fresh run of steps from here.
func (t *thread) park(k *task, p phase) {
	k.Steps = 0
	t.enter(k, p)
	t.step(k, "paused")
}

// taken reports whether another task waits under a name.
func (t *thread) taken(k *task, name string) bool {
	for _, other := range t.waits {
		if other != k && (other.Phase == awaiting || other.Phase == asking) && t.waitName(other) == name {
			return true
		}
	}
	return false
}

func (t *thread) nameTaken(name string) *problem {
	return trouble(fault.PauseNameTaken, "Another task of the thread waits under the name %q.", name)
}

func (t *thread) await(k *task, n *graph.Node) error {
	name := t.waitName(k)
	if t.taken(k, name) {
		t.fail(k, t.nameTaken(name))
		return nil
	}
	for i, a := range t.answers { // it came before
		if a.Name != name || fits(n, name, a.Value) != nil {
			continue
		}
		t.used = append(t.used, a.Seq)
		t.answers = append(t.answers[:i:i], t.answers[i+1:]...)
		t.size -= len(a.Value)
		k.Steps = 0
		t.finish(k, a.Value)
		return nil
	}
	t.park(k, awaiting)
	return nil
}

func (t *thread) ask(k *task, n *graph.Node) error {
	name := t.waitName(k)
	if t.taken(k, name) {
		t.fail(k, t.nameTaken(name))
		return nil
	}
	show := json.RawMessage("null")
	if n.Show != nil {
		var err error
		if show, err = t.eval(k, n.Show); err != nil {
			return err
		}
	}
	show, err := message.Arguments(show)
	if err != nil {
		return err
	}
	a := t.request(k, name, show, "")
	terms := journal.Terms{Expires: n.Terms.Expires.Duration(), Approvers: n.Terms.Approvers, Different: n.Terms.RequireDifferentPrincipal}
	t.wait(k, terms.Complete(a, t.now(), t.row.StartedBy))
	return nil
}

// request makes an approval of a task.
func (t *thread) request(k *task, name string, args json.RawMessage, reason string) journal.Approval {
	return journal.Approval{ToolCallID: k.callID(), ToolName: name, Args: args, ArgsDigest: journal.ArgsDigest(args), Reason: reason,
		RequestedAt: message.Millis(t.now()), RequestedBy: t.row.StartedBy, RequestedByAgent: t.row.Workflow}
}

// wait has a task wait for people.
func (t *thread) wait(k *task, a journal.Approval) {
	k.Approval, k.Steps = &a, 0
	t.move().SayRequested(a)
	t.happened(k, event.ApprovalRequested, func(h *happening) { h.Reason = a.Reason })
	t.park(k, asking)
}

func (t *thread) call(k *task, n *graph.Node) error {
	if k.Attempt++; k.Args == nil {
		args := json.RawMessage("{}")
		if n.Args != nil {
			var err error
			if args, err = t.eval(k, n.Args); err != nil {
				k.Attempt--
				return err
			}
		}
		k.Args = args
	}
	args, gated, refusal := t.w.tools.Judge(k.callID(), n.Tool, k.Args)
	if refusal != nil {
		t.fail(k, problemOfOutcome(refusal))
		return nil
	}
	k.Args, k.Key = args, cmp.Or(k.Key, fmt.Sprintf("%s:%d:%d", t.r.ID(), k.ID, k.Attempt))
	if gated {
		t.wait(k, t.w.tools.Terms(t.request(k, n.Tool, k.Args, ""), t.row.StartedBy, t.now()))
		return nil
	}
	t.dispatch(k)
	return nil
}

// dispatch has the call of a task made, once the limits of its tool have room for it.
func (t *thread) dispatch(k *task) {
	n := t.node(k)
	if spec, _ := t.w.tools.Spec(n.Tool); spec.Limit == nil {
		t.claim(k)
		return
	}
	k.Phase = ready
	t.change(k)
	ctx := t.depart(k, 0)
	call, name, attempt := tool.Call{ID: k.callID(), Payer: t.r.Payer()}, n.Tool, k.Attempt
	t.r.Go(func() {
		release, refusal := t.w.tools.Admit(ctx, name, call, nil)
		t.results <- result{task: k.ID, attempt: attempt, admitted: true, release: release, refusal: refusal, left: t.leftWith(refusal)}
	})
}

// claim has the call of a task made after the next commit, which holds the intent.
func (t *thread) claim(k *task) {
	t.enter(k, calling)
	t.claimed = append(t.claimed, k)
	t.began(k)
	t.happened(k, event.ToolStart, nil)
}

// eval gives the value of a template as JSON.
func (t *thread) eval(k *task, tmpl *expr.Template) (json.RawMessage, error) {
	v, err := t.value(k, tmpl)
	if err != nil {
		return nil, err
	}
	return expr.Encode(v)
}

func (t *thread) value(k *task, tmpl *expr.Template) (any, error) { return tmpl.Eval(t.scope(k)) }

func (t *thread) text(k *task, tmpl *expr.Template) (string, error) {
	if tmpl == nil {
		return "", nil
	}
	v, err := t.value(k, tmpl)
	if s, is := v.(string); is {
		return s, err
	}
	if err != nil {
		return "", err
	}
	b, err := expr.Encode(v)
	return string(b), err
}

// scope is what the expressions of a task see.
func (t *thread) scope(k *task) expr.Scope { return scope{t, k} }

type scope struct {
	t *thread
	k *task
}

// Value is a part of [expr.Scope].
func (s scope) Value(name, key string) (any, bool, error) {
	t := s.t
	switch name {
	case "state":
		if key != "" {
			v := t.values[key]
			if v == nil {
				return nil, false, nil
			}
			out, err := v.read()
			return out, true, err
		}
		all := make(map[string]any, len(t.values))
		for key, v := range t.values {
			out, err := v.read()
			if err != nil {
				return nil, false, err
			}
			all[key] = out
		}
		return all, true, nil
	case "input":
		if !t.known {
			var err error
			if t.input, err = expr.Decode(t.row.Input); err != nil {
				return nil, false, err
			}
			t.known = true
		}
		return member(t.input, key)
	case "thread":
		return t.row.ID, true, nil
	case "run":
		return t.r.ID(), true, nil
	case "session":
		if t.row.Session == "" {
			return nil, true, nil
		}
		return t.row.Session, true, nil
	case "now":
		return time.UnixMilli(s.k.Began).UTC(), true, nil
	case "item":
		scope := t.tasks[s.k.Scope]
		if scope == nil || s.k.Index >= len(scope.List) {
			return nil, false, nil
		}
		v, err := expr.Decode(scope.List[s.k.Index])
		if err != nil || key == "" {
			return v, true, err
		}
		return member(v, key)
	case "index":
		return int64(s.k.Index), true, nil
	case "error":
		return member(s.k.Caught.value(), key)
	}
	return nil, false, nil
}

func member(v any, key string) (any, bool, error) {
	if key == "" {
		return v, true, nil
	}
	m, is := v.(map[string]any)
	if !is {
		return nil, false, fmt.Errorf("it has no members")
	}
	v, ok := m[key]
	return v, ok, nil
}

// read decodes a value of the state, once.
func (v *value) read() (any, error) {
	if v.fresh {
		return v.decoded, nil
	}
	out, err := expr.Decode(v.raw)
	if err == nil {
		v.decoded, v.fresh = out, true
	}
	return out, err
}
