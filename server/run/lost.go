package run

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"agentd/server/fault"
	"agentd/store"
)

// EndLost ends, in a database that was restored, the runs that were moving or queued, and those of workflows whose timer is
// due at a time, as failed (restored): what they did after the backup is not known, and would be done twice. Runs that wait
// for something else keep waiting. It is called in the place of Recover, and returns how many runs it ended.
func (e *Engine) EndLost(ctx context.Context, now int64) (n int, err error) {
	e.timers.hold()
	var lost []*store.Run
	due, _, err := e.opts.Runs.Due(ctx, now, math.MaxInt32)
	if err == nil {
		err = e.opts.Runs.View(ctx, func(tx *store.Tx) error {
			open, err := e.opts.Runs.Open(tx, "")
			for _, row := range open {
				if row.Status != store.Awaiting {
					lost = append(lost, row)
				}
			}
			for _, t := range due {
				row, missing := e.opts.Runs.Find(tx, t.RunID)
				if err == nil {
					err = missing
				}
				if err == nil && row.Kind == store.Workflow && row.Status.Parked() {
					lost = append(lost, row)
				}
			}
			return err
		})
	}
	// The end of a run could begin one that is queued. A hosted run was made after its host, whose end would abort it.
	slices.SortFunc(lost, func(a, b *store.Run) int {
		if queued := a.Status == store.Pending; queued != (b.Status == store.Pending) {
			return map[bool]int{true: -1, false: 1}[queued]
		}
		return cmp.Compare(b.N, a.N)
	})
	for _, row := range lost {
		if err == nil {
			var ended bool
			if ended, err = e.endLost(ctx, row); ended {
				n++
			}
		}
	}
	return n, err
}

// endLost ends a run, unless the end of another one has.
func (e *Engine) endLost(ctx context.Context, row *store.Run) (ended bool, err error) {
	r, err := e.takeUp(ctx, row, true)
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer e.letGo(r)
	if r.Row.Status.Terminal() {
		return false, nil
	}
	m := r.Move()
	if err := r.tellQueued(m); err != nil {
		return false, err
	}
	return true, r.endFor(m, store.Failed, fault.New(fault.Restored, "The storage was restored from a backup that was made during the run."))
}
