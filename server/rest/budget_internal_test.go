package rest

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
)

func free(b *budget) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}

// What bodies take together is bounded; who waits is served in order, or refused after a while.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{left: 10}
		first, err := b.take(t.Context(), 8)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		wait := func(name string, size int64) {
			go func() {
				s, err := b.take(t.Context(), size)
				if err != nil {
					t.Errorf("take(%d) = %v, want none", size, err)
				}
				order = append(order, name)
				time.Sleep(time.Second)
				s.back()
			}()
			synctest.Wait()
		}
		wait("large", 9)
		wait("small", 2) // there is room, but the large one was first
		if len(order) != 0 {
			t.Errorf("%v were served, want none yet", order)
		}
		first.back()
		first.back()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := strings.Join(order, " "); got != "large small" || free(b) != 10 {
			t.Errorf("served were %s, and %d is left; want large, small and 10", got, free(b))
		}
		all, err := b.take(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := b.take(t.Context(), 1); !fault.Is(err, fault.Overloaded) || fault.Of(err).RetryAfter == 0 || time.Since(begun) != bodyPatience {
			t.Errorf("take() = %v after %v, want overloaded after %v", err, time.Since(begun), bodyPatience)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.take(gone, 1); err == nil {
			t.Error("take() = nil for a client that has gone, want an error")
		}
		all.back()
		if free(b) != 10 || len(b.queue) != 0 {
			t.Errorf("%d is left and %d wait, want 10 and none", free(b), len(b.queue))
		}
	})
}

// Small bodies get through while large ones take all that there is, and a slow one does not hold its share for ever.
func TestBodiesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newBodies()
		read := func(body io.Reader, length int64) error {
			wt := &weight{all: all}
			defer wt.done()
			r := httptest.NewRequest("POST", "/x", body)
			r.ContentLength = length
			data, err := readBody(httptest.NewRecorder(), r, 4<<20, wt)
			if err == nil {
				err = wt.work(t.Context(), int64(len(data)), false)
			}
			return err
		}
		held, err := all.largeReading.take(t.Context(), largeReading)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{0, 10, freeBody, smallBody} {
			if err := read(strings.NewReader(strings.Repeat("x", size)), int64(size)); err != nil {
				t.Errorf("a body of %d bytes: %v, want none", size, err)
			}
		}
		for _, length := range []int64{100 << 10, -1} { // announced, or not
			if err := read(strings.NewReader(strings.Repeat("x", 100<<10)), length); !fault.Is(err, fault.Overloaded) {
				t.Errorf("a large body: %v, want overloaded", err)
			}
		}
		held.back()
		if err := read(strings.NewReader(strings.Repeat("x", 100<<10)), 100<<10); err != nil {
			t.Errorf("a large body: %v, want none", err)
		}
		if err := read(strings.NewReader(""), 5<<20); !fault.Is(err, fault.BodyTooLarge) {
			t.Errorf("a body that is announced as too large: %v, want body-too-large", err)
		}
		if err := read(strings.NewReader(strings.Repeat("x", 5<<20)), -1); !fault.Is(err, fault.BodyTooLarge) {
			t.Errorf("a body that is too large: %v, want body-too-large", err)
		}
		if free(&all.largeReading) != largeReading || free(&all.largeWorking) != largeWorking || free(&all.reading) != smallReading || free(&all.working) != smallWorking {
			t.Error("not everything was given back")
		}
		// A run that was started counts for a while, whoever waits for it.
		wt := &weight{all: all}
		if err := wt.work(t.Context(), 1<<20, false); err != nil {
			t.Fatal(err)
		}
		wt.started(true)
		wt.done()
		if free(&all.largeWorking) == largeWorking {
			t.Error("a run that was started counts for nothing")
		}
		time.Sleep(startedTime)
		synctest.Wait()
		if free(&all.largeWorking) != largeWorking {
			t.Error("a run that was started counts for ever")
		}
	})
}
