package triggers

import (
	"context"
	"time"
)

// SetBack does what a clock that is set back by a time does to an engine: its cursors and turns are ahead by as much.
func (e *Engine) SetBack(ctx context.Context, by time.Duration) error {
	for _, en := range e.all() {
		en.mu.Lock()
		en.row.Cursor += by.Milliseconds()
		at := en.nextLocked(0)
		en.mu.Unlock()
		e.plan(en, at)
	}
	err := e.stepBack(ctx, time.Now().UnixMilli())
	e.nudge()
	return err
}
