package store

import (
	"encoding/json"
	"slices"
)

// Status is where a run stands.
type Status string

const (
	Pending   Status = "pending" // accepted; waits for its session's turn
	Running   Status = "running"
	Awaiting  Status = "awaiting_approval"
	Completed Status = "completed"
	Failed    Status = "failed"
	Aborted   Status = "aborted"
	Suspended Status = "suspended" // waits for a time
)

// Parked reports whether a run with this status waits, so that nothing moves it.
func (s Status) Parked() bool { return s == Awaiting || s == Suspended }

// Terminal reports whether a run with this status never changes again.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Aborted }

// Run is a run's row. Its counters are how many events, messages and calls it has; the next one of each has that
// index (events are numbered from 1).
type Run struct {
	N        int64 // order of creation; given by Apply
	ID       string
	Kind     string // agent, workflow or import
	Owner    string // the agent or workflow that was called
	Current  string // the agent that drives the next step
	Session  string // empty: none
	User     string // empty: none
	Status   Status
	Was      Status // before a change, where the caller knows; empty costs an index entry
	Version  int64  // of the row; 0 before it is written
	Attempt  int
	Step     int
	Events   int
	Messages int
	Calls    int
	Slots    int // bit i is set when slot i holds something; that of DormantSlot is cleared when the run moves again
	Spans    int

	Parent     int64  // number of the run that called this one as a tool; 0: none
	ParentCall int    // index of that call in the parent's journal
	StartedBy  string // the principal that started it, see For; of a child: its root's
	Origin     string // what it is started for, at most once; empty: nothing that must be unique

	Thread int64 // number of its thread, which is that of the thread's first run: 0 when that is inserted. 0: it is no workflow's
	Host   int64 // number of the thread whose task started it, or of the run of the agent that called it; 0: neither

	HistoryAfter, HistoryTo int64 // session messages that precede the run's own: after < sequence <= to; or see Window

	InputForm string // what the first messages were made from: text, json or messages
	Usage     json.RawMessage
	Models    json.RawMessage
	Error     json.RawMessage // nil: none
	Created   int64
	Started   int64 // 0: not yet
	Finished  int64 // 0: not yet
}

// For separates the two principals of a run that a trigger started because somebody fired it or emitted an event: the trigger's, and
// that one's. The run acts as the first, and the second counts as one that started it, too.
const For = " for "

// Event is a durable event. Payload is the JSON object that subscribers see, without what the message at index
// Message holds already (-1: it lacks nothing).
type Event struct {
	Seq     int // from 1, without gaps within a run
	Type    string
	At      int64
	Message int
	Payload json.RawMessage
	// Transient is how many transient events the run published between the durable event before and this one.
	Transient int
}

// Message is an entry of a run's transcript, and of its session's unless it is a system message. A tool message's Body is the outcome of its call; every other Body is
// the message itself.
type Message struct {
	Index    int
	Sequence int64 // within its session; given by Apply; 0 for a message that is not part of a session
	Role     string
	Tokens   int // an estimate
	At       int64
	Body     json.RawMessage
	Run      int64  // on reading only
	LeftOut  Status // how its run ended, failed or aborted, which later runs' histories leave out; empty: they do not
}

func (m Message) private() bool { return m.Role == "system" }

// Step is one step of a run.
type Step struct {
	Number  int
	Agent   string
	Model   string
	Usage   json.RawMessage
	Started int64
	Ended   int64 // 0: not yet
	Resumed bool  // it runs what a person allowed, without a model call
}

// Phase is where a tool call stands.
type Phase string

const (
	CallAwaiting    Phase = "awaiting"    // a person has to decide
	CallQueued      Phase = "queued"      // it waits for its tool's limit, and has had no effect since
	CallDispatching Phase = "dispatching" // its effect may have happened
	CallDone        Phase = "done"        // its outcome is in the transcript
)

