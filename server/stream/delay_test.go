package stream_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// stopwatch measures the delay from the publishing of an event to each client's read.
type stopwatch struct {
	*contestant
	published [128]atomic.Int64 // nanoseconds since begun, of the latest events
	begun     time.Time
	events    int
	delays    [][]time.Duration // of each client
	missing   atomic.Int64
	complete  chan struct{}

	p50, p99 []float64 // ms, of each turn
}

func newStopwatch(c *contestant) *stopwatch {
	s := &stopwatch{contestant: c, begun: time.Now(), delays: make([][]time.Duration, c.audience.size), complete: make(chan struct{})}
	note := func(client, event int, at time.Time) {
		s.delays[client] = append(s.delays[client], at.Sub(s.begun)-time.Duration(s.published[event%len(s.published)].Load()))
		if s.missing.Add(-1) == 0 {
			s.complete <- struct{}{}
		}
	}
	c.audience.noted.Store(&note)
	return s
}

// turn publishes events at a pace.
func (s *stopwatch) turn(events int, every time.Duration) {
	for i := range s.delays {
		s.delays[i] = s.delays[i][:0]
	}
	s.missing.Store(int64(events * s.audience.size))
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range events {
		<-tick.C
		s.published[s.events%len(s.published)].Store(int64(time.Since(s.begun)))
		s.events++
		s.publish()
	}
	<-s.complete
	all := slices.Concat(s.delays...)
	slices.Sort(all)
	s.p50 = append(s.p50, all[len(all)/2].Seconds()*1e3)
	s.p99 = append(s.p99, all[len(all)*99/100].Seconds()*1e3)
}

// BenchmarkDelay sends 50 events a second to 1000 clients, a second each turn.
func BenchmarkDelay(b *testing.B) {
	var all []*stopwatch
	for _, c := range contestants(b, 1000) {
		all = append(all, newStopwatch(c))
	}
	for b.Loop() {
		for _, s := range all {
			s.turn(50, 20*time.Millisecond)
		}
	}
	for _, s := range all {
		b.ReportMetric(median(s.p50), s.name+"-p50-ms")
		b.ReportMetric(median(s.p99), s.name+"-p99-ms")
	}
	for _, s := range all[1:] {
		b.ReportMetric(median(ratios(s.p99, all[0].p99)), s.name+"/bare-p99")
		b.ReportMetric(median(ratios(s.p50, all[0].p50)), s.name+"/bare-p50")
	}
	b.ReportMetric(0, "ns/op")
}
