package triggers

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"agentd/server/fault"
	"agentd/store"
)

const (
	tick        = 10 * time.Second // the clock is read at least that often
	sweep       = time.Minute      // between two looks at firings whose run may have ended unnoticed
	again       = time.Second      // after what prevents a start but says nothing of the trigger
	starters    = 256              // triggers that fire at once: what one transaction of the store takes
	openBatch   = 1000             // open firings read at once
	settleBatch = 250              // ends of runs in a transaction
	stepLimit   = 24 * time.Hour   // a clock set back by more moves the cursors to the present
	minTurns    = 1000             // turns that are kept in any case
	idleTurn    = 10 * time.Second // between two looks at an idle trigger while something is in progress
)

// never is when a trigger is looked at that has nothing to do.
const never = int64(1) << 62

// A turn is when a trigger is looked at. It counts while it is the trigger's latest plan.
type turn struct {
	at int64 // milliseconds since 1970
	en *entry
}

// turns is a heap: the turn that comes first is at its root.
type turns []turn

func (t turns) Len() int { return len(t) }
func (t turns) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].en.n < t[j].en.n // N does not change
}
func (t turns) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(v any)   { *t = append(*t, v.(turn)) }
func (t *turns) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// plan has a trigger looked at at a time, instead of at the one that was planned before.
func (e *Engine) plan(en *entry, at int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if at == en.planned {
		return
	}
	if en.planned = at; at == never {
		return
	}
	if heap.Push(&e.turns, turn{at, en}); len(e.turns) > 2*len(e.entries)+minTurns { // many of them do not count any more
		e.turns = slices.DeleteFunc(e.turns, func(t turn) bool { return t.en.planned != t.at })
		heap.Init(&e.turns)
	}
}

// planBy has a trigger looked at at a time, unless it is looked at before.
func (e *Engine) planBy(en *entry, at int64) {
	e.mu.Lock()
	sooner := at < en.planned
	e.mu.Unlock()
	if sooner {
		e.plan(en, at)
		e.nudge()
	}
}

// due takes the triggers whose turn has come, those that were due first before the others, and returns the turn after them.
func (e *Engine) due(now int64) (list []*entry, next int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(e.turns) > 0 {
		first := e.turns[0]
		if first.at > now && first.en.planned == first.at {
			return list, first.at
		}
		heap.Pop(&e.turns)
		if first.en.planned == first.at {
			if first.en.planned = never; e.owed == nil {
				e.owed = map[*entry]int64{}
			}
			e.owed[first.en] = cmp.Or(e.owed[first.en], now)
			list = append(list, first.en)
		}
	}
	return list, never
}

