package journal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"agentd/server/event"
	"agentd/server/message"
	"agentd/server/transcript"
	"agentd/store"
)

type (
	// Approval is a call that waits for a decision.
	Approval = message.Approval
	// Error says why a run failed or was aborted; its code is one of the fault table.
	Error = message.RunError
)

// OutcomeUnknown is the reason of an approval whose call may have happened already.
const OutcomeUnknown = message.OutcomeUnknown

// A Record is what a run consists of beside its row. Readers must not change it.
type Record struct {
	Past     *Past   // of the session, before the run
	Messages []Entry // the run's own, by index
	Steps    []store.Step
	Calls    []store.Call
	Handoffs []store.Handoff
	Pending  []Approval        // what it waits for
	Granted  []Approval        // calls that the run's program makes itself, granted and not yet acted upon
	Ending   store.Status      // how the run ends once unknown outcomes are decided; empty: it does not
	Parked   map[int]*Child    // children that wait, by the index of their call
	Hosted   map[string]*Child // runs that tasks of a workflow host and that wait, by the id of their call; see [LoadWaiting]
	Children map[string]*Child // other children that an end reports, by id; read on demand
	Slots    map[store.Slot]json.RawMessage

	digests map[string]string // of a run of a workflow: those of its own approvals, by the ids of their calls

	reported int // so many of the first calls are reported
}

// A Child is a run that is a call of another.
type Child struct {
	Row    *store.Run
	Record *Record
}

// An Entry is a message with its index in the run. Indices that are reserved for outcomes to come are absent.
type Entry struct {
	Index   int
	At      int64
	Message message.Message
	Outcome *message.Outcome // of tool messages
}

// Says reports whether the entry is an owner's own word.
func (e *Entry) Says(owner string) bool {
	return e.Message.Role == message.Assistant && e.Message.AgentID == owner
}

// DecodeEntry reads a stored message.
func DecodeEntry(m store.Message) (Entry, error) {
	msg, outcome, err := transcript.Decode(m)
	if err != nil {
		err = fmt.Errorf("message %d of run %d: %w", m.Index, m.Run, err)
	}
	return Entry{Index: m.Index, At: m.At, Message: msg, Outcome: outcome}, err
}

// Load reads a run's record.
func Load(tx *store.Tx, runs *store.Runs, row *store.Run) (*Record, error) {
	rec := &Record{Past: PastOf(runs, row)}
	var err error
	if row.Messages > 0 {
		var own []store.Message
		own, err = runs.Messages(tx, row.N)
		for _, m := range own {
			e, err := DecodeEntry(m)
			if err != nil {
				return nil, err
			}
			rec.Messages = append(rec.Messages, e)
		}
	}
	if err == nil && row.Step > 0 {
		rec.Steps, err = runs.Steps(tx, row.N)
	}
	if err == nil && row.Calls > 0 {
		rec.Calls, err = runs.Calls(tx, row.N)
	}
	imported := row.Slots&(1<<store.ImportedSlot) != 0
	if err == nil && (imported || slices.ContainsFunc(rec.Calls, func(c store.Call) bool { return c.Child != "" })) {
		if rec.Handoffs, err = runs.Handoffs(tx, row.N); err == nil {
			slices.SortStableFunc(rec.Handoffs, func(a, b store.Handoff) int { return cmp.Compare(a.At, b.At) })
			err = rec.loadParked(tx, runs, Load)
		}
	}
	if err != nil || row.Slots == 0 {
		return rec, err
	}
	if rec.Slots, err = runs.Slots(tx, row.N); err == nil {
		err = rec.decodeSlots(rec.Slots)
	}
	if err == nil && row.Kind == store.Workflow {
		err = rec.loadHosted(tx, runs, row)
	}
	return rec, err
}

