// Package idem remembers the answers to requests with an Idempotency-Key, so that repeating a request has no second effect.
//
//	Claim -> the key has a record -> conflict, or the first answer again
//	      -> its request is in progress -> in flight
//	      -> Claim: Keep in the transaction of the effect, or Save after it; then Done
//
// What keeps a key from being used twice at once is memory of this process, which alone has the database; what keeps it
// from being used again is a row. The row is written in the very transaction that makes the effect durable, so after a
// crash either both are there or neither. Only for requests that are harmless to repeat, the row is written after the
// effect. A refusal writes none: its key is free again.
//
// A key that is bound to a run answers for that run, whatever becomes of it, for as long as the run exists.
package idem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

// Options are what keys are remembered with.
type Options struct {
	Records   *store.Keys
	TTL       time.Duration // how long an answer is kept
	Require   string        // what a request without a key gets: off, warn or enforce
	CheckBody bool          // refuse a key that comes back with another body
	CacheSize int           // answers kept in memory too; 1000 when 0
	Logger    *slog.Logger
}

// Keys is all that is known about keys. It is safe for concurrent use.
type Keys struct {
	opts  Options
	cache cache
	start time.Time

	replays, firsts atomic.Int64

	mu     sync.Mutex // guards the one below
	flying map[string]Request
}

// New makes keys of what the store knows.
func New(o Options) *Keys {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CacheSize == 0 {
		o.CacheSize = 1000
	}
	return &Keys{opts: o, cache: cache{size: o.CacheSize}, flying: map[string]Request{}, start: time.Now()}
}

// MaxAnswer is the size in bytes of the largest answer that [Claim.Save] keeps.
const MaxAnswer = 1 << 20

// A Request is what a key is given for.
type Request struct {
	Key         string
	Principal   string // who asks
	Target      string // method and path
	Fingerprint [sha256.Size]byte
}

// An Answer is what a request was answered.
type Answer struct {
	Run     string // that it is about; empty: none
	Bound   bool   // it is kept for as long as the run is; its body adds to what the run says
	Session string // that it is about; empty: none
	Status  int    // 0: the answer follows from the run
	Headers map[string][]string
	Body    []byte
}

// Read takes the key out of the values of the header. An absent key is empty, and with missing the answer is to say so.
// The error is idempotency-key-required: there is none, and there must be one, or it is malformed.
func (k *Keys) Read(values []string) (key string, missing bool, err error) {
	key = strings.TrimSpace(strings.Join(values, ","))
	switch {
	case key != "" && !valid(key):
		return "", false, fault.New(fault.IdempotencyKeyRequired, "The Idempotency-Key is not valid.").
			Advise("Send one key of 8 to 255 characters of A-Z a-z 0-9 _ - :, such as a UUID.")
	case key == "" && k.opts.Require == "enforce":
		return "", false, fault.New(fault.IdempotencyKeyRequired, "The request carries no Idempotency-Key.")
	}
	return key, key == "" && k.opts.Require == "warn", nil
}

