package workflow

import (
	"encoding/json"
	"fmt"
	"strconv"

	"agentd/server/canonical"
	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/journal"
)

// A phase is where a task stands.
//
//	ready --> calling ------------------------> finished: the task is deleted, or done where its scope needs the value
//	  |         |  ^                                ^
//	  |         v  | back-off                       |
//	  |       retrying                              |
//	  +--> hosting: a run of an agent or workflow --+
//	  +--> sleeping, awaiting, asking --------------+
//	  +--> open: a parallel or map, until its members have finished
//
// Where a task fails and nothing handles it, it is failed, and what its scope leaves is withdrawn: a retry of the thread
// begins both again.
type phase string

const (
	ready     phase = "ready"
	calling   phase = "calling"  // a tool may have had its effect
	retrying  phase = "retrying" // until Due
	hosting   phase = "hosting"
	sleeping  phase = "sleeping"  // until Due
	awaiting  phase = "awaiting"  // an answer
	asking    phase = "asking"    // people: for an approval, or what became of a call
	open      phase = "open"      // a scope with members
	done      phase = "done"      // an element of a map, with its value
	failed    phase = "failed"    // with its error
	withdrawn phase = "withdrawn" // it began or waited when its scope was left
)

// A task is one execution of a node, from when its turn comes to its end. Its JSON form is a row of the thread.
type task struct {
	ID       int      `json:"-"`
	Node     string   `json:"node"`               // of a map's element: the map
	Scope    int      `json:"scope,omitempty"`    // the parallel or map that it belongs to; 0: none
	Index    int      `json:"index,omitempty"`    // of the branch or element
	Phase    phase    `json:"phase"`              //
	Began    int64    `json:"began,omitempty"`    // when it first began: the `now` of its expressions
	Due      int64    `json:"due,omitempty"`      // when it moves by itself
	Deadline int64    `json:"deadline,omitempty"` // when its node's time is over; 0: never
	Attempt  int      `json:"attempt,omitempty"`
	Past     int      `json:"past,omitempty"`     // attempts before the thread was retried
	Steps    int      `json:"steps,omitempty"`    // of its branch since the last wait
	Caught   *problem `json:"caught,omitempty"`   // the error last caught in its branch
	Error    *problem `json:"error,omitempty"`    // why it failed; of an open scope: why it is being left
	Withdraw bool     `json:"withdraw,omitempty"` // its scope was left before its turn came, or while its run moves
	Said     bool     `json:"said,omitempty"`     // an event says that it has begun

	Key      string             `json:"key,omitempty"`  // of a call: its idempotency key
	Args     json.RawMessage    `json:"args,omitempty"` // of a call, in canonical form
	Approval *journal.Approval  `json:"approval,omitempty"`
	Decided  *journal.Decided   `json:"decided,omitempty"`
	Session  string             `json:"session,omitempty"` // that its run of an agent names
	Child    string             `json:"child,omitempty"`   // id of the hosted run
	Status   string             `json:"status,omitempty"`  // of the hosted run, as last seen
	Mirror   []journal.Approval `json:"mirror,omitempty"`  // what the hosted run waits for
	List     []json.RawMessage  `json:"list,omitempty"`    // of a map: its elements
	Value    json.RawMessage    `json:"value,omitempty"`   // of a task that is done

	Graph *frontier `json:"graph,omitempty"` // of the task under which those of a Go graph are
	Go    *nodeTask `json:"go,omitempty"`    // of a node of a Go graph
	Ask   *wish     `json:"ask,omitempty"`   // what such a node asks for

	begun   bool   // it has begun, and no event says so yet
	release func() // gives back the place that the limits of its tool have given its call
}

// callID names the attempt of a task in events, approvals and to its tool.
func (k *task) callID() string {
	if k.Attempt <= 1 {
		return "t" + strconv.Itoa(k.ID)
	}
	return fmt.Sprintf("t%d.%d", k.ID, k.Attempt)
}

// busy reports whether something happens for the task without anybody's doing.
func (k *task) busy() bool {
	switch k.Phase {
	case ready, calling, retrying, running:
		return true
	case hosting:
		return !parkedStatus(k.Status)
	}
	return false
}

func parkedStatus(s string) bool { return s == "suspended" || s == "awaiting_approval" }

// doubtful reports whether the task asks what became of its call.
func (k *task) doubtful() bool {
	return k.Phase == asking && k.Approval != nil && k.Approval.MayHaveHappened()
}

// node is what a task executes. Elements of a map execute its do.
func (t *thread) node(k *task) *graph.Node {
	if k.Ask != nil {
		return k.Ask.granting(k.Node)
	}
	n := t.g.Nodes[k.Node]
	if n != nil && n.Kind == graph.KindMap && k.Scope != 0 && t.tasks[k.Scope] != nil && t.tasks[k.Scope].Node == k.Node {
		return n.Do
	}
	return n
}

