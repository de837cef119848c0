// Package fuzztest checks, in fuzz targets and tests, that readers of outside bytes stay within their bounds of time and memory.
package fuzztest

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Defaults of a [Cost]: what every reader of outside bytes keeps to whose contract does not name another cost.
const (
	PerByte = 4
	Base    = 64 << 10
	Time    = 100 * time.Millisecond
	Size    = 64 << 10 // of an input that Time is for
)

// A Cost is what a reader may spend on one input. Zero fields take the defaults.
type Cost struct {
	PerByte int           // bytes that are allocated for each byte of the input, garbage included
	Base    int           // and beside those
	Time    time.Duration // for inputs of up to [Size]; larger ones may take longer in proportion
}

// Check holds a call to the default cost; see [Cost.Check].
func Check(t testing.TB, size int, call func()) {
	t.Helper()
	Cost{}.Check(t, size, call)
}

// Check reports a call, which reads size bytes, that costs more than c. What other goroutines do counts too, so a call
// that seems too dear is made three times more, and the cheapest counts: the call must bear to be repeated.
func (c Cost) Check(t testing.TB, size int, call func()) {
	t.Helper()
	bytes, limit := uint64(or(c.PerByte, PerByte)*size+or(c.Base, Base)), slower*or(c.Time, Time)
	if size > Size {
		limit = limit / time.Duration(Size) * time.Duration(size)
	}
	before, began := allocated(), time.Now()
	call()
	if time.Since(began) <= limit && allocated()-before <= bytes {
		return
	}
	leastBytes, leastTime := ^uint64(0), time.Duration(1<<62)
	for range 3 {
		var from, to runtime.MemStats
		runtime.ReadMemStats(&from)
		start := processor()
		call()
		leastTime = min(leastTime, processor()-start)
		runtime.ReadMemStats(&to)
		leastBytes = min(leastBytes, to.TotalAlloc-from.TotalAlloc)
	}
	if leastTime > limit {
		t.Errorf("reading %d bytes takes %v, want at most %v", size, leastTime, limit)
	}
	if leastBytes > bytes {
		t.Errorf("reading %d bytes allocates %d (%.1f times as much), want at most %d", size, leastBytes, float64(leastBytes)/float64(max(size, 1)), bytes)
	}
}

func or[T int | time.Duration](value, otherwise T) T {
	if value != 0 {
		return value
	}
	return otherwise
}

// allocated is what the process has allocated so far, but for the latest small objects. It is far cheaper than exact.
func allocated() uint64 {
	sample := [1]metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample[:])
	return sample[0].Value.Uint64()
}

// processor is the processor time of the process: other processes do not count.
func processor() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Fill is a text of [Size] bytes, about: units between a beginning and an end.
func Fill(before string, unit func(i int) string, after string) []byte {
	var b strings.Builder
	b.WriteString(before)
	for i := 0; b.Len() < Size-len(after); i++ {
		b.WriteString(unit(i))
	}
	b.WriteString(after)
	return []byte(b.String())
}

// JSON are texts of [Size] bytes, about, that readers of JSON find dear, by what they consist of. All are valid.
func JSON() map[string][]byte {
	deep := func(levels int, open, inside, shut string) []byte {
		return []byte(strings.Repeat(open, levels) + inside + strings.Repeat(shut, levels))
	}
	keys := func(i int) string { return fmt.Sprintf(`"k%d":0,`, i) }
	return map[string][]byte{
		"members":          Fill("{", keys, `"":0}`),
		"members far down": Fill(strings.Repeat(`{"a":`, 150)+"{", keys, `"":0}`+strings.Repeat("}", 150)),
		"one member":       Fill("{", func(int) string { return `"a":0,` }, `"a":0}`),
		"lists":            deep(9_000, "[", "0", "]"),
		"objects":          deep(9_000, `{"":`, "0", "}"),
		"numbers":          Fill("[", func(int) string { return "0," }, "0]"),
		"empty objects":    Fill("[", func(int) string { return "{}," }, "{}]"),
		"empty texts":      Fill("[", func(int) string { return `"",` }, `""]`),
		"escapes":          Fill(`"`, func(int) string { return `\u0000` }, `"`),
		"quotes":           Fill(`"`, func(int) string { return `\"` }, `"`),
		"digits":           Fill("", func(int) string { return "9" }, ""),
		"exponent":         Fill("1e", func(int) string { return "9" }, ""),
		"white space":      Fill("", func(int) string { return " \n" }, "0"),
		"one letter":       Fill(`"`, func(int) string { return "a" }, `"`),
	}
}
