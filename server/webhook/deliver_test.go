package webhook_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/webhook"
)

// attempt makes one attempt as soon as it may begin, and returns how long that was.
func attempt(t *testing.T, target *webhook.Target, d *webhook.Delivery, r webhook.Result) time.Duration {
	t.Helper()
	asked := time.Now()
	for {
		wait, begun := target.Begin(*d)
		if begun {
			break
		}
		if wait <= 0 {
			t.Fatalf("Begin(%+v) of %+v = %v, want a time", d, target, wait)
		}
		time.Sleep(wait)
	}
	waited := time.Since(asked)
	*d = target.End(*d, r)
	return waited
}

// TestDeliveryForThreeDays has a receiver that never accepts: the waits double up to a limit, and the last attempt is at 72 h.
func TestDeliveryForThreeDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var target webhook.Target
		var d webhook.Delivery
		began, most := time.Now(), 5*time.Second
		for n := 0; d.State == webhook.Waiting; n++ {
			waited := attempt(t, &target, &d, webhook.Result{Status: 500})
			last := d.State == webhook.Dead
			switch {
			case n == 0 && waited != 0:
				t.Errorf("the first attempt is after %v, want at once", waited)
			case n > 0 && (waited > most || waited < most/2 && !last):
				t.Errorf("attempt %d is %v after the one before, want %v to %v", n+1, waited, most/2, most)
			}
			if n > 0 {
				most = min(2*most, 6*time.Hour)
			}
			if d.Attempts != n+1 || n > 60 {
				t.Fatalf("after %d attempts: %+v", n+1, d)
			}
		}
		if late := time.Since(began) - webhook.Lifetime; d.State != webhook.Dead || late < 0 || late > time.Minute { // of a probe
			t.Errorf("%+v after %v, want it dead after %v", d, time.Since(began), webhook.Lifetime)
		}
		if d.Attempts < 20 {
			t.Errorf("there were %d attempts, want more", d.Attempts)
		}
		if wait, begun := target.Begin(d); begun || wait != 0 {
			t.Errorf("Begin of a dead delivery = %v, %v, want that it never begins", wait, begun)
		}
		// What somebody has tried again starts afresh.
		d = webhook.Delivery{}
		time.Sleep(time.Hour)
		attempt(t, &target, &d, webhook.Result{Status: 200})
		if d.State != webhook.Delivered || target.Failures != 0 {
			t.Errorf("%+v of %+v, want it delivered", d, target)
		}
	})
}

// TestDeliveriesComeBackApart has deliveries that fail at the same moment.
func TestDeliveriesComeBackApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 20 {
			var target webhook.Target
			var d webhook.Delivery
			attempt(t, &target, &d, webhook.Result{Status: 500})
			waits[time.Until(d.Due)] = true
		}
		if len(waits) < 10 {
			t.Errorf("20 deliveries come back at %d times, want more", len(waits))
		}
	})
}

// TestDeliveryAfterAPause has a delivery that was never tried while the server was down for long: it does not die of that.
func TestDeliveryAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var target webhook.Target
		var d webhook.Delivery
		time.Sleep(2 * webhook.Lifetime)
		attempt(t, &target, &d, webhook.Result{})
		if d.State != webhook.Waiting {
			t.Errorf("%+v after the first attempt, want it waiting", d)
		}
		time.Sleep(2 * webhook.Lifetime) // now it has been tried: one more attempt, and no others
		attempt(t, &target, &d, webhook.Result{})
		if d.State != webhook.Dead || d.Attempts != 2 {
			t.Errorf("%+v after 12 days, want it dead with 2 attempts", d)
		}
	})
}

