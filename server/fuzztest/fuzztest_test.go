package fuzztest_test

import (
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"agentd/server/fuzztest"
)

// A report takes what a test is told in place of the test.
type report struct {
	testing.TB
	errors []string
}

func (r *report) Helper() {}
func (r *report) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

var sink []byte

// used is the processor time of this process so far.
func used(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestCheck(t *testing.T) {
	grow := func(n int) func() { return func() { sink = make([]byte, n) } }
	spin := func(d time.Duration) func() {
		return func() {
			for began := used(t); used(t)-began < d; {
				sink = append(sink[:0], byte(len(sink)))
			}
		}
	}
	once := func(call func()) func() {
		return func() {
			if call != nil {
				call()
			}
			call = nil
		}
	}
	for name, tc := range map[string]struct {
		cost fuzztest.Cost
		size int
		call func()
		bad  bool
	}{
		"within":              {size: 1 << 20, call: grow(4 << 20)},
		"too much":            {size: 1 << 20, call: grow(5 << 20), bad: true},
		"within its own":      {cost: fuzztest.Cost{PerByte: 5}, size: 1 << 20, call: grow(5 << 20)},
		"too much besides":    {cost: fuzztest.Cost{Base: 1 << 20}, call: grow(2 << 20), bad: true},
		"too much once":       {size: 1, call: once(grow(1 << 20))},
		"too long":            {cost: fuzztest.Cost{Time: time.Millisecond}, call: spin(50 * time.Millisecond), bad: true},
		"as long as its size": {cost: fuzztest.Cost{Time: 10 * time.Millisecond}, size: 1 << 20, call: spin(20 * time.Millisecond)},
	} {
		r := &report{TB: t}
		if tc.cost.Check(r, tc.size, tc.call); (r.errors != nil) != tc.bad {
			t.Errorf("%s: Check() reports %q", name, r.errors)
		}
	}
}

func TestJSON(t *testing.T) {
	for name, text := range fuzztest.JSON() {
		if !json.Valid(text) || len(text) > fuzztest.Size+64 {
			t.Errorf("%s: %d bytes that begin with %.20q, valid: %v", name, len(text), text, json.Valid(text))
		}
	}
}