// Run fires triggers until ctx ends, and returns when none is being fired. At its begin it catches up on the dues that were missed
// before, and starts what is queued.
func (e *Engine) Run(ctx context.Context) error {
	e.setRunning(true)
	defer e.setRunning(false)
	for _, en := range e.all() {
		en.mu.Lock()
		at := en.nextLocked(0)
		if en.decl != nil && en.decl.Kind == IdleKind {
			at = 0
		}
		en.mu.Unlock()
		e.plan(en, at)
	}
	e.settleOpen(ctx)
	swept := time.Now()
	for starting := true; ctx.Err() == nil; starting = false {
		e.readClock(ctx)
		e.settle(ctx, e.takeEnded())
		if time.Since(swept) >= sweep {
			swept = time.Now()
			e.settleOpen(ctx)
		}
		now := time.Now().UnixMilli()
		list, next := e.due(now)
		e.round(ctx, list, starting)
		if len(list) > 0 {
			continue // they have new turns
		}
		select {
		case <-e.wake:
		case <-time.After(time.Duration(min(tick.Milliseconds(), next-now)) * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// done notes that a trigger is not due any more.
func (e *Engine) done(en *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.owed, en); len(e.owed) == 0 {
		e.owed = nil // its memory is not kept
	}
}

func (e *Engine) setRunning(running bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running, e.last = running, time.Now()
}

// readClock notices that the clock was set back by more than a day: then cursors that are ahead go to the present, or nothing would
// be due until the old time is reached again. A smaller step needs nothing, because no due fires twice.
func (e *Engine) readClock(ctx context.Context) {
	now := time.Now()
	e.mu.Lock()
	step := now.Round(0).Sub(e.last.Round(0)) - now.Sub(e.last)
	e.mu.Unlock()
	if step <= -stepLimit {
		e.opts.Logger.Warn("the clock was set back; schedules continue from the present", "step", step)
		if err := e.stepBack(ctx, now.UnixMilli()); err != nil {
			e.opts.Logger.Warn("schedules do not continue yet", "error", fault.Of(err).Message)
			return // the next look finds the step again
		}
	}
	e.mu.Lock()
	e.last = now
	e.mu.Unlock()
}

// stepBack moves the cursors to the present that are ahead of it, and has all triggers looked at.
func (e *Engine) stepBack(ctx context.Context, now int64) error {
	for some := range slices.Chunk(e.all(), rowsAtOnce) {
		if err := e.rewind(ctx, some, now); err != nil {
			return err
		}
		for _, en := range some {
			e.plan(en, 0)
		}
	}
	return nil
}

func (e *Engine) rewind(ctx context.Context, list []*entry, now int64) error {
	var rows []store.Trigger
	for _, en := range list {
		en.mu.Lock()
		defer en.mu.Unlock()
		if row := en.row; en.decl != nil && !en.gone && row.Cursor > now {
			row.Cursor, row.Updated = now, now
			rows = append(rows, row)
		}
	}
	err := e.opts.Store.Update(ctx, func(tx *store.Tx) error {
		for i := range rows {
			if err := e.unmiss(tx, e.numbered(rows[i].N).decl, &rows[i]); err != nil {
				return err
			}
			if err := e.opts.Store.Set(tx, &rows[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range rows {
		e.numbered(rows[i].N).row = rows[i] // nobody deletes it: its lock is held
	}
	return nil
}

// round looks at triggers, in their order, some at once.
func (e *Engine) round(ctx context.Context, list []*entry, starting bool) {
	var taken atomic.Int64
	var workers sync.WaitGroup
	for range min(starters, len(list)) {
		workers.Go(func() {
			for i := taken.Add(1) - 1; i < int64(len(list)); i = taken.Add(1) - 1 {
				if ctx.Err() != nil {
					return
				}
				at, err := e.look(ctx, list[i], starting)
				if err != nil {
					e.opts.Logger.Warn("a trigger is tried again", "trigger", list[i].id, "error", fault.Of(err).Message)
					at = time.Now().Add(again).UnixMilli()
				} else {
					e.done(list[i])
				}
				e.plan(list[i], at)
			}
		})
	}
	workers.Wait()
}

// nextLocked is when a trigger is looked at again; retry is when a queued firing may start, 0: there is none.
func (en *entry) nextLocked(retry int64) int64 {
	if en.decl == nil || en.gone || en.row.Disabled {
		return never
	}
	at := never
	if due := en.decl.next(en.row.Cursor); due != 0 {
		at = due
	}
	if retry != 0 {
		at = min(at, retry)
	}
	return at
}

// look does what is due for a trigger, and returns when it is to be looked at again. An error means that nothing is
// accounted for beyond the cursor, and it is due still.
func (e *Engine) look(ctx context.Context, en *entry, starting bool) (next int64, err error) {
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.decl == nil || en.gone || en.row.Disabled {
		return never, nil
	}
	if en.decl.Kind == IdleKind {
		at, err := e.lookIdle(ctx, en)
		if err == nil && en.queue {
			var retry int64
			if retry, err = e.startQueued(ctx, en); retry != 0 {
				at = min(at, retry)
			}
		}
		return at, err
	}
	now := time.Now().UnixMilli()
	a := en.decl.accountFor(en.row.Cursor, now, starting, en.row.LastFired == 0 || en.expired(now))
	if a.missed > 0 {
		if err := e.miss(ctx, en, a); err != nil {
			return 0, err
		}
	}
	for i, due := range slices.Concat(a.caughtUp, a.onTime) {
		origin := OfSchedule
		if i < len(a.caughtUp) {
			origin = OfCatchUp
		}
		if err := e.fireDue(ctx, en, due, origin); err != nil {
			return 0, err
		}
		if en.row.Disabled || en.gone {
			return never, nil
		}
	}
	var retry int64
	if en.queue {
		if retry, err = e.startQueued(ctx, en); err != nil {
			return 0, err
		}
	}
	return en.nextLocked(retry), nil
}

// fireDue fires a due of a schedule.
func (e *Engine) fireDue(ctx context.Context, en *entry, due int64, origin string) error {
	f := &store.Firing{Slot: slot(due), Due: due, Origin: origin}
	move := func(row *store.Trigger) { row.Cursor = due }
	err := e.fire(ctx, en, f, scopeOf(en.id, due, time.Now().UnixMilli(), nil, nil), move, nil)
	if errors.Is(err, errDone) { // it fired before the clock was set back
		row := en.row
		move(&row)
		if err = e.opts.Store.Update(ctx, func(tx *store.Tx) error { return e.opts.Store.Set(tx, &row) }); err == nil {
			en.row = row
		}
	}
	return err
}

// lookIdle fires an idle trigger when its quiet time is over, once for each quiet period.
func (e *Engine) lookIdle(ctx context.Context, en *entry) (int64, error) {
	e.mu.Lock()
	idle := e.idle // what they start is no activity
	e.mu.Unlock()
	now := time.Now().UnixMilli()
	if en.expired(now) {
		return never, nil
	}
	d := en.decl
	agent := d.Agent
	if d.Session != "" {
		agent = ""
	}
	until := now + stepLimit.Milliseconds() // times beyond are of before the clock was set back
	var last int64
	var going bool
	err := e.opts.Store.View(ctx, func(tx *store.Tx) (err error) {
		last, going, err = e.opts.Store.Activity(tx, d.Session, agent, idle, until)
		return err
	})
	if en.row.Created <= until {
		last = max(last, en.row.Created)
	}
	switch {
	case err != nil:
		return 0, err
	case going:
		return now + min(d.AfterMs, idleTurn.Milliseconds()), nil
	case now < last+d.AfterMs:
		return last + d.AfterMs, nil
	}
	if last > en.row.Cursor || en.row.LastFired == 0 { // else this quiet period had its firing
		f := &store.Firing{Slot: "i:" + strconv.FormatInt(last, 10), Due: last + d.AfterMs, Origin: OfIdle}
		err = e.fire(ctx, en, f, scopeOf(en.id, f.Due, now, nil, nil), func(row *store.Trigger) { row.Cursor = max(row.Cursor, last) }, nil)
		if err != nil && !errors.Is(err, errDone) {
			return 0, err
		}
	}
	return now + d.AfterMs, nil
}

// startQueued starts the firings of a trigger that wait, the oldest first, as far as earlier runs allow it. It returns when the next
// one may start; 0: when a run has ended, or none waits.
func (e *Engine) startQueued(ctx context.Context, en *entry) (retry int64, err error) {
	for {
		var queued []store.Firing
		var running int
		if err := e.opts.Store.View(ctx, func(tx *store.Tx) (err error) {
			if queued, err = e.opts.Store.Queued(tx, en.n, 1); err == nil && len(queued) > 0 {
				_, running, err = e.opts.Store.Waiting(tx, en.n)
			}
			return err
		}); err != nil {
			return 0, err
		}
		now := time.Now().UnixMilli()
		en.queue = len(queued) > 0
		if !en.queue || en.row.Disabled || running > 0 && en.decl.Overlap != OverlapAllow {
			return 0, nil
		}
		f := &queued[0]
		if f.Next > now {
			return f.Next, nil
		}
		var with carry
		if err := json.Unmarshal(f.Carry, &with); err != nil {
			return 0, store.Damaged(err)
		}
		if en.expired(now) {
			f.Outcome, f.Reason, f.Open, f.Carry = Skipped, "expired", false, nil
			err = e.record(ctx, en, en.row, f, nil)
		} else {
			err = e.start(ctx, en, en.row, f, with, nil)
		}
		if err != nil {
			return 0, err
		}
	}
}