func TestResults(t *testing.T) {
	for status, want := range map[int]webhook.State{
		200: webhook.Delivered, 202: webhook.Delivered, 204: webhook.Delivered, 299: webhook.Delivered,
		0: webhook.Waiting, 100: webhook.Waiting, 199: webhook.Waiting, 300: webhook.Waiting, 301: webhook.Waiting, 307: webhook.Waiting,
		400: webhook.Waiting, 404: webhook.Waiting, 429: webhook.Waiting, 500: webhook.Waiting, 503: webhook.Waiting, 410: webhook.Dead,
	} {
		var target webhook.Target
		var d webhook.Delivery
		attempt(t, &target, &d, webhook.Result{Status: status})
		if d.State != want || target.Disabled != (status == 410) || (target.Failures == 0) != (want == webhook.Delivered) {
			t.Errorf("after an answer %d: %+v of %+v, want %q", status, d, target, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for asked, want := range map[time.Duration][2]time.Duration{ // the wait is between the two
			0:                   {2500 * time.Millisecond, 5 * time.Second},
			time.Second:         {2500 * time.Millisecond, 5 * time.Second}, // the backoff is longer
			7 * time.Minute:     {7 * time.Minute, 7 * time.Minute},
			10 * time.Hour:      {10 * time.Hour, 10 * time.Hour},
			10 * 24 * time.Hour: {webhook.Lifetime, webhook.Lifetime},
		} {
			var target webhook.Target
			var d webhook.Delivery
			attempt(t, &target, &d, webhook.Result{Status: 503, RetryAfter: asked})
			// It holds up no other delivery.
			if _, begun := target.Begin(webhook.Delivery{}); !begun {
				t.Errorf("Retry-After of %v: the next delivery does not begin", asked)
			}
			target.End(webhook.Delivery{}, webhook.Result{Status: 200})
			if waited := attempt(t, &target, &d, webhook.Result{Status: 200}); waited < want[0] || waited > want[1] {
				t.Errorf("Retry-After of %v: the next attempt is after %v, want %v to %v", asked, waited, want[0], want[1])
			}
		}
	})
}

func TestDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var target webhook.Target
		var gone, other webhook.Delivery
		attempt(t, &target, &other, webhook.Result{Status: 500})
		attempt(t, &target, &gone, webhook.Result{Status: 410})
		time.Sleep(100 * time.Hour)
		for _, d := range []webhook.Delivery{other, {}} {
			if wait, begun := target.Begin(d); begun || wait != 0 {
				t.Errorf("Begin(%+v) of a disabled target = %v, %v, want that it does not begin", d, wait, begun)
			}
		}
		target.Enable()
		for _, d := range []*webhook.Delivery{&other, {}} {
			if attempt(t, &target, d, webhook.Result{Status: 200}) != 0 || d.State != webhook.Delivered {
				t.Errorf("%+v of an enabled target, want it delivered at once", d)
			}
		}
	})
}

// TestInProgress has what may be in progress at once: one first attempt, and 4 retries beside it.
func TestInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var target webhook.Target
		failed := make([]webhook.Delivery, webhook.MaxRetries+1)
		for i := range failed {
			attempt(t, &target, &failed[i], webhook.Result{Status: 500})
		}
		time.Sleep(time.Minute)
		begin := func(d webhook.Delivery) bool {
			wait, begun := target.Begin(d)
			if wait != 0 {
				t.Errorf("Begin(%+v) of %+v waits %v, want none", d, target, wait)
			}
			return begun
		}
		var got []bool
		for _, d := range append(failed, webhook.Delivery{}, webhook.Delivery{}) {
			got = append(got, begin(d))
		}
		if want := []bool{true, true, true, true, false, true, false}; !slices.Equal(got, want) {
			t.Errorf("5 retries and 2 first attempts begin: %v, want %v", got, want)
		}
		// The end of one lets another of its kind begin.
		target.End(webhook.Delivery{}, webhook.Result{Status: 500})
		if begin(failed[4]) || !begin(webhook.Delivery{}) {
			t.Error("the end of a first attempt does not let another begin, or lets a retry begin")
		}
		target.End(failed[0], webhook.Result{Status: 500})
		if begin(webhook.Delivery{}) || !begin(failed[4]) {
			t.Error("the end of a retry does not let another begin, or lets a first attempt begin")
		}
	})
}

// TestProbes has a receiver that has failed 10 times: whatever waits, there is one attempt at a time, up to a minute apart, and after
// a success all go.
func TestProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var target webhook.Target
		all := make([]webhook.Delivery, 200)
		down := func(r webhook.Result) {
			for i := range 9 {
				attempt(t, &target, &all[i], r)
			}
			if target.Failures != 9 {
				t.Fatalf("%+v, want 9 failures", target)
			}
			if _, begun := target.Begin(all[9]); !begun { // without any wait
				t.Fatal("the 10th attempt does not begin")
			}
			all[9] = target.End(all[9], r)
		}
		down(webhook.Result{Status: 500})
		waits := time.Duration(0)
		for i := range 100 {
			d := &all[100+i]
			waited := attempt(t, &target, d, webhook.Result{Status: 500})
			if waited < 2500*time.Millisecond || waited > time.Minute {
				t.Errorf("probe %d is after %v, want 2.5 s to 1 min", i, waited)
			}
			waits += waited
		}
		if waits < 40*time.Minute {
			t.Errorf("100 probes are within %v, want a longer time", waits)
		}
		// All are due, and while one attempt is in progress, no other begins.
		time.Sleep(12 * time.Hour)
		if _, begun := target.Begin(all[0]); !begun {
			t.Fatal("a probe that is due does not begin")
		}
		for _, d := range []webhook.Delivery{{}, all[1], all[150]} {
			if wait, begun := target.Begin(d); begun || wait != 0 {
				t.Errorf("Begin(%+v) beside a probe = %v, %v, want none", d, wait, begun)
			}
		}
		all[0] = target.End(all[0], webhook.Result{Status: 204})
		for _, d := range []webhook.Delivery{{}, all[1], all[150]} {
			if wait, begun := target.Begin(d); !begun {
				t.Errorf("Begin(%+v) after a success = %v, want that it begins", d, wait)
			}
		}

		// A receiver may ask for a longer wait between probes, but not for a very long one.
		target, all = webhook.Target{}, make([]webhook.Delivery, 200)
		down(webhook.Result{Status: 429, RetryAfter: 10 * time.Minute})
		if waited := attempt(t, &target, &all[11], webhook.Result{Status: 429, RetryAfter: 24 * time.Hour}); waited != 10*time.Minute {
			t.Errorf("a probe is after %v, want 10 min as the receiver asked", waited)
		}
		if waited := attempt(t, &target, &all[12], webhook.Result{Status: 200}); waited != time.Hour {
			t.Errorf("a probe is after %v, want 1 h", waited)
		}
	})
}

