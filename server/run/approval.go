package run

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/runstate"
	"agentd/store"
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

// asks makes the approval that a call waits for.
func (r *Run) asks(c *store.Call, args json.RawMessage, at int64) Approval {
	a := Approval{ToolCallID: c.ID, ToolName: c.Name, Args: args, ArgsDigest: ArgsDigest(args), Reason: c.Reason, RequestedAt: message.Millis(at),
		RequestedBy: cmp.Or(r.Row.StartedBy, Anonymous), RequestedByAgent: r.Row.Owner, Imported: r.Record.imported(c)}
	if a.MayHaveHappened() {
		a.Previous = &runstate.Previous{Attempts: max(1, c.Attempts), BegunAt: message.Millis(c.Claimed), Known: cmp.Or(r.unknown[c.Index], serverStopped)}
	}
	return a
}

// imported reports whether a call came with a state that was imported, so that nothing asked for it here.
func (rec *Record) imported(c *store.Call) bool {
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

// bound returns the arguments that a call is made with, in canonical form. The error is call-altered when they are not
// those that the journal knows, or no longer those of its tool.
func (rec *Record) bound(c *store.Call) (json.RawMessage, error) {
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

// shown returns the arguments that a call would be made with for which an approval waits, here or in a child. The error is
// call-altered when the approval shows others.
func (rec *Record) shown(a Approval) (json.RawMessage, error) {
	if head, rest, _ := strings.Cut(a.SubRunToolCallID, "/"); head != "" {
		for i, k := range rec.Parked {
			if rec.Calls[i].ID == head {
				a.SubRunToolCallID = rest
				return k.Record.shown(a)
			}
		}
		return nil, altered(a.ToolCallID, a.ToolName)
	}
	c := rec.CallByID(a.ToolCallID)
	if c == nil {
		return nil, altered(a.ToolCallID, a.ToolName)
	}
	args, err := rec.bound(c)
	if err == nil && (a.ToolName != c.Name || ArgsDigest(a.Args) != ArgsDigest(args)) {
		err = altered(c.ID, c.Name)
	}
	return args, err
}

// alarm notes that a stored call is not what was asked for. Health reports it until the next start, which looks at all
// calls that wait.
func (e *Engine) alarm(runID string, err error) {
	e.altered.Add(1)
	e.log.Error("a stored tool call was changed; it is not made", "run", runID, "error", err)
}

// Altered is how often a stored call was found that is not what was asked for.
func (e *Engine) Altered() int64 { return e.altered.Load() }

// loadWaiting reads of a run what its approvals are compared with.
func loadWaiting(tx *store.Tx, runs *store.Runs, row *store.Run) (*Record, error) {
	rec := &Record{}
	var err error
	if rec.Pending, err = pendingOf(tx, runs, row); err == nil {
		rec.Calls, err = runs.Calls(tx, row.N)
	}
	if err == nil {
		err = rec.loadParked(tx, runs, loadWaiting)
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

// Waiting is an approval that waits, with the run that waits for it.
type Waiting struct {
	RunID     string `json:"runId"`
	AgentID   string `json:"agentId"`
	SessionID string `json:"sessionId,omitempty"`
	UserID    string `json:"userId,omitempty"`
	Approval
	Mismatch string `json:"mismatch,omitempty" doc:"Why the call cannot be granted: the stored arguments differ from the requested ones."`
}

// Approvals lists what waits for a decision, oldest run first, of at most 1000 runs; with owners, of those only.
func (e *Engine) Approvals(ctx context.Context, owners []string) ([]Waiting, error) {
	list := []Waiting{}
	err := e.opts.Runs.Snapshot(ctx, func(tx *store.Tx) error {
		rows, err := e.opts.Runs.Awaiting(tx, owners)
		for _, row := range rows {
			rec, err := loadWaiting(tx, e.opts.Runs, row)
			if err != nil {
				return err
			}
			for _, a := range rec.Pending {
				w := Waiting{RunID: row.ID, AgentID: row.Owner, SessionID: row.Session, UserID: row.User, Approval: a}
				if _, err := rec.shown(a); err != nil {
					w.Mismatch = fault.Of(err).Message
				}
				list = append(list, w)
			}
		}
		return err
	})
	return list, err
}
