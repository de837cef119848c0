package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of what a family keeps, whatever its callers send.
const (
	MaxValues     = 1000 // of the first label of a family; further ones are "other"
	MaxSeries     = 4000 // of one family; further label values share one series whose values are all "other"
	MaxLabelValue = 200  // bytes; a longer value is cut
)

// Counters is a counter with labels.
type Counters = Vec[*Counter]

// Gauges is a gauge with labels.
type Gauges = Vec[*Gauge]

// A metric appends its samples; labels is what stands between the braces, empty where there are none.
type metric interface {
	appendTo(b []byte, name, labels string) []byte
}

// A Vec is a family of series that differ in their label values.
type Vec[M metric] struct {
	name   string
	labels []string
	order  []int // indices of labels, sorted by name
	fresh  func() M

	mu     sync.RWMutex    // guards the fields below; a series is never removed, so With may hand it out
	series map[string]M    // by what stands between the braces: no two lists of values have the same there
	firsts map[string]bool // values of the first label
}

func newVec[M metric](name string, labels []string, fresh func() M) *Vec[M] {
	v := &Vec[M]{name: name, labels: slices.Clone(labels), fresh: fresh, series: map[string]M{}, firsts: map[string]bool{}}
	for i := range labels {
		v.order = append(v.order, i)
	}
	slices.SortFunc(v.order, func(a, b int) int { return strings.Compare(labels[a], labels[b]) })
	return v
}

// With returns the series that has these label values, in the order in which the labels were declared. It makes the
// series when there is none; for a series that exists it does not allocate. Bytes that are not UTF-8 are replaced.
// It panics when the number of values is not that of the labels.
func (v *Vec[M]) With(values ...string) M {
	if len(values) != len(v.labels) {
		panic(fmt.Sprintf("metrics: %s has %d labels, got %d values", v.name, len(v.labels), len(values)))
	}
	var space [256]byte
	key := v.appendLabels(space[:0], values)
	v.mu.RLock()
	m, ok := v.series[string(key)]
	v.mu.RUnlock()
	if ok {
		return m
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok = v.series[string(key)]
	if !ok && len(values) > 0 {
		if first := clean(values[0]); len(v.firsts) < MaxValues || v.firsts[first] {
			v.firsts[first] = true
		} else {
			key = v.appendLabels(nil, append([]string{"other"}, values[1:]...))
			m, ok = v.series[string(key)]
		}
	}
	if !ok && len(v.series) >= MaxSeries {
		key = v.appendLabels(nil, slices.Repeat([]string{"other"}, len(v.labels)))
		m, ok = v.series[string(key)]
	}
	if !ok {
		m = v.fresh()
		v.series[string(key)] = m
	}
	return m
}

// appendLabels appends what stands between the braces.
func (v *Vec[M]) appendLabels(b []byte, values []string) []byte {
	for n, i := range v.order {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(append(b, v.labels[i]...), `="`...)
		b = append(append(b, labelEscaper.Replace(clean(values[i]))...), '"')
	}
	return b
}

func (v *Vec[M]) samples(b []byte) []byte {
	v.mu.RLock()
	all := maps.Clone(v.series) // a gauge may be sampled by code that needs another series
	v.mu.RUnlock()
	for _, labels := range slices.Sorted(maps.Keys(all)) {
		b = all[labels].appendTo(b, v.name, labels)
	}
	return b
}

// clean makes s valid UTF-8 of at most MaxLabelValue bytes. It does not allocate when s is that already.
func clean(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), MaxLabelValue+utf8.UTFMax)], "\uFFFD")
	if len(s) <= MaxLabelValue {
		return s
	}
	end := MaxLabelValue
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}