// loadParked reads the children that wait.
func (rec *Record) loadParked(tx *store.Tx, runs *store.Runs, load func(*store.Tx, *store.Runs, *store.Run) (*Record, error)) error {
	for _, c := range rec.Calls {
		if c.Child == "" || c.Phase != store.CallAwaiting {
			continue
		}
		kid, err := runs.Find(tx, c.Child)
		if errors.Is(err, store.ErrNotFound) {
			continue // the call itself waits
		}
		k := &Child{Row: kid}
		if err == nil {
			k.Record, err = load(tx, runs, kid)
		}
		if err != nil {
			return err
		}
		rec.Park(c.Index, k)
	}
	return nil
}

// decodeSlots decodes the slots that say what a run waits for.
func (rec *Record) decodeSlots(slots map[store.Slot]json.RawMessage) (err error) {
	for slot, value := range slots {
		switch slot {
		case store.PendingSlot:
			rec.Pending, err = readPending(value)
		case store.GrantedSlot:
			rec.Granted = nil
			err = json.Unmarshal(value, &rec.Granted)
		case store.EndingSlot:
			err = json.Unmarshal(value, &rec.Ending)
		}
		if err != nil {
			return store.Damaged(err)
		}
	}
	return nil
}

// Apply brings the record to what it is after a change; entries are its messages, decoded.
func (rec *Record) Apply(m *store.Change, entries []Entry) {
	for _, e := range entries {
		rec.put(e)
	}
	for _, s := range m.Steps {
		if n := len(rec.Steps); n > 0 && rec.Steps[n-1].Number == s.Number {
			rec.Steps[n-1] = s
		} else {
			rec.Steps = append(rec.Steps, s)
		}
	}
	for _, c := range m.Calls {
		if c.Phase == store.CallDone {
			delete(rec.Parked, c.Index)
		}
		if c.Index < len(rec.Calls) {
			rec.Calls[c.Index] = c
		} else {
			rec.Calls = append(rec.Calls, c)
		}
	}
	for rec.reported < len(rec.Calls) && rec.Calls[rec.reported].Reported {
		rec.reported++
	}
	rec.Handoffs = append(rec.Handoffs, m.Handoffs...)
	if len(m.Slots) == 0 {
		return
	}
	if rec.Slots == nil {
		rec.Slots = map[store.Slot]json.RawMessage{}
	}
	maps.Copy(rec.Slots, m.Slots)
	rec.decodeSlots(m.Slots) //nolint:errcheck // they were just encoded
}

// After returns a copy of the record as it will be after a change.
func (rec *Record) After(m *store.Change, entries []Entry) *Record {
	next := *rec
	next.Messages, next.Steps, next.Calls = slices.Clone(rec.Messages), slices.Clone(rec.Steps), slices.Clone(rec.Calls)
	next.Handoffs = slices.Clip(rec.Handoffs)
	next.Parked, next.Slots = maps.Clone(rec.Parked), maps.Clone(rec.Slots)
	next.Apply(m, entries)
	return &next
}

// put adds an entry at its place.
func (rec *Record) put(e Entry) {
	at, found := rec.find(e.Index)
	if found {
		rec.Messages[at] = e
		return
	}
	rec.Messages = slices.Insert(rec.Messages, at, e)
}

func (rec *Record) find(index int) (at int, found bool) {
	return slices.BinarySearchFunc(rec.Messages, index, func(m Entry, i int) int { return m.Index - i })
}

// At returns the message at an index; nil when there is none.
func (rec *Record) At(index int) *Entry {
	if at, found := rec.find(index); found {
		return &rec.Messages[at]
	}
	return nil
}

// Before returns the messages before an index.
func (rec *Record) Before(index int) []Entry {
	at, _ := rec.find(index)
	return rec.Messages[:at]
}

// Holds reports whether a slot of the run was ever set.
func (rec *Record) Holds(s store.Slot) bool { return rec.Slots[s] != nil }

// Park keeps the child that a call waits for.
func (rec *Record) Park(call int, k *Child) {
	if rec.Parked == nil {
		rec.Parked = map[int]*Child{}
	}
	rec.Parked[call] = k
}

// Unreported returns the calls from the first one on whose outcome was not reported. Those before it have been settled.
func (rec *Record) Unreported() []store.Call { return rec.Calls[rec.reported:] }

