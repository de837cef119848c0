package retention

import (
	"context"
	"time"

	"agentd/store"
)

const (
	maxRows   = 1000 // of a transaction
	startRows = 100
	minRows   = 10

	lasting  = time.Millisecond // how long a transaction should last: others that write wait for it
	resting  = 8                // how many times as long the pause after it lasts
	minPause = 2 * time.Millisecond
	maxPause = time.Second
)

// pace is how fast a sweep goes.
type pace struct{ rows int }

// took adapts the number of rows to how long a transaction lasted.
func (p *pace) took(t time.Duration) {
	switch {
	case t > lasting:
		p.rows = max(minRows, p.rows/2)
	case t < lasting/2:
		p.rows = min(maxRows, p.rows+p.rows/4+1)
	}
}

// batch runs fn in a transaction that joins others, or with dry on a read connection.
func (d *Daemon) batch(ctx context.Context, dry bool, fn func(*store.Tx) error) error {
	if dry {
		d.pace.rows = maxRows
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		return d.o.Expiry.View(ctx, fn)
	}
	return d.paced(ctx, func() error {
		return d.o.Expiry.UpdateSoon(ctx, func(tx *store.Tx) error {
			begun := time.Now()
			defer func() { d.pace.took(time.Since(begun)) }()
			return fn(tx)
		})
	})
}

// paced runs a transaction and pauses, longer after a longer one.
func (d *Daemon) paced(ctx context.Context, transact func() error) error {
	begun := time.Now()
	if err := transact(); err != nil {
		return err
	}
	rest := time.NewTimer(min(max(resting*time.Since(begun), minPause), maxPause))
	defer rest.Stop()
	select {
	case <-rest.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
