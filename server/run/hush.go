package run

import (
	"cmp"
	"slices"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/store"
)

// hush notes a run that was aborted before its session's turn came: its session shows it when its turn would have come,
// so that events there keep the order of runs.
func (e *Engine) hush(r *Run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hushed[r.Row.Session] = append(e.hushed[r.Row.Session], r)
}

// unhush shows the hushed runs of a session that come before all that are open.
func (e *Engine) unhush(session string, open []*store.Run) {
	e.mu.Lock()
	due := e.hushed[session]
	slices.SortFunc(due, func(a, b *Run) int { return cmp.Compare(a.Row.N, b.Row.N) })
	n := len(due)
	if len(open) > 0 {
		n, _ = slices.BinarySearchFunc(due, open[0].N, func(r *Run, first int64) int { return cmp.Compare(r.Row.N, first) })
	}
	if n == len(due) {
		delete(e.hushed, session)
	} else {
		e.hushed[session] = due[n:]
	}
	e.mu.Unlock()
	for _, r := range due[:n] {
		err := e.Replay(e.ctx, r.Row.ID, event.SessionView, 0, func(entry *hub.Entry) error {
			e.opts.Hub.Publish(event.OfSession(session).String(), entry)
			return nil
		})
		if err != nil && e.ctx.Err() == nil && !fault.Is(err, fault.RunNotFound) {
			e.log.Error("a run could not be shown on its session's stream; a reconnection shows it", "run", r.Row.ID, "error", err)
		}
	}
}