// Call is a row of the journal of tool calls.
type Call struct {
	Index    int // order within the run, from 0
	Step     int // in which it is settled; a resumption moves it on
	Origin   int // the step in which the model asked for it
	ID       string
	Name     string
	Phase    Phase
	Reason   string
	ArgsHash []byte
	// Canonical says that ArgsHash is of the canonical form of the arguments; in rows of earlier versions it is not.
	Canonical bool
	Asked     int // index of the assistant message with the arguments
	Answered  int // index of the tool message with the outcome; -1: none yet
	Attempts  int
	Claimed   int64
	Settled   int64           // 0: not yet
	Reported  bool            // the event that reports the outcome is written
	Decision  json.RawMessage // who granted or denied it; nil: nobody has
	Child     string          // id of the run that the call started; empty: it started none
}

// Handoff is a record of a conversation that one agent handed to another. Index is that of the call.
type Handoff struct {
	Run   int64 // on reading only
	Index int
	At    int64
	Body  json.RawMessage
}

// SpanBatch is the spans that one commit ended: a JSON array. First is the ordinal of the first one within its run.
type SpanBatch struct {
	Run   int64 // on reading only
	First int
	At    int64
	Body  json.RawMessage
}

// Exchange is what the transcript lacks of a recorded model call.
type Exchange struct {
	Step int
	Body json.RawMessage
}

// Slot names something that a run keeps once.
type Slot int

const (
	OutputSlot     Slot = 1
	CheckpointSlot Slot = 2
	PendingSlot    Slot = 3
	InputSlot      Slot = 4  // of a run that waits for its turn
	GrantedSlot    Slot = 5  // approvals that were granted to an agent and that it has not acted upon
	ImportedSlot   Slot = 6  // of a run that began elsewhere: the parts of its state that no row holds
	EndingSlot     Slot = 7  // the status in which a run ends once a person has decided on its unknown outcomes
	HoldersSlot    Slot = 8  // the agents below the run's to which the conversation is given: before the run, then after it
	DormantSlot    Slot = 9  // what a dormant run waits for; see [Run.Dormant]
	TraceSlot      Slot = 10 // of a root: the trace that it continues, and the id of the request that started it
)

// Dormant reports whether the run is running only by its status: all that is open of it are calls that wait for other runs. It
// needs no process; its timer is due when one of those has ended.
func (r *Run) Dormant() bool { return r.Status == Running && r.Slots&(1<<DormantSlot) != 0 }

// Spill is a result that was too large for the transcript.
type Spill struct {
	Name      string
	MediaType string
	Data      []byte
}

// Change is what one move of a run makes durable: all of it or nothing. Run is the row after the move, but with the
// version that it must have now; 0 makes a new run.
type Change struct {
	Run      Run
	Events   []Event
	Messages []Message
	Steps    []Step
	Calls    []Call
	Slots    map[Slot]json.RawMessage
	Spills   []Spill
	Due      *int64 // when the run is looked at next; 0: never; nil: as before
	DueWas   *int64 // the timer that Due replaces, 0: none. One that was set meanwhile stays. Nil: Due replaces any

	Handoffs  []Handoff
	Spans     []SpanBatch
	Exchanges []Exchange
}

// Runs is the repository of runs and all that belongs to them.
type Runs struct{ access }

// Runs gives access to runs.
func (db *DB) Runs() *Runs { return &Runs{access{db}} }

var runs = declare("runs", `n, version, id, kind, owner_id, current_id, session_id, user_id, status, attempt, step, events, messages, calls, slots,
	history_after, history_to, input_form, usage_json, models_json, error_json, created_at, started_at, finished_at, spans, parent, parent_call,
	started_by, origin, thread, host`, "", func(r *Run, to []any) []any {
	return append(to, &r.N, &r.Version, &r.ID, &r.Kind, &r.Owner, &r.Current, opt(&r.Session), opt(&r.User), &r.Status, &r.Attempt, &r.Step,
		&r.Events, &r.Messages, &r.Calls, &r.Slots, &r.HistoryAfter, &r.HistoryTo, &r.InputForm, text{&r.Usage}, text{&r.Models}, text{&r.Error},
		&r.Created, opt(&r.Started), opt(&r.Finished), &r.Spans, opt(&r.Parent), opt(&r.ParentCall), opt(&r.StartedBy), opt(&r.Origin),
		threadOf{r}, opt(&r.Host))
})

