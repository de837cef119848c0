package graph

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentd/server/expr"
	"agentd/server/fault"
	"agentd/server/schema"
	"agentd/server/shape"
)

// Bounds of a workflow.
const (
	MaxNodes   = 1000
	MaxLinks   = 5000 // names of nodes in other nodes
	MaxNesting = 16   // parallels inside each other

	maxProblems = 100 // that Compile returns
)

// Compile checks a workflow. The graph is nil if there are problems; their order is that of the checks. Without names, every
// tool, agent and workflow counts as known.
//
// Expressions may read input, the declared keys of state, thread, run, session, now and error, and in the node of a map item
// and index. error is null where no error was caught.
func Compile(id string, w Workflow, names Names) (*Graph, []Problem) {
	text := source(&w)
	c := compiler{form: &w, names: names, graph: &Graph{
		ID: id, Form: w, Source: text, Digest: digest(text), Start: w.Start,
		Nodes: map[string]*Node{}, Keys: map[string]*Key{}, Timeout: w.Timeout.Duration(),
		MaxSteps: w.MaxSteps, KeepSteps: w.KeepSteps, MaxStateBytes: w.MaxStateBytes,
	}}
	c.workflow()
	if len(c.problems) > 0 {
		return nil, c.problems
	}
	return c.graph, nil
}

type compiler struct {
	form     *Workflow
	names    Names
	graph    *Graph
	vars     expr.Vars // of the expressions of a node
	inMap    expr.Vars // and of one in a map
	uses     []use
	problems []Problem
}

// A use is a key of the state that a node reads or writes; no key stands for all.
type use struct {
	node   string
	key    string
	writes bool
	inMap  bool // by the elements of a map
	path   []any
}

func (c *compiler) problem(path []any, format string, args ...any) {
	c.add(Problem{slices.Clone(path), -1, fmt.Sprintf(format, args...)})
}

func (c *compiler) add(p Problem) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, p)
	}
}

// under returns a path with more parts, in a new slice.
func under(path []any, more ...any) []any { return slices.Concat(path, more) }

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (c *compiler) workflow() {
	w := c.form
	keys := expr.Keys{}
	size := 0 // of the state that a run begins with
	for _, name := range sorted(w.State) {
		keys = append(keys, name)
		c.key(name, w.State[name])
		before := size
		if size += len(c.graph.Keys[name].Initial); before <= w.MaxStateBytes && size > w.MaxStateBytes {
			c.problem([]any{"state", name}, "with this key, a run begins with %d bytes of state; maxStateBytes is %d: raise it, or begin with less", size, w.MaxStateBytes)
		}
	}
	c.vars = expr.Vars{"input": nil, "state": keys, "thread": {}, "run": {}, "session": {}, "now": {},
		"error": {"code", "message", "node"}}
	c.inMap = maps.Clone(c.vars)
	c.inMap["item"], c.inMap["index"] = nil, expr.Keys{}

	c.graph.Input = c.schema(w.Input, "input")
	c.graph.Output, _ = c.template(use{}, w.Output, c.vars, "output")
	c.graph.OnError = c.handler(use{}, w.OnError, "onError")
	if len(w.Nodes) > MaxNodes {
		c.problem([]any{"nodes"}, "a workflow has at most %d nodes; move some of these %d to a workflow that runs as a child", MaxNodes, len(w.Nodes))
		return
	}
	for _, name := range sorted(w.Nodes) {
		if name == End || name == Start {
			c.problem([]any{"nodes", name}, "%q is reserved; give this node another name", name)
		}
		n := w.Nodes[name]
		c.graph.Nodes[name] = c.node(name, &n)
	}
	c.paths()
}

// key compiles the declaration of a key.
func (c *compiler) key(name string, k StateKey) {
	path := []any{"state", name, "initial"}
	m := Merge(k.Merge)
	compiled := &Key{Merge: m, Initial: json.RawMessage(merges[m].initial)}
	c.graph.Keys[name] = compiled
	if k.Initial == nil {
		return
	}
	t, _ := c.template(use{}, k.Initial, expr.Vars{}, path...)
	switch want := merges[m].old; {
	case t == nil:
	case !t.Constant():
		c.problem(path, "an initial value is no template; set it with a node of kind set")
	case want != "" && found(k.Initial) != want:
		c.problem(path, "got %s, want %s: the key merges with %s", found(k.Initial), want, m)
	case (m == Max || m == Min) && !slices.Contains([]string{"null", "a number", "a text"}, found(k.Initial)):
		c.problem(path, "got %s, want null, a number or a text: the key merges with %s", found(k.Initial), m)
	default:
		compiled.Initial = constant(t)
	}
}

