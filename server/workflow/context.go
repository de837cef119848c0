package workflow

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"time"

	"agentd/server/fault"
	"agentd/server/journal"
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

	journal []entry // what the node's calls have given
	at      int     // how many of them it has made
	inStep  bool    // the function of a step runs
	asked   *wish   // what the goroutine was ended for
	failed  error   // why it was ended
}

// host is the thread as a task sees it. Its methods are called on the goroutine of the task.
type host interface {
	// keep makes durable what the calls of the task have given. Each journal continues the one before.
	keep(ctx context.Context, journal []entry) error
	// emit publishes an event of the task.
	emit(name string, payload json.RawMessage)
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
	c.host.emit(name, value)
	return nil
}

// maxEmitted is how many bytes an event of a node has at most.
const maxEmitted = 64 << 10

// Pause waits until somebody resumes the thread, and returns the value that is given then. Lists of waits show v.
func (c *Context) Pause(v any) json.RawMessage {
	return c.call(wish{Kind: pausePlain}, "pause", v).Value
}

// SleepUntil waits until a time. One that has passed does not wait.
func (c *Context) SleepUntil(at time.Time) {
	c.call(wish{Kind: pauseTimer, WakeAt: max(1, at.UnixMilli())}, "", nil)
}

// SleepFor waits for a time that begins when the node first comes here.
func (c *Context) SleepFor(d time.Duration) { c.SleepUntil(time.Now().Add(d)) }

// AwaitExternal waits until somebody resumes the thread under a name, and returns the value that is given then.
func (c *Context) AwaitExternal(name string) json.RawMessage {
	return c.call(wish{Kind: pauseAwait, Name: name}, "", nil).Value
}

// Terms are what it takes to grant an approval. The zero value takes one principal, at any time.
type Terms struct {
	Approvers int           // how many different principals must grant, at most 10; 1 when 0. One is enough to deny
	Expires   time.Duration // after which agentd denies what nobody has decided, at least a second; 0: never
	Different bool          // the principal that started the run may not grant
}

// Decision is what people decided on an approval.
type Decision struct {
	Granted bool   `json:"granted"`
	By      string `json:"by,omitempty"`
	Reason  string `json:"reason,omitempty"`
}

// RequestApproval waits until people decide under the terms. They are shown payload.
func (c *Context) RequestApproval(name string, payload any, terms Terms) (d Decision) {
	w := wish{Kind: pauseApproval, Name: name, Approvers: terms.Approvers, ExpiresMs: terms.Expires.Milliseconds(), Different: terms.Different}
	if w.Approvers < 0 || w.Approvers > 10 || terms.Expires != 0 && terms.Expires < time.Second {
		c.fail(fault.New(fault.NodeFailed, "The approval %q takes 0 to 10 approvers, and expires after a second or more, or never.", name).Advise("Correct the terms in the node."))
	}
	e := c.call(w, "pause", payload)
	if err := json.Unmarshal(e.Value, &d); err != nil {
		c.fail(fault.New(fault.PauseReplayDivergence, "The stored decision on %q cannot be read.", name).Because(err))
	}
	return d
}

// Agent runs an agent as a child of the thread, once, and returns its output. The error is that of the child.
func (c *Context) Agent(id string, input any) (json.RawMessage, error) {
	return c.call(wish{Kind: askAgent, Name: id}, askAgent, input).result()
}

// Tool calls a tool, once, and returns its result. The error is that of the tool, or says that people denied the call.
func (c *Context) Tool(name string, args any) (json.RawMessage, error) {
	return c.call(wish{Kind: askTool, Name: name}, askTool, args).result()
}

// Step calls fn and makes its result durable. When the node runs again, the result is returned and fn is not called; only
// a crash between its effect and the commit of its result lets it happen twice. The error of fn is kept likewise, unless
// it is the last that the node did before it failed. fn must not call methods of the context, except for Emit.
func (c *Context) Step(name string, fn func() (any, error)) (json.RawMessage, error) {
	e := c.before(askStep, name)
	if e == nil {
		e = &entry{Kind: askStep, Name: name}
		if v, err := c.within(fn); err != nil {
			e.Error = problemOf(nodeError(c.node, err))
			e.Error.Message = journal.Clip(e.Error.Message, 2000)
		} else {
			e.Value = c.value("step", v)
		}
		c.journal, c.at = append(c.journal, *e), c.at+1
		if err := c.host.keep(c, c.journal); err != nil {
			c.fail(err)
		}
	}
	return e.result()
}

