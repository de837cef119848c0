package evidence

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// Sources are what a bundle is made from. Collect only reads them.
type Sources struct {
	Runs *journal.Reader
	// State is a run with its whole state, as strangers may see it. It is encoded as an object that has members.
	State   func(ctx context.Context, runID string) (any, error)
	Chain   *audit.Log    // with its contents open
	Every   time.Duration // the interval of checkpoints, for the error that none has come yet
	Version string        // of the program
}

// Collect makes the bundle of a run as it is now. Errors: run-not-found, run-conflict when it does not stand still,
// evidence-incomplete, evidence-uncovered, those of the chain, storage-failed.
func Collect(ctx context.Context, from Sources, runID string) (*Bundle, error) {
	c := &collector{from: from, b: &Bundle{Manifest: Manifest{V: Version, RunID: runID, WritersWord: writersWord}, bodies: map[string][]byte{}}}
	for _, step := range []func(context.Context) error{c.record, c.chain, c.prove, c.finish} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return c.b, nil
}

type collector struct {
	from    Sources
	b       *Bundle
	entries []audit.Entry
	needed  int64 // the last of the entries that are about the run; 0: there are requests that name it only
	err     error // the first of encoding a member
}

// put adds a member.
func put[T any](c *collector, name string, values ...T) {
	body, err := encodeLines(values...)
	c.b.bodies[name], c.err = body, cmp.Or(c.err, err)
}

// record reads the run, before its chain: what the run has decided is recorded there after it is committed.
func (c *collector) record(ctx context.Context) error {
	const tries = 5
	for range tries {
		before, err := c.from.Runs.Find(ctx, c.b.Manifest.RunID)
		if err != nil {
			return err
		}
		if err := c.read(ctx, before); err != nil {
			return err
		}
		after, err := c.from.Runs.Find(ctx, before.ID)
		if err != nil || after.Version == before.Version {
			return err
		}
	}
	return fault.New(fault.RunConflict, "The run %s changed during each attempt to read it.", c.b.Manifest.RunID).
		Advise("Try again when the run waits or has ended.")
}

// read reads a run in several transactions. Its caller checks that the run did not change meanwhile.
func (c *collector) read(ctx context.Context, row *store.Run) error {
	state, err := c.from.State(ctx, row.ID)
	if err != nil {
		return err
	}
	var events []eventLine
	if err := c.from.Runs.Replay(ctx, row.ID, event.RunView, 0, func(e *hub.Entry) error {
		events = append(events, eventLine{Seq: e.Pos.Seq, Type: e.Type, Payload: e.Payload})
		return nil
	}); err != nil {
		return err
	}
	var calls []callLine
	if err := c.from.Runs.Runs().View(ctx, func(tx *store.Tx) error {
		stored, err := c.from.Runs.Runs().Events(tx, row.N, 0, len(events))
		if err != nil {
			return err
		}
		for i := range stored {
			events[i].At = stored[i].At
		}
		rows, err := c.from.Runs.Runs().Calls(tx, row.N)
		for _, k := range rows {
			calls = append(calls, callLine{Index: k.Index, Step: k.Step, ToolCallID: k.ID, ToolName: k.Name, Phase: k.Phase,
				ArgsSHA256: hex.EncodeToString(k.ArgsHash), Canonical: k.Canonical, Attempts: k.Attempts, ClaimedAt: k.Claimed, SettledAt: k.Settled,
				ChildRunID: k.Child, Reason: k.Reason, Decision: k.Decision})
		}
		return err
	}); err != nil {
		return err
	}
	if row.Kind == store.Workflow {
		calls = decidedIn(events)
		if c.b.Manifest.FirstEvent = 0; len(events) < row.Events {
			c.b.Manifest.FirstEvent = row.Events - len(events) + 1
		}
	}
	run, err := message.Encode(state)
	if err == nil && row.StartedBy != "" {
		by, _ := message.Encode(row.StartedBy)
		run = slices.Concat(run[:len(run)-1], []byte(`,"startedBy":`), by, []byte("}"))
	}
	if err != nil {
		return err
	}
	put(c, memberRun, json.RawMessage(run))
	put(c, memberEvents, events...)
	put(c, memberCalls, calls...)
	put(c, memberApprovals, approvalsOf(calls)...)
	return c.err
}