func valid(key string) bool {
	for i := range len(key) {
		c := key[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && c != '_' && c != '-' && c != ':' {
			return false
		}
	}
	return len(key) >= 8 && len(key) <= 255
}

// find returns the answer to give again; nil when the key is free.
func (k *Keys) find(ctx context.Context, q Request) (*Answer, error) {
	r, err := k.record(ctx, q.Key)
	switch {
	case r == nil || err != nil:
		return nil, err
	case r.Principal != q.Principal:
		return nil, fault.New(fault.IdempotencyConflict, "Another caller has used this Idempotency-Key.")
	case r.Erased():
		return nil, fault.New(fault.IdempotencyConflict, "The result of the request with this Idempotency-Key was erased.")
	case r.Target != q.Target:
		return nil, fault.New(fault.IdempotencyConflict, "This Idempotency-Key belongs to another request: %.200s.", r.Target)
	case k.opts.CheckBody && !bytes.Equal(r.Fingerprint, q.Fingerprint[:]):
		return nil, fault.New(fault.IdempotencyConflict, "This Idempotency-Key belongs to a request with another body.")
	}
	a := &Answer{Run: r.Run, Session: r.Session, Status: r.Status, Body: r.Body}
	if r.Headers != nil {
		if err := json.Unmarshal(r.Headers, &a.Headers); err != nil {
			return nil, err
		}
	}
	k.replays.Add(1)
	return a, nil
}

// now is the time by which records expire: that of the wall clock, but not more than has passed since the start. So a
// clock that is set on makes no request happen twice.
func (k *Keys) now() int64 {
	passed := time.Since(k.start)
	return min(time.Now().UnixMilli(), k.start.Add(passed).UnixMilli())
}

// record reads the record of a key that has not expired; nil when there is none.
func (k *Keys) record(ctx context.Context, key string) (*store.KeyRecord, error) {
	now := k.now()
	r, epoch := k.cache.get(key)
	if r != nil && r.Live(now) {
		return r, nil
	}
	r, err := k.opts.Records.Get(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !r.Live(now): // another may come in its place
		return nil, nil
	}
	k.cache.put(r, epoch)
	return r, nil
}

// enter refuses a request while another one with its key is in progress. If none is, and if it is to take the key, it has
// the key from then on.
func (k *Keys) enter(q Request, take bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	first, ok := k.flying[q.Key]
	switch {
	case !ok && take:
		k.flying[q.Key] = q
		return nil
	case !ok:
		return nil
	case first.Principal != q.Principal:
		return fault.New(fault.IdempotencyConflict, "Another caller has used this Idempotency-Key.")
	case first.Target != q.Target || k.opts.CheckBody && first.Fingerprint != q.Fingerprint:
		return fault.New(fault.IdempotencyConflict, "This Idempotency-Key belongs to another request, which is in progress.")
	}
	return inFlight()
}

func inFlight() error {
	return fault.New(fault.IdempotencyInFlight, "A request with this Idempotency-Key is in progress.").After(time.Second)
}

// Claim takes a key for a request, unless it has an answer to give again. The caller calls Done once the request has been
// answered. Errors: idempotency-conflict when the key was used by another caller or for another request;
// idempotency-in-flight while its request is in progress; storage-failed.
func (k *Keys) Claim(ctx context.Context, q Request) (*Claim, *Answer, error) {
	if err := k.enter(q, false); err != nil {
		return nil, nil, err
	}
	if a, err := k.find(ctx, q); a != nil || err != nil {
		return nil, a, err
	}
	if err := k.enter(q, true); err != nil {
		return nil, nil, err
	}
	k.firsts.Add(1)
	return &Claim{keys: k, req: q}, nil, nil
}

// Forget drops what is kept in memory. It is called after an erasure.
func (k *Keys) Forget() { k.cache.clear() }

// HitRatio is the part of the requests with a key that were answered again; 0 when there was none.
func (k *Keys) HitRatio() float64 {
	hits, firsts := float64(k.replays.Load()), float64(k.firsts.Load())
	return hits / max(hits+firsts, 1)
}

const (
	sweepInterval = time.Hour
	sweepBatch    = 500
)

// Run deletes expired records, at once and then every hour, until ctx ends.
func (k *Keys) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		if n, err := k.sweep(ctx); err != nil && ctx.Err() == nil {
			k.opts.Logger.Warn("expired idempotency records could not be deleted", "error", err)
		} else if n > 0 {
			k.opts.Logger.Info("expired idempotency records deleted", "records", n)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *Keys) sweep(ctx context.Context) (all int64, err error) {
	now := k.now()
	for {
		n, err := k.opts.Records.DeleteExpired(ctx, now, sweepBatch)
		if all += n; err != nil || n < sweepBatch {
			return all, err
		}
	}
}