// within calls the function of a step. Calls of the context in it would have another place in the journal when the node runs
// again.
func (c *Context) within(fn func() (any, error)) (any, error) {
	c.inStep = true
	defer func() { c.inStep = false }()
	return fn()
}

// call answers a call from the journal, or ends the goroutine with a wish. A place says that the wish has a value.
func (c *Context) call(w wish, place string, value any) *entry {
	e := c.before(w.Kind, w.Name)
	if e == nil {
		if place != "" {
			w.Value = c.value(place, value)
		}
		c.asked = &w
		runtime.Goexit()
	}
	return e
}

// before returns what the next call of the node gave when the node ran before; nil: it did not come so far.
func (c *Context) before(kind, name string) *entry {
	unnamed := kind == pausePlain || kind == pauseTimer
	switch {
	case c.asked != nil || c.failed != nil: // a deferred function calls
		runtime.Goexit()
	case c.inStep:
		c.fail(fault.New(fault.NodeFailed, "The node %q makes another call within a step.", c.node).Advise("Make the call before the step, or after it."))
	case !unnamed && !validName(name):
		c.fail(fault.New(fault.NodeFailed, "The node %q makes a call (%s) without a valid name: %s.", c.node, kind, nameRule).Advise("Correct the name in the node."))
	case c.at == len(c.journal) && c.at >= maxEntries:
		c.full()
	case c.at == len(c.journal):
		return nil
	}
	e := &c.journal[c.at]
	c.at++
	if e.Kind != kind || e.Name != name && !unnamed {
		c.fail(fault.New(fault.PauseReplayDivergence, "Call %d of the node %q was %s before, and is %s now.", c.at, c.node, described(e.Kind, e.Name), described(kind, name)))
	}
	return e
}

// value encodes what a call gives or asks with, if the journal has room for it.
func (c *Context) value(place string, v any) json.RawMessage {
	raw, err := plain(c.place(place), v)
	if err != nil {
		c.fail(err)
	}
	size := len(raw)
	for _, e := range c.journal {
		size += len(e.Value)
	}
	if size > maxEntryBytes {
		c.full()
	}
	return raw
}

// full ends the goroutine of a node that the journal has no room for.
func (c *Context) full() {
	c.fail(fault.New(fault.StateTooLarge, "The calls of the node %q exceed %d, or their results %d bytes.", c.node, maxEntries, maxEntryBytes).
		Advise("Divide the work among several nodes or dispatched tasks."))
}

// fail ends the goroutine of the node, whose task then fails.
func (c *Context) fail(err error) {
	if c.asked == nil && c.failed == nil { // else a deferred function calls
		c.failed = err
	}
	runtime.Goexit()
}

func (c *Context) place(what string) string { return fmt.Sprintf("<%s:%s>", what, c.node) }

// Kinds of what a node asks of its thread. Those of pauses are as lists show them.
const (
	pausePlain    = "pause"
	pauseTimer    = "timer"
	pauseAwait    = "awakeable"
	pauseApproval = "approval"
	pauseBefore   = "static-before"
	pauseAfter    = "static-after"
	askAgent      = "agent"
	askTool       = "tool"
	askStep       = "step"
)

// A wish is what a task asks of its thread. It is stored.
type wish struct {
	Kind      string          `json:"kind"`
	Name      string          `json:"name,omitempty"`
	Value     json.RawMessage `json:"value,omitempty"` // what a pause shows, the arguments of a tool, the input of an agent
	WakeAt    int64           `json:"wakeAt,omitempty"`
	Approvers int             `json:"approvers,omitempty"` // of an approval: see [Terms]
	ExpiresMs int64           `json:"expiresMs,omitempty"`
	Different bool            `json:"different,omitempty"`
}

// An entry is what one call of a node gave. When the node runs again, its calls are answered from the entries, in their
// order.
type entry struct {
	id    int // of the task that holds it
	Kind  string
	Name  string
	Value json.RawMessage
	Error *problem
}

// Bounds of what a task keeps for its replay.
const (
	maxEntries    = 1000
	maxEntryBytes = 4 << 20
)

func (e *entry) result() (json.RawMessage, error) {
	if e.Error != nil {
		return nil, e.Error.fault()
	}
	return e.Value, nil
}

// described names a call for people.
func described(kind, name string) string {
	if name == "" {
		return kind
	}
	return fmt.Sprintf("%s %q", kind, name)
}
