package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"agentd/metrics"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/span"
	"agentd/server/tracecontext"
	"agentd/store"
)

// Grace is how long the program of a run may take to return after its context has ended, before the run continues
// without it.
const Grace = 5 * time.Second

// A Run is a run that one goroutine moves. Only that goroutine, and the driver on it, uses its exported fields and
// methods; [Run.Transient] and [Run.Context] may be used from any.
type Run struct {
	Row    store.Run       // as of the last commit; not to be changed. Others read it under order.
	Record *journal.Record // likewise

	e     *Engine
	id    string // as in Row, for any goroutine
	owner *Owner
	used  *usage

	trace span.Trace           // of its tree
	by    tracecontext.Context // of the request that resumed it; zero: none has

	ctx    context.Context // ends with a hard abort or the server's end
	cancel context.CancelCauseFunc

	done    chan struct{}  // closed when the goroutine is through
	endedAt int64          // of the latest end event
	latest  int64          // time of the latest move
	claimed map[int]bool   // the calls that this process has claimed and not dispatched, by index
	unknown map[int]string // what is known of calls of unknown outcome, by index, until their approvals say so
	last    *Move          // settles the only call of a step; Report commits it with its events
	kept    *Move          // is held back, see keep; nil: nothing is
	later   []func(*Move)  // what the next commit writes besides
	pays    string         // see Payer
	due     int64          // the timer of a run whose driver is a [Recipient], as the run has set or learned it; 0: none
	dues    []*Due         // what the driver was told of it, and no commit has handled

	// Carry is what [StartRequest] has given.
	Carry any

	bell     chan struct{} // see Mail
	detached bool          // whoever started it does not wait for its end

	trial   *trial         // of a run that a crash has interrupted; nil: it has not
	parent  *Run           // whose call this run is; nil: a root
	callID  string         // of that call
	decided map[int]*Run   // children that were decided on and are to continue, by the index of their call
	inbox   chan forwarded // events of children; nil before the first call that is a run
	waits   map[int]string // the runs that calls wait for, by index, see [Run.Waited]
	until   int64          // see Deadline; 0: it has none

	mu      sync.Mutex // guards the fields below: what others may ask of the run. It is never held while something waits.
	asked   *AbortOptions
	kids    []*Run // children that move
	mail    []Letter
	sealed  bool // nobody puts letters into mail
	resting bool // the driver parks the run, and does not see what is asked from now on

	order     sync.Mutex // guards the fields below and changes of Row: the order of events
	hold      *hold      // of a move that is held back; nil: none is
	up        *Run       // the parent while it takes events
	sub       int        // transient events since the latest durable one
	seq       int        // of the latest durable event that was published
	shown     []view     // made with the first event
	uncounted int        // transient events that were published and that no durable event counts
}

// ID returns the run's id. Any goroutine may call it.
func (r *Run) ID() string { return r.id }

func (e *Engine) newRun(row store.Run, rec *journal.Record) *Run {
	r := &Run{e: e, id: row.ID, owner: e.owner(&row), Row: row, Record: rec, done: make(chan struct{}), seq: row.Events, latest: rec.Latest(&row),
		bell: make(chan struct{}, 1), sealed: true}
	r.used, _ = decodeUsage(&row) // a damaged one fails at the first read that shows it
	r.used = cmp.Or(r.used, &usage{models: map[string]message.ModelUsage{}})
	if row.Parent == 0 {
		r.trace = span.TraceOf(row.ID, rec.Slots[store.TraceSlot])
	}
	r.ctx, r.cancel = context.WithCancelCause(e.ctx)
	return r
}

// Context ends with the run's abort or the server's stop; its cause says why.
func (r *Run) Context() context.Context { return r.ctx }

// Within is [Run.Context] for what happens within a span of the run: it carries the span's place in the trace.
func (r *Run) Within(part span.Part, number int) context.Context {
	r.order.Lock()
	n := r.Row.N
	r.order.Unlock()
	return tracecontext.With(r.ctx, r.trace.At(span.ID(n, part, number)))
}

