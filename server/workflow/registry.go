package workflow

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"

	"agentd/metrics"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// Tools are what the nodes of workflows call.
type Tools interface {
	Spec(name string) (tool.Spec, bool)
	// Judge checks arguments and returns them in canonical form, whether people must allow the call, or why it is refused.
	Judge(callID, name string, args json.RawMessage) (canonical json.RawMessage, gated bool, refusal *message.Outcome)
	// Terms completes an approval with what it takes to grant it.
	Terms(a journal.Approval, startedBy string, at int64) journal.Approval
	// Edit checks arguments that a person gives a call instead of its own.
	Edit(callID, name string, args json.RawMessage) (json.RawMessage, error)
	// Doubt says what becomes of a call whose outcome is unknown.
	Doubt(name string) run.Doubt
	// Admit waits for the limits of a tool; release gives the place back.
	Admit(ctx context.Context, name string, call tool.Call, wait func() error) (release func(), refusal *message.Outcome)
	Execute(ctx context.Context, name string, call tool.Call) tool.Settled
}

// Options are what workflows work with.
type Options struct {
	Kernel  *run.Engine // moves their runs; it has their Owner and Form
	Threads *store.Threads
	Runs    *store.Runs
	Tools   Tools
	Metrics *metrics.Inventory // nil: nothing is counted
	// MayJoin reports whether a principal may join a session that another has made. It is asked when an agent node begins. Nil:
	// nobody may.
	MayJoin func(ctx context.Context, principal, session string) (bool, error)
	// AuditStarts says that the record of a call's start is kept before it is made, also where the call has no effect.
	AuditStarts bool
	Logger      *slog.Logger
}

// Workflows is the registry of workflows, and what can be done with their threads. It is safe for concurrent use.
type Workflows struct {
	opts    Options
	kernel  *run.Engine
	threads *store.Threads
	runs    *store.Runs
	tools   Tools
	past    definitions

	mu    sync.Mutex // guards the fields below
	known map[string]*registration
	order []string

	defining sync.Mutex // guards the field below, and is held while it becomes true
	defined  bool       // the definitions of all that is registered are stored
}

type registration struct {
	id      string
	graph   *graph.Graph
	program *program // nil: the configuration declares it
	info    Info
}

// New makes an empty registry. Its workflows can run after [Workflows.Attach].
func New() *Workflows { return &Workflows{known: map[string]*registration{}} }

// Attach gives the workflows what they work with. It is called once, before the kernel recovers or starts a run.
func (w *Workflows) Attach(o Options) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w.opts, w.kernel, w.threads, w.runs, w.tools = o, o.Kernel, o.Threads, o.Runs, o.Tools
}

// Declare adds a workflow of the configuration. An id that is taken is refused with duplicate-id.
func (w *Workflows) Declare(id string, g *graph.Graph) error {
	return w.add(&registration{id: id, graph: g, info: Info{ID: id, Description: g.Form.Description, Version: g.Form.Version, Declared: true,
		Input: json.RawMessage(g.Form.Input), Graph: g.Drawing()}})
}

func (w *Workflows) add(reg *registration) error {
	if !event.ValidID(reg.id) {
		return fault.Invalid("A workflow id has 1 to 128 characters of A-Z a-z 0-9 _ -.", fault.At("is not a valid id", "id"))
	}
	w.defining.Lock()
	defer w.defining.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.defined = false
	if w.known[reg.id] != nil {
		return fault.New(fault.DuplicateID, "The workflow %q is already registered.", reg.id)
	}
	w.known[reg.id] = reg
	w.order = append(w.order, reg.id)
	return nil
}

func (w *Workflows) registration(id string) *registration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known[id]
}

// List returns the workflows in the order in which they were registered, without their graphs and schemas.
func (w *Workflows) List() []Info {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]Info, 0, len(w.order))
	for _, id := range w.order {
		info := w.known[id].info
		info.Graph, info.Input = nil, nil
		list = append(list, info)
	}
	return list
}

// Get returns one workflow; false when there is none.
func (w *Workflows) Get(id string) (Info, bool) {
	reg := w.registration(id)
	if reg == nil {
		return Info{}, false
	}
	return reg.info, true
}

func (w *Workflows) find(id string) (*registration, error) {
	if reg := w.registration(id); reg != nil {
		return reg, nil
	}
	return nil, fault.New(fault.RouteHandlerMissing, "No workflow %q is registered.", journal.Clip(id, 128))
}

// noThread is the error for a thread that there is not. Threads of a workflow that is not registered any more are there.
func (w *Workflows) noThread(workflow, threadID string) error {
	if _, err := w.find(workflow); err != nil {
		return err
	}
	return fault.New(fault.ThreadNotFound, "The workflow %q has no thread %q.", workflow, journal.Clip(threadID, 128))
}

// define makes sure that threads can run under the definitions of all workflows.
func (w *Workflows) define(ctx context.Context) error {
	w.defining.Lock()
	defer w.defining.Unlock()
	if w.defined {
		return nil
	}
	var all []store.Definition
	w.mu.Lock()
	for _, reg := range w.known {
		all = append(all, store.Definition{Digest: reg.graph.Digest, Body: reg.graph.Source})
	}
	w.mu.Unlock()
	err := w.runs.Update(ctx, func(tx *store.Tx) error { return w.threads.Define(tx, all) })
	w.defined = err == nil
	return err
}

// Owner returns what the kernel runs as a workflow; nil for other kinds. A thread finishes under the definition that it began with, also where
// its workflow is not registered any more.
func (w *Workflows) Owner(kind, id string) *run.Owner {
	if kind != store.Workflow {
		return nil
	}
	return &run.Owner{ID: id, Driver: driver{w}}
}

// definitions keeps the graphs of threads that run under an older definition.
type definitions struct {
	mu  sync.Mutex // guards the field below
	all map[string]*graph.Graph
}

const maxDefinitions = 256

func (d *definitions) get(digest []byte) *graph.Graph {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[string(digest)]
}

func (d *definitions) put(g *graph.Graph) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil || len(d.all) >= maxDefinitions {
		d.all = map[string]*graph.Graph{}
	}
	d.all[string(g.Digest)] = g
}

// accept checks an input.
func (reg *registration) accept(input json.RawMessage) error {
	if reg.graph.Input != nil {
		var issues []fault.Issue
		for _, p := range reg.graph.Input.Validate(input) {
			issues = append(issues, fault.At(p.String(), "input"))
		}
		if len(issues) > 0 {
			return fault.Invalid("The input does not fit the workflow.", issues...)
		}
	}
	if reg.program != nil {
		return reg.program.accept(input)
	}
	return nil
}

// graphOf returns the definition that a thread began with.
func (w *Workflows) graphOf(tx *store.Tx, row *store.Thread) (*graph.Graph, error) {
	if reg := w.registration(row.Workflow); reg != nil && reg.graph != nil && (reg.program != nil || string(reg.graph.Digest) == string(row.Digest)) {
		return reg.graph, nil
	}
	if g := w.past.get(row.Digest); g != nil {
		return g, nil
	}
	source, err := w.threads.Definition(tx, row.Digest)
	if err != nil {
		return nil, err
	}
	if err := absent(source); err != nil {
		return nil, err
	}
	g, err := graph.Parse(row.Workflow, source)
	if err != nil {
		return nil, fault.New(fault.StorageCorrupt, "The stored definition of the workflow %q cannot be read.", row.Workflow).Because(err)
	}
	w.past.put(g)
	return g, nil
}
