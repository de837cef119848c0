package journal

import (
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"
)

// The journal keeps the digest of the arguments that a call was taken in with. The arguments themselves lie in the message
// that asked for it, and in the approval that a person is shown. Whoever edits one of them in the database makes them
// differ, so all are compared before a person's grant counts and again before the call is made.

// Digest is the SHA-256 of arguments in their canonical form. Those without one, with which no call is made, have that of
// their text.
func Digest(args json.RawMessage) (sum []byte, canonical bool) {
	form, err := message.Arguments(args)
	if err != nil {
		form = args
	}
	hash := sha256.Sum256(form)
	return hash[:], err == nil
}

// ArgsDigest is the digest of a call's arguments as approvals, events and the audit chain show it: lower-case hex.
func ArgsDigest(args json.RawMessage) string {
	sum, _ := Digest(args)
	return hex.EncodeToString(sum)
}

// Decided is how a decision is kept in the journal.
type Decided struct {
	By         string   `json:"by"` // token:<id>, anonymous, cli or expiry
	At         string   `json:"at"`
	Granted    bool     `json:"granted"`
	Reason     string   `json:"reason,omitempty"`
	ArgsSHA256 string   `json:"argsSha256"`          // of the arguments that the decision was given for: those of the call
	GrantedBy  []string `json:"grantedBy,omitempty"` // where several were needed: all who granted it, in order

	// Where the decision changed the arguments: those that it gave the call, and the digest of those that were asked for.
	Args        json.RawMessage `json:"args,omitempty"`
	AskedSHA256 string          `json:"askedSha256,omitempty"`
}

// ReadDecided returns the decision on a call; zero where there is none.
func ReadDecided(c *store.Call) (word Decided) {
	if c.Decision != nil {
		json.Unmarshal(c.Decision, &word) //nolint:errcheck // ours; one that is damaged changes no arguments, and Bound finds others
	}
	return word
}

// Requested reports whether the program of a run asked for a call that it makes itself, so that no message holds it.
func Requested(c store.Call) bool { return c.Asked < 0 }

// OpenRequest reports whether a call that its program makes itself waits, or was decided on and not acted upon.
func OpenRequest(c store.Call) bool { return Requested(c) && c.Phase != store.CallDone }

// Imported reports whether a call came with a state that was imported, so that nothing asked for it here.
func (rec *Record) Imported(c *store.Call) bool {
	var kept struct{ Steps int }
	if rec.Slots[store.ImportedSlot] == nil || json.Unmarshal(rec.Slots[store.ImportedSlot], &kept) != nil {
		return false
	}
	last := 0
	if n := min(kept.Steps, len(rec.Steps)); n > 0 {
		last = rec.Steps[n-1].Number
	}
	return c.Origin <= last
}

// Call returns what a journal row stands for; without arguments where nothing is stored of it.
func (rec *Record) Call(c *store.Call) message.ToolCall {
	if call, ok := rec.stored(c); ok {
		return call
	}
	return message.ToolCall{ID: c.ID, Name: c.Name, Args: json.RawMessage("{}")}
}

// stored returns what the database holds of a call; ok is false when it holds nothing.
func (rec *Record) stored(c *store.Call) (call message.ToolCall, ok bool) {
	if Requested(*c) {
		for _, a := range slices.Concat(rec.Granted, rec.Pending) {
			if a.ToolCallID == c.ID && a.SubRunToolCallID == "" {
				return message.ToolCall{ID: a.ToolCallID, Name: a.ToolName, Args: a.Args}, true
			}
		}
		return call, false
	}
	if word := ReadDecided(c); word.Args != nil {
		return message.ToolCall{ID: c.ID, Name: c.Name, Args: word.Args}, true
	}
	if m := rec.At(c.Asked); m != nil {
		for _, tc := range m.Message.ToolCalls {
			if tc.ID == c.ID {
				return tc, true
			}
		}
	}
	return call, false
}

// Bound returns the arguments that a call is made with, in canonical form. The error is call-altered when they are not
// those that the journal knows, or no longer those of its tool.
func (rec *Record) Bound(c *store.Call) (json.RawMessage, error) {
	call, ok := rec.stored(c)
	args, err := message.Arguments(call.Args)
	// A call that an earlier version took in has the digest of a text that is kept nowhere.
	if !ok || err != nil || call.Name != c.Name || c.Canonical && ArgsDigest(args) != hex.EncodeToString(c.ArgsHash) {
		return nil, altered(c.ID, c.Name)
	}
	return args, nil
}

