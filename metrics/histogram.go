package metrics

import (
	"slices"
	"strconv"
	"sync/atomic"
)

// Histograms is a histogram with labels.
type Histograms = Vec[*Histogram]

// seconds are the upper bounds of the buckets of all histograms.
var seconds = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800}

// A Histogram counts observations of seconds in fixed buckets, so that those of many servers can be added up. It is
// exposed beside a [Summary], under a name of its own.
type Histogram struct {
	counts [18]atomic.Uint64 // by the bucket; the last has no upper bound
	sum    Counter
}

// Observe counts an observation. It allocates nothing.
func (h *Histogram) Observe(v float64) {
	i, _ := slices.BinarySearch(seconds, v)
	h.counts[i].Add(1)
	h.sum.Add(v)
}

func (h *Histogram) appendTo(b []byte, name, labels string) []byte {
	prefix := labels
	if labels != "" {
		prefix += ","
	}
	var count float64
	for i := range h.counts {
		bound := "+Inf"
		if i < len(seconds) {
			bound = strconv.FormatFloat(seconds[i], 'g', -1, 64)
		}
		count += float64(h.counts[i].Load())
		b = appendSample(b, name+"_bucket", prefix+`le="`+bound+`"`, count)
	}
	b = h.sum.appendTo(b, name+"_sum", labels)
	return appendSample(b, name+"_count", labels, count)
}
