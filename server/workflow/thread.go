package workflow

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/run"
	"agentd/store"
)

// A thread is an instance of a workflow while a goroutine moves it. Only that goroutine uses it.
type thread struct {
	w   *Workflows
	r   *run.Run
	g   *graph.Graph
	p   *program     // of a Go graph; nil: the configuration declares it
	row store.Thread // as the next commit leaves it, but for its version

	values  map[string]*value
	tasks   map[int]*task
	members map[int]int   // how many tasks each scope has
	arrived map[int]int   // how many elements of each map are done
	waits   map[int]*task // the tasks that are neither ready nor done
	answers []store.ThreadAnswer
	input   any // decoded when an expression reads it
	known   bool
	size    int // bytes of the state and of the values that wait for their map

	// What the next commit writes.
	m       *run.Move
	touched map[int]bool
	dropped []int
	stored  int                        // the highest id of a task that is stored
	deltas  map[string]json.RawMessage // what the step in the making wrote
	steps   []store.ThreadStep
	used    []int
	kept    []store.ThreadAnswer
	fresh   bool
	also    []func(*store.Tx) error
	first   bool // it makes the run; then writes the rows
	then    func(*store.Tx, int64) error
	moved   bool   // the thread goes over to another definition
	closes  bool   // the kernel ends the run with the move, and does not report that it is committed
	sweep   bool   // hosted runs of folded steps may be left
	forget  func() // takes the hosted runs that it erased out of memory

	feedLater []int // maps that a retry opens again

	nodes    []int // tasks of a Go graph whose nodes are to be called after the commit
	unmerged int   // bytes that the nodes of its superstep have written and dispatched

	ready    []int
	claimed  []*task // to be called after the commit
	hosts    []*task // whose runs are to be started after the commit
	aborts   []int   // whose runs are to be aborted after the commit
	leavings []int   // scopes that are left
	failing  *problem
	output   json.RawMessage
	ended    bool

	late    bool      // the time of the run is over
	over    *problem  // and that is why it fails
	why     string    // the run moves again
	urgent  bool      // the outcome of a call that has an effect is not durable yet
	heldAt  time.Time // since when steps wait for others to be committed with; zero: none do
	unheard bool      // the run was told that its timer is due, and no commit has followed

	replies []chan error // to nodes that wait for the next commit

	inFlight map[int]context.CancelCauseFunc // calls that this process makes
	results  chan result
}

// A value is what the state holds under a key.
type value struct {
	raw     json.RawMessage
	decoded any
	fresh   bool // decoded is that of raw
	since   int  // bytes that steps after the base wrote
}

func (w *Workflows) newThread(g *graph.Graph, row store.Thread) *thread {
	var p *program
	if reg := w.registration(row.Workflow); reg != nil && reg.graph == g {
		p = reg.program
	}
	return &thread{w: w, g: g, p: p, row: row, values: map[string]*value{}, tasks: map[int]*task{}, members: map[int]int{}, arrived: map[int]int{},
		waits: map[int]*task{}, touched: map[int]bool{}, inFlight: map[int]context.CancelCauseFunc{}, results: make(chan result, 1)}
}

// begin makes the thread one that has not begun.
func (t *thread) begin() {
	for name, raw := range t.initial() {
		t.values[name] = &value{raw: raw}
		t.size += len(raw)
	}
	first := t.spawn(t.g.Start, 0, 0)
	if t.p != nil {
		first.Graph = t.p.first()
	}
	if t.row.Version == 0 {
		first.Began = t.row.Created
	}
}

// untouched reports whether a new thread is still where it begins, also if its first call is in flight and has no effect. Its
// task is not stored then: load makes the same.
func (t *thread) untouched() bool {
	k := t.tasks[1]
	if t.p != nil || t.row.Version != 0 || t.row.Step != 0 || len(t.tasks) != 1 || k == nil || k.Approval != nil {
		return false
	}
	return k.Phase == ready || k.Phase == calling && t.free(k)
}

// free reports whether the call of a task has no effect.
func (t *thread) free(k *task) bool {
	spec, _ := t.w.tools.Spec(t.node(k).Tool)
	return spec.Free()
}

// initial is the state that a run of the thread begins with.
func (t *thread) initial() map[string]json.RawMessage {
	if t.p != nil {
		return t.p.begin(t.row.Input)
	}
	values := map[string]json.RawMessage{}
	for name, k := range t.g.Keys {
		values[name] = k.Initial
	}
	return values
}