// label names a task for people.
func (t *thread) label(k *task) string {
	if k.Ask != nil {
		return k.Node
	}
	if n := t.g.Nodes[k.Node]; n != nil && t.node(k) != n {
		return fmt.Sprintf("%s[%d]", k.Node, k.Index)
	}
	return k.Node
}

// waitName is how a resumption names the wait of a task; empty where it has none.
func (t *thread) waitName(k *task) string {
	n := t.node(k)
	if n == nil || n.Wait == "" || k.doubtful() {
		return ""
	}
	if k.Ask == nil && n != t.g.Nodes[k.Node] {
		return graph.WaitName(n.Wait, k.Index)
	}
	return n.Wait
}

// spawn adds a task that is ready.
func (t *thread) spawn(node string, scope, index int) *task {
	k := t.add(node, scope, index, ready)
	t.ready = append(t.ready, k.ID)
	return k
}

// add adds a task in a phase.
func (t *thread) add(node string, scope, index int, p phase) *task {
	k := &task{ID: t.nextID(), Node: node, Scope: scope, Index: index, Phase: p}
	t.tasks[k.ID] = k
	t.members[scope]++
	t.change(k)
	return k
}

// enter puts a task into a phase.
func (t *thread) enter(k *task, p phase) {
	k.Phase = p
	t.change(k)
	if p == ready {
		t.ready = append(t.ready, k.ID)
	}
}

// change has the next commit write a task.
func (t *thread) change(k *task) {
	t.touched[k.ID] = true
	if k.Phase == done || k.Phase == ready {
		delete(t.waits, k.ID)
	} else {
		t.waits[k.ID] = k
	}
}

// drop deletes a task.
func (t *thread) drop(k *task) {
	delete(t.tasks, k.ID)
	delete(t.waits, k.ID)
	t.members[k.Scope]--
	delete(t.touched, k.ID)
	if k.ID <= t.stored {
		t.dropped = append(t.dropped, k.ID)
	}
}

// follow ends a task and begins what comes after it in its branch.
func (t *thread) follow(k *task, next string) {
	scope := t.tasks[k.Scope]
	t.drop(k)
	if next == graph.End && scope != nil {
		if t.members[scope.ID] == 0 && scope.Error == nil { // else settle ends it
			t.finish(scope, nil)
		}
		return
	}
	after := t.spawn(next, k.Scope, k.Index)
	after.Steps, after.Caught = k.Steps+1, k.Caught
	if scope != nil && scope.Error != nil { // the scope is left: the branch goes no further
		after.Withdraw = true
	}
}

// finish ends a task with its value.
func (t *thread) finish(k *task, value json.RawMessage) {
	if canonical.Deeper(value, expr.MaxDepth) >= 0 {
		t.fail(k, trouble(fault.StateNotSerializable, "The value is nested more than %d levels deep.", expr.MaxDepth))
		return
	}
	if k.Ask != nil {
		t.granted(k, value, nil)
		return
	}
	n := t.node(k)
	scope := t.tasks[k.Scope]
	if scope != nil && t.node(k) != t.g.Nodes[k.Node] { // an element
		if t.g.Nodes[k.Node].Collect {
			value = collected(value, nil)
		}
		t.arrive(k, scope, value)
		return
	}
	if n.Save != "" {
		if p := t.write(k, n.Save, value); p != nil {
			t.fail(k, p)
			return
		}
	}
	if n.Kind == graph.KindMap {
		t.clear(k)
	}
	t.step(k, "completed")
	t.follow(k, n.Next)
}

// clear deletes the members of a scope.
func (t *thread) clear(scope *task) {
	if t.members[scope.ID] == 0 {
		return
	}
	for _, id := range t.ids() {
		if k := t.tasks[id]; k != nil && k.Scope == scope.ID {
			t.clear(k)
			t.drop(k)
		}
	}
}

// arrive notes the value of an element; the last one ends the map.
func (t *thread) arrive(k, scope *task, value json.RawMessage) {
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	k.Value, k.Args, k.Approval, k.Mirror, k.Due, k.Deadline = value, nil, nil, nil, 0, 0
	t.size += len(value)
	t.enter(k, done)
	t.step(k, "completed")
	t.arrived[scope.ID]++
	if t.arrived[scope.ID] < len(scope.List) || scope.Error != nil {
		t.feed(scope)
		return
	}
	t.gather(scope)
}

// gather ends a map with the values of its elements, all of which have arrived.
func (t *thread) gather(scope *task) {
	values := make([]json.RawMessage, len(scope.List))
	for _, e := range t.tasks {
		if e.Scope == scope.ID && e.Phase == done {
			values[e.Index] = e.Value
			t.size -= len(e.Value)
		}
	}
	delete(t.arrived, scope.ID)
	t.finish(scope, encoded(values))
}

// collected is the result of an element of a map that collects failures.
func collected(value json.RawMessage, p *problem) json.RawMessage {
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	v := map[string]any{"ok": true, "value": value}
	if p != nil {
		v = map[string]any{"ok": false, "error": p.value()}
	}
	return encoded(v)
}

