// Package graph holds workflows that a configuration declares: their form, its checks, what an engine runs, and drawings.
// It runs nothing itself.
//
//	JSON -> Workflow (form.go) -> Compile: names, paths, expressions, conflicts -> Graph -> Drawing
package graph

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentd/server/expr"
	"agentd/server/schema"
	"agentd/server/shape"
)

// Kinds of nodes.
const (
	KindTool     = "tool"
	KindAgent    = "agent"
	KindWorkflow = "workflow"
	KindSet      = "set"
	KindBranch   = "branch"
	KindParallel = "parallel"
	KindMap      = "map"
	KindSleep    = "sleep"
	KindAwait    = "await"
	KindApproval = "approval"
	KindFail     = "fail"
)

// End stands where a path ends, in the place of a node's name.
const End = "end"

// MaxElements is how many elements a map may have.
const MaxElements = 10_000

// MaxTime is the last time at which a sleep may end, in milliseconds since 1970: the end of the year 9999.
const MaxTime = 253_402_300_799_999

// A Graph is a workflow that has been checked. Nobody changes it, so it is safe for concurrent use.
type Graph struct {
	ID            string
	Digest        []byte          // SHA-256 of Source
	Source        json.RawMessage // the form with its defaults; [Parse] reads it
	Form          Workflow
	Start         string
	Nodes         map[string]*Node
	Input         *schema.Schema // nil: any
	Output        *expr.Template // nil: the state
	Keys          map[string]*Key
	Timeout       time.Duration // of a run; 0: none
	OnError       *Handler      // nil: none
	MaxSteps      int
	KeepSteps     int
	MaxStateBytes int
}

// A Key is one key of the state.
type Key struct {
	Merge   Merge
	Initial json.RawMessage // never empty
}

// A Node is one node. Fields that its kind does not have are zero. Names of following nodes may be [End].
type Node struct {
	Name     string // empty for the node of a map
	Kind     string
	Next     string // empty for branch, fail and the node of a map
	Save     string // a key; empty: nothing is saved
	Timeout  time.Duration
	Retry    *Retry   // nil: one attempt
	OnError  *Handler // nil: none of its own
	Parallel string   // the node around it; empty: none
	Branch   int      // index of the branch of Parallel that it is in

	Tool        string
	Args        *expr.Template // nil: {}
	Agent       string
	Workflow    string
	Input       *expr.Template // nil: an empty text for an agent, {} for a workflow
	Session     Session
	Values      []Value // sorted by their keys
	Cases       []Case
	Else        string
	Branches    []string
	Over        *expr.Template
	Do          *Node
	Concurrency int
	Collect     bool
	For         *expr.Template // milliseconds; nil: Until is set
	Until       *expr.Template // RFC 3339 text, or milliseconds since 1970
	Wait        string         // name of an await or approval; a map adds the index
	Schema      *schema.Schema // nil: any
	Late        string         // empty: the node fails
	Show        *expr.Template // nil: null
	Terms       Terms
	Denied      string // empty: the node fails
	Code        string
	Message     *expr.Template
}

// A Handler says where to continue after a failure.
type Handler struct {
	Next string
	Save string   // a key; empty: nothing is saved
	On   []string // codes; nil: all
}

// Takes reports whether the handler is for a code.
func (h *Handler) Takes(code string) bool { return h.On == nil || slices.Contains(h.On, code) }

// A Retry says how often a node is tried.
type Retry struct {
	Max                 int // attempts in all
	Backoff, MaxBackoff time.Duration
	On                  []string // codes; nil: what the engine takes for temporary
}

// A Value is what a node of kind set computes for a key.
type Value struct {
	Key      string
	Template *expr.Template
}

// A Case is one condition of a branch.
type Case struct {
	If   *expr.Program
	Next string
}

// A Session says which session an agent's run takes a turn in: Mode is none, thread or given.
type Session struct {
	Mode string
	ID   *expr.Template // for given
}

// Names knows what a workflow may name outside of itself: what is tool, agent or workflow.
type Names interface {
	Has(what, name string) bool
	All(what string) []string
}

// A Problem is one mistake in a workflow.
type Problem struct {
	Path    []any  // from the workflow's object to the value
	Offset  int    // of the bytes before the mistake in the text that is the value; -1: the value as a whole
	Message string // what is wrong, and what to do
}

// form is what the tags of a workflow declare.
var form = shape.Of(reflect.TypeFor[Workflow]())

// Parse compiles what [Graph.Source] holds. Tools, agents and workflows that it names need not exist any more.
func Parse(id string, source []byte) (*Graph, error) {
	r := shape.Reader{MaxDepth: maxDepth}
	var w Workflow
	form.Default(&w)
	if r.Read(source, form, &w); r.Count() > 0 {
		return nil, fmt.Errorf("reading the workflow %s: %s", id, r.Issues()[0].Message)
	}
	g, problems := Compile(id, w, nil)
	if len(problems) > 0 {
		return nil, fmt.Errorf("compiling the workflow %s: %s: %s", id, shape.Dotted(problems[0].Path), problems[0].Message)
	}
	return g, nil
}

// maxDepth bounds the lists and objects inside each other in the source of a workflow. A configuration has fewer.
const maxDepth = 200

// source is the form as compact JSON with sorted members. Numbers stay as they are written: 1 and 1.0 are different values.
func source(w *Workflow) json.RawMessage {
	d := json.NewDecoder(bytes.NewReader(form.Print(w)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic("graph: " + err.Error())
	}
	return shape.Encode(v)
}

func digest(source []byte) []byte {
	sum := sha256.Sum256(source)
	return sum[:]
}

// Awaits returns the awaits of the workflow that can have a name: their own or, in a map, their own with an index, as in ok[3].
func (g *Graph) Awaits(name string) (all []*Node) {
	for _, node := range sorted(g.Nodes) {
		if n := g.Nodes[node].awaits(name); n != nil {
			all = append(all, n)
		}
	}
	return all
}

// awaits returns what waits under a name: the node, or the one of a map; nil if neither does.
func (n *Node) awaits(name string) *Node {
	if before, index, ok := strings.Cut(name, "["); ok {
		i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
		if err != nil || i < 0 || i >= MaxElements || name != WaitName(before, i) {
			return nil
		}
		n, name = n.Do, before
	}
	if n == nil || n.Kind != KindAwait || n.Wait != name {
		return nil
	}
	return n
}

// Ahead reports whether an await of a name can still be reached: it is one of the nodes that are to begin, or comes after
// them or after the others.
func (g *Graph) Ahead(name string, begin, after []string) bool {
	open, seen := slices.Clone(begin), map[string]bool{}
	if g.OnError != nil {
		open = append(open, g.OnError.Next)
	}
	for _, node := range after {
		if n := g.Nodes[node]; n != nil {
			for _, l := range n.links() {
				open = append(open, l.to)
			}
		}
	}
	for len(open) > 0 {
		n := g.Nodes[open[0]]
		if open = open[1:]; n == nil || seen[n.Name] {
			continue
		}
		if seen[n.Name] = true; n.awaits(name) != nil {
			return true
		}
		for _, l := range append(n.links(), n.entries()...) {
			open = append(open, l.to)
		}
	}
	return false
}

// WaitName is the name of a wait in the map's element of an index.
func WaitName(name string, index int) string { return fmt.Sprintf("%s[%d]", name, index) }