// CallByID returns a call; the one that waits where an id was used more than once, as in runs of other programs.
func (rec *Record) CallByID(id string) (found *store.Call) {
	for i := range rec.Calls {
		if c := &rec.Calls[i]; c.ID == id && (found == nil || c.Phase == store.CallAwaiting) {
			found = c
		}
	}
	return found
}

// Place returns the index that is reserved for a call's outcome.
func (rec *Record) Place(c *store.Call) int {
	place := c.Asked + 1
	for i := min(c.Index, len(rec.Calls)) - 1; i >= 0 && rec.Calls[i].Asked == c.Asked; i-- { // they were claimed together
		place++
	}
	return place
}

// LastText returns the last text that an owner said in the run; empty when it said none.
func (rec *Record) LastText(owner string) string {
	for _, e := range slices.Backward(rec.Messages) {
		if e.Says(owner) {
			if s := e.Message.Content.String(); s != "" {
				return s
			}
		}
	}
	return ""
}

// An End is how a run stood when its end event was written: the stored form of that event. The rest of the event is
// built from the run's rows, which only grow.
type End struct {
	Type     string          `json:"type"`
	RunID    string          `json:"runId"`
	Status   store.Status    `json:"status"`
	At       int64           `json:"at"`
	Messages int             `json:"messages"`
	Steps    int             `json:"steps"`
	Agent    string          `json:"agent"`
	Usage    json.RawMessage `json:"usage"`
	Models   json.RawMessage `json:"models"`
	Error    json.RawMessage `json:"error,omitempty"`
	Pending  []Approval      `json:"pending,omitempty"`
	Finished int64           `json:"finished,omitempty"`
	Parked   []ParkedEnd     `json:"parked,omitempty"`
	Shown    json.RawMessage `json:"shown,omitempty"` // what the driver gave for the event, where its rows do not keep it
}

// A ParkedEnd is how a child stood that waited then.
type ParkedEnd struct {
	Call int    `json:"call"` // its index
	Run  string `json:"run"`
	End  End    `json:"end"`
}

// Latest returns the time of the latest thing that the rows of a run show. The clock may have been set back since.
func (rec *Record) Latest(row *store.Run) int64 {
	at := max(row.Created, row.Started, row.Finished)
	for _, s := range rec.Steps {
		at = max(at, s.Started, s.Ended)
	}
	for _, c := range rec.Calls {
		at = max(at, c.Claimed, c.Settled)
	}
	for _, a := range rec.Pending {
		at = max(at, Millis(a.RequestedAt))
	}
	for _, m := range rec.Messages {
		at = max(at, m.At)
	}
	for _, h := range rec.Handoffs {
		at = max(at, h.At)
	}
	return at
}

// EndOf describes a run as it is at a time or, if that is later, at the time of the latest thing that its rows show.
func EndOf(row *store.Run, rec *Record, at int64) End {
	at = max(at, rec.Latest(row))
	e := End{Type: event.AgentEnd, RunID: row.ID, Status: row.Status, At: at, Messages: row.Messages, Steps: len(rec.Steps),
		Agent: row.Current, Usage: row.Usage, Models: row.Models, Error: row.Error, Pending: rec.Pending, Finished: row.Finished}
	for _, i := range slices.Sorted(maps.Keys(rec.Parked)) {
		k := rec.Parked[i]
		e.Parked = append(e.Parked, ParkedEnd{i, k.Row.ID, EndOf(k.Row, k.Record, at)})
	}
	return e
}

// PendingOf reads what a run waits for.
func PendingOf(tx *store.Tx, runs *store.Runs, row *store.Run) (pending []Approval, err error) {
	kept, err := runs.Slot(tx, row.N, store.PendingSlot)
	if err == nil && kept != nil {
		pending, err = readPending(kept)
	}
	return pending, err
}

// readPending reads approvals. Their digests are those of the arguments that they show.
func readPending(kept json.RawMessage) (pending []Approval, err error) {
	err = json.Unmarshal(kept, &pending)
	for i := range pending {
		pending[i].ArgsDigest = ArgsDigest(pending[i].Args)
	}
	return pending, err
}
