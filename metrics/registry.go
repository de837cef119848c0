// Package metrics counts things and writes them in the Prometheus text format 0.0.4.
//
// A [Registry] is a value; there is no global one. It holds families, each declared once with a name, a help text
// and its labels, in the order in which they are printed. [New] declares the families of this program.
//
// Everything but declaring is safe for concurrent use, and everything is bounded: a family has at most [MaxSeries] series, a
// label value at most [MaxLabelValue] bytes, a summary remembers its last 1024 observations, a histogram has fixed
// buckets.
package metrics

import (
	"fmt"
	"slices"
	"strings"
)

// ContentType is the media type of what [Registry.Text] returns.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// A Registry is a list of families. The zero value is empty and ready for use. Declarations come before any other use; their
// names and labels must be those that the format allows, each name once.
type Registry struct{ families []family }

// A family is a declaration and the code that appends the samples of it to b.
type family struct {
	name, kind, help string
	labels           []string
	samples          func(b []byte) []byte
}

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

// Histogram declares a histogram without labels.
func (r *Registry) Histogram(name, help string) *Histogram {
	return r.Histograms(name, help).With()
}

// Histograms declares a histogram with labels.
func (r *Registry) Histograms(name, help string, labels ...string) *Histograms {
	return declare(r, "histogram", name, help, labels, func() *Histogram { return new(Histogram) })
}

// Sampled declares a counter or gauge that each exposition asks f for, as in [Gauge.Sample].
func (r *Registry) Sampled(kind, name, help string, f func() (float64, error)) {
	r.families = append(r.families, family{name, kind, help, nil, func(b []byte) []byte {
		v, err := f()
		if err != nil {
			return b
		}
		return appendSample(b, name, "", v)
	}})
}

func declare[M metric](r *Registry, kind, name, help string, labels []string, fresh func() M) *Vec[M] {
	v := newVec(name, labels, fresh)
	r.families = append(r.families, family{name, kind, help, slices.Clone(labels), v.samples})
	return v
}

// Text is the exposition: the families in the order of declaration, each with its help and type lines even when it
// has no samples, the series of a family in the order of their labels. Text asks sampled gauges while it writes.
func (r *Registry) Text() []byte {
	var b []byte
	for _, f := range r.families {
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
	for _, f := range r.families {
		labels := "-"
		if len(f.labels) > 0 {
			labels = "`" + strings.Join(f.labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, labels, cell.Replace(f.help))
	}
	return b.String()
}