func altered(id, name string) *fault.Error {
	return fault.New(fault.CallAltered, "The stored arguments of the call %s of %s differ from the requested ones.", id, name).
		With("toolCallId", id).With("toolName", name)
}

// Shown returns the arguments that a call would be made with for which an approval waits, here or in a child. The error is
// call-altered when the approval shows others.
func (rec *Record) Shown(a Approval) (json.RawMessage, error) {
	if head, rest, _ := strings.Cut(a.SubRunToolCallID, "/"); head != "" {
		if k := rec.Hosted[head]; k != nil {
			a.SubRunToolCallID = rest
			return k.Record.Shown(a)
		}
		for i, k := range rec.Parked {
			if rec.Calls[i].ID == head {
				a.SubRunToolCallID = rest
				return k.Record.Shown(a)
			}
		}
		return nil, altered(a.ToolCallID, a.ToolName)
	}
	if rec.digests != nil {
		return rec.shown(a)
	}
	c := rec.CallByID(a.ToolCallID)
	if c == nil {
		return nil, altered(a.ToolCallID, a.ToolName)
	}
	args, err := rec.Bound(c)
	if err == nil && (a.ToolName != c.Name || ArgsDigest(a.Args) != ArgsDigest(args)) {
		err = altered(c.ID, c.Name)
	}
	return args, err
}

// LoadWaiting reads of a run what its approvals are compared with.
func LoadWaiting(tx *store.Tx, runs *store.Runs, row *store.Run) (*Record, error) {
	rec := &Record{}
	var err error
	rec.Pending, err = PendingOf(tx, runs, row)
	if row.Kind == store.Workflow {
		if err == nil {
			err = rec.loadHosted(tx, runs, row)
		}
		return rec, err
	}
	if err == nil {
		rec.Calls, err = runs.Calls(tx, row.N)
	}
	if err == nil {
		err = rec.loadParked(tx, runs, LoadWaiting)
	}
	for i := 0; i < len(rec.Calls) && err == nil; i++ {
		c := &rec.Calls[i]
		if c.Phase != store.CallAwaiting || rec.Parked[i] != nil || Requested(*c) || rec.At(c.Asked) != nil {
			continue
		}
		m, err := runs.Message(tx, row.N, c.Asked)
		if errors.Is(err, store.ErrNotFound) {
			continue // nothing is stored of the call
		}
		if err != nil {
			return nil, err
		}
		if e, err := DecodeEntry(m); err == nil { // else it is damaged, and the approval shows that
			rec.put(e)
		}
	}
	return rec, err
}

// Output is what a completed run gives to the run that called it: its final answer, and not what it said on the way.
func Output(row *store.Run, rec *Record) json.RawMessage {
	if output := rec.Slots[store.OutputSlot]; output != nil {
		return output
	}
	text := ""
	for _, e := range slices.Backward(rec.Messages) {
		if e.Says(row.Owner) { // the last message is the answer, also when it is empty
			text = e.Message.Content.String()
			break
		}
	}
	b, _ := message.Encode(text)
	return b
}

// Millis returns the milliseconds since 1970 of a time as run states show it; 0 for any other text.
func Millis(text string) int64 {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0
	}
	return at.UnixMilli()
}

// Clip cuts a text to at most n bytes, with an ellipsis in the place of the rest.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}

// Lifecycle is the status of a lifecycle frame; empty while the run moves.
func Lifecycle(s store.Status) string {
	switch {
	case s.Parked():
		return "paused"
	case s.Terminal():
		return string(s)
	}
	return ""
}

// OpenCalls is the number of calls of a step whose outcome has not been reported.
func (rec *Record) OpenCalls(step int) (n int) {
	calls := rec.Unreported()
	for i := range calls {
		if c := &calls[i]; c.Step == step && !c.Reported {
			n++
		}
	}
	return n
}

// An Asker is the owner of a run that a path of calls leads to.
type Asker struct{ Kind, Owner string }

// Askers are the owners of the children and hosted runs that a path of calls leads to; several, where ids of calls repeat.
func (rec *Record) Askers(path string) (owners []Asker) {
	head, rest, deeper := strings.Cut(path, "/")
	kids := []*Child{}
	for i, k := range rec.Parked {
		if rec.Calls[i].ID == head {
			kids = append(kids, k)
		}
	}
	if k := rec.Hosted[head]; k != nil {
		kids = append(kids, k)
	}
	for _, k := range kids {
		if deeper {
			owners = append(owners, k.Record.Askers(rest)...)
		} else {
			owners = append(owners, Asker{k.Row.Kind, k.Row.Owner})
		}
	}
	return owners
}