// constant is the value of a template that has no expressions.
func constant(t *expr.Template) json.RawMessage {
	v, err := t.Eval(expr.Map{})
	if err == nil {
		if b, err := expr.Encode(v); err == nil {
			return b
		}
	}
	panic(fmt.Sprintf("graph: a constant has no value: %v", err)) // it has no expressions, and was decoded from JSON
}

// node compiles a node.
func (c *compiler) node(name string, f *NodeForm) *Node {
	n := &Node{Name: name, Kind: f.Kind, Next: f.Next, Save: f.Save, Else: f.Else, Branches: f.Branches, Concurrency: f.Concurrency,
		Collect: f.Failures == "collect", Late: f.Late, Denied: f.Denied, Code: f.Code}
	at := use{node: name, path: []any{"nodes", name}}
	c.work(n, at, &f.Work, c.vars)
	c.save(at, f.Save, "save")
	n.OnError = c.handler(at, f.OnError, "onError")
	for i, cs := range f.Cases {
		n.Cases = append(n.Cases, Case{c.condition(at, cs.If, "cases", i, "if"), cs.Next})
	}
	n.Message, _ = c.template(at, f.Message, c.vars, "message")
	if n.Late != "" && f.Timeout == 0 {
		c.problem(under(at.path, "late"), "late needs timeoutMs; set it, or leave late out")
	}
	if f.Kind == KindMap && f.Do != nil {
		var v any
		n.Over, v = c.of("a list", at, f.Over, c.vars, "over")
		if list, _ := v.([]any); len(list) > MaxElements {
			c.problem(under(at.path, "over"), "a map has at most %d elements; split the list", MaxElements)
		}
		at.path, at.inMap = under(at.path, "do"), true
		n.Do = &Node{Kind: f.Do.Kind}
		c.work(n.Do, at, &f.Do.Work, c.inMap)
	}
	return n
}

// of compiles a template whose value must be of a type in words, as [found] has it.
func (c *compiler) of(want string, at use, raw json.RawMessage, vars expr.Vars, field string) (*expr.Template, any) {
	t, v := c.template(at, raw, vars, field)
	if t != nil && (t.Text() || found(raw) != want && found(raw) != "a text") {
		c.problem(under(at.path, field), "got %s, want %s, or a text that is one ${ expression } and nothing else", found(raw), want)
	}
	return t, v
}

// work compiles what a node does.
func (c *compiler) work(n *Node, at use, f *Work, vars expr.Vars) {
	n.Tool, n.Agent, n.Workflow, n.Wait, n.Terms, n.Timeout = f.Tool, f.Agent, f.Workflow, f.Name, f.Terms, f.Timeout.Duration()
	c.exists(at, "tool", f.Tool)
	c.exists(at, "agent", f.Agent)
	c.exists(at, "workflow", f.Workflow)
	n.Args, _ = c.of("an object", at, f.Args, vars, "args")
	n.Input, _ = c.template(at, f.Input, vars, "input")
	n.Show, _ = c.template(at, f.Show, vars, "show")
	n.Schema = c.schema(f.Schema, under(at.path, "schema")...)
	for _, key := range sorted(f.Values) {
		t, _ := c.template(at, f.Values[key], vars, "values", key)
		n.Values = append(n.Values, Value{key, t})
		c.save(at, key, "values", key)
	}
	if n.Kind == KindSet && len(n.Values) == 0 {
		c.problem(under(at.path, "values"), "is empty; name a key of the state and its value")
	}
	if n.Kind == KindAgent {
		c.session(n, at, f.Session, vars)
	}
	if n.Kind == KindSleep {
		c.sleep(n, at, f, vars)
	}
	if r := f.Retry; r != nil {
		n.Retry = &Retry{r.MaxAttempts, r.Backoff.Duration(), r.MaxBackoff.Duration(), r.On}
		if r.Backoff > r.MaxBackoff {
			c.problem(under(at.path, "retry", "backoffMs"), "is longer than maxBackoffMs, which is %d; lower it, or set maxBackoffMs", r.MaxBackoff)
		}
	}
}

func (c *compiler) exists(at use, what, name string) {
	if name != "" && c.names != nil && !c.names.Has(what, name) {
		c.problem(under(at.path, what), "there is no %s %q%s", what, name, c.meant(name, func() []string { return c.names.All(what) }))
	}
}

func (c *compiler) session(n *Node, at use, text string, vars expr.Vars) {
	n.Session.Mode = text
	if text == "none" || text == "thread" {
		return
	}
	n.Session.Mode = "given"
	n.Session.ID, _ = c.template(at, shape.Encode(text), vars, "session")
	if t := n.Session.ID; t != nil && t.Constant() {
		c.problem(under(at.path, "session"), "want none, thread, or a template such as \"order-${ input.id }\"")
	}
}

