package stream_test

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"agentd/server/hub"
	"agentd/server/stream"
)

// heap is what the process holds when what has ended is gone.
func heap() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A client that stops reading is cut off, nobody else notices, and nothing is left when all have gone.
func TestOneOfThousandStalls(t *testing.T) {
	const (
		clients = 1000
		events  = 20
		slack   = 8 << 20 // bytes; what the runtime keeps of goroutines that have ended is 2 MiB, and 5 MiB on a busy machine
	)
	inBubble(t, stream.Options{Queue: 4}, func(r *rig) {
		before := heap()
		stalled := r.dial()
		stalled.subscribe(subject, "")
		var others []*peer
		for range clients - 1 {
			p := r.dial()
			p.subscribe(subject, "")
			others = append(others, p)
		}
		for i := range events {
			r.publish(i + 1)
			var group sync.WaitGroup
			for _, p := range others {
				group.Go(func() { p.wants(entry(i+1, 0, "").ID) })
			}
			group.Wait()
		}
		stalled.wants("1.0", "4006 flow.throttled")
		for _, p := range others {
			p.conn.CloseNow()
		}
		stalled, others = nil, nil
		r.hub.Drop(subject)
		synctest.Wait()
		if n, st := r.Clients(), r.hub.Stats(); n != 0 || st != (hub.Stats{}) {
			t.Errorf("%d clients and %+v are left, want nothing", n, st)
		}
		if now := heap(); now > before+slack {
			t.Errorf("the heap has %d bytes more than before, want at most %d", now-before, slack)
		}
	})
}
