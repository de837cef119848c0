package cli

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// freeGarbage may always wait to be collected. The live heap of a server is small, so with Go's default it would be
	// collected every few megabytes: about a tenth of the processor time of a busy server.
	freeGarbage = 32 << 20
	// mostGarbage and leastGarbage are the bounds in percent of the live heap: so a large heap does not triple in size.
	mostGarbage, leastGarbage = 200, 50
)

// TuneHeap sets, after each collection, how much garbage may wait for the next one. GOGC in the environment goes before it.
func TuneHeap() {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := mostGarbage
	debug.SetGCPercent(percent)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	type sign struct{ _ *byte } // of no use: the collector finds it dead, and its finalizer is called, in each cycle
	var collected func(*sign)
	collected = func(s *sign) {
		metrics.Read(live)
		next := percent
		if live[0].Value.Kind() == metrics.KindUint64 {
			next = int(min(mostGarbage, max(leastGarbage, freeGarbage*100/max(1, live[0].Value.Uint64()))))
		}
		if d := next - percent; d < -percent/8 || d > percent/8 { // to set it stops the world for a moment
			percent = next
			debug.SetGCPercent(percent)
		}
		runtime.SetFinalizer(s, collected)
	}
	runtime.SetFinalizer(&sign{}, collected)
}
