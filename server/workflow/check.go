package workflow

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/schema"
)

// A program is a [Definition] that has been checked, with its defaults filled in.
type program struct {
	Definition
	initial map[string]json.RawMessage
	input   *schema.Schema // nil: any object of channels
	out     map[string][]Edge
	gates   map[string][]string // the barriers that a node waits for
	digest  [sha256.Size]byte   // of the graph, for threads that continue under another one
}

// compile checks a definition. The error holds all problems at once: unknown-node where it only names nodes that it does not
// have, else config-invalid.
func (d Definition) compile() (*program, error) {
	p := &program{Definition: d, out: map[string][]Edge{}, gates: map[string][]string{}}
	c := checker{d: &p.Definition, kind: fault.UnknownNode}
	c.settings()
	c.nodes()
	c.edges()
	p.initial = c.channels()
	p.defaults()
	if err := p.bounded(p.initial); err != nil {
		c.invalid(fault.Of(err).Message, "initial")
	}
	if len(d.Input) > 0 {
		var err error
		if p.input, err = schema.Compile(d.Input); err != nil {
			c.invalid(err.Error(), "input")
		}
	}
	if len(c.issues) > 0 {
		return nil, &fault.Error{Kind: c.kind, Message: fmt.Sprintf("The workflow %q is not valid.", d.ID), Issues: c.issues}
	}
	for _, e := range d.Edges {
		p.out[e.From] = append(p.out[e.From], e)
	}
	p.gate()
	p.digest = p.sum()
	return p, nil
}

// defaults fills in what the definition leaves open.
func (p *program) defaults() {
	p.MaxSteps = cmp.Or(p.MaxSteps, 200)
	p.MaxConcurrentTasks = cmp.Or(p.MaxConcurrentTasks, 64)
	p.MaxStateBytes = cmp.Or(p.MaxStateBytes, 4<<20)
	p.KeepSteps = cmp.Or(p.KeepSteps, 1000)
	p.CancelGrace = cmp.Or(p.CancelGrace, 100*time.Millisecond)
	// The caller may change its own.
	p.Nodes, p.Channels, p.Edges, p.Awaits = maps.Clone(p.Nodes), maps.Clone(p.Channels), slices.Clone(p.Edges), slices.Clone(p.Awaits)
	p.PauseAt = PauseAt{slices.Clone(p.PauseAt.Before), slices.Clone(p.PauseAt.After)}
	for name, n := range p.Nodes {
		n.Timeout = cmp.Or(n.Timeout, p.NodeDefaults.Timeout)
		n.Retry = Retry{
			MaxAttempts: cmp.Or(n.Retry.MaxAttempts, p.NodeDefaults.Retry.MaxAttempts, 1),
			Backoff:     cmp.Or(n.Retry.Backoff, p.NodeDefaults.Retry.Backoff, 250*time.Millisecond),
			MaxBackoff:  cmp.Or(n.Retry.MaxBackoff, p.NodeDefaults.Retry.MaxBackoff, time.Minute),
		}
		p.Nodes[name] = n
	}
}

// gate finds the barriers that nodes wait for.
func (p *program) gate() {
	into := map[string][]string{}
	for _, e := range p.Edges {
		into[e.To] = append(into[e.To], e.From)
	}
	for to, from := range into {
		if to == End || len(from) < 2 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(p.Channels)) {
			c := p.Channels[name]
			if c.kind == kindBarrier && !slices.ContainsFunc(from, func(node string) bool { return !slices.Contains(c.from, node) }) {
				p.gates[to] = append(p.gates[to], name)
			}
		}
	}
}

// sum is the digest of what a thread that waits relies on: nodes, edges, channels with what they begin with, static pauses.
func (p *program) sum() [sha256.Size]byte {
	type edge struct {
		From, To string
		When     bool
	}
	graph := struct {
		Nodes, Channels []string
		Edges           []edge
		PauseAt         PauseAt
		Initial         map[string]json.RawMessage
	}{Nodes: slices.Sorted(maps.Keys(p.Nodes)), PauseAt: p.PauseAt, Initial: p.initial}
	for _, name := range slices.Sorted(maps.Keys(p.Channels)) {
		graph.Channels = append(graph.Channels, name, string(p.Channels[name].kind), strings.Join(p.Channels[name].from, "\n"))
	}
	for _, e := range p.Edges {
		graph.Edges = append(graph.Edges, edge{e.From, e.To, e.When != nil})
	}
	return sha256.Sum256(encoded(graph))
}

// checker collects what is wrong with a definition.
type checker struct {
	d      *Definition
	kind   *fault.Kind // unknown-node until something else is wrong
	issues []fault.Issue
}

func (c *checker) invalid(message string, path ...any) {
	c.kind = fault.ConfigInvalid
	c.issues = append(c.issues, fault.At(message, path...))
}

