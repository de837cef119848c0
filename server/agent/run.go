package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
	"agentd/server/trace"
	"agentd/store"
)

// grace is how long an agent may take to return after its context has ended, before the run goes on without it.
const grace = 5 * time.Second

// run is a run that one goroutine moves. Only that goroutine changes row and rec, row under mu; others read no more of
// them than publishing needs, under mu too.
type run struct {
	e   *Engine
	reg *Registration
	row store.Run
	rec *record

	ctx    context.Context // ends with a hard abort or the server's end
	cancel context.CancelCauseFunc

	done    chan struct{}  // closed when the goroutine is through
	endedAt int64          // of the latest agent.end
	latest  int64          // time of the latest move
	claimed map[int]bool   // the calls that this process has claimed, by index
	unknown map[int]string // what is known of calls of unknown outcome, by index, until their approvals say so
	last    *move          // settles the only call of a step; committed with its events
	held    *move          // begins the commit of a model's answer
	ended   []trace.Span   // that the next commit writes
	tape    tape           // records model calls
	pays    string         // see payer

	trial   *trial         // of a run that a crash has interrupted; nil: it has not
	parent  *run           // whose call this run is; nil: a root
	callID  string         // of that call
	depth   int            // 0: a root
	decided map[int]*run   // children that were decided on and are to go on, by the index of their call
	inbox   chan forwarded // events of children; nil before the first call that is a run

	mu    sync.Mutex // guards the fields below: what others may ask of the run, and the order of its events
	abort *AbortOptions
	kids  []*run // children that move
	up    *run   // the parent while it takes events
	sub   int    // transient events since the latest durable one
	seq   int    // of the latest durable event that was published

	uncounted int // transient events that were published and that no durable event counts
}

func (e *Engine) newRun(row store.Run, rec *record, reg *Registration) *run {
	r := &run{e: e, reg: reg, row: row, rec: rec, done: make(chan struct{}), seq: row.Events}
	r.latest = rec.latest(&row)
	r.ctx, r.cancel = context.WithCancelCause(e.ctx)
	return r
}

// stamp is the time of a move. Within a run it does not go back, whatever the clock does, so that nothing of it takes
// less than no time.
func (r *run) stamp() int64 {
	r.latest = max(r.latest, now())
	return r.latest
}

// firstMove makes the run running: its input as messages, agent.start, and what its driver adds.
func (r *run) firstMove(input json.RawMessage) (*move, error) {
	m := r.move()
	m.row.Status, m.row.Started = store.Running, m.at
	m.progress()
	m.say(event.AgentStart, startFields{r.row.ID, r.row.Owner})
	r.reg.driver().open(r, m)
	return m, r.tell(m, input)
}

// tell adds the messages that tell an input.
func (r *run) tell(m *move, input json.RawMessage) error {
	msgs, err := inputMessages(m.row.InputForm, input)
	for _, msg := range msgs {
		if msg.Role == message.User && msg.UserID == "" {
			msg.UserID = r.row.User
		}
		m.message(msg)
	}
	return err
}

// waitingMove keeps the run until its session's turn comes.
func (r *run) waitingMove(input json.RawMessage) *move {
	m := r.move()
	m.row.Status = store.Pending
	m.slot(store.InputSlot, input)
	return m
}

// inputMessages are the messages that tell an input of the given form.
func inputMessages(form string, input json.RawMessage) ([]message.Message, error) {
	if form == "messages" {
		var list []message.Message
		if json.Unmarshal(input, &list) != nil {
			var one message.Message
			if err := json.Unmarshal(input, &one); err != nil {
				return nil, err
			}
			list = []message.Message{one}
		}
		for i := range list { // whose they are is not for the caller to say
			m := &list[i]
			if m.Role == message.Developer {
				m.Role = message.System
			}
			m.Caller, m.Withheld = m.Role == message.System, false
		}
		return list, nil
	}
	text := string(input)
	if form == "text" {
		if err := json.Unmarshal(input, &text); err != nil {
			return nil, err
		}
	}
	return []message.Message{{Role: message.User, Content: message.Text(text)}}, nil
}

// input is the inverse of inputMessages for an agent that wants the JSON.
func (r *run) input() json.RawMessage {
	for _, e := range r.rec.messages {
		if e.msg.Role != message.User {
			continue
		}
		if r.row.InputForm == "json" {
			return json.RawMessage(e.msg.Content.Text)
		}
		b, _ := message.Encode(e.msg.Content.Text)
		return b
	}
	return json.RawMessage(`""`)
}

