package workflow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
)

// pure is a tool without an effect that answers at once.
func pureTool(name string) tool.Tool {
	return tool.Func(tool.Spec{Name: name, SideEffect: tool.Pure}, func(_ context.Context, call tool.Call) (tool.Result, error) {
		return tool.Result{Output: call.Args}, nil
	})
}

// each calls fn n times from so many goroutines, with numbers from 0.
func each(goroutines, n int, fn func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				fn(int(i))
			}
		})
	}
	all.Wait()
}

// size is how many bytes the database takes on disk, with its log.
func (r *rig) size() (n int64) {
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(r.path + suffix); err == nil {
			n += info.Size()
		}
	}
	return n
}

func (r *rig) checkpoint() {
	r.tb.Helper()
	if _, err := r.db.Checkpoint(context.Background()); err != nil {
		r.tb.Fatal(err)
	}
}

// BenchmarkThreeNodes compares a durable workflow of three tool nodes, from its start to its end, with three bare commits
// one after the other, at 64 at once: what durability costs at least.
func BenchmarkThreeNodes(b *testing.B) {
	flow := `{"state":{"a":{},"b":{},"c":{}},"start":"a","nodes":{
		"a":{"kind":"tool","tool":"t","args":{"n":1},"save":"a","next":"b"},
		"b":{"kind":"tool","tool":"t","args":{"n":2},"save":"b","next":"c"},
		"c":{"kind":"tool","tool":"t","args":{"n":3},"save":"c","next":"end"}}}`
	b.Run("workflow", func(b *testing.B) {
		r := newRig(b, map[string]string{"w": flow}, pureTool("t"))
		b.ReportAllocs()
		b.ResetTimer()
		each(64, b.N, func(int) {
			h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w"})
			if err != nil {
				b.Error(err)
				return
			}
			if out, err := h.Wait(context.Background()); err != nil || out.Status != store.Completed {
				b.Errorf("a run is %s, %v", out.Status, err)
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	})
	b.Run("commits", func(b *testing.B) {
		r := newRig(b, nil)
		b.ReportAllocs()
		b.ResetTimer()
		each(64, b.N, func(i int) {
			for part := range 3 {
				c := store.Change{Run: store.Run{ID: fmt.Sprintf("%d-%d", i, part), Kind: store.Workflow, Owner: "w", Status: store.Completed, Usage: []byte("{}"), Models: []byte("{}"), Created: 1, StartedBy: "x"}}
				if err := r.db.Runs().Update(context.Background(), func(tx *store.Tx) error { _, err := r.db.Runs().Apply(tx, &c); return err }); err != nil {
					b.Error(err)
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "runs/s")
	})
}

// loop is a workflow of input.n rounds, each a call of a tool and two steps. What a round adds to the state is small.
const loop = `{"maxSteps":1000000,"state":{"n":{"initial":0},"got":{}},"output":"${ state.n }","start":"call","nodes":{
	"call":{"kind":"tool","tool":"t","args":{"n":"${ state.n }"},"save":"got","next":"count"},
	"count":{"kind":"set","values":{"n":"${ state.n + 1 }"},"next":"more"},
	"more":{"kind":"branch","cases":[{"if":"state.n < input.n","next":"call"}],"else":"end"}}}`

// BenchmarkRounds measures a round of a loop in runs of 10 and of 1000 rounds: a step costs the same however many came before.
func BenchmarkRounds(b *testing.B) {
	for _, rounds := range []int{10, 1000} {
		b.Run(fmt.Sprint(rounds), func(b *testing.B) {
			r := newRig(b, map[string]string{"w": loop}, pureTool("t"))
			b.ResetTimer()
			for range b.N {
				r.want(r.run("w", "", fmt.Sprintf(`{"n":%d}`, rounds)), store.Completed, fmt.Sprint(rounds))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*rounds), "µs/round")
		})
	}
}

// BenchmarkBytesOfSteps shows what 1000 steps of 100 bytes add to a database, beside 1 MiB of state that stays as it is.
func BenchmarkBytesOfSteps(b *testing.B) {
	flow := `{"maxSteps":1000000,"state":{"big":{},"n":{"initial":0},"got":{}},"output":"${ state.n }","start":"fill","nodes":{
		"fill":{"kind":"set","values":{"big":"${ input.big }"},"next":"call"},
		"call":{"kind":"tool","tool":"t","args":{"n":"${ state.n }","text":"` + strings.Repeat("x", 80) + `"},"save":"got","next":"count"},
		"count":{"kind":"set","values":{"n":"${ state.n + 1 }"},"next":"more"},
		"more":{"kind":"branch","cases":[{"if":"state.n < input.n","next":"call"}],"else":"end"}}}`
	big := strings.Repeat("abcdefgh", 1<<17)
	for range b.N {
		r := newRig(b, map[string]string{"w": flow}, pureTool("t"))
		r.want(r.run("w", "", fmt.Sprintf(`{"n":1,"big":%q}`, big)), store.Completed, "1")
		r.checkpoint()
		before := r.size()
		r.want(r.run("w", "", fmt.Sprintf(`{"n":1,"big":%q}`, big)), store.Completed, "1")
		r.checkpoint()
		one := r.size() - before
		before = r.size()
		r.want(r.run("w", "", fmt.Sprintf(`{"n":1000,"big":%q}`, big)), store.Completed, "1000")
		r.checkpoint()
		b.ReportMetric(float64(r.size()-before-one)/(1<<20), "MiB/1000steps")
	}
}

// BenchmarkMap measures a map over 10 000 elements, each a call of a tool, and the most memory that it takes.
func BenchmarkMap(b *testing.B) {
	const elements = 10_000
	flow := `{"state":{"a":{}},"output":"${ size(state.a) }","start":"m","nodes":{"m":{"kind":"map","over":"${ input.list }","save":"a","concurrency":64,
		"do":{"kind":"tool","tool":"t","args":{"v":"${ item }"}},"next":"end"}}}`
	list := make([]int, elements)
	for i := range list {
		list[i] = i
	}
	input, _ := json.Marshal(map[string]any{"list": list})
	r := newRig(b, map[string]string{"w": flow}, pureTool("t"))
	peak := watchHeap(b)
	b.ResetTimer()
	for range b.N {
		h, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", Input: input})
		if err != nil {
			b.Fatal(err)
		}
		out, err := h.Wait(context.Background())
		if err != nil || string(out.Output) != fmt.Sprint(elements) {
			b.Fatalf("the map gave %+v, %v", out, err)
		}
	}
	b.ReportMetric(float64(b.N*elements)/b.Elapsed().Seconds(), "elements/s")
	b.ReportMetric(float64(peak())/(1<<20), "peakMiB")
}

// watchHeap looks at the heap every few milliseconds. The result tells its largest size above that at the beginning.
func watchHeap(b *testing.B) (peak func() uint64) {
	var most atomic.Uint64
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before := m.HeapAlloc
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				most.Store(max(most.Load(), m.HeapAlloc))
			}
		}
	})
	b.Cleanup(func() { close(stop); watcher.Wait() })
	return func() uint64 { return max(most.Load(), before) - before }
}

// BenchmarkSleepers has 100 000 threads asleep, and measures how late 1000 others wake that are due one after the other, how
// late as many that are due at once, what the sleepers take of memory, and how long a start takes with them.
func BenchmarkSleepers(b *testing.B) {
	sleepers := 100_000
	if testing.Short() {
		sleepers = 1000
	}
	flow := `{"start":"s","nodes":{"s":{"kind":"sleep","until":"${ input.at }","next":"t"},"t":{"kind":"tool","tool":"woken","args":{"at":"${ input.at }"},"next":"end"}}}`
	var mu sync.Mutex // guards late
	var late []time.Duration
	woken := tool.Func(tool.Spec{Name: "woken", SideEffect: tool.Pure}, func(_ context.Context, call tool.Call) (tool.Result, error) {
		var args struct{ At int64 }
		err := json.Unmarshal(call.Args, &args)
		mu.Lock()
		late = append(late, time.Since(time.UnixMilli(args.At)))
		mu.Unlock()
		return tool.Result{}, err
	})
	for range b.N {
		r := newRig(b, map[string]string{"w": flow}, woken)
		sleep := func(n int, at func(i int) time.Time) {
			each(256, n, func(i int) {
				_, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "w", Detached: true, Input: fmt.Appendf(nil, `{"at":%d}`, at(i).UnixMilli())})
				if err != nil {
					b.Error(err)
				}
			})
		}
		peak := watchHeap(b)
		begun := time.Now()
		sleep(sleepers, func(int) time.Time { return time.Now().Add(24 * time.Hour) })
		b.ReportMetric(float64(sleepers)/time.Since(begun).Seconds(), "started/s")
		b.ReportMetric(float64(peak())/(1<<20), "peakMiB")
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapAlloc)/float64(sleepers), "heapB/sleeper")
		wake := func(name string, n int, at func(i int) time.Time) {
			mu.Lock()
			late = nil
			mu.Unlock()
			sleep(n, at)
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				mu.Lock()
				got := len(late)
				mu.Unlock()
				if got == n {
					break
				}
				if time.Now().After(end) {
					b.Fatalf("%s: only %d of %d have woken", name, got, n)
				}
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[n/2].Microseconds())/1000, name+"-p50ms")
			b.ReportMetric(float64(late[n*99/100].Microseconds())/1000, name+"-p99ms")
		}
		first := time.Now().Add(3 * time.Second)
		wake("spread", 1000, func(i int) time.Time { return first.Add(time.Duration(i) * 5 * time.Millisecond) })
		first = time.Now().Add(3 * time.Second)
		wake("atOnce", 1000, func(int) time.Time { return first })
		r.checkpoint()
		r.stop()
		begun = time.Now()
		r.start()
		b.ReportMetric(float64(time.Since(begun).Milliseconds()), "restart-ms")
	}
}

// copyTo copies the database as a kill would leave it.
func (r *rig) copyTo(path string) {
	r.tb.Helper()
	for _, suffix := range []string{"", "-wal"} {
		text, err := os.ReadFile(r.path + suffix)
		if err == nil {
			err = os.WriteFile(path+suffix, text, 0o600)
		}
		if err != nil {
			r.tb.Error(err)
		}
	}
}