// Cancel ends the context of the run, which then fails with the cause.
func (r *Run) Cancel(cause error) { r.cancel(cause) }

// Used returns what the run has used so far.
func (r *Run) Used() message.Usage { return r.used.total }

// Go runs fn in a goroutine that the engine waits for when it drains.
func (r *Run) Go(fn func()) { r.e.moving.Go(fn) }

// Later adds to the next commit of the run, whoever makes it.
func (r *Run) Later(add func(*Move)) { r.later = append(r.later, add) }

func (m *Move) take(r *Run) {
	for _, add := range r.later {
		add(m)
	}
	r.later = nil
}

// start makes the run running: its input as messages, the start event, and what its driver adds. in is its session as it was
// before; empty: it has none.
func (r *Run) start(input json.RawMessage, in store.Session) (*Move, error) {
	m := r.Move()
	m.Run.Status, m.Run.Started = store.Running, m.At
	m.Progress()
	if to := r.recipient(); to != nil {
		return m, to.Begin(r, m, input)
	}
	m.follow(r, in)
	m.Say(event.AgentStart, startFields{r.Row.ID, r.Row.Owner})
	r.owner.Driver.Open(r, m)
	return m, r.tell(m, input)
}

// tell adds the messages that show an input.
func (r *Run) tell(m *Move, input json.RawMessage) error {
	msgs, err := r.e.Form(&m.Run).Input(m.Run.InputForm, input)
	for _, msg := range msgs {
		if msg.Role == message.User && msg.UserID == "" {
			msg.UserID = r.Row.User
		}
		m.Message(msg)
	}
	return err
}

