package journal

import (
	"encoding/json"
	"errors"
	"strings"

	"agentd/store"
)

// What a run of a workflow waits for is in its slot: its own approvals, and those of the runs that its tasks host, under the
// ids of the tasks' calls. It has no journal of calls. An approval of its own is compared with the digest that was stored with
// it, and one of a hosted run with the record of that.

// HostedOrigin is the origin of the run that a call of a run is, so that it starts once.
func HostedOrigin(runID, callID string) string { return "call:" + runID + ":" + callID }

// loadHosted reads what the approvals of a run of a workflow are compared with.
func (rec *Record) loadHosted(tx *store.Tx, runs *store.Runs, row *store.Run) error {
	if len(rec.Pending) == 0 {
		return nil
	}
	kept, err := runs.Slot(tx, row.N, store.PendingSlot)
	var stored []Approval
	if err == nil {
		err = json.Unmarshal(kept, &stored)
	}
	if err != nil {
		return err
	}
	rec.Hosted, rec.digests = map[string]*Child{}, map[string]string{}
	for _, a := range stored {
		head, _, _ := strings.Cut(a.SubRunToolCallID, "/")
		if head == "" {
			rec.digests[a.ToolCallID] = a.ArgsDigest
			continue
		}
		if rec.Hosted[head] != nil {
			continue
		}
		kid, err := runs.ByOrigin(tx, HostedOrigin(row.ID, head))
		if errors.Is(err, store.ErrNotFound) {
			continue // the approval shows that
		}
		k := &Child{Row: kid}
		if err == nil {
			k.Record, err = LoadWaiting(tx, runs, kid)
		}
		if err != nil {
			return err
		}
		rec.Hosted[head] = k
	}
	return nil
}

// shown is Shown for an approval of a run of a workflow.
func (rec *Record) shown(a Approval) (json.RawMessage, error) {
	digest, waits := rec.digests[a.ToolCallID]
	if !waits || digest != "" && digest != ArgsDigest(a.Args) {
		return nil, altered(a.ToolCallID, a.ToolName)
	}
	return a.Args, nil
}
