package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/audit"
	"agentd/server/evidence"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/store"
)

// evidence writes a bundle. Nothing is written before all of it is there.
func (c *call) evidence(ctx context.Context) error {
	size, err := c.output(ctx, func(ctx context.Context, w io.Writer) error {
		bundle, err := c.collect(ctx)
		if err != nil {
			return err
		}
		return bundle.Write(w)
	})
	name := c.flags.output
	if err != nil || name == "" {
		return err
	}
	return c.report(map[string]any{"runId": c.args[0], "file": name, "bytes": size}, "Wrote the evidence about run %s to %s (%d bytes).", c.args[0], name, size)
}

// collect reads the files of the database and of the chain, which a server that holds them does not notice: the journal
// is in no answer of its API.
func (c *call) collect(ctx context.Context) (bundle *evidence.Bundle, err error) {
	if !c.cfg.Audit.Enabled {
		return nil, fault.New(fault.EvidenceIncomplete, "audit.enabled is false, so there are no entries about the run.")
	}
	db, err := store.Open(ctx, c.storeOptions(store.Options{ReadOnly: true}))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, advised(err, "Make the database with `agentd run` or `agentd start`.")
	}
	if err != nil {
		return nil, err
	}
	err = c.chain(ctx, func(l *audit.Log) (err error) {
		engine := agent.New(nil, run.Options{Runs: db.Runs(), Sessions: db.Sessions()})
		state := func(ctx context.Context, runID string) (any, error) {
			snapshot, err := engine.Snapshot(ctx, runID)
			if err == nil && snapshot.State != nil {
				snapshot.State.Withhold()
			}
			return snapshot, err
		}
		bundle, err = evidence.Collect(ctx, evidence.Sources{Runs: engine.Reader, State: state, Chain: l, Every: c.cfg.Audit.Checkpoint.Interval.Duration(),
			Version: server.Version}, c.args[0])
		return err
	})
	if fault.Is(err, fault.RunNotFound) || fault.Is(err, fault.RunNotEnded) {
		err = advised(err, hints[fault.Of(err).Kind])
	}
	return bundle, errors.Join(err, db.Close())
}

func (c *call) verifyEvidence(context.Context) error {
	key, err := c.givenKey()
	if err != nil {
		return err
	}
	file, err := c.readFile(c.args[0], evidence.MaxBytes)
	if err != nil {
		return err
	}
	report := evidence.Verify(file, key)
	return c.show(report.OK, report, func(w sheet) { sayReport(w, &report) })
}

func sayReport(w sheet, r *evidence.Report) {
	put := w.fact
	put("bundle", "%s", map[bool]string{true: "whole", false: "NOT WHOLE"}[r.OK])
	for _, p := range r.Problems {
		put(p.Member, "%s", p.Problem)
	}
	put("run", "%s", cmp.Or(r.RunID, "-"))
	if !r.OK {
		put("unharmed", "%d members", r.Members)
	}
	if r.StartEntry != 0 {
		put("started by", "%s, as entry %d says", r.StartedBy, r.StartEntry)
	} else if r.StartedBy != "" {
		put("started by", "%s, as the run says; no entry does", r.StartedBy)
	}
	if r.Events+r.Entries == 0 {
		put("checked", "the members only, and not what they say")
		return
	}
	if r.FirstEvent > 0 {
		put("events", "from %d on: the earlier ones were deleted with their steps; %d entries are about their calls", r.FirstEvent, len(r.Folded))
	}
	put("checked", "%d events, %d calls, %d decisions, %d entries", r.Events, r.Calls, r.Decisions, r.Entries)
	put("arguments", "of %d of %d calls shown by the chain", r.Arguments, r.Calls)
	put("not proven", "%s: the writer's word, beyond what the entries say of calls, decisions and the start", strings.Join(r.WritersWord, ", "))
	if r.Asked > 0 {
		put("tool events", "not recorded: %d decisions are shown by the requests that made them, and by nothing else", r.Asked)
	}
	for _, seq := range r.Unmade {
		put("not made", "the decision of entry %d: the run continues without it, as after a crash in between", seq)
	}
	if r.Omitted > 0 {
		put("omitted", "%d requests that name the run, beyond the limit or after the checkpoint", r.Omitted)
	}
	if r.Checkpoint != nil {
		put("checkpoint", "%d %s, signed %s", r.Checkpoint.Size, r.Checkpoint.RootHash, message.Millis(r.SignedAt))
	}
	put("key", "%s", map[string]string{"given": "the one that was given", "bundle": "the one in the bundle"}[r.Key])
}
