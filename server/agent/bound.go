package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tool"
	"agentd/store"
)

// The journal keeps the digest of the arguments that a call was taken in with. The arguments themselves lie in the message
// that asked for it, and in the approval that a person is shown. Whoever edits one of them in the database makes them
// differ, so all are compared before a person's grant counts and again before the call is made.

// digest is the SHA-256 of arguments in their canonical form. Those without one, with which no call is made, have that of
// their text.
func digest(args json.RawMessage) (sum []byte, canonical bool) {
	form, err := tool.Canonical(args)
	if err != nil {
		form = args
	}
	hash := sha256.Sum256(form)
	return hash[:], err == nil
}

// ArgsDigest is the digest of a call's arguments as approvals, events and the audit chain show it: lower-case hex.
func ArgsDigest(args json.RawMessage) string {
	sum, _ := digest(args)
	return hex.EncodeToString(sum)
}

// asks makes the approval that a call waits for.
func (r *run) asks(c *store.Call, args json.RawMessage, at int64) Approval {
	a := Approval{ToolCallID: c.ID, ToolName: c.Name, Args: args, ArgsDigest: ArgsDigest(args), Reason: c.Reason, RequestedAt: message.Millis(at),
		RequestedBy: cmp.Or(r.row.StartedBy, anonymous), RequestedByAgent: r.row.Owner, Imported: r.rec.came(c)}
	if a.MayHaveHappened() {
		a.Previous = &Previous{Attempts: max(1, c.Attempts), BegunAt: message.Millis(c.Claimed), Known: cmp.Or(r.unknown[c.Index], serverStopped)}
	}
	return a
}

// stored is what the database says that a call of an LLM agent is, or one that an agent asked for itself. ok is false when
// it says nothing.
func (rec *record) stored(c *store.Call) (call message.ToolCall, ok bool) {
	if requested(*c) {
		for _, a := range slices.Concat(rec.granted, rec.pending) {
			if a.ToolCallID == c.ID && a.SubRunToolCallID == "" {
				return message.ToolCall{ID: a.ToolCallID, Name: a.ToolName, Args: a.Args}, true
			}
		}
		return call, false
	}
	if word := readDecided(c); word.Args != nil {
		return message.ToolCall{ID: c.ID, Name: c.Name, Args: word.Args}, true
	}
	if m := rec.at(c.Asked); m != nil {
		for _, tc := range m.msg.ToolCalls {
			if tc.ID == c.ID {
				return tc, true
			}
		}
	}
	return call, false
}

// bound returns the arguments that a call is made with, in canonical form. The error is call-altered when they are not
// those that the journal knows, or no longer those of its tool.
func (rec *record) bound(c *store.Call) (json.RawMessage, error) {
	call, ok := rec.stored(c)
	args, err := tool.Canonical(call.Args)
	// A call that an earlier version took in has the digest of a text that is kept nowhere.
	if !ok || err != nil || call.Name != c.Name || c.Canonical && ArgsDigest(args) != hex.EncodeToString(c.ArgsHash) {
		return nil, altered(c)
	}
	return args, nil
}

func altered(c *store.Call) *fault.Error {
	return fault.New(fault.CallAltered, "What is stored of the call %s of %s is not what was asked for.", c.ID, c.Name).
		With("toolCallId", c.ID).With("toolName", c.Name)
}

// shown returns the arguments that a call would be made with for which an approval waits, here or in a child. The error is
// call-altered when the approval shows others.
func (rec *record) shown(a Approval) (json.RawMessage, error) {
	head, rest, _ := strings.Cut(a.SubRunToolCallID, "/")
	if head == "" {
		c := rec.callByID(a.ToolCallID)
		if c == nil {
			return nil, altered(&store.Call{ID: a.ToolCallID, Name: a.ToolName})
		}
		args, err := rec.bound(c)
		if err == nil && (a.ToolName != c.Name || ArgsDigest(a.Args) != ArgsDigest(args)) {
			err = altered(c)
		}
		return args, err
	}
	for i, k := range rec.parked {
		if rec.calls[i].ID == head {
			a.SubRunToolCallID = rest
			return k.rec.shown(a)
		}
	}
	return nil, altered(&store.Call{ID: a.ToolCallID, Name: a.ToolName})
}

// alarm notes that a stored call is not what was asked for. Health reports it until the next start, which looks at all
// calls that wait.
func (e *Engine) alarm(runID string, err error) {
	e.altered.Add(1)
	e.log.Error("a stored tool call was changed and is not made", "run", runID, "error", err)
}

// Altered is how often a stored call was found that is not what was asked for.
func (e *Engine) Altered() int64 { return e.altered.Load() }

// alteredOutcome settles a call that is not made.
func alteredOutcome(c *store.Call) tool.Settled {
	return tool.Settled{Outcome: *tool.Fail(c.ID, c.Name, message.ExecutionFailed, "The call was not made: what the server has stored of it was changed.",
		"Do not ask for it again; report this to the user.")}
}

// loadWaiting reads of a run what its approvals are compared with.
func loadWaiting(tx *store.Tx, runs *store.Runs, row *store.Run) (*record, error) {
	rec := &record{}
	var err error
	if rec.pending, err = pendingOf(tx, runs, row); err != nil {
		return nil, err
	}
	if rec.calls, err = runs.Calls(tx, row.N); err != nil {
		return nil, err
	}
	for i := range rec.calls {
		c := &rec.calls[i]
		if c.Phase != store.CallAwaiting {
			continue
		}
		if c.Child != "" {
			kid, err := runs.Find(tx, c.Child)
			if err == nil {
				k := &child{row: kid}
				if k.rec, err = loadWaiting(tx, runs, kid); err != nil {
					return nil, err
				}
				rec.park(c.Index, k)
				continue
			}
			if !errors.Is(err, store.ErrNotFound) {
				return nil, err
			}
		}
		if requested(*c) || rec.at(c.Asked) != nil {
			continue
		}
		m, err := runs.Message(tx, row.N, c.Asked)
		if errors.Is(err, store.ErrNotFound) {
			continue // nothing is stored of the call
		}
		if err != nil {
			return nil, err
		}
		if e, err := decodeMessage(m); err == nil { // else it is damaged, and the approval shows that
			rec.put(e)
		}
	}
	return rec, nil
}