// TestClockSetBack has rows of a time that is further ahead than any wait.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := time.Now().Add(365 * 24 * time.Hour)
		target, d := webhook.Target{Failures: 10, Probe: far}, webhook.Delivery{Attempts: 3, Began: far, Due: far}
		if wait, begun := target.Begin(d); !begun {
			t.Errorf("Begin = %v, want that it begins", wait)
		}
		if d = target.End(d, webhook.Result{Status: 500}); !d.Began.Equal(time.Now()) || time.Until(d.Due) > webhook.Lifetime {
			t.Errorf("End = %+v, want that the 3 days begin now", d)
		}
	})
}

// TestOutage has a caller of a Target: 300 events for a receiver that is down for 8 h, and never accepts one of them. That one dies, the
// others arrive, and their first attempts are in order.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused = 7
		type end struct{ i, status int }
		var (
			target  webhook.Target
			all     [300]webhook.Delivery
			running = map[int]bool{} // the deliveries with an attempt in progress, and whether that is the first
			firsts  []int
			ends    = make(chan end)
			start   = time.Now()
		)
		for open := len(all); open > 0; {
			wake := time.Duration(0)
			for i := range all {
				if _, inProgress := running[i]; inProgress || all[i].State != webhook.Waiting {
					continue
				}
				wait, begun := target.Begin(all[i])
				if wait > 0 && (wake == 0 || wait < wake) {
					wake = wait
				}
				if !begun {
					continue
				}
				if target.Failures >= 10 && len(running) > 0 {
					t.Errorf("an attempt begins beside %v after %d failures", running, target.Failures)
				}
				running[i] = all[i].Attempts == 0
				if running[i] {
					firsts = append(firsts, i)
				}
				go func() {
					time.Sleep(100 * time.Millisecond)
					status := 200
					if down := time.Since(start); i == refused || down > 10*time.Second && down < 8*time.Hour {
						status = 500
					}
					ends <- end{i, status}
				}()
			}
			first := 0
			for _, is := range running {
				if is {
					first++
				}
			}
			if retries := len(running) - first; first > 1 || retries > webhook.MaxRetries {
				t.Fatalf("%d first attempts and %d retries are in progress", first, retries)
			}
			timer := make(<-chan time.Time)
			if wake > 0 {
				timer = time.After(wake)
			} else if len(running) == 0 {
				t.Fatalf("nothing is in progress, and %d deliveries wait for nothing: %+v", open, target)
			}
			select {
			case e := <-ends:
				all[e.i] = target.End(all[e.i], webhook.Result{Status: e.status})
				delete(running, e.i)
				if all[e.i].State != webhook.Waiting {
					open--
				}
				if up := time.Since(start) - 8*time.Hour; e.i != refused && up > 6*time.Hour+time.Minute {
					t.Errorf("delivery %d ends %v after the outage", e.i, up)
				}
			case <-timer:
			}
		}
		if len(firsts) != len(all) || !slices.IsSorted(firsts) {
			t.Errorf("the first attempts are of %v, want all deliveries in order", firsts)
		}
		for i, d := range all {
			if want := map[bool]webhook.State{true: webhook.Dead, false: webhook.Delivered}[i == refused]; d.State != want {
				t.Errorf("delivery %d is %q after %d attempts, want %q", i, d.State, d.Attempts, want)
			}
		}
	})
}