// decidedIn are the approvals of a run of a workflow, whose tasks are no calls of a journal: its events are the record of them.
// Those of what it has started belong to other runs.
func decidedIn(events []eventLine) (calls []callLine) {
	waiting := map[string]*callLine{}
	for _, e := range events {
		var said struct{ ToolCallID, ToolName, ArgsDigest, Reason, By, SubRunToolCallID string }
		about := e.Type == event.ApprovalRequested || e.Type == event.ApprovalGranted || e.Type == event.ApprovalDenied
		if !about || json.Unmarshal(e.Payload, &said) != nil || said.SubRunToolCallID != "" {
			continue
		}
		if e.Type == event.ApprovalRequested {
			waiting[said.ToolCallID] = &callLine{ToolCallID: said.ToolCallID, ToolName: said.ToolName, Phase: store.CallAwaiting, ArgsSHA256: said.ArgsDigest,
				Canonical: true, Reason: said.Reason}
			continue
		}
		k := waiting[said.ToolCallID]
		if k == nil {
			continue
		}
		word, err := message.Encode(journal.Decided{By: said.By, At: message.Millis(e.At), Granted: e.Type == event.ApprovalGranted, Reason: said.Reason, ArgsSHA256: k.ArgsSHA256})
		if err == nil {
			k.Phase, k.SettledAt, k.Decision = store.CallDone, e.At, word
		}
		calls = append(calls, *k)
		delete(waiting, said.ToolCallID)
	}
	for _, id := range slices.Sorted(maps.Keys(waiting)) {
		calls = append(calls, *waiting[id])
	}
	for i := range calls {
		calls[i].Index = i
	}
	return calls
}

// approvalsOf are the calls that needed a person.
func approvalsOf(calls []callLine) []approvalLine {
	var list []approvalLine
	for _, k := range calls {
		a := approvalLine{ToolCallID: k.ToolCallID, ToolName: k.ToolName, Status: "waiting", ArgsSHA256: k.ArgsSHA256, Decision: k.Decision}
		var word journal.Decided
		switch {
		case len(k.Decision) == 0 && k.Phase != store.CallAwaiting:
			continue
		case len(k.Decision) == 0:
		case json.Unmarshal(k.Decision, &word) == nil && word.Granted:
			a.Status = "granted"
		default:
			a.Status = "denied"
		}
		list = append(list, a)
	}
	return list
}