// feed starts elements of a map, as many as its concurrency allows.
func (t *thread) feed(scope *task) {
	n := t.g.Nodes[scope.Node]
	for t.members[scope.ID] < len(scope.List) && t.members[scope.ID]-t.arrived[scope.ID] < n.Concurrency && scope.Error == nil {
		k := t.spawn(scope.Node, scope.ID, t.members[scope.ID])
		k.Caught = scope.Caught
	}
}

// fail handles the failure of a task: by another attempt, a handler, or by leaving its scope.
func (t *thread) fail(k *task, p *problem) {
	if k.Ask != nil {
		t.granted(k, nil, p)
		return
	}
	n := t.node(k)
	if p.Node == "" {
		p.Node = t.label(k)
	}
	k.Approval, k.Mirror, k.Due = nil, nil, 0
	leaving := t.leaving(k) || t.over != nil
	over := k.Deadline != 0 && k.Deadline <= t.now() // the time of a node is that of all its attempts
	if !p.Final && !leaving && !over && t.retries(n, k, p) {
		k.Due = t.now() + backoff(n.Retry, k.Attempt-k.Past)
		t.enter(k, retrying)
		t.step(k, "retrying")
		return
	}
	k.Deadline = 0
	if !leaving && !p.Final && n.OnError != nil && n.OnError.Takes(p.Code) {
		t.caught(k, p, n.OnError)
		return
	}
	scope := t.tasks[k.Scope]
	if scope != nil && t.node(k) != t.g.Nodes[k.Node] && t.g.Nodes[k.Node].Collect && !leaving {
		t.arrive(k, scope, collected(nil, p))
		return
	}
	k.Error = p
	t.enter(k, failed)
	t.step(k, "failed")
	switch {
	case scope != nil:
		t.leave(scope, p)
	case t.over != nil:
		t.failing = t.over
	case !p.Final && t.g.OnError != nil && !t.row.Handled && t.g.OnError.Takes(p.Code):
		t.row.Handled = true
		t.caught(k, p, t.g.OnError)
	default:
		t.failing = p
	}
}

// caught continues with a handler.
func (t *thread) caught(k *task, p *problem, h *graph.Handler) {
	t.clear(k)
	if h.Save != "" {
		if broken := t.write(k, h.Save, encoded(p.value())); broken != nil {
			broken.Final = true
			t.fail(k, broken)
			return
		}
	}
	k.Caught, k.Error = p, nil
	t.step(k, "failed")
	t.follow(k, h.Next)
}

// leaving reports whether a scope around a task is being left.
func (t *thread) leaving(k *task) bool {
	for s := t.tasks[k.Scope]; s != nil; s = t.tasks[s.Scope] {
		if s.Error != nil {
			return true
		}
	}
	return false
}

// leave has a scope start nothing more. Calls that are made end and are kept, hosted runs are aborted, waits withdrawn.
// When nothing of it happens any more, the scope fails; see settle.
func (t *thread) leave(scope *task, p *problem) {
	if scope.Error != nil {
		return
	}
	scope.Error = p
	t.change(scope)
	t.leavings = append(t.leavings, scope.ID)
	t.withdraw(scope)
}

// withdraw takes back what waits in a scope.
func (t *thread) withdraw(scope *task) {
	for _, id := range t.ids() {
		k := t.tasks[id]
		if k == nil || k.Scope != scope.ID {
			continue
		}
		switch k.Phase {
		case open:
			t.withdraw(k)
		case hosting:
			k.Withdraw = true
			t.change(k)
			t.aborts = append(t.aborts, k.ID)
		case ready, retrying, sleeping, awaiting:
			t.takeBack(k)
		case asking:
			if !k.doubtful() {
				t.takeBack(k)
			}
		}
	}
}

// takeBack withdraws one task, which a retry of the thread begins again.
func (t *thread) takeBack(k *task) {
	if k.Phase != ready {
		t.said(k, "withdrawn")
	}
	k.Approval, k.Mirror, k.Due, k.Withdraw = nil, nil, 0, false
	t.enter(k, withdrawn)
}

// settle fails the scopes that are left once nothing of them happens any more, the innermost first.
func (t *thread) settle() {
	for i := len(t.leavings) - 1; i >= 0; i-- {
		scope := t.tasks[t.leavings[i]]
		if scope != nil && scope.Phase == open && t.stirs(scope) {
			continue
		}
		t.leavings = append(t.leavings[:i], t.leavings[i+1:]...)
		if scope != nil && scope.Phase == open {
			p := scope.Error
			scope.Error = nil
			t.fail(scope, p)
			i = len(t.leavings)
		}
	}
}

// stirs reports whether something of a scope still happens.
func (t *thread) stirs(scope *task) bool {
	for _, k := range t.waits {
		if k.Scope != scope.ID {
			continue
		}
		switch {
		case k.Phase == calling, k.Phase == hosting, k.doubtful():
			return true
		case k.Phase == open && t.stirs(k):
			return true
		}
	}
	return false
}
