package workflow

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"agentd/server/fault"
)

// A Context is what a task of a node works with. It ends when the node's time is up or the run is aborted. Its methods are
// called on the goroutine that calls [Node.Run], in an order that depends on the state and on what they return alone: a
// node that runs again finds the answers of its earlier calls, in their order. Another order is pause-replay-divergence.
//
// A method that waits ends the goroutine of the node. Deferred functions run; the node runs again from its top when the
// answer is there.
type Context struct {
	context.Context
	thread string
	step   int
	id     int
	node   string
	args   json.RawMessage
	host   host

	journal []entry // what the node's calls gave before
	at      int     // how many of them it has made again
	asked   *wish   // what the goroutine was ended for
	failed  error   // why it was ended
}

// host is the thread as a task sees it. Its methods are called on the goroutine of the task.
type host interface {
	// keep makes durable what the calls of a task have given.
	keep(ctx context.Context, task int, journal []entry) error
	// emit publishes an event of a task.
	emit(task int, name string, payload json.RawMessage)
}

// ThreadID returns the id of the thread.
func (c *Context) ThreadID() string { return c.thread }

// StepNumber returns the number of the superstep within the thread.
func (c *Context) StepNumber() int { return c.step }

// TaskID returns the number of the task within the thread. It stays when the node runs again.
func (c *Context) TaskID() int { return c.id }

// DispatchArgs stores the arguments of the [Dispatch] that made this task in what into points to; false: an edge did.
func (c *Context) DispatchArgs(into any) (bool, error) {
	if c.args == nil {
		return false, nil
	}
	return true, json.Unmarshal(c.args, into)
}

// Emit publishes a workflow.custom event. It is not stored, and it is published again when the node runs again.
func (c *Context) Emit(name string, payload any) error {
	value, err := plain(c.place("event"), payload)
	switch {
	case err != nil:
		return err
	case len(value)+len(name) > maxEmitted:
		return fault.New(fault.NodeFailed, "An event of the node %q has %d bytes; %d are possible.", c.node, len(value), maxEmitted)
	case c.Err() != nil:
		return context.Cause(c)
	}
	c.host.emit(c.id, name, value)
	return nil
}

// maxEmitted is how many bytes an event of a node has at most.
const maxEmitted = 64 << 10

// Pause waits until somebody resumes the thread, and returns the value that is given then. Lists of waits show v.
func (c *Context) Pause(v any) json.RawMessage {
	return c.wait(pausePlain, "", func() (wish, error) {
		value, err := plain(c.place("pause"), v)
		return wish{Value: value}, err
	}).Value
}

// SleepUntil waits until a time. One that has passed does not wait.
func (c *Context) SleepUntil(at time.Time) {
	c.wait(pauseTimer, "", func() (wish, error) { return wish{WakeAt: max(1, at.UnixMilli())}, nil })
}

// SleepFor waits for a time that begins when the node first comes here.
func (c *Context) SleepFor(d time.Duration) { c.SleepUntil(time.Now().Add(d)) }

// AwaitExternal waits until somebody resumes the thread under a name, and returns the value that is given then.
func (c *Context) AwaitExternal(name string) json.RawMessage {
	return c.wait(pauseAwait, name, func() (wish, error) { return wish{}, named(name) }).Value
}