// load reads a thread as it is on disk; tx reads all of it at one moment.
func (w *Workflows) load(tx *store.Tx, row store.Thread) (*thread, error) {
	g, err := w.graphOf(tx, &row)
	if err != nil {
		return nil, err
	}
	values, steps, tasks, answers, err := w.threads.Load(tx, &row)
	if err != nil {
		return nil, err
	}
	t := w.newThread(g, row)
	t.stored = row.Tasks
	for name, raw := range t.initial() {
		t.values[name] = &value{raw: raw}
	}
	for _, v := range values {
		t.values[v.Key] = &value{raw: v.Value}
	}
	for _, s := range steps {
		var body stepBody
		if err := json.Unmarshal(s.Body, &body); err != nil {
			return nil, store.Damaged(err)
		}
		for key, delta := range body.Writes {
			v := t.values[key]
			if v == nil {
				v = &value{raw: json.RawMessage("null")}
				t.values[key] = v
			}
			merge := t.mergeOf(key)
			if t.p != nil { // whose channels may have been others then
				if merge = cmp.Or(body.Merges[key], graph.Replace); merge == graph.Append && v.raw[0] != '[' {
					v.raw = json.RawMessage("[]")
				}
			}
			if v.raw, _, err = merge.Of(v.raw, delta); err != nil {
				return nil, store.Damaged(fmt.Errorf("step %d of thread %s: %w", s.Step, row.ID, err))
			}
			v.since += len(delta)
		}
	}
	for _, v := range t.values {
		t.size += len(v.raw)
	}
	for _, stored := range tasks {
		k := &task{ID: stored.ID}
		if err := json.Unmarshal(stored.Body, k); err != nil {
			return nil, store.Damaged(err)
		}
		if k.Graph != nil && k.Graph.V != frontierForm {
			return nil, store.Damaged(fmt.Errorf("the frontier of thread %s has the form %d", row.ID, k.Graph.V))
		}
		t.tasks[k.ID] = k
		t.members[k.Scope]++
		switch k.Phase {
		case done:
			if t.loaded(k) {
				continue
			}
			t.arrived[k.Scope]++
			t.size += len(k.Value)
		case ready:
			t.ready = append(t.ready, k.ID)
		default:
			t.waits[k.ID] = k
			if k.Scope == 0 && k.Phase != failed && k.Error != nil && k.Error.Code == fault.WorkflowTimeout.Code {
				t.over, t.late = k.Error, true
			}
			if k.Phase == open && k.Error != nil {
				t.leavings = append(t.leavings, k.ID)
			}
		}
	}
	if len(tasks) == 0 && row.Step == 0 { // untouched
		t.row.Tasks, t.stored = 0, 0
		t.spawn(g.Start, 0, 0).Began = row.Created
		clear(t.touched)
	}
	slices.Sort(t.ready)
	slices.Sort(t.leavings)
	t.answers = answers
	for _, a := range answers {
		t.size += len(a.Value)
	}
	return t, nil
}

// ids are the tasks in the order in which they were made.
func (t *thread) ids() []int { return slices.Sorted(maps.Keys(t.tasks)) }

// waiting are the tasks that are neither ready nor done, in the order in which they were made. Of a map with many elements
// they are few.
func (t *thread) waiting() []*task {
	return slices.SortedFunc(maps.Values(t.waits), func(a, b *task) int { return a.ID - b.ID })
}

func (t *thread) mergeOf(key string) graph.Merge {
	if k := t.g.Keys[key]; k != nil {
		return k.Merge
	}
	return graph.Replace
}

// stepBody is the stored form of what a step did.
type stepBody struct {
	Writes map[string]json.RawMessage `json:"w,omitempty"` // by key: what was merged into the state
	Merges map[string]graph.Merge     `json:"m,omitempty"` // of a Go graph: how, where not by taking its place
	Error  *problem                   `json:"e,omitempty"`
	Label  string                     `json:"l,omitempty"` // of an element
}

// write merges a value into the state; the step that is noted next holds it.
func (t *thread) write(k *task, key string, raw json.RawMessage) *problem {
	if len(raw) == 0 {
		raw = json.RawMessage("null")
	}
	v := t.values[key]
	if v == nil {
		v = &value{raw: json.RawMessage("null")}
		t.values[key] = v
	}
	merged, delta, err := t.mergeOf(key).Of(v.raw, raw)
	if err != nil {
		return trouble(fault.ReducerFailed, "The state key %q: %s.", key, err)
	}
	if size := t.size - len(v.raw) + len(merged); size > t.g.MaxStateBytes {
		return tooLarge(key, size, t.g.MaxStateBytes)
	}
	t.size += len(merged) - len(v.raw)
	v.raw, v.decoded, v.fresh = merged, nil, false
	v.since += len(delta)
	if t.deltas == nil {
		t.deltas = map[string]json.RawMessage{}
	}
	t.deltas[key] = delta
	return nil
}

// encoded is what a thread stores, as JSON. All of it can be encoded.
func encoded(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("workflow: a value does not encode: %v", err))
	}
	return b
}

// now is the time of the move in the making, or of the one that would be made.
func (t *thread) now() int64 {
	at := t.r.Now()
	if t.m != nil {
		t.m.Postpone(at)
	}
	return at
}

// move is the move in the making. A run that is parked moves again with it.
func (t *thread) move() *run.Move {
	if t.m == nil {
		t.m = t.r.Move()
		if t.r.Row.Status.Parked() {
			t.r.Reopen(t.m, cmp.Or(t.why, "timer"))
			t.say(t.m, event.WorkflowResumed)
		}
	}
	return t.m
}

// say adds an event that shows where the thread is.
func (t *thread) say(m *run.Move, typ string) {
	m.Say(typ, struct {
		Thread string `json:"threadId"`
		Step   int    `json:"stepNumber"`
		shownState
	}{t.row.ID, t.row.Step, t.shown()})
}
