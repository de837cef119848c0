package evidence

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/store"
)

// Sources are what a bundle is made of. All of them are only read.
type Sources struct {
	Runs    *store.Runs
	Engine  *agent.Engine
	Chain   *audit.Log    // with its contents open
	Every   time.Duration // the interval of checkpoints, for what is said when none has come yet
	Version string        // of the program
}

// Collect makes the bundle of a run as it is now. Errors: run-not-found, run-conflict when it does not stand still,
// evidence-incomplete, evidence-uncovered, those of the chain, storage-failed.
func Collect(ctx context.Context, from Sources, runID string) (*Bundle, error) {
	c := &collector{from: from, b: &Bundle{Manifest: Manifest{V: Version, RunID: runID, WritersWord: writersWord()}, bodies: map[string][]byte{}}}
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
	calls   []callLine
	entries []audit.Entry
	needed  int64 // the last of the entries that are about the run; 0: there are requests that name it only
}

// put adds a member.
func put[T any](b *Bundle, name string, values ...T) error {
	body, err := encodeLines(values...)
	b.bodies[name] = body
	return err
}

// record reads the run, before its chain: what the run has decided is recorded there after it is committed.
func (c *collector) record(ctx context.Context) error {
	const tries = 5
	for range tries {
		before, err := c.from.Engine.Find(ctx, c.b.Manifest.RunID)
		if err != nil {
			return err
		}
		if err := c.read(ctx, before); err != nil {
			return err
		}
		after, err := c.from.Engine.Find(ctx, before.ID)
		if err != nil || after.Version == before.Version {
			return err
		}
	}
	return fault.New(fault.RunConflict, "The run %s changed during each attempt to read it.", c.b.Manifest.RunID).
		Advise("Try again when the run waits or has ended.")
}

// read reads a run in several transactions; the caller sees to it that the run stood still.
func (c *collector) read(ctx context.Context, row *store.Run) error {
	snapshot, err := c.from.Engine.Snapshot(ctx, row.ID)
	if err != nil {
		return err
	}
	snapshot.State.Withhold() // it goes to strangers
	var events []eventLine
	if err := c.from.Engine.Replay(ctx, row.ID, event.RunView, 0, func(e *hub.Entry) error {
		events = append(events, eventLine{Seq: e.Pos.Seq, Type: e.Type, Payload: e.Payload})
		return nil
	}); err != nil {
		return err
	}
	var calls []store.Call
	if err := c.from.Runs.View(ctx, func(tx *store.Tx) error {
		stored, err := c.from.Runs.Events(tx, row.N, 0, len(events))
		if err != nil {
			return err
		}
		for i := range stored {
			events[i].At = stored[i].At
		}
		calls, err = c.from.Runs.Calls(tx, row.N)
		return err
	}); err != nil {
		return err
	}
	c.calls = nil
	for _, k := range calls {
		c.calls = append(c.calls, callLine{Index: k.Index, Step: k.Step, ToolCallID: k.ID, ToolName: k.Name, Phase: k.Phase,
			ArgsSHA256: hex.EncodeToString(k.ArgsHash), Canonical: k.Canonical, Attempts: k.Attempts, ClaimedAt: k.Claimed, SettledAt: k.Settled, ChildRunID: k.Child,
			Reason: k.Reason, Decision: k.Decision})
	}
	if err := put(c.b, memberRun, runLine{snapshot, row.StartedBy}); err != nil {
		return err
	}
	if err := put(c.b, memberEvents, events...); err != nil {
		return err
	}
	if err := put(c.b, memberCalls, c.calls...); err != nil {
		return err
	}
	return put(c.b, memberApprovals, approvalsOf(c.calls)...)
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
	for next := int64(0); ; {
		page, more, err := c.from.Chain.List(ctx, audit.Query{From: next, Limit: 1000})
		if err != nil {
			return err
		}
		for _, e := range page {
			switch bearing := accountOf(&e, runID).bearing; {
			case bearing == starts:
				start = &e
				continue
			case bearing == none:
				continue
			case bearing == touches && len(touching) == maxEntries:
				c.b.Manifest.Omitted++
				continue
			case bearing == touches:
				touching = append(touching, e)
			case len(about) == maxEntries:
				return fault.New(fault.EvidenceIncomplete, "The audit chain has more than %d entries of the run %s.", maxEntries, runID).
					Advise("Export the entries with `agentd audit export` instead.")
			default:
				about = append(about, e)
			}
			if start != nil {
				servers, start = append(servers, *start), nil
			}
		}
		if more == 0 {
			break
		}
		next = more
	}
	if len(about)+len(touching) == 0 {
		return fault.New(fault.EvidenceIncomplete, "The audit chain has no entry about the run %s.", runID)
	}
	if len(about) > 0 {
		c.needed = about[len(about)-1].Seq
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
		// Whoever watches the run makes entries all the time.
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
	seqs := make([]int64, len(c.entries))
	for i := range c.entries {
		seqs[i] = c.entries[i].Seq
	}
	proofs, err := c.from.Chain.Proofs(ctx, seqs, checkpoint.Head.Size)
	if err != nil {
		return err
	}
	lines := make([]entryLine, len(proofs))
	for i := range proofs {
		lines[i] = entryLine{c.entries[i].Line(nil), proofs[i].Path}
	}
	if err := put(c.b, memberEntries, lines...); err != nil {
		return err
	}
	if err := put(c.b, memberCheckpoint, checkpoint); err != nil {
		return err
	}
	if err := put(c.b, memberKey, keyLine{string(audit.PEM(c.from.Chain.PublicKey()))}); err != nil {
		return err
	}
	return put(c.b, memberConfig, configsOf(c.entries, Version)...)
}

// leaveOut drops the entries after one, and a start that none of what is left needs.
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
func configsOf(entries []audit.Entry, label string) []configLine {
	var list []configLine
	for _, e := range entries {
		if e.Action == string(audit.ServerStart) {
			line := configLine{Seq: e.Seq}
			var said struct{ Version, ConfigSHA256, ToolEvents string }
			if json.Unmarshal(e.Metadata, &said) == nil {
				line.Version, line.ConfigSHA256 = said.Version, said.ConfigSHA256
				if label != First {
					line.ToolEvents = said.ToolEvents
				}
			}
			list = append(list, line)
		}
	}
	return list
}

// finish makes the manifest, and holds the bundle to what a verification asks: one that would fail is not given away.
func (c *collector) finish(context.Context) error {
	if err := put(c.b, memberProgram, programLine{"agentd", c.from.Version}); err != nil {
		return err
	}
	m := &c.b.Manifest
	size := 0
	for _, name := range members() {
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
	v := &verifier{report: Report{Problems: []Problem{}}, manifest: *m, bodies: c.b.bodies}
	v.meaning(nil)
	if len(v.report.Problems) == 0 {
		return nil
	}
	p := v.report.Problems[0]
	return fault.New(fault.EvidenceIncomplete, "The audit chain and the run %s differ: %s: %s.", m.RunID, p.Member, p.Problem)
}