func (c *compiler) sleep(n *Node, at use, f *Work, vars expr.Vars) {
	if (f.For == nil) == (f.Until == nil) {
		c.problem(at.path, "a sleep has either forMs or until; set one of them")
		return
	}
	var v any
	if n.For, v = c.of("a number", at, f.For, vars, "forMs"); n.For != nil && found(f.For) == "a number" {
		if ms, ok := v.(int64); !ok || ms < 0 || ms > MaxTime {
			c.problem(under(at.path, "forMs"), "want milliseconds from 0 to %d", MaxTime)
		}
	}
	if n.Until, v = c.template(at, f.Until, vars, "until"); n.Until != nil && n.Until.Constant() {
		text, _ := v.(string)
		_, err := time.Parse(time.RFC3339, text)
		if ms, ok := v.(int64); err != nil && (!ok || ms > MaxTime) {
			c.problem(under(at.path, "until"), "want a time before the year 10000 such as \"2027-01-31T09:00:00+01:00\", milliseconds since 1970, or a template of one")
		}
	}
}

func (c *compiler) handler(at use, f *HandlerForm, field string) *Handler {
	if f == nil {
		return nil
	}
	c.save(at, f.Save, field, "save")
	return &Handler{f.Next, f.Save, f.On}
}

// save notes that a node writes a key.
func (c *compiler) save(at use, key string, path ...any) {
	if key == "" {
		return
	}
	at.path = under(at.path, path...)
	if c.graph.Keys[key] == nil {
		c.problem(at.path, "the state has no key %q%s", key, cmp.Or(c.meant(key, func() []string { return sorted(c.graph.Keys) }), "; declare it in state"))
		return
	}
	at.key, at.writes = key, true
	c.uses = append(c.uses, at)
}

// reads notes what of the state a node reads.
func (c *compiler) reads(at use, reads []expr.Read, path []any) {
	for _, r := range reads {
		if r.Var == "state" {
			c.uses = append(c.uses, use{node: at.node, key: r.Key, inMap: at.inMap, path: path})
		}
	}
}

func (c *compiler) condition(at use, text string, path ...any) *expr.Program {
	path = under(at.path, path...)
	p, err := expr.Condition(text, c.vars)
	if err != nil {
		c.expression(err, path)
		return nil
	}
	c.reads(at, p.Reads(), path)
	return p
}

// template compiles a value; nil if there is none, or if it is not sound. It returns the value as well.
func (c *compiler) template(at use, raw json.RawMessage, vars expr.Vars, path ...any) (*expr.Template, any) {
	if raw == nil {
		return nil, nil
	}
	path = under(at.path, path...)
	v, err := expr.Decode(raw)
	if err != nil {
		c.problem(path, "%v", err)
		return nil, nil
	}
	t, err := expr.CompileTemplate(v, vars)
	if err != nil {
		inner, _ := errors.AsType[*expr.Error](err)
		c.expression(err, under(path, steps(v, inner.Path)...))
		return nil, nil
	}
	c.reads(at, t.Reads(), path)
	return t, v
}

// steps is the path of a JSON pointer into v.
func steps(v any, pointer string) (path []any) {
	for pointer != "" {
		var token string
		token, pointer, _ = strings.Cut(pointer[1:], "/")
		if pointer != "" {
			pointer = "/" + pointer
		}
		switch in := v.(type) {
		case []any:
			i, _ := strconv.Atoi(token)
			path, v = append(path, i), in[i]
		case map[string]any:
			name := strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
			path, v = append(path, name), in[name]
		}
	}
	return path
}

// expression reports an expression that does not compile.
func (c *compiler) expression(err error, path []any) {
	e, _ := errors.AsType[*expr.Error](err)
	message := e.Message
	if e.Hint != "" {
		message += " " + e.Hint
	}
	c.add(Problem{path, e.Offset, message})
}

func (c *compiler) schema(raw json.RawMessage, path ...any) *schema.Schema {
	if raw == nil {
		return nil
	}
	s, err := schema.Compile(raw)
	if err == nil {
		return s
	}
	for _, issue := range err.(*schema.Error).Issues {
		v, _ := expr.Decode(raw)
		c.problem(under(path, steps(v, issue.Path)...), "%s", issue.Message)
	}
	return nil
}

// meant completes a message with the known name that was likely meant, while somebody will read it.
func (c *compiler) meant(name string, known func() []string) string {
	if len(c.problems) >= maxProblems {
		return ""
	}
	return shape.DidYouMean(fault.Nearest(name, known()))
}