// Decision is what people decided on an approval.
type Decision struct {
	Granted bool   `json:"granted"`
	By      string `json:"by,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// RequestApproval waits until people decide. They are shown payload.
func (c *Context) RequestApproval(name string, payload any) (d Decision) {
	e := c.wait(pauseApproval, name, func() (wish, error) {
		if err := named(name); err != nil {
			return wish{}, err
		}
		value, err := plain(c.place("pause"), payload)
		return wish{Value: value}, err
	})
	if err := json.Unmarshal(e.Value, &d); err != nil {
		c.fail(fault.New(fault.PauseReplayDivergence, "The stored decision on %q cannot be read.", name).Because(err))
	}
	return d
}

// Agent runs an agent as a child of the thread, once, and returns its output. The error is that of the child.
func (c *Context) Agent(id string, input any) (json.RawMessage, error) {
	return c.call(askAgent, id, input)
}

// Tool calls a tool, once, and returns its result. The error is that of the tool, or says that people denied the call.
func (c *Context) Tool(name string, args any) (json.RawMessage, error) {
	return c.call(askTool, name, args)
}

// Step calls fn and makes its result durable. When the node runs again, the result is returned and fn is not called; only
// a crash between its effect and the commit of its result lets it happen twice. The error of fn is kept likewise, unless
// it is the last that the node did before it failed.
func (c *Context) Step(name string, fn func() (any, error)) (json.RawMessage, error) {
	e := c.wait(askStep, name, func() (wish, error) {
		v, err := fn()
		if err != nil {
			return wish{}, &stepError{err}
		}
		value, err := plain(c.place("step"), v)
		return wish{Value: value}, err
	})
	return e.result()
}

func (c *Context) call(kind, name string, input any) (json.RawMessage, error) {
	e := c.wait(kind, name, func() (wish, error) {
		value, err := plain(c.place(kind), input)
		return wish{Value: value}, err
	})
	return e.result()
}

func (e *entry) result() (json.RawMessage, error) {
	if e.Error != nil {
		return nil, e.Error.fault()
	}
	return e.Value, nil
}

// stepError is the error of a step's function, which is a result of the step.
type stepError struct{ error }

// wait answers a call from the journal, or makes it with what want returns.
func (c *Context) wait(kind, name string, want func() (wish, error)) *entry {
	if c.asked != nil || c.failed != nil { // a deferred function calls, or another goroutine
		runtime.Goexit()
	}
	e, err := replays(c.journal, c.at, c.node, kind, name)
	if err != nil {
		c.fail(err)
	}
	c.at++
	if e != nil {
		return e
	}
	w, err := want()
	failed, is := err.(*stepError)
	if is {
		err = nil
	}
	if err == nil {
		err = room(c.journal, c.node, w.Value)
	}
	if err != nil {
		c.fail(err)
	}
	w.Kind, w.Name = kind, name
	if kind != askStep {
		c.asked = &w
		runtime.Goexit()
	}
	e = &entry{Kind: kind, Name: name, Value: w.Value}
	if is {
		e.Error = failureOf(nodeError(c.node, failed.error))
	}
	c.journal = append(c.journal, *e)
	if err := c.host.keep(c, c.id, c.journal); err != nil {
		c.fail(err)
	}
	return e
}

// fail ends the goroutine of the node, whose task then fails.
func (c *Context) fail(err error) {
	c.failed = err
	runtime.Goexit()
}

func (c *Context) place(what string) string { return fmt.Sprintf("<%s:%s>", what, c.node) }

// named refuses what cannot name a wait.
func named(name string) error {
	if name == "" || len(name) > 128 {
		return fault.New(fault.NodeFailed, "A wait has a name of %d bytes; 1 to 128 are possible.", len(name)).Advise("Correct the name in the node.")
	}
	return nil
}

// nodeError gives the error of a program a code, unless it has one.
func nodeError(node string, err error) error {
	if f := fault.Of(err); f.Kind != fault.Internal {
		return err
	}
	return fault.New(fault.NodeFailed, "The node %q failed: %v.", node, err).Because(err)
}

// An ending is how one run of a node ended.
type ending struct {
	journal   []entry
	asked     *wish // it waits for this
	err       error
	panicked  string // for the log
	cancelled bool   // the error says only that its context has ended
	writes    map[string]json.RawMessage
	dispatch  []scheduled
}

// run calls a node and hands over how it ended. A node that waits ends the calling goroutine.
func (p *program) run(c *Context, state State, ended func(ending)) {
	var out ending
	returned := false
	defer func() {
		switch v := recover(); {
		case v != nil:
			out.err, out.panicked = fault.New(fault.NodeFailed, "The node %q panicked.", c.node), fmt.Sprintf("%v\n%s", v, debug.Stack())
		case c.failed != nil:
			out = ending{err: c.failed}
		case c.asked != nil:
			out = ending{asked: c.asked}
		case !returned:
			out.err = fault.New(fault.NodeFailed, "The node %q ended its goroutine.", c.node)
		}
		out.journal = c.journal
		ended(out)
	}()
	result, err := p.Nodes[c.node].Run(c, state)
	returned = true
	switch {
	case err != nil:
		out.err = nodeError(c.node, err)
	case c.at < len(c.journal):
		e := c.journal[c.at]
		out.err = fault.New(fault.PauseReplayDivergence, "The node %q ended without its call %d, which was %s before.", c.node, c.at+1, ask(e.Kind, e.Name))
	default:
		out.writes, out.dispatch, out.err = p.result(c.node, result)
	}
}

// result checks and encodes what a node returns.
func (p *program) result(node string, r Result) (writes map[string]json.RawMessage, dispatch []scheduled, err error) {
	if len(r.Write) > 0 {
		writes = map[string]json.RawMessage{}
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(r.Write)) {
		if err := accepts(p.Channels, name, node); err != nil {
			return nil, nil, err
		}
		if writes[name], err = plain(fmt.Sprintf("channel %q", name), r.Write[name]); err != nil {
			return nil, nil, err
		}
		if size += len(writes[name]); size > p.MaxStateBytes {
			return nil, nil, fault.New(fault.StateTooLarge, "The node %q writes more than the %d bytes that the state may have.", node, p.MaxStateBytes)
		}
	}
	for _, d := range r.Dispatch {
		if _, is := p.Nodes[d.Node]; !is {
			return nil, nil, fault.New(fault.UnknownNode, "The node %q dispatches %q, which is not a node of the workflow.", node, d.Node)
		}
		s := scheduled{Node: d.Node}
		if s.Args, err = plain(fmt.Sprintf("<dispatch:%s>", d.Node), d.Args); err != nil {
			return nil, nil, err
		}
		dispatch = append(dispatch, s)
	}
	return writes, dispatch, nil
}