// Commit makes a move durable and publishes its events. While the store or the audit chain cannot be written, it waits.
// An error means that the run cannot continue here: the driver returns it.
func (r *Run) Commit(m *Move) error {
	if err := r.parks(m); err != nil {
		return err
	}
	m.take(r)
	r.order.Lock()
	m.count(r.uncounted)
	r.order.Unlock()
	r.retime(m)
	if err := m.encode(); err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	update := r.e.opts.Runs.Update
	if m.after != nil && r.unseen() {
		update = r.e.opts.Runs.UpdateSoon
	}
	happened := r.happenings(m)
	var notify func(*store.Tx) error
	if r.e.opts.Notify != nil {
		notify = r.e.opts.Notify(&m.Run, r.Row.Status, happened)
	}
	var n int64
	err := r.insist(func() error {
		record, err := r.e.record(happened)
		if err != nil {
			return err
		}
		return update(context.Background(), func(tx *store.Tx) (err error) {
			if n, err = r.e.opts.Runs.Apply(tx, &m.Change); err == nil && m.also != nil {
				err = m.also(tx)
			}
			if err == nil {
				err = r.e.wakeHost(tx, m, r.Row.Status)
			}
			if err == nil && notify != nil {
				err = notify(tx)
			}
			if err != nil {
				return err
			}
			return record(tx)
		})
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	r.committed(m, n)
	return nil
}

// unseen reports whether nobody waits for the end of the run.
func (r *Run) unseen() bool {
	return r.detached && r.aborting() == nil && !slices.ContainsFunc(r.shown, func(v view) bool { return r.e.opts.Hub.Watched(v.subject) })
}

// ErrLeft says that a run is to be left as it is on disk, for the next start of the server to take up.
var ErrLeft = errors.New("the run is left for the next start")

// insist does something that must be durable before the run continues. While the store or the audit chain cannot be
// written, it tries again until it can or the server stops.
func (r *Run) insist(do func() error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, storeWait) {
		err := do()
		if err == nil {
			return nil
		}
		r.Log().Error("run could not be recorded", "run", r.Row.ID, "error", err)
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
func (r *Run) committed(m *Move, n int64) {
	if m.Due != nil && *m.Due != 0 {
		r.e.timers.arm(r.e, *m.Due)
	}
	if m.Due != nil {
		r.due = *m.Due
	}
	if r.Row.N != 0 && m.wakes(r.Row.Status) {
		r.e.timers.arm(r.e, m.At)
	}
	r.heard()
	r.order.Lock()
	defer r.order.Unlock()
	r.Row = m.Run
	r.Row.N = n
	r.Row.Version++
	if m.after != nil && m.Run.Status.Terminal() {
		r.Record = m.after
	} else {
		r.Record.Apply(&m.Change, m.entries)
	}
	if m.Run.Started != 0 && r.Record.Past == nil {
		r.Record.Past = r.e.PastOf(&r.Row)
	}
	if m.used != nil {
		r.used = m.used
	}
	if journal.Lifecycle(m.Run.Status) != "" || m.Run.Dormant() {
		r.e.vacate(r)
	}
	r.uncounted += m.uncounted - m.counted
	if m.progress {
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
		r.publishLocked(p, before)
	}
	r.kept = nil
	r.freeLocked()
	if r.e.opts.Ended != nil && r.Row.Origin != "" && r.Row.Status.Terminal() {
		r.e.opts.Ended(&r.Row)
	}
}

// publishLocked puts an event on the run's subject and on its session's. before is the entry's.
func (r *Run) publishLocked(p published, before int) {
	pos := hub.Position{Epoch: r.Row.N, Seq: r.seq, Sub: r.sub}
	r.passUp(p, pos)
	if r.shown == nil {
		r.shown = views(&r.Row)
	}
	ids := make([]byte, 0, 3*event.MaxCursor) // of all views in one piece
	for _, v := range r.shown {
		ids = event.Cursor{View: v.view, Run: r.Row.ID, Seq: pos.Seq, Sub: pos.Sub}.Append(ids)
	}
	all, size := string(ids), len(ids)/len(r.shown)
	entries, readers := make([]hub.Entry, len(r.shown)), journal.Readers(&r.Row)
	for i, v := range r.shown {
		if v.view == event.SessionView && r.Row.Started == 0 {
			continue // it never got its turn; here it would come between the events of the run that has it
		}
		entries[i] = hub.Entry{Pos: pos, Type: p.ev.Type, Payload: p.ev.Payload, Late: p.late, Owner: readers, Before: before, Lifecycle: v.lifecycle(p.lifecycle),
			ID: all[i*size : (i+1)*size], Aside: v.aside}
		r.e.opts.Hub.Publish(v.subject, &entries[i])
	}
}

// A view is a subject that shows a run.
type view struct {
	view    event.View
	subject string
	aside   bool // the subject has another order, or none, see [hub.Entry]
}

func views(row *store.Run) []view {
	vs := []view{{event.RunView, event.OfRun(row.Kind, row.Owner, row.ID).String(), false}}
	workflow := row.Kind == store.Workflow
	if workflow {
		vs = append(vs, view{event.WorkflowView, event.OfWorkflow(row.Owner).String(), true})
	}
	if row.Session != "" && row.Parent == 0 { // the session sees a child through its parent
		vs = append(vs, view{event.SessionView, event.OfSession(row.Session).String(), workflow},
			view{event.SessionRunView, event.OfSessionRun(row.Session, row.ID).String(), false})
	}
	return vs
}

// lifecycle hides the end of a run from a subject that continues.
func (v view) lifecycle(l string) string {
	if v.view == event.SessionView || v.view == event.WorkflowView {
		return ""
	}
	return l
}

// advance moves the run until it ends, waits or is left.
func (r *Run) advance(drive func() error) {
	defer close(r.done)
	defer r.cancel(nil)
	defer r.trial.pass()
	defer r.returnMail()
	err := r.Guard(drive)
	if errors.Is(err, errDormant) {
		return
	}
	if errors.Is(err, ErrLeft) && !r.stopped() {
		r.Log().Warn("run left as it is on disk", "run", r.Row.ID, "error", err)
		return
	}
	if err != nil {
		err = r.fail(r.Move(), err)
	}
	if err != nil {
		r.Log().Error("run could not be ended", "run", r.Row.ID, "error", err)
	}
	if r.Row.Status.Terminal() {
		r.count()
		if r.parent == nil {
			r.e.next(r.Row.Session)
		}
	}
}

// Guard turns a panic into an error: a run is one of the two edges at which panics stop.
func (r *Run) Guard(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.Log().Error("agent panicked", "run", r.Row.ID, "agent", r.Row.Owner, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.New(fault.AgentPanic, "The %s panicked.", r.Row.Kind)
		}
	}()
	return fn()
}

// drive moves a run that has begun.
func (r *Run) drive() error {
	if r.Record.Ending != "" {
		return r.driveEnding()
	}
	return r.owner.Driver.Drive(r)
}

// Stopping returns the reason to stop at the boundary of a step; nil when the run may continue.
func (r *Run) Stopping() error {
	if r.aborting() != nil {
		return errAborted
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return nil
}

// stopped reports whether the server's stop has cancelled the run.
func (r *Run) stopped() bool { return errors.Is(context.Cause(r.ctx), errShutdown) }

// Payer is who uses up what is scarce: whom the principal that started the run counts as or, where nobody is known, the
// owner.
func (r *Run) Payer() string {
	if r.pays != "" {
		return r.pays
	}
	r.pays = r.Row.Kind + ":" + r.Row.Owner
	if by := r.Row.StartedBy; by != "" && by != Anonymous {
		r.pays = by
		if find := r.e.opts.Lineages; find != nil {
			if lineages, err := find(r.ctx, []string{by}); err == nil {
				r.pays = lineages[0]
			}
		}
	}
	return r.pays
}

// count counts a run that has ended.
func (r *Run) count() {
	in := r.e.opts.Metrics
	in.RunsTotal.With(string(r.Row.Status)).Inc()
	if r.Row.Kind == "agent" {
		in.RunsByAgent.With(r.Row.Owner, string(r.Row.Status)).Inc()
	}
	if r.Row.Started != 0 {
		took := float64(r.Row.Finished-r.Row.Started) / 1000
		in.RunDuration.Observe(took)
		in.RunLatency.Observe(took)
	}
}

// describe is an error as a run shows it.
func (e *Engine) describe(err error) *journal.Error {
	f := fault.Of(err)
	if f.Kind == fault.Internal { // nobody classified it, but it is the program's own and not a secret of the server
		return &journal.Error{Message: journal.Clip(e.opts.Redact(err.Error()), 2000), Code: fault.Unknown.Code, Hint: fault.Unknown.Hint}
	}
	return &journal.Error{Message: e.opts.Redact(f.Message), Code: f.Kind.Code, Hint: f.NextStep()}
}

func now() int64 { return time.Now().UnixMilli() }

// What a driver works with.

// Metrics is the engine's inventory.
func (r *Run) Metrics() *metrics.Inventory { return r.e.opts.Metrics }

// Log is the engine's log, with the ids of the request and the trace that the run belongs to. Any goroutine may use it.
func (r *Run) Log() *slog.Logger {
	c := r.trace.Context
	c.Request = cmp.Or(r.by.Request, c.Request)
	return r.e.log.With(c.Attrs()...)
}

// Sessions is the engine's repository of sessions.
func (r *Run) Sessions() *store.Sessions { return r.e.opts.Sessions }

// Redact takes known secrets out of a text.
func (r *Run) Redact(s string) string { return r.e.opts.Redact(s) }

// Describe is an error as a run shows it.
func (r *Run) Describe(err error) *journal.Error { return r.e.describe(err) }
