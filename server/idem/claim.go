package idem

import (
	"context"
	"encoding/json"
	"errors"

	"agentd/store"
)

// A Claim is a key that a request under way has to itself. Nobody else's request with it is made before Done. One
// goroutine uses it. A nil Claim is that of a request without a key: its methods do nothing.
type Claim struct {
	keys *Keys
	req  Request
	kept bool
	done bool
}

// Keep writes the answer in the transaction that makes it true. The error is idempotency-in-flight when another request
// was faster.
func (c *Claim) Keep(tx *store.Tx, a Answer) error {
	if c == nil {
		return nil
	}
	r, err := c.record(tx, a)
	if err != nil {
		return err
	}
	c.kept = true
	if err = c.keys.opts.Records.Put(tx, r); errors.Is(err, store.ErrConflict) {
		err = inFlight()
	}
	return err
}

func (c *Claim) record(tx *store.Tx, a Answer) (*store.KeyRecord, error) {
	r := &store.KeyRecord{Key: c.req.Key, Principal: c.req.Principal, Target: c.req.Target, Fingerprint: c.req.Fingerprint[:],
		Run: a.Run, Bound: a.Bound, Session: a.Session, Status: a.Status, Body: a.Body, Expires: tx.Now() + c.keys.opts.TTL.Milliseconds()}
	if len(a.Headers) > 0 {
		b, err := json.Marshal(a.Headers)
		if err != nil {
			return nil, err
		}
		r.Headers = b
	}
	return r, nil
}

// Save keeps the answer to a request that may be made again without harm, and that has not kept it yet. An answer of
// more than [MaxAnswer] bytes, one to something that was erased meanwhile, and one that the store cannot write are not
// kept.
func (c *Claim) Save(ctx context.Context, a Answer) {
	if c.kept || len(a.Body) > MaxAnswer {
		return
	}
	err := c.keys.opts.Records.Update(ctx, func(tx *store.Tx) error {
		r, err := c.record(tx, a)
		if err != nil {
			return err
		}
		return c.keys.opts.Records.PutAbout(tx, r)
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) {
		c.keys.opts.Logger.Warn("the answer to a request with an Idempotency-Key could not be stored", "target", c.req.Target, "error", err)
	}
}

// Done lets the key go. It may be called again.
func (c *Claim) Done() {
	if c == nil || c.done {
		return
	}
	c.done = true
	c.keys.mu.Lock()
	defer c.keys.mu.Unlock()
	delete(c.keys.flying, c.req.Key)
}