var events = declare("run_events", "key, type, at, message, payload, transient", "", func(e *Event, to []any) []any {
	return append(to, rowKey{nil, &e.Seq}, &e.Type, &e.At, optIndex{&e.Message}, text{&e.Payload}, &e.Transient)
})

var messages = declare("run_messages", "key, sequence, role, tokens, at, body, left_out", "session_id", func(m *Message, to []any) []any {
	return append(to, rowKey{&m.Run, &m.Index}, opt(&m.Sequence), &m.Role, &m.Tokens, &m.At, text{&m.Body}, opt(&m.LeftOut))
})

var steps = declare("run_steps", "key, agent_id, model, usage_json, started_at, ended_at, resumed", "", func(s *Step, to []any) []any {
	return append(to, rowKey{nil, &s.Number}, &s.Agent, opt(&s.Model), text{&s.Usage}, &s.Started, opt(&s.Ended), &s.Resumed)
}).replacing("key", "agent_id, model, usage_json, started_at, ended_at")

var calls = declare("tool_calls", `key, step, origin, call_id, name, phase, reason, args_sha256, args_canonical, asked, answered, attempts, claimed_at,
	settled_at, decision_json, reported, child`, "", func(c *Call, to []any) []any {
	return append(to, rowKey{nil, &c.Index}, &c.Step, &c.Origin, &c.ID, &c.Name, &c.Phase, opt(&c.Reason), &c.ArgsHash, &c.Canonical, &c.Asked,
		optIndex{&c.Answered}, &c.Attempts, &c.Claimed, opt(&c.Settled), text{&c.Decision}, &c.Reported, opt(&c.Child))
}).replacing("key", "step, phase, reason, args_sha256, args_canonical, answered, attempts, settled_at, decision_json, reported")

var handoffs = declare("handoffs", "key, at, body", "session_id", func(h *Handoff, to []any) []any {
	return append(to, rowKey{&h.Run, &h.Index}, &h.At, text{&h.Body})
})

var spans = declare("spans", "key, at, body", "session_id", func(b *SpanBatch, to []any) []any {
	return append(to, rowKey{&b.Run, &b.First}, &b.At, text{&b.Body})
})

var exchanges = declare("run_exchanges", "key, body", "", func(x *Exchange, to []any) []any {
	return append(to, rowKey{nil, &x.Step}, text{&x.Body})
}).replacing("key", "body")

// slotted is a row of what a run keeps once.
type slotted struct {
	slot int
	json json.RawMessage
}

var slots = declare("run_slots", "key, json", "", func(s *slotted, to []any) []any {
	return append(to, rowKey{nil, &s.slot}, text{&s.json})
}).replacing("key", "json")

var spills = declare("run_spills", "name, media_type, data", "run", func(s *Spill, to []any) []any {
	return append(to, &s.Name, &s.MediaType, &s.Data)
}).replacing("run, name", "media_type, data")

// Apply writes a change and returns the run's number. When the run has another version than the change expects, or
// a new run's id is taken, nothing is written and the error is ErrConflict. It leaves c as it is.
func (r *Runs) Apply(tx *Tx, c *Change) (int64, error) {
	n, err := putRun(tx, &c.Run)
	if err != nil {
		return 0, err
	}
	session := c.Run.Session
	if c.Run.Parent != 0 { // the messages of a child are not part of its session
		session = ""
	}
	for _, write := range []func() error{
		func() error { return events.add(tx, n, c.Events) },
		func() error { return putMessages(tx, n, session, c.Messages) },
		func() error { return leaveOut(tx, n, session, &c.Run) },
		func() error { return steps.add(tx, n, c.Steps) },
		func() error { return calls.add(tx, n, c.Calls) },
		func() error { return handoffs.add(tx, n, c.Handoffs, null(c.Run.Session)) },
		func() error { return spans.add(tx, n, c.Spans, null(c.Run.Session)) },
		func() error { return exchanges.add(tx, n, c.Exchanges) },
	} {
		if err := write(); err != nil {
			return 0, err
		}
	}
	for slot, value := range c.Slots {
		if err := slots.add(tx, n, []slotted{{int(slot), value}}); err != nil {
			return 0, err
		}
	}
	for i := range c.Spills {
		if _, err := spills.insert(tx, &c.Spills[i], n); err != nil {
			return 0, err
		}
	}
	switch {
	case c.Due != nil && c.DueWas != nil:
		err = r.replaceTimer(tx, n, *c.DueWas, *c.Due)
	case c.Due != nil:
		err = r.SetTimer(tx, n, *c.Due)
	}
	return n, err
}

