package workflow

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"agentd/server/canonical"
	"agentd/server/fault"
	"agentd/server/graph"
)

// A Channel is a key of the state of a [Definition]. Its kind says how the writes of one superstep become its value. The
// zero value is [LatestValue].
type Channel struct {
	kind   kind
	reduce func(current, update json.RawMessage) (any, error)
	first  any
	from   []string
}

type kind string

const (
	kindLatest    kind = ""
	kindAny       kind = "any-value"
	kindReducer   kind = "reducer"
	kindList      kind = "list-aggregate"
	kindStream    kind = "stream"
	kindUnique    kind = "unique-stream"
	kindBarrier   kind = "barrier"
	kindEphemeral kind = "ephemeral"
)

// LatestValue is a channel that at most one task of a superstep writes.
func LatestValue() Channel { return Channel{} }

// AnyValue is a channel that holds what the last of the tasks, in planned order, wrote.
func AnyValue() Channel { return Channel{kind: kindAny} }

// Reducer is a channel whose value reduce makes of the current one and an update, for each update in planned order. The
// first current value is initial. reduce must depend on nothing else.
func Reducer(reduce func(current, update json.RawMessage) (any, error), initial any) Channel {
	return Channel{kind: kindReducer, reduce: reduce, first: initial}
}

// List is a channel that appends what is written; of a list, its elements.
func List() Channel { return Channel{kind: kindList} }

// Stream is a channel that appends what is written; of a list, its elements. With distinct, a value that the channel
// holds already is left out.
func Stream(distinct bool) Channel {
	if distinct {
		return Channel{kind: kindUnique}
	}
	return Channel{kind: kindStream}
}

// Barrier is a channel that only the named nodes write. It holds the value of each by the name of the node. A node with
// two or more edges into it, all from nodes of the barrier, waits until all of them have written. The first write after
// that begins another round.
func Barrier(from ...string) Channel { return Channel{kind: kindBarrier, from: slices.Clone(from)} }

// Ephemeral is a channel whose value no task sees: only the event of the write shows it.
func Ephemeral() Channel { return Channel{kind: kindEphemeral} }

// initial returns what the channel holds before anybody has written; nil: it never holds anything.
func (c Channel) initial(name string) (json.RawMessage, error) {
	switch c.kind {
	case kindReducer:
		return plain(fmt.Sprintf("channel %q", name), c.first)
	case kindList, kindStream, kindUnique:
		return json.RawMessage("[]"), nil
	case kindBarrier:
		return json.RawMessage("{}"), nil
	case kindEphemeral:
		return nil, nil
	}
	return jsonNull, nil
}

// list reports whether the channel appends what is written.
func (c Channel) list() bool {
	return c.kind == kindList || c.kind == kindStream || c.kind == kindUnique
}

// A write is what a task, or a directive, puts into a channel.
type write struct {
	node  string
	value json.RawMessage
}

// Names of what writes channels besides nodes, and of what fails besides nodes.
const (
	byDirective = "<directive>"
	atMerge     = "<channel-merge>"
	atValidator = "<state-validator>"
)

// merge returns what the channel holds after the writes of one superstep, in planned order; of a list also what was
// added. Both are complete JSON, and current is not changed.
func (c Channel) merge(name string, current json.RawMessage, writes []write) (value, added json.RawMessage, err error) {
	last := writes[len(writes)-1]
	switch c.kind {
	case kindLatest:
		if len(writes) > 1 {
			return nil, nil, fault.New(fault.MultiWrite, "Tasks of %q and %q write the channel %q in one step.", writes[0].node, last.node, name)
		}
		return last.value, nil, nil
	case kindAny, kindEphemeral:
		return last.value, nil, nil
	case kindReducer:
		for _, w := range writes {
			if current, err = c.fold(name, current, w); err != nil {
				return nil, nil, err
			}
		}
		return current, nil, nil
	case kindBarrier:
		value, err = collect(current, writes)
		return value, nil, err
	case kindUnique:
		return graph.Union.Of(current, elements(writes))
	}
	return graph.Append.Of(current, elements(writes))
}

// fold calls the function of a reducer.
func (c Channel) fold(name string, current json.RawMessage, w write) (value json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fault.New(fault.ReducerFailed, "The reducer of the channel %q panicked on what %q wrote.", name, w.node).Because(fmt.Errorf("%v", p))
		}
	}()
	v, err := c.reduce(slices.Clone(current), slices.Clone(w.value))
	if err != nil {
		return nil, fault.New(fault.ReducerFailed, "The reducer of the channel %q refuses what %q wrote: %v.", name, w.node, err).Because(err)
	}
	return plain(fmt.Sprintf("channel %q", name), v)
}

// collect adds to the values of a barrier.
func collect(current json.RawMessage, writes []write) (json.RawMessage, error) {
	values, err := members(current)
	if err != nil {
		return nil, err
	}
	for _, w := range writes {
		values[w.node] = w.value
	}
	return encoded(values), nil
}

// complete reports whether all nodes of a barrier have written.
func (c Channel) complete(current json.RawMessage) bool {
	written, _ := members(current)
	return !slices.ContainsFunc(c.from, func(node string) bool { return written[node] == nil })
}

// elements is the list of what is written; of a list, its elements.
func elements(writes []write) json.RawMessage {
	all := []json.RawMessage{}
	for _, w := range writes {
		if w.value[0] != '[' {
			all = append(all, w.value)
			continue
		}
		for value := range canonical.Elements(w.value) {
			all = append(all, value)
		}
	}
	return encoded(all)
}

// accepts reports why a node, or a directive, may not write a channel; nil when it may.
func accepts(channels map[string]Channel, name, writer string) error {
	c, is := channels[name]
	switch {
	case !is:
		return undeclared(channels, name, writer)
	case c.kind == kindBarrier && !slices.Contains(c.from, writer):
		return fault.New(fault.InvalidChannelWrite, "%s writes the barrier %q, whose writers are %q.", writer, name, c.from)
	}
	return nil
}

func undeclared(channels map[string]Channel, name, writer string) error {
	err := fault.New(fault.InvalidChannelWrite, "%s writes %q, which is not a channel of the workflow.", writer, name)
	if near := fault.Nearest(name, slices.Sorted(maps.Keys(channels))); near != "" {
		err.Advise(fmt.Sprintf("Write the channel %q, or declare %q in Channels.", near, name))
	}
	return err
}
