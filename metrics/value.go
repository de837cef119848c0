package metrics

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
)

// A Counter only grows. Its whole numbers are exact up to 2^53.
type Counter struct {
	bits atomic.Uint64 // of a float64
}

// Inc adds one.
func (c *Counter) Inc() { c.Add(1) }

// Add adds n. It ignores what would not let a counter grow: zero, negative numbers and NaN.
func (c *Counter) Add(n float64) {
	if !(n > 0) {
		return
	}
	for {
		old := c.bits.Load()
		if c.bits.CompareAndSwap(old, math.Float64bits(math.Float64frombits(old)+n)) {
			return
		}
	}
}

func (c *Counter) appendTo(b []byte, name, labels string) []byte {
	return appendSample(b, name, labels, math.Float64frombits(c.bits.Load()))
}

// A Gauge goes up and down. It is either set or sampled; until then it has no sample.
type Gauge struct {
	mu     sync.Mutex // guards the one below
	sample func() (float64, error)
}

// Set gives the gauge a value. It ends sampling.
func (g *Gauge) Set(v float64) {
	g.Sample(func() (float64, error) { return v, nil })
}

// Sample makes each exposition ask f for the value. When f fails, the gauge is left out of that exposition. f may be called
// concurrently, and the scrape waits for it: it should read something that is at hand.
func (g *Gauge) Sample(f func() (float64, error)) {
	g.mu.Lock()
	g.sample = f
	g.mu.Unlock()
}

func (g *Gauge) appendTo(b []byte, name, labels string) []byte {
	g.mu.Lock()
	f := g.sample
	g.mu.Unlock()
	if f == nil {
		return b
	}
	v, err := f()
	if err != nil {
		return b
	}
	return appendSample(b, name, labels, v)
}

// A Summary has the median and the 95th percentile of its last 1024 observations by the nearest-rank method, and
// the sum and count of all of them. It has no quantiles before the first observation.
type Summary struct {
	mu    sync.Mutex // guards the fields below
	last  []float64  // a ring once it is full
	count uint64
	sum   float64
}

const window = 1024

// Observe records v. It ignores NaN, which has no rank and would spoil the sum for ever.
func (s *Summary) Observe(v float64) {
	if math.IsNaN(v) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) < window {
		s.last = append(s.last, v)
	} else {
		s.last[s.count%window] = v
	}
	s.count++
	s.sum += v
}

func (s *Summary) appendTo(b []byte, name, _ string) []byte {
	s.mu.Lock()
	sorted, count, sum := slices.Clone(s.last), s.count, s.sum
	s.mu.Unlock()
	slices.Sort(sorted)
	if len(sorted) > 0 {
		b = appendSample(b, name, `quantile="0.5"`, rank(sorted, 50))
		b = appendSample(b, name, `quantile="0.95"`, rank(sorted, 95))
	}
	b = appendSample(b, name+"_sum", "", sum)
	return appendSample(b, name+"_count", "", float64(count))
}

// rank is the smallest value that at least percent of all values do not exceed. It counts in integers: 0.95*n in
// floating point can land above the whole number that it should be.
func rank(sorted []float64, percent int) float64 {
	return sorted[(len(sorted)*percent+99)/100-1]
}