const (
	updateRun    = "UPDATE runs SET " + runColumns
	updateStatus = "UPDATE runs SET status = ?, " + runColumns
	runColumns   = `current_id = ?, version = version + 1, attempt = ?, step = ?, events = ?, messages = ?, calls = ?, slots = ?,
		history_after = ?, history_to = ?, usage_json = ?, models_json = ?, error_json = ?, started_at = ?, finished_at = ?, spans = ?
		WHERE n = ? AND version = ?`
)

func putRun(tx *Tx, r *Run) (int64, error) {
	if r.Version == 0 {
		args := runs.values(tx, r, nil)
		args[0], args[1] = nil, 1 // SQLite gives it the next number
		return tx.insert(1, runs.into, args...)
	}
	// The status is set only when it changes: it is part of an index, which would be written with every step.
	query, args := updateRun, tx.c.fields[:0]
	if r.Status != Running || r.Was != Running {
		query, args = updateStatus, append(args, &r.Status)
	}
	tx.c.fields = append(args, &r.Current, &r.Attempt, &r.Step, &r.Events, &r.Messages, &r.Calls, &r.Slots, &r.HistoryAfter, &r.HistoryTo,
		text{&r.Usage}, text{&r.Models}, text{&r.Error}, opt(&r.Started), opt(&r.Finished), &r.Spans, &r.N, &r.Version)
	changed, err := tx.exec(query, tx.c.fields...)
	if err == nil && changed == 0 {
		err = ErrConflict
	}
	return r.N, err
}

// putMessages writes messages of run n, which become part of the session unless they are private.
func putMessages(tx *Tx, n int64, session string, all []Message) error {
	shared := slices.DeleteFunc(slices.Clone(all), Message.private)
	var sequence int64
	if session != "" && len(shared) > 0 {
		err := tx.row("UPDATE sessions SET sequence = sequence + ?, updated_at = ?, closed_at = NULL WHERE id = ? RETURNING sequence",
			len(shared), tx.Now(), session).Scan(&sequence)
		if err != nil {
			return err
		}
		tx.wrote = true
		sequence -= int64(len(shared))
	}
	for _, m := range all {
		var owner any
		if m.Sequence = 0; session != "" && !m.private() {
			sequence++
			m.Sequence, owner = sequence, session
		}
		if err := messages.add(tx, n, []Message{m}, owner); err != nil {
			return err
		}
	}
	return nil
}

// leaveOut marks the messages of a run that failed or was aborted, and removes the mark when an aborted run continues.
func leaveOut(tx *Tx, n int64, session string, r *Run) error {
	var mark any
	switch {
	case session == "":
		return nil
	case r.Status == Failed, r.Status == Aborted:
		mark = string(r.Status)
	case r.Was != Aborted:
		return nil
	}
	_, err := tx.exec("UPDATE run_messages SET left_out = ? WHERE key BETWEEN ? AND ?", mark, key(n, 0), key(n, maxIndex))
	return err
}

// CountAwaiting returns how many runs that no run has called wait for a decision, of at most 10000.
func (r *Runs) CountAwaiting(tx *Tx) (n int, err error) {
	return n, tx.row("SELECT count(*) FROM (SELECT n FROM runs INDEXED BY runs_open WHERE status = 'awaiting_approval' AND parent IS NULL LIMIT 10000)").Scan(&n)
}
