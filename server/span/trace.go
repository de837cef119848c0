package span

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"agentd/server/message"
	"agentd/server/tracecontext"
	"agentd/store"
)

// A Trace is the trace that a tree of runs belongs to: the one that the request which started its root continues, or one of
// the root's own. It is the same whenever it is made.
type Trace struct {
	tracecontext.Context        // SpanID is the caller's; empty: the root run has no caller that names one
	mask                 uint64 // see Wire
}

// kept is what a root run keeps of the request that started it, in [store.TraceSlot].
type kept struct {
	Parent  string `json:"traceparent"`
	State   string `json:"tracestate,omitempty"`
	Request string `json:"request,omitempty"`
}

// Keep returns what the root run that c starts has to keep for [TraceOf]. It is nil without a trace: the id of a request alone is
// not worth a row of each run.
func Keep(c tracecontext.Context) json.RawMessage {
	if c.String() == "" {
		return nil
	}
	body, err := message.Encode(kept{c.String(), c.State, c.Request})
	if err != nil { // texts only
		return nil
	}
	return body
}

// TraceOf returns the trace of a root run, by its id and what it keeps in [store.TraceSlot]. What it keeps and cannot be read
// counts as nothing: a trace must not stop a run.
func TraceOf(runID string, slot json.RawMessage) Trace {
	sum := sha256.Sum256([]byte(runID))
	t := Trace{tracecontext.Context{TraceID: TraceID(runID), Sampled: true}, binary.BigEndian.Uint64(sum[16:])}
	var k kept
	if slot == nil || json.Unmarshal(slot, &k) != nil {
		return t
	}
	if c, ok := tracecontext.Parse(k.Parent); ok {
		t.Context, t.State = c, k.State
	}
	t.Request = k.Request
	return t
}

// TraceOfRow is [TraceOf] for a root run in the store.
func TraceOfRow(tx *store.Tx, runs *store.Runs, root *store.Run) (Trace, error) {
	if root.Slots&(1<<store.TraceSlot) == 0 {
		return TraceOf(root.ID, nil), nil
	}
	slot, err := runs.Slot(tx, root.N, store.TraceSlot)
	return TraceOf(root.ID, slot), err
}

// TraceID is the trace id of a root run that continues no trace: its own id without dashes or, where that is no trace id, the
// beginning of its digest.
func TraceID(runID string) string {
	id := make([]byte, 0, 32)
	for i := range len(runID) {
		if runID[i] != '-' {
			id = append(id, runID[i])
		}
	}
	if _, ok := tracecontext.Parse("00-" + string(id) + "-0000000000000001-00"); ok {
		return string(id)
	}
	sum := sha256.Sum256([]byte(runID))
	return hex.EncodeToString(sum[:16])
}

// Wire is the id of a span of the tree as other programs see it. Ids that [ID] makes are unique in one store only, and a trace
// can pass through several.
func (t Trace) Wire(id string) string {
	n, err := strconv.ParseUint(id, 16, 64)
	if err != nil {
		return id
	}
	return fmt.Sprintf("%016x", n^t.mask)
}

// At is the place of what happens within a span of the tree.
func (t Trace) At(id string) tracecontext.Context {
	c := t.Context
	c.SpanID = t.Wire(id)
	return c
}
