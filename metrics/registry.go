// Package metrics counts things and writes them in the Prometheus text format 0.0.4.
//
// A [Registry] is a value; there is no global one. It holds families, each declared once with a name, a help text
// and its labels, in the order in which they are printed. [New] declares the families of this program.
//
// Everything is safe for concurrent use, and everything is bounded: a family has at most [MaxSeries] series, a label
// value at most [MaxLabelValue] bytes, a summary remembers its last 1024 observations.
package metrics

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// ContentType is the media type of what [Registry.Text] returns.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// A Registry is a list of families. The zero value is empty and ready for use. A Registry must not be copied.
//
// Declaring panics on a name or label that the format does not allow, on a name that is taken, and on an empty help
// text: those are mistakes of the program.
type Registry struct {
	mu       sync.Mutex // guards the two below
	families []family
	names    map[string]bool // of families and of the series that they print
}

// A family is a declaration and the code that appends the samples of it to b.
type family struct {
	name, kind, help string
	labels           []string
	samples          func(b []byte) []byte
}

// The shapes that the format allows. Colons are left to recording rules, two leading underscores to the server that
// scrapes.
var (
	nameShape  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	labelShape = regexp.MustCompile(`^([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]*$`)
)

// Counter declares a counter without labels. It starts at zero.
func (r *Registry) Counter(name, help string) *Counter {
	return r.Counters(name, help).With()
}

// Counters declares a counter with labels.
func (r *Registry) Counters(name, help string, labels ...string) *Counters {
	return declare(r, "counter", name, help, labels, func() *Counter { return new(Counter) })
}

// Gauge declares a gauge without labels. It has no sample until it is set.
func (r *Registry) Gauge(name, help string) *Gauge {
	return r.Gauges(name, help).With()
}

// Gauges declares a gauge with labels.
func (r *Registry) Gauges(name, help string, labels ...string) *Gauges {
	return declare(r, "gauge", name, help, labels, func() *Gauge { return new(Gauge) })
}

// Summary declares a summary without labels.
func (r *Registry) Summary(name, help string) *Summary {
	return declare(r, "summary", name, help, nil, func() *Summary { return new(Summary) }).With()
}

func declare[M metric](r *Registry, kind, name, help string, labels []string, fresh func() M) *Vec[M] {
	v := newVec(name, labels, fresh)
	r.add(family{name, kind, help, slices.Clone(labels), v.samples})
	return v
}

func (r *Registry) add(f family) {
	if !nameShape.MatchString(f.name) {
		panic(fmt.Sprintf("metrics: %q is no metric name", f.name))
	}
	if f.help == "" {
		panic(fmt.Sprintf("metrics: %s has no help text", f.name))
	}
	for i, l := range f.labels {
		if !labelShape.MatchString(l) || slices.Contains(f.labels[:i], l) {
			panic(fmt.Sprintf("metrics: %s: label %q is not allowed or declared twice", f.name, l))
		}
	}
	names := []string{f.name}
	if f.kind == "summary" {
		names = append(names, f.name+"_sum", f.name+"_count")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range names {
		if r.names[n] {
			panic(fmt.Sprintf("metrics: %s is declared twice", n))
		}
	}
	if r.names == nil {
		r.names = map[string]bool{}
	}
	for _, n := range names {
		r.names[n] = true
	}
	r.families = append(r.families, f)
}

func (r *Registry) list() []family {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.families)
}

// Text is the exposition: the families in the order of declaration, each with its help and type lines even when it
// has no samples, the series of a family in the order of their labels. Sampled gauges are asked as it is written.
func (r *Registry) Text() []byte {
	var b []byte
	for _, f := range r.list() {
		b = fmt.Appendf(b, "# HELP %s %s\n# TYPE %s %s\n", f.name, helpEscaper.Replace(f.help), f.name, f.kind)
		b = f.samples(b)
	}
	return b
}

// Markdown is a table of the families for the manual.
func (r *Registry) Markdown() string {
	cell := strings.NewReplacer("|", `\|`, "\n", " ")
	var b strings.Builder
	b.WriteString("| Name | Type | Labels | Meaning |\n| --- | --- | --- | --- |\n")
	for _, f := range r.list() {
		labels := "-"
		if len(f.labels) > 0 {
			labels = "`" + strings.Join(f.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, labels, cell.Replace(f.help))
	}
	return b.String()
}