// node reports a name that must be one of a node.
func (c *checker) node(name string, path ...any) {
	if _, is := c.d.Nodes[name]; is {
		return
	}
	message := fmt.Sprintf("names the node %q, which does not exist", name)
	if near := fault.Nearest(name, slices.Sorted(maps.Keys(c.d.Nodes))); near != "" {
		message += fmt.Sprintf("; did you mean %q?", near)
	}
	c.issues = append(c.issues, fault.At(message, path...))
}

// name reports a name that nodes and channels cannot have.
func (c *checker) name(name string, path ...any) {
	switch {
	case strings.HasPrefix(name, "__"):
		c.invalid("is a reserved name: names that begin with __ are", path...)
	case !validName(name):
		c.invalid("is not a name: "+nameRule, path...)
	}
}

// nameRule is what a name of a node, a channel or a wait must be.
const nameRule = "it has 1 to 128 bytes of UTF-8 without control characters"

func validName(name string) bool {
	return name != "" && len(name) <= 128 && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}

func (c *checker) settings() {
	if !event.ValidID(c.d.ID) {
		c.invalid("is not a valid id: it has 1 to 128 characters of A-Z a-z 0-9 _ -", "id")
	}
	for _, setting := range []struct {
		name  string
		value int
	}{{"maxSteps", c.d.MaxSteps}, {"maxTotalSteps", c.d.MaxTotalSteps}, {"maxConcurrentTasks", c.d.MaxConcurrentTasks},
		{"maxStateBytes", c.d.MaxStateBytes}, {"keepSteps", c.d.KeepSteps}, {"cancelGrace", int(c.d.CancelGrace)}} {
		if setting.value < 0 {
			c.invalid("is negative", setting.name)
		}
	}
	c.attempts(c.d.NodeDefaults.Timeout, c.d.NodeDefaults.Retry, "nodeDefaults")
}

func (c *checker) attempts(timeout time.Duration, r Retry, path ...any) {
	if timeout < 0 || r.Backoff < 0 || r.MaxBackoff < 0 || r.MaxAttempts < 0 || r.MaxAttempts > 1000 {
		c.invalid("has a negative time, or not 0 to 1000 attempts", path...)
	}
}

func (c *checker) nodes() {
	if len(c.d.Nodes) == 0 {
		c.invalid("has no node", "nodes")
	}
	for _, name := range slices.Sorted(maps.Keys(c.d.Nodes)) {
		n := c.d.Nodes[name]
		c.name(name, "nodes", name)
		if n.Run == nil {
			c.invalid("has no Run", "nodes", name)
		}
		c.attempts(n.Timeout, n.Retry, "nodes", name)
	}
	for i, name := range c.d.Awaits {
		c.name(name, "awaits", i)
	}
	for i, name := range c.d.PauseAt.Before {
		c.node(name, "pauseAt", "before", i)
	}
	for i, name := range c.d.PauseAt.After {
		c.node(name, "pauseAt", "after", i)
	}
}

func (c *checker) edges() {
	begins := false
	for i, e := range c.d.Edges {
		switch e.From {
		case Start:
			begins = true
		case End:
			c.invalid("leads from the end", "edges", i, "from")
		default:
			c.node(e.From, "edges", i, "from")
		}
		switch e.To {
		case End:
		case Start:
			c.invalid("leads to the start", "edges", i, "to")
		default:
			c.node(e.To, "edges", i, "to")
		}
	}
	if !begins {
		c.invalid("has no edge from Start", "edges")
	}
}

// channels returns what the channels hold when a run begins.
func (c *checker) channels() map[string]json.RawMessage {
	values := map[string]json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(c.d.Channels)) {
		ch := c.d.Channels[name]
		c.name(name, "channels", name)
		if ch.kind == kindReducer && ch.reduce == nil {
			c.invalid("has no function", "channels", name)
		}
		if ch.kind == kindBarrier && len(ch.from) == 0 {
			c.invalid("names no node", "channels", name)
		}
		for i, node := range ch.from {
			c.node(node, "channels", name, i)
		}
		value, err := ch.initial(name)
		if err != nil {
			c.invalid(fault.Of(err).Message, "channels", name)
		}
		if value != nil {
			values[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.d.Initial)) {
		value, err := begins(c.d.Channels, name, c.d.Initial[name])
		if err != nil {
			c.invalid(fault.Of(err).Message, "initial")
			continue
		}
		values[name] = value
	}
	return values
}

// begins encodes what a channel holds when a run begins.
func begins(channels map[string]Channel, name string, v any) (json.RawMessage, error) {
	c, is := channels[name]
	if !is {
		return nil, undeclared(channels, name, "A run that begins")
	}
	value, err := plain(fmt.Sprintf("channel %q", name), v)
	if err != nil {
		return nil, err
	}
	switch {
	case c.kind == kindEphemeral || c.kind == kindBarrier:
		return nil, fault.New(fault.InvalidChannelWrite, "The channel %q (%s) cannot begin with a value.", name, c.kind)
	case c.list() && value[0] != '[':
		return nil, fault.New(fault.InvalidChannelWrite, "The channel %q begins with a list.", name)
	}
	return value, nil
}
