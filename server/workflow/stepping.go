package workflow

import (
	"encoding/json"
	"slices"
	"strings"

	"agentd/server/graph"
	"agentd/server/journal"
)

// frontier is the task of a Go graph that holds its frontier; nil: there is none.
func (t *thread) frontier() *task {
	if t.p == nil {
		return nil
	}
	for _, k := range t.tasks {
		if k.Graph != nil {
			return k
		}
	}
	return nil
}

// superstep merges what the tasks of the superstep wrote, when all of them have ended or wait, and plans the next one. It
// reports whether tasks are ready then.
func (t *thread) superstep() bool {
	if t.p == nil || t.failing != nil || t.ended || t.busy() {
		return false
	}
	root := t.frontier()
	if root == nil || root.Phase != open {
		return false
	}
	s := &superstep{program: t.p, frontier: *root.Graph, state: t.held(), tasks: t.nodeTasks()}
	if i := slices.IndexFunc(s.tasks, func(k *task) bool { return k.Phase == failed }); i >= 0 {
		t.fell(s.tasks[i], s.tasks[i].Error)
		return false
	}
	if slices.ContainsFunc(s.tasks, func(k *task) bool { return k.Phase == done }) {
		changes, merged, place, err := s.merge()
		if err != nil {
			t.breakOff(root, place, err)
			return false
		}
		t.merged(root, nodesOf(merged), changes)
		for _, k := range merged {
			t.drop(k)
		}
		t.unmerged = 0
		*root.Graph = s.frontier
		t.change(root)
		for _, node := range s.After {
			t.spawn(node, root.ID, 0).Ask = &wish{Kind: pauseAfter}
		}
	}
	if len(s.tasks) > 0 || len(s.After) > 0 {
		return len(t.ready) > 0
	}
	ended, err := s.plan(t.nextID)
	if err != nil {
		t.breakOff(root, "", err)
		return false
	}
	if ended {
		t.output = encoded(t.held())
		t.drop(root)
		t.ended = true
		return false
	}
	t.plan(root, s)
	return true
}

// plan adds the tasks of a superstep that was planned.
func (t *thread) plan(root *task, s *superstep) {
	*root.Graph = s.frontier
	t.change(root)
	t.showStart(t.row.Step + 1)
	for _, k := range s.tasks {
		k.Scope, t.tasks[k.ID] = root.ID, k
		t.members[root.ID]++
		t.change(k)
	}
	for _, k := range s.tasks {
		if k.Go.Held {
			t.spawn(k.Node, k.ID, 0).Ask = &wish{Kind: pauseBefore}
		}
	}
	t.release()
}

// breakOff fails the run where no task has failed. A retry of the thread tries the same again.
func (t *thread) breakOff(root *task, place string, err error) {
	t.r.Log().Error("a superstep of a workflow failed", "run", t.r.ID(), "workflow", t.row.Workflow, "error", err)
	p := problemOf(err).at(place)
	p.Message = t.presentable(p.Message)
	root.Error = p
	t.enter(root, failed)
	t.fell(root, p)
}

// fell notes the checkpoint of a superstep that failed, and fails the run.
func (t *thread) fell(k *task, p *problem) {
	t.row.Step++
	t.note(k, p.Node, "failed", stepBody{Error: p})
	t.checkpoint()
	t.failing = p
}

// nodesOf names the nodes of tasks.
func nodesOf(tasks []*task) string {
	var nodes []string
	for _, k := range tasks {
		nodes = distinct(nodes, k.Node)
	}
	return journal.Clip(strings.Join(nodes, ", "), 1000)
}

// nextID is the id of a new task.
func (t *thread) nextID() int {
	t.row.Tasks++
	return t.row.Tasks
}

// merged notes a checkpoint: what the tasks of a superstep wrote.
func (t *thread) merged(root *task, label string, changes []change) {
	t.row.Step++
	body := stepBody{Writes: map[string]json.RawMessage{}, Merges: map[string]graph.Merge{}}
	for _, c := range changes {
		if c.transient {
			continue
		}
		delta := c.value
		if c.added != nil {
			delta, body.Merges[c.channel] = c.added, graph.Append
		}
		v := t.values[c.channel]
		t.size += len(c.value) - len(v.raw)
		v.raw, v.decoded, v.fresh = c.value, nil, false
		v.since += len(delta)
		body.Writes[c.channel] = delta
	}
	t.note(root, label, "completed", body)
	for _, c := range changes {
		t.updated(c.channel, c.version, c.value)
	}
	t.checkpoint()
}

// granted ends a wish with what it gave, or with why it failed. The node runs again.
func (t *thread) granted(k *task, value json.RawMessage, p *problem) {
	asker, w := t.tasks[k.Scope], k.Ask
	root := asker // of a pause after a node
	if asker.Graph == nil {
		root = t.tasks[asker.Scope]
	}
	if k.Said || k.begun {
		k.Error = p
		status := "completed"
		if p != nil {
			status = "failed"
		}
		t.said(k, status)
	}
	t.drop(k)
	pause := w.Kind != askTool && w.Kind != askAgent
	if pause {
		root.Graph.Since = 0
		t.change(root)
	}
	if w.Kind == pauseAwait && slices.Contains(t.p.Awaits, w.Name) {
		root.Graph.Answered = distinct(root.Graph.Answered, w.Name)
	}
	switch {
	case w.Kind == pauseAfter:
		root.Graph.After = slices.DeleteFunc(root.Graph.After, func(node string) bool { return node == k.Node })
	case w.Kind == pauseBefore:
		asker.Go.Held = false
		t.change(asker)
		t.release()
	case pause && p != nil: // it could not begin, and the node has no error to get
		t.broke(asker, p.at(asker.Node))
	default:
		if value == nil && p == nil {
			value = jsonNull
		}
		t.recall(asker, append(slices.Clip(asker.Go.Journal), entry{Kind: w.Kind, Name: w.Name, Value: value, Error: p}))
		t.enter(asker, ready)
	}
}

// nodeTasks are the tasks of the superstep, in planned order.
func (t *thread) nodeTasks() (list []*task) {
	for _, id := range t.ids() {
		if k := t.tasks[id]; k.Go != nil {
			list = append(list, k)
		}
	}
	return list
}

// release begins the tasks of a superstep once no static pause holds it.
func (t *thread) release() {
	tasks := t.nodeTasks()
	if slices.ContainsFunc(tasks, func(k *task) bool { return k.Go.Held }) {
		return
	}
	for _, k := range tasks {
		if k.Phase == open && t.members[k.ID] == 0 {
			t.enter(k, ready)
		}
	}
}

// gone is a node that the thread stands at and its workflow lacks; empty: there is none.
func (t *thread) gone() string {
	if t.p == nil {
		return ""
	}
	root := t.frontier()
	if root == nil { // a declared workflow had the id before
		return t.label(t.tasks[t.ids()[0]])
	}
	s := &superstep{program: t.p, frontier: *root.Graph, tasks: t.nodeTasks()}
	return s.missing()
}