// commit makes a move durable and publishes its events. Any error but that the store cannot write is a conflict or a
// defect, and ends the run's goroutine with errLeft; see persist.
func (r *run) commit(m *move) error {
	m.adopt(r)
	m.recorded = r.tape.take()
	r.mu.Lock()
	m.count(r.uncounted)
	r.mu.Unlock()
	told := r.happenings(m)
	err := r.insist(func() error { return r.e.foretell(context.Background(), told) })
	if err != nil {
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	var n int64
	err = r.persist(func(tx *store.Tx) (err error) {
		if n, err = r.e.opts.Runs.Apply(tx, m.change()); err != nil || !m.gives || r.row.Parent != 0 || r.row.Session == "" {
			return err
		}
		var path []string
		if err := json.Unmarshal(m.slots[store.HoldersSlot], &path); err != nil {
			return err
		}
		return r.e.opts.Sessions.Hold(tx, r.row.Session, r.row.Owner, path)
	})
	if err != nil {
		r.e.void(context.Background(), told)
		return fmt.Errorf("%w: %w", errLeft, err)
	}
	r.committed(m, n)
	return nil
}

// persist makes a change durable, as [run.insist] does.
func (r *run) persist(change func(tx *store.Tx) error) error {
	return r.insist(func() error { return r.e.opts.Runs.Update(context.Background(), change) })
}

// insist does something that must be durable before the run goes on. While the store or the audit chain cannot be
// written, it tries again until it can or the server stops; the run stands still meanwhile.
func (r *run) insist(do func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, storeWait) {
		err := do()
		if err == nil {
			return nil
		}
		r.e.log.Error("run could not be recorded", "run", r.row.ID, "error", err)
		if !fault.Is(err, fault.StorageFailed) && !fault.Is(err, fault.StorageCorrupt) && !fault.Is(err, fault.AuditUnavailable) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-r.e.ctx.Done():
			return err
		}
	}
}

// storeWait is the longest pause between attempts while the store cannot write.
const storeWait = 2 * time.Second

// committed takes over what a commit made durable, and publishes it.
func (r *run) committed(m *move, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.row = m.row
	r.row.N = n
	r.row.Version++
	if m.seed != nil {
		r.rec.history = m.seed
	}
	for _, e := range m.entries {
		r.rec.put(e)
	}
	for _, s := range m.steps {
		r.rec.setStep(s)
	}
	for _, c := range m.calls {
		r.rec.setCall(c)
	}
	r.rec.handoffs = append(r.rec.handoffs, m.handoffs...)
	if v, ok := m.slots[store.OutputSlot]; ok {
		r.rec.output = v
	}
	if v, ok := m.slots[store.CheckpointSlot]; ok {
		r.rec.checkpoint = v
	}
	if m.pending != nil {
		r.rec.pending = m.pending
	}
	if _, ok := m.slots[store.GrantedSlot]; ok {
		r.rec.granted = m.granted
	}
	if v, ok := m.slots[store.EndingSlot]; ok {
		json.Unmarshal(v, &r.rec.ending) //nolint:errcheck // ours
	}
	if v, ok := m.slots[store.HoldersSlot]; ok {
		json.Unmarshal(v, &r.rec.holders) //nolint:errcheck // ours
	}
	if lifecycleOf(m.row.Status) != "" {
		r.e.vacate(r)
	}
	r.uncounted += m.uncounted - m.counted
	if m.further {
		for up := r; up != nil; up = up.parent {
			up.trial.pass()
		}
	}
	for _, p := range m.events {
		before := 0
		if p.seq == 0 {
			r.sub++
		} else {
			before, r.seq, r.sub = r.sub, p.seq, 0
		}
		r.publishLocked(p.ev, before, p.lifecycle)
	}
}

// after is a copy of the record as it will be after a move.
func (rec *record) after(m *move) *record {
	next := *rec
	next.messages = append([]entry(nil), rec.messages...)
	next.steps = append([]store.Step(nil), rec.steps...)
	next.calls = append([]store.Call(nil), rec.calls...)
	next.parked = maps.Clone(rec.parked)
	next.handoffs = append(rec.handoffs, m.handoffs...)
	for _, e := range m.entries {
		next.put(e)
	}
	for _, s := range m.steps {
		next.setStep(s)
	}
	for _, c := range m.calls {
		next.setCall(c)
	}
	if v, ok := m.slots[store.OutputSlot]; ok {
		next.output = v
	}
	if m.seed != nil {
		next.history = m.seed
	}
	return &next
}

func (rec *record) setStep(s store.Step) {
	if n := len(rec.steps); n > 0 && rec.steps[n-1].Number == s.Number {
		rec.steps[n-1] = s
		return
	}
	rec.steps = append(rec.steps, s)
}

func (rec *record) setCall(c store.Call) {
	if c.Phase == store.CallDone {
		delete(rec.parked, c.Index)
	}
	if c.Index < len(rec.calls) {
		rec.calls[c.Index] = c
		return
	}
	rec.calls = append(rec.calls, c)
}

// transient publishes an event that is not stored. It may be called from any goroutine.
func (r *run) transient(ev event.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sub++
	r.uncounted++
	r.publishLocked(ev, 0, "")
}

// publishLocked puts an event on the run's subject and on its session's. Before is the entry's.
func (r *run) publishLocked(ev event.Event, before int, lifecycle string) {
	pos := hub.Position{Epoch: r.row.N, Seq: r.seq, Sub: r.sub}
	r.passUp(ev, r.durable())
	for _, v := range r.views() {
		if v.view == event.SessionView && r.row.Started == 0 {
			continue // it never got its turn; here it would come between the events of the run that has it
		}
		r.e.opts.Hub.Publish(v.subject, &hub.Entry{Pos: pos, Type: ev.Type, Payload: ev.Payload, Owner: r.row.Owner, Before: before, Lifecycle: v.lifecycle(lifecycle),
			ID: event.Cursor{View: v.view, Run: r.row.ID, Seq: pos.Seq, Sub: pos.Sub}.String()})
	}
}

