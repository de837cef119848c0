package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"agentd/server/fault"
)

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

// await calls a node and returns how it ended. A node that does not return in time after its context has ended is left
// alone: what it does then has no effect on the thread.
func (p *program) await(c *Context, state State) *ending {
	ended := make(chan ending, 1)
	go p.run(c, state, func(e ending) { ended <- e })
	late := false
	var e ending // of one that is late: nothing, as its goroutine may still use the journal
	select {
	case e = <-ended:
	case <-c.Done():
		select {
		case e = <-ended:
		case <-time.After(p.CancelGrace):
			late = true
		}
	}
	switch cause := context.Cause(c); {
	case e.asked != nil, e.err == nil && !late:
	case errors.Is(cause, errNodeTime):
		e.err = fault.New(fault.NodeTimeout, "The node %q did not end within %v.", c.node, p.Nodes[c.node].Timeout)
	case late:
		e.err = fault.New(fault.WorkflowCancelTimeout, "The node %q did not end within %v of the abort.", c.node, p.CancelGrace)
	case cause != nil && errors.Is(e.err, cause), errors.Is(e.err, context.Canceled) && cause != nil:
		e.cancelled = true
	}
	return &e
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
		out.err = fault.New(fault.PauseReplayDivergence, "The node %q ended without its call %d, which was %s before.", c.node, c.at+1, described(e.Kind, e.Name))
	default:
		out.writes, out.dispatch, out.err = p.result(c.node, result)
	}
}

// nodeError gives the error of a program a code, unless it has one.
func nodeError(node string, err error) error {
	if f := fault.Of(err); f.Kind != fault.Internal {
		return err
	}
	return fault.New(fault.NodeFailed, "The node %q failed: %v.", node, err).Because(err)
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
