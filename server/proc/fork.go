package proc

import (
	"runtime"
	"sync"
)

// forker returns the channel of the thread that starts all programs of this process.
//
// Linux sends the signal of the parent's death when the thread that forked ends, so that thread must never end. It belongs to
// the process and not to a server in it, so nobody waits for its end.
var forker = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range work {
			do()
		}
	}()
	return work
})

// onForker calls do on that thread and waits for it.
func onForker(do func()) {
	done := make(chan struct{})
	forker() <- func() {
		defer close(done)
		do()
	}
	<-done
}
