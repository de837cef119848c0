package gate_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/server/fuzztest"
	"agentd/server/gate"
	"agentd/store"
	"agentd/store/storetest"
)

type keyRig struct {
	testing.TB
	db   *store.DB
	keys *gate.Keys
}

func newKeyRig(t testing.TB, o gate.KeyOptions) *keyRig {
	r := &keyRig{TB: t, db: storetest.Open(t)}
	o.Records = r.db.Keys()
	if o.TTL == 0 {
		o.TTL = time.Hour
	}
	r.keys = gate.NewKeys(o)
	return r
}

func keyed(key, principal, target, body string) store.KeyRecord {
	return store.KeyRecord{Key: key, Principal: principal, Target: target, Fingerprint: gate.Fingerprint("POST", target, []byte(body))}
}

var usual = keyed("key-0001", "token:a", "POST /v1/x", "{}")

// claim takes a key that is free.
func (r *keyRig) claim(q store.KeyRecord) *gate.Claim {
	r.Helper()
	c, first, err := r.keys.Claim(r.Context(), q)
	if c == nil || first != nil || err != nil {
		r.Fatalf("Claim(%s) = %v, %+v, %v; want the key", q.Key, c, first, err)
	}
	return c
}

func (r *keyRig) update(fn func(tx *store.Tx) error) {
	r.Helper()
	if err := r.db.Update(r.Context(), fn); err != nil {
		r.Fatal(err)
	}
}

// run makes a run, with what also writes.
func (r *keyRig) run(id, session string, also func(*store.Tx) error) {
	r.Helper()
	r.update(func(tx *store.Tx) error {
		c := store.Change{Run: store.Run{ID: id, Kind: "agent", Owner: "a", Current: "a", Session: session, Status: store.Completed, InputForm: "text",
			Usage: []byte("{}"), Models: []byte("{}")}}
		if _, err := r.db.Runs().Apply(tx, &c); err != nil {
			return err
		}
		return also(tx)
	})
}

// told describes what a request gets: an answer, the key itself, or an error.
func (r *keyRig) told(q store.KeyRecord) string {
	r.Helper()
	c, first, err := r.keys.Claim(r.Context(), q)
	switch {
	case err != nil:
		return fault.Of(err).Kind.Code
	case first != nil:
		return fmt.Sprintf("%d %s %s%s", first.Status, first.Headers, first.Body, first.Run)
	}
	c.Done()
	return "free"
}

func (r *keyRig) want(q store.KeyRecord, want string) {
	r.Helper()
	if got := r.told(q); got != want {
		r.Errorf("Claim(%v) = %s, want %s", q, got, want)
	}
}

