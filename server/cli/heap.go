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

	// smallMemory is the soft limit of the runtime's memory. Near it, the collector returns pages that fragments hold. If half
	// as much again as the live heap and the stacks is more, that is the limit, so that nothing is collected without end.
	smallMemory = 192 << 20
)

// TuneHeap sets, after each collection, how much garbage may wait for the next one, and the soft limit of all memory of the
// runtime. GOGC and GOMEMLIMIT in the environment go before it.
func TuneHeap() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	percent, limit := mostGarbage, int64(smallMemory)
	debug.SetGCPercent(percent)
	debug.SetMemoryLimit(limit)
	used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	type sign struct{ _ *byte } // of no use: the collector finds it dead, and its finalizer is called, in each cycle
	var collected func(*sign)
	collected = func(s *sign) {
		metrics.Read(used)
		next, soft := percent, limit
		if used[0].Value.Kind() == metrics.KindUint64 && used[1].Value.Kind() == metrics.KindUint64 {
			alive, stacks := used[0].Value.Uint64(), used[1].Value.Uint64()
			next = int(min(mostGarbage, max(leastGarbage, freeGarbage*100/max(1, alive))))
			soft = int64(max(smallMemory, (alive+stacks)*3/2))
		}
		if d := next - percent; d < -percent/8 || d > percent/8 { // to set it stops the world for a moment
			percent = next
			debug.SetGCPercent(percent)
		}
		if d := soft - limit; d < -limit/8 || d > limit/8 {
			limit = soft
			debug.SetMemoryLimit(limit)
		}
		runtime.SetFinalizer(s, collected)
	}
	runtime.SetFinalizer(&sign{}, collected)
}