// chain finds the entries that concern the run and, of each server that one of them was made in, the start.
func (c *collector) chain(ctx context.Context) error {
	runID := c.b.Manifest.RunID
	var about, touching, servers []audit.Entry
	var start *audit.Entry
	for e, err := range c.from.Chain.Entries(ctx, audit.Query{Limit: 1000}) {
		if err != nil {
			return err
		}
		switch bearing := accountOf(e, runID).bearing; {
		case bearing == starts:
			start = e
			continue
		case bearing == none:
			continue
		case bearing == touches && len(touching) == maxEntries:
			c.b.Manifest.Omitted++
			continue
		case bearing == touches:
			touching = append(touching, *e)
		case len(about) == maxEntries:
			return fault.New(fault.EvidenceIncomplete, "The audit chain has more than %d entries of the run %s.", maxEntries, runID).
				Advise("Export the entries with `agentd audit export` instead.")
		default:
			about = append(about, *e)
			c.needed = e.Seq
		}
		if start != nil {
			servers, start = append(servers, *start), nil
		}
	}
	if len(about)+len(touching) == 0 {
		return fault.New(fault.EvidenceIncomplete, "The audit chain has no entry about the run %s.", runID)
	}
	if spare := maxEntries - len(about); len(touching) > spare {
		c.b.Manifest.Omitted += len(touching) - spare
		touching = touching[:spare]
	}
	c.entries = slices.SortedFunc(slices.Values(slices.Concat(about, touching, servers)), func(a, b audit.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return nil
}

// prove adds what shows that the entries are in the chain.
func (c *collector) prove(ctx context.Context) error {
	last := c.entries[len(c.entries)-1].Seq
	checkpoint, ok, err := c.from.Chain.Covering(last)
	if err == nil && !ok && c.needed != 0 && c.needed != last {
		// Clients that watch the run make entries all the time.
		last = c.needed
		if checkpoint, ok, err = c.from.Chain.Covering(last); ok {
			c.leaveOut(checkpoint.Head.Size)
		}
	}
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.EvidenceUncovered, "No signed checkpoint covers entry %d of the audit chain yet. The entry concerns the run %s.", last, c.b.Manifest.RunID).
			Advise("Wait " + c.from.Every.String() + " (audit.checkpoint.intervalMs) and try again. A server also signs a checkpoint when it stops.")
	}
	var seqs []int64
	for _, e := range c.entries {
		seqs = append(seqs, e.Seq)
	}
	proofs, err := c.from.Chain.Proofs(ctx, seqs, checkpoint.Head.Size)
	if err != nil {
		return err
	}
	var lines []entryLine
	for i, p := range proofs {
		lines = append(lines, entryLine{c.entries[i].Line(nil), p.Path})
	}
	put(c, memberEntries, lines...)
	put(c, memberCheckpoint, checkpoint)
	put(c, memberKey, keyLine{string(audit.PEM(c.from.Chain.PublicKey()))})
	put(c, memberConfig, configsOf(c.entries, Version)...)
	put(c, memberProgram, programLine{"agentd", c.from.Version})
	return c.err
}

// leaveOut drops the entries after a number, and a start of a server that no remaining entry needs.
func (c *collector) leaveOut(after int64) {
	n, _ := slices.BinarySearchFunc(c.entries, after+1, func(e audit.Entry, seq int64) int { return cmp.Compare(e.Seq, seq) })
	for _, e := range c.entries[n:] {
		if e.Action != string(audit.ServerStart) {
			c.b.Manifest.Omitted++
		}
	}
	if c.entries = c.entries[:n]; c.entries[n-1].Action == string(audit.ServerStart) {
		c.entries = c.entries[:n-1]
	}
}

// configsOf are the configurations that the starts among some entries name, in the form of bundles with a label.
func configsOf(entries []audit.Entry, label string) (list []configLine) {
	for _, e := range entries {
		if e.Action != string(audit.ServerStart) {
			continue
		}
		line := configLine{}
		if json.Unmarshal(e.Metadata, &line) != nil {
			line = configLine{}
		}
		if line.Seq = e.Seq; label == First {
			line.ToolEvents = ""
		}
		list = append(list, line)
	}
	return list
}

// finish makes the manifest and verifies the bundle, so that none that fails leaves the program.
func (c *collector) finish(context.Context) error {
	m := &c.b.Manifest
	size := 0
	for _, name := range memberNames {
		body := c.b.bodies[name]
		m.Members = append(m.Members, Member{name, len(body), sum(body)})
		size += len(body)
	}
	if size > MaxBytes-maxManifest {
		return fault.New(fault.EvidenceIncomplete, "The bundle would have %d bytes, more than %d MiB.", size, MaxBytes>>20).
			Advise("Use `agentd runs show --json` and `agentd audit export` instead.")
	}
	if err := m.seal(); err != nil {
		return err
	}
	v := newVerifier(*m, c.b.bodies)
	v.meaning(nil)
	if len(v.report.Problems) == 0 {
		return nil
	}
	p := v.report.Problems[0]
	return fault.New(fault.EvidenceIncomplete, "The audit chain and the run %s differ: %s: %s.", m.RunID, p.Member, p.Problem)
}