func TestRead(t *testing.T) {
	for _, tc := range []struct {
		require string
		values  []string
		want    string
	}{
		{"off", nil, " false"},
		{"warn", nil, " true"},
		{"enforce", nil, "idempotency-key-required"},
		{"warn", []string{" \t "}, " true"},
		{"enforce", []string{""}, "idempotency-key-required"},
		{"enforce", []string{"  a-Z_0:9x "}, "a-Z_0:9x false"},
		{"off", []string{"1234567"}, "idempotency-key-required"},
		{"off", []string{"12345678"}, "12345678 false"},
		{"warn", []string{strings.Repeat("k", 255)}, strings.Repeat("k", 255) + " false"},
		{"warn", []string{strings.Repeat("k", 256)}, "idempotency-key-required"},
		{"warn", []string{`"12345678"`}, "idempotency-key-required"},
		{"warn", []string{"1234 5678"}, "idempotency-key-required"},
		{"warn", []string{"1234.5678"}, "idempotency-key-required"},
		{"warn", []string{"12345678é"}, "idempotency-key-required"},
		{"warn", []string{"[2345678"}, "idempotency-key-required"},
		{"warn", []string{"12345678", "12345678"}, "idempotency-key-required"},
	} {
		key, missing, err := gate.NewKeys(gate.KeyOptions{Require: tc.require}).Read(tc.values)
		got := fmt.Sprint(key, " ", missing)
		if err != nil {
			got = fault.Of(err).Kind.Code
		}
		if got != tc.want {
			t.Errorf("Read(%.40q) with %s = %s, want %s", tc.values, tc.require, got, tc.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, seed := range []string{"", "12345678", " x ", "a\x00b", strings.Repeat("é", 200)} {
		f.Add(seed)
	}
	keys := gate.NewKeys(gate.KeyOptions{Require: "enforce"})
	f.Fuzz(func(t *testing.T, value string) {
		fuzztest.Check(t, len(value), func() { keys.Read([]string{value}) }) //nolint:errcheck // it is looked at below
		key, missing, err := keys.Read([]string{value})
		if (err == nil) != (len(key) >= 8 && len(key) <= 255) || missing || err == nil && key != strings.TrimSpace(value) {
			t.Errorf("Read(%q) = %q, %v, %v", value, key, missing, err)
		}
	})
}

// TestDecisions walks a key through its life.
func TestDecisions(t *testing.T) {
	others := map[string]store.KeyRecord{
		"another principal": keyed(usual.Key, "token:b", usual.Target, "{}"),
		"another target":    keyed(usual.Key, usual.Principal, "POST /v1/y", "{}"),
		"another body":      keyed(usual.Key, usual.Principal, usual.Target, `{"a":1}`),
	}
	for _, check := range []bool{true, false} {
		r := newKeyRig(t, gate.KeyOptions{CheckBody: check})
		want := func(stage, same string) {
			t.Helper()
			r.want(usual, same)
			for name, q := range others {
				want := "idempotency-conflict"
				if same == "free" || !check && name == "another body" {
					want = same
				}
				if got := r.told(q); got != want {
					t.Errorf("%s, %s, check %v: %s, want %s", stage, name, check, got, want)
				}
			}
		}
		want("unused", "free")

		c := r.claim(usual)
		want("under way", "idempotency-in-flight")
		c.Done()
		want("refused", "free")

		c = r.claim(usual)
		r.run("run-1", "", func(tx *store.Tx) error { return c.Keep(tx, store.KeyRecord{Bound: true, Run: "run-1"}, nil) })
		want("under way, with a run", "idempotency-in-flight")
		c.Done()
		for range 2 { // from the store, and from memory
			want("bound", "0  run-1")
		}
	}
}

// An answer is given again as it was, from the store and from memory.
func TestAnswersAreKept(t *testing.T) {
	r := newKeyRig(t, gate.KeyOptions{CheckBody: true})
	answers := map[string]store.KeyRecord{
		"key-kept": {Status: 201, Headers: json.RawMessage(`{"Content-Type":["application/json"]}`), Body: []byte("{}\n")},
		"key-none": {Status: 204},
		"key-huge": {Status: 200, Headers: json.RawMessage(`{"Content-Type":["text"]}`), Body: []byte(strings.Repeat("x", gate.MaxAnswer))},
	}
	for key, a := range answers {
		q := keyed(key, "token:a", "POST /v1/x", "")
		c := r.claim(q)
		if key == "key-kept" {
			r.update(func(tx *store.Tx) error { return c.Keep(tx, a, nil) })
		} else {
			c.Save(t.Context(), a)
		}
		c.Save(t.Context(), store.KeyRecord{Status: 999}) // kept already
		c.Done()
		for range 3 {
			_, first, err := r.keys.Claim(t.Context(), q)
			if err != nil || first.Status != a.Status || string(first.Headers) != string(a.Headers) || !bytes.Equal(first.Body, a.Body) {
				t.Errorf("%s: answer is another, %v; want %d with %d bytes", key, err, a.Status, len(a.Body))
			}
		}
	}
	c := r.claim(usual)
	c.Save(t.Context(), store.KeyRecord{Status: 200, Body: make([]byte, gate.MaxAnswer+1)})
	c.Done()
	r.want(usual, "free") // too large
	if got := r.keys.HitRatio(); got != 9.0/14 {
		t.Errorf("HitRatio() = %v, want 9 of 14", got)
	}
}

// A transaction that fails leaves the key free, whatever the request has written in it.
func TestFailedTransactionLeavesTheKeyFree(t *testing.T) {
	r := newKeyRig(t, gate.KeyOptions{})
	c := r.claim(usual)
	changed := errors.New("changed my mind")
	err := r.db.Update(t.Context(), func(tx *store.Tx) error {
		return errors.Join(c.Keep(tx, store.KeyRecord{Status: 201}, nil), changed)
	})
	if c.Done(); !errors.Is(err, changed) {
		t.Fatalf("Update = %v", err)
	}
	r.want(usual, "free")
}

// Two requests can take one key only where the first was done in between; then the second finds its row at last.
func TestSecondWriterIsRefused(t *testing.T) {
	r := newKeyRig(t, gate.KeyOptions{})
	c := r.claim(usual)
	c.Done()
	later := r.claim(usual)
	r.update(func(tx *store.Tx) error { return c.Keep(tx, store.KeyRecord{Bound: true, Run: "run-1"}, nil) })
	err := r.db.Update(t.Context(), func(tx *store.Tx) error { return later.Keep(tx, store.KeyRecord{Bound: true, Run: "run-2"}, nil) })
	if later.Done(); !fault.Is(err, fault.IdempotencyInFlight) || fault.Of(err).RetryAfter != time.Second {
		t.Errorf("Bind of a key that is bound = %v, want idempotency-in-flight with 1 s to wait", err)
	}
	c.Done() // again, which frees nobody else's
	r.want(usual, "0  run-1")
}

func TestRequestWithoutKey(t *testing.T) {
	r := newKeyRig(t, gate.KeyOptions{})
	var none *gate.Claim
	r.update(func(tx *store.Tx) error {
		return errors.Join(none.Keep(tx, store.KeyRecord{Bound: true, Run: "x"}, nil), none.Keep(tx, store.KeyRecord{Status: 201}, nil))
	})
	none.Done()
}

// Of many requests at once, one is made.
func TestOneOfManyIsMade(t *testing.T) {
	r := newKeyRig(t, gate.KeyOptions{})
	var made, again, refused atomic.Int64
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			c, first, err := r.keys.Claim(t.Context(), usual)
			switch {
			case fault.Is(err, fault.IdempotencyInFlight):
				refused.Add(1)
			case err != nil:
				t.Error(err)
			case first != nil:
				again.Add(1)
			default:
				defer c.Done()
				err := r.db.Update(t.Context(), func(tx *store.Tx) error { return c.Keep(tx, store.KeyRecord{Status: 201}, nil) })
				if err == nil {
					made.Add(1)
				} else if refused.Add(1); !fault.Is(err, fault.IdempotencyInFlight) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 || again.Load()+refused.Load() != 999 {
		t.Errorf("%d made, %d answered again, %d refused; want one made", made.Load(), again.Load(), refused.Load())
	}
}

// An expired record counts for nothing: it neither conflicts nor answers, and makes room. A key that is bound to a run
// does not expire.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t, gate.KeyOptions{TTL: time.Minute, CheckBody: true})
		defer r.db.Close()
		keep := func(q store.KeyRecord, a store.KeyRecord) {
			c := r.claim(q)
			c.Save(t.Context(), a)
			c.Done()
		}
		keep(usual, store.KeyRecord{Status: 200, Body: []byte("one")})
		bound := keyed("key-bound", "token:a", "POST /v1/run", "")
		c := r.claim(bound)
		r.run("run-1", "", func(tx *store.Tx) error { return c.Keep(tx, store.KeyRecord{Bound: true, Run: "run-1"}, nil) })
		c.Done()
		other := keyed(usual.Key, "token:b", "POST /v1/y", "other")
		<-time.After(time.Minute - time.Millisecond)
		r.want(usual, "200  one")
		r.want(other, "idempotency-conflict")
		<-time.After(time.Millisecond)
		r.want(usual, "free")
		r.want(other, "free")
		r.want(bound, "0  run-1")
		keep(other, store.KeyRecord{Status: 200, Body: []byte("two")})
		r.want(other, "200  two")
		r.want(usual, "idempotency-conflict")
	})
}

// What a record tells of an erased session is gone from the store and from memory, but its request is not made again.
func TestErasure(t *testing.T) {
	r := newKeyRig(t, gate.KeyOptions{CheckBody: true})
	session := keyed("key-session", "token:a", "POST /v1/sessions", "secret")
	export := keyed("key-export", "token:a", "POST /v1/sessions/s/export", "")
	other := keyed("key-other", "token:a", "POST /v1/sessions/t/export", "")
	bound := keyed("key-bound", "token:a", "POST /v1/agents/a/run", "secret")
	about := keyed("key-about", "token:a", "POST /v1/runs/run-1/abort", "")
	c := r.claim(session)
	r.update(func(tx *store.Tx) error {
		return errors.Join(r.db.Sessions().Insert(tx, store.Session{ID: "s", User: "u", Agent: "a"}),
			r.db.Sessions().Insert(tx, store.Session{ID: "t", User: "u", Agent: "a"}),
			c.Keep(tx, store.KeyRecord{Session: "s", Status: 201, Body: []byte("secret")}, nil))
	})
	c.Done()
	c = r.claim(bound)
	r.run("run-1", "s", func(tx *store.Tx) error {
		return c.Keep(tx, store.KeyRecord{Bound: true, Run: "run-1", Status: 202, Body: []byte("secret")}, nil)
	})
	c.Done()
	save := func(q store.KeyRecord, a store.KeyRecord) {
		c := r.claim(q)
		c.Save(t.Context(), a)
		c.Done()
	}
	save(export, store.KeyRecord{Session: "s", Status: 200, Body: []byte("secret")})
	save(other, store.KeyRecord{Session: "t", Status: 200, Body: []byte("kept")})
	save(about, store.KeyRecord{Run: "run-1", Status: 200, Body: []byte("aborted")})
	for _, q := range []store.KeyRecord{session, export, other, bound, about} {
		if got := r.told(q); got == "free" { // and it is in memory now
			t.Fatalf("%s is free, want it answered", q.Key)
		}
	}
	late := r.claim(usual) // its answer comes too late
	erase := r.claim(keyed("key-erase", "token:a", "DELETE /v1/sessions/s", ""))
	r.update(func(tx *store.Tx) error {
		if _, err := r.db.Sessions().Erase(tx, "s"); err != nil {
			return err
		}
		return erase.Keep(tx, store.KeyRecord{Status: 204}, nil)
	})
	erase.Done()
	r.keys.Forget()
	late.Save(t.Context(), store.KeyRecord{Session: "s", Status: 200, Body: []byte("secret")})
	late.Done()
	for _, q := range []store.KeyRecord{session, export, bound, about} {
		r.want(q, "idempotency-conflict")
		v, err := r.db.Keys().Get(t.Context(), q.Key)
		if err != nil || v.Target != "" || len(v.Fingerprint) != 0 || v.Run != "" || v.Session != "" || v.Body != nil || v.Headers != nil || v.Bound {
			t.Errorf("of %s there is %+v, %v; want it bare", q.Key, v, err)
		}
	}
	r.want(usual, "free")
	r.want(other, "200  kept")
	r.want(keyed("key-erase", "token:a", "DELETE /v1/sessions/s", ""), "204  ")
}

// The memory holds the answers that were asked for last, and no large ones.
func TestMemoryIsBounded(t *testing.T) {
	r := newKeyRig(t, gate.KeyOptions{CacheSize: 2})
	q := func(i int) store.KeyRecord { return keyed(fmt.Sprint("key-000", i), "token:a", "POST /v1/x", "") }
	for i := range 3 {
		c := r.claim(q(i))
		c.Save(t.Context(), store.KeyRecord{Status: 200 + i, Body: make([]byte, i*10<<10)})
		c.Done()
	}
	for _, i := range []int{0, 1, 0, 2} { // 2 is too large to be remembered
		r.told(q(i))
	}
	if err := r.db.Close(); err != nil {
		t.Fatal(err)
	}
	for i, remembered := range []bool{true, true, false} {
		if _, _, err := r.keys.Claim(ended(t), q(i)); (err == nil) != remembered {
			t.Errorf("without a store, Claim of key %d = %v, want it remembered: %v", i, err, remembered)
		}
	}
}

// ended is a context with which no closed store is waited for.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
