package metrics

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of what a family keeps, whatever its callers send.
const (
	MaxSeries     = 1000 // of one family; further label values share one series whose values are all "other"
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

	mu     sync.RWMutex         // guards series; a series is never removed, so With may hand it out
	series map[string]series[M] // by the label values, see appendKey
}

type series[M metric] struct {
	labels string // rendered
	metric M
}

func newVec[M metric](name string, labels []string, fresh func() M) *Vec[M] {
	v := &Vec[M]{name: name, labels: slices.Clone(labels), fresh: fresh, series: map[string]series[M]{}}
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
	key := appendKey(space[:0], values)
	v.mu.RLock()
	s, ok := v.series[string(key)]
	v.mu.RUnlock()
	if ok {
		return s.metric
	}
	return v.add(key, values)
}

func (v *Vec[M]) add(key []byte, values []string) M {
	v.mu.Lock()
	defer v.mu.Unlock()
	if s, ok := v.series[string(key)]; ok {
		return s.metric
	}
	if len(v.series) >= MaxSeries {
		values = slices.Repeat([]string{"other"}, len(v.labels))
		key = appendKey(nil, values)
		if s, ok := v.series[string(key)]; ok {
			return s.metric
		}
	}
	var b strings.Builder
	for n, i := range v.order {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(v.labels[i])
		b.WriteString(`="`)
		b.WriteString(labelEscaper.Replace(clean(values[i])))
		b.WriteByte('"')
	}
	s := series[M]{b.String(), v.fresh()}
	v.series[string(key)] = s
	return s.metric
}

func (v *Vec[M]) samples(b []byte) []byte {
	v.mu.RLock()
	all := slices.Collect(maps.Values(v.series))
	v.mu.RUnlock()
	slices.SortFunc(all, func(a, b series[M]) int { return strings.Compare(a.labels, b.labels) })
	for _, s := range all {
		b = s.metric.appendTo(b, v.name, s.labels)
	}
	return b
}

// appendKey appends the values as they will be printed, each after its length, so that no two lists of values share
// a key and no two series print alike.
func appendKey(b []byte, values []string) []byte {
	for _, s := range values {
		s = clean(s)
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
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
