package stream_test

import (
	"cmp"
	"fmt"
	"net"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// The benchmarks measure delivery over loopback TCP to clients that only count, in this process; a ceiling is measured
// in turns with it. What counts is the ratio. Each turn is long: use -benchtime=5x.

func percentile[T cmp.Ordered](values []T, p int) T {
	values = slices.Sorted(slices.Values(values))
	return values[min(len(values)-1, len(values)*p/100)]
}

// A contestant delivers events to an audience of its own.
type contestant struct {
	name     string
	publish  func()
	audience *audience

	rates  []float64 // deliveries per second, of each turn
	cpu    []float64 // nanoseconds of processor time per delivery, clients included
	allocs []float64 // per delivery
}

const benchRound = 256

func contestants(b *testing.B, clients int) []*contestant {
	frame := eventFrame(b)
	bare, ends := newBareFanOut(b, clients)
	all := []*contestant{{name: "bare", publish: func() { bare.publish(frame) }, audience: newAudience(b, ends, benchRound, countMarks)}}
	for _, name := range []string{"ws", "sse"} {
		a := newArena(b, 1000)
		var conns []net.Conn
		for range clients {
			conns = append(conns, a.watch(b, "/"+name))
		}
		all = append(all, &contestant{name: name, publish: a.publish, audience: newAudience(b, conns, benchRound, countMarks)})
	}
	return all
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// turn delivers about a million events.
func (c *contestant) turn(b *testing.B) {
	rounds := 1 << 20 / benchRound / c.audience.size
	deliveries := float64(rounds * benchRound * c.audience.size)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, begun := processorTime(b), time.Now()
	c.audience.rounds(b, rounds, c.publish)
	took := time.Since(begun)
	cpu = processorTime(b) - cpu
	runtime.ReadMemStats(&after)
	c.rates = append(c.rates, deliveries/took.Seconds())
	c.cpu = append(c.cpu, float64(cpu)/deliveries)
	c.allocs = append(c.allocs, float64(after.Mallocs-before.Mallocs)/deliveries)
}

// ratios divides the turns of one by those of another.
func ratios(a, b []float64) []float64 {
	var all []float64
	for i := range a {
		all = append(all, a[i]/b[i])
	}
	return all
}

// BenchmarkFanOut sends events of 320 bytes to all clients as fast as they are read.
func BenchmarkFanOut(b *testing.B) {
	for _, clients := range []int{100, 1000} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			all := contestants(b, clients)
			for b.Loop() {
				for _, c := range all {
					c.turn(b)
				}
			}
			for _, c := range all {
				b.ReportMetric(median(c.rates)/1e3, c.name+"-K/s")
				b.ReportMetric(median(c.cpu), c.name+"-cpu-ns")
				b.ReportMetric(median(c.allocs), c.name+"-allocs")
			}
			bare, ws, sse := all[0], all[1], all[2]
			b.ReportMetric(median(ratios(ws.rates, bare.rates)), "ws/bare")
			b.ReportMetric(median(ratios(sse.rates, ws.rates)), "sse/ws")
			b.ReportMetric(median(ratios(bare.cpu, ws.cpu)), "cpu-ws/bare")
			b.ReportMetric(0, "ns/op")
		})
	}
}