// durable is the sequence number of the event that is being published, 0 if it is transient.
func (r *run) durable() int {
	if r.sub > 0 {
		return 0
	}
	return r.seq
}

// views are the subjects that show the run. A child is seen on its session through its parent.
func (r *run) views() []view {
	if r.row.Parent != 0 {
		return views(r.row.Owner, r.row.ID, "")
	}
	return views(r.row.Owner, r.row.ID, r.row.Session)
}

type view struct {
	view    event.View
	subject string
}

// lifecycle hides the end of a run from the subject of its session, which goes on.
func (v view) lifecycle(l string) string {
	if v.view == event.SessionView {
		return ""
	}
	return l
}

func views(owner, runID, session string) []view {
	vs := []view{{event.RunView, event.OfAgentRun(owner, runID).String()}}
	if session != "" {
		vs = append(vs, view{event.SessionView, event.OfSession(session).String()},
			view{event.SessionRunView, event.OfSessionRun(session, runID).String()})
	}
	return vs
}

// lifecycleOf is the status of a lifecycle frame; empty while the run goes on.
func lifecycleOf(s store.Status) string {
	switch {
	case s == store.Awaiting:
		return "paused"
	case s.Terminal():
		return string(s)
	}
	return ""
}

// advance moves the run until it ends, waits or is left.
func (r *run) advance(drive func() error) {
	defer close(r.done)
	defer r.cancel(nil)
	defer r.trial.pass()
	err := guard(r, drive)
	if errors.Is(err, errLeft) && !r.stopped() {
		r.e.log.Warn("run left as it is on disk", "run", r.row.ID, "error", err)
		return
	}
	if err != nil {
		err = r.settle(err)
	}
	if err != nil {
		r.e.log.Error("run could not be settled", "run", r.row.ID, "error", err)
	}
	if r.row.Status.Terminal() {
		r.count()
		if r.parent == nil {
			r.e.next(r.row.Session)
		}
	}
}

// settle ends a run whose driver returned an error.
func (r *run) settle(err error) error {
	if r.aborting() == nil && r.stopped() {
		if r.rec.ending != "" || r.reg.driver().resumable(r) {
			return r.leave()
		}
		return r.finish(r.move(), store.Aborted, errShutdown)
	}
	return r.cease(r.move(), err)
}

// cease adds an end to a move that is not the server's: the one that an abort asks for, or a failure.
func (r *run) cease(m *move, err error) error {
	if opts := r.aborting(); opts != nil {
		return r.settleAbort(m, opts)
	}
	if cause := context.Cause(r.ctx); r.ctx.Err() != nil && cause != nil {
		err = cause // a budget of time, for instance
	}
	return r.finish(m, store.Failed, err)
}

// stopped reports whether the server's stop has cancelled the run.
func (r *run) stopped() bool { return errors.Is(context.Cause(r.ctx), errShutdown) }

// leave parks a run that goes on with the next start of the server: on disk it stays running. A stop in good order is
// not the run's fault, so it does not count towards a crash loop.
func (r *run) leave() error {
	m := r.move()
	m.row.Attempt = 0
	err := r.commit(m)
	if err == nil {
		r.e.log.Info("run left for the next start", "run", r.row.ID, "step", r.row.Step)
	}
	return err
}

// commitEnd commits a move that ends with agent.end, which tells what the run looks like after the move.
func (r *run) commitEnd(m *move, pending []Approval) error {
	rec := r.rec.after(m)
	rec.pending = pending
	kept, err := message.Encode(pending)
	if err != nil {
		return err
	}
	if len(pending) > 0 || len(r.rec.pending) > 0 {
		m.slot(store.PendingSlot, kept)
	}
	if len(pending) == 0 {
		rec.parked = nil
	}
	if m.row.Status.Terminal() {
		m.adopt(r)
		m.spanEnd(r, rec.steps)
	}
	if err := m.conclude(rec); err != nil {
		return err
	}
	if err := r.commit(m); err != nil {
		return err
	}
	r.rec.pending = pending
	r.endedAt = m.at
	if m.row.Status == store.Awaiting && r.parent == nil {
		r.e.watch(r.row.ID, pending)
	}
	return nil
}

func (r *run) fresh(call int) {
	if r.claimed == nil {
		r.claimed = map[int]bool{}
	}
	r.claimed[call] = true
}

func (r *run) isFresh(call int) bool { return r.claimed[call] }

// count tells the metrics of a run that has ended.
func (r *run) count() {
	r.e.opts.Metrics.RunsTotal.With(string(r.row.Status)).Inc()
	if r.row.Started != 0 {
		r.e.opts.Metrics.RunDuration.Observe(float64(r.row.Finished-r.row.Started) / 1000)
	}
}
