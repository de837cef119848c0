package store_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agentd/store"
	"agentd/store/storetest"
)

// called is every method of the repositories that has statements of its own, with all forms of each: as a closure for
// Update, or as a function of a context. TestPlans fails for a method that is neither here nor in without.
func called(db *store.DB, a *store.Audit) map[string]any {
	runs, sessions, threads, tokens, keys, outbox, expiry, triggers, notes := db.Runs(), db.Sessions(), db.Threads(), db.Tokens(), db.Keys(), db.Outbox(), db.Expiry(), db.Triggers(), db.Notifications()
	firing := func(slot string) *store.Firing {
		return &store.Firing{Trigger: 1, ID: slot, Slot: slot, Dues: 1, Outcome: "fired", Run: "done", Open: true}
	}
	did := func(fns ...func() error) error {
		for _, fn := range fns {
			if err := fn(); err != nil {
				return err
			}
		}
		return nil
	}
	apply := func(tx *store.Tx, id string, status store.Status, parent int64) error {
		c := newRun(id)
		c.Run.Session, c.Run.Status, c.Run.Parent = "s", status, parent
		c.Events = []store.Event{{Seq: 1, Type: "a", Message: -1, Payload: []byte("{}")}}
		c.Messages = []store.Message{{Role: "user", Body: []byte("{}")}}
		c.Steps, c.Calls = []store.Step{{Number: 1}}, []store.Call{{ArgsHash: []byte{1}}}
		c.Slots = map[store.Slot]json.RawMessage{store.OutputSlot: []byte("1")}
		c.Spills, c.Handoffs = []store.Spill{{Name: "x", Data: []byte{1}}}, []store.Handoff{{Body: []byte("{}")}}
		c.Spans, c.Exchanges = []store.SpanBatch{{Body: []byte("[]")}}, []store.Exchange{{Body: []byte("{}")}}
		n, err := runs.Apply(tx, &c)
		if err != nil {
			return err
		}
		for i, now := range []store.Status{store.Running, status} {
			c = newRun(id)
			c.Run.N, c.Run.Version, c.Run.Was, c.Run.Status = n, int64(i+1), store.Running, now
			c.Due, c.DueWas = new(int64(9*i)), new(int64(0))
			if _, err := runs.Apply(tx, &c); err != nil {
				return err
			}
		}
		return nil
	}
	return map[string]any{
		"Sessions.Insert": func(tx *store.Tx) error {
			return sessions.Insert(tx, store.Session{ID: "s", User: "u", Agent: "a"})
		},
		"Runs.Apply": func(tx *store.Tx) error {
			return did(func() error { return apply(tx, "open", store.Running, 0) }, func() error { return apply(tx, "done", store.Completed, 0) },
				func() error { return apply(tx, "child", store.Failed, 1) })
		},
		"Threads.Apply": func(tx *store.Tx) error {
			c := newRun("workflow")
			c.Run.Kind, c.Run.Session, c.Run.Status = store.Workflow, "s", store.Suspended
			n, err := runs.Apply(tx, &c)
			if err != nil {
				return err
			}
			t := newThread(n, "w", "t")
			t.Values, t.Answers = []store.ThreadValue{{Key: "k", Value: []byte("1")}}, []store.ThreadAnswer{{Seq: 1, Value: []byte("1")}}
			for i := range 21 {
				t.Steps = append(t.Steps, store.ThreadStep{Step: 1 + i, Run: n, Body: []byte("{}")})
				t.Tasks = append(t.Tasks, store.ThreadTask{ID: 1 + i, Body: []byte("{}")})
			}
			for _, digest := range []byte{1, 1, 2} {
				if t.Thread.Digest = []byte{digest}; t.Thread.Version > 0 {
					t.Steps, t.Answers, t.Fresh, t.Ended, t.Used = nil, nil, digest == 2, []int{1}, []int{1}
				}
				if err := threads.Apply(tx, &t); err != nil {
					return err
				}
				t.Thread.Version++
			}
			c.Run.N, c.Run.Version, c.Run.Status = n, 1, store.Completed
			_, err = runs.Apply(tx, &c)
			return err
		},
		"Threads.Find":   func(tx *store.Tx) error { _, err := threads.Find(tx, "w", "t"); return err },
		"Threads.Number": func(tx *store.Tx) error { _, err := threads.Number(tx, 1); return err },
		"Threads.Load": func(tx *store.Tx) error {
			th, err := threads.Find(tx, "w", "t")
			if err == nil {
				_, _, _, _, err = threads.Load(tx, &th)
			}
			return err
		},
		"Threads.List": func(tx *store.Tx) error {
			for _, f := range []store.ThreadFilter{{}, {Session: "s"}, {Blocked: true}, {Session: "s", Blocked: true}} {
				for i := range 4 {
					f.Workflow, f.Limit, f.Before, f.Status = "w", 9, int64(i/2), []store.Status{"", store.Suspended}[i%2]
					if _, err := threads.List(tx, f); err != nil {
						return fmt.Errorf("%+v: %w", f, err)
					}
				}
			}
			return nil
		},
		"Threads.Steps": func(tx *store.Tx) error { _, err := threads.Steps(tx, 1, 0, 9); return err },
		"Threads.Fold": func(tx *store.Tx) error {
			th, err := threads.Find(tx, "w", "t")
			return errors.Join(err, threads.Fold(tx, th.N, 2))
		},
		"Threads.FoldHosted": func(tx *store.Tx) error {
			_, _, err := threads.FoldHosted(tx, 1, map[string]bool{"o": true})
			return err
		},
		"Threads.Define": func(tx *store.Tx) error {
			return threads.Define(tx, []store.Definition{{Digest: []byte{2}, Body: []byte("{}")}})
		},
		"Threads.Definition": func(tx *store.Tx) error { _, err := threads.Definition(tx, []byte{2}); return err },
		"Threads.Unblock":    func(tx *store.Tx) error { return threads.Unblock(tx, "w", "x") },
		"Runs.CountAwaiting": func(tx *store.Tx) error { _, err := runs.CountAwaiting(tx); return err },
		"Threads.Blocked":    func(tx *store.Tx) error { _, err := threads.Blocked(tx); return err },
		"Threads.Erase": func(tx *store.Tx) error {
			c := newRun("hosted")
			c.Run.Status, c.Run.Host = store.Completed, 1
			_, err := runs.Apply(tx, &c)
			c = newRun("other workflow")
			c.Run.Kind, c.Run.Status = store.Workflow, store.Suspended
			n, err2 := runs.Apply(tx, &c)
			t := newThread(n, "w", "erased")
			if err := errors.Join(err, err2, threads.Apply(tx, &t)); err != nil {
				return err
			}
			_, err = threads.Erase(tx, n)
			return err
		},
		"Sessions.Restore": func(tx *store.Tx) error {
			return sessions.Restore(tx, store.Session{ID: "copy", User: "u", Agent: "a"}, newRun("imported").Run, []store.Message{{Sequence: 1, Role: "user", Body: []byte("{}")}}, []store.Handoff{{Body: []byte("{}")}})
		},
		"Runs.Erase":      func(tx *store.Tx) error { _, err := runs.Erase(tx, "copy"); return err },
		"Runs.Find":       func(tx *store.Tx) error { _, err := runs.Find(tx, "done"); return err },
		"Runs.Get":        func(ctx context.Context) error { _, err := runs.Get(ctx, "done"); return err },
		"Runs.Generation": func(context.Context) error { _, err := runs.Generation(); return err },
		"Runs.Version":    func(ctx context.Context) error { _, err := runs.Version(ctx, 1, "done"); return err },
		"Runs.ByOrigin":   func(tx *store.Tx) error { _, err := runs.ByOrigin(tx, "o"); return err },
		"Runs.SetTimer": func(tx *store.Tx) error {
			return did(func() error { return runs.SetTimer(tx, 1, 9) }, func() error { return runs.SetTimer(tx, 1, 0) })
		},
		"Runs.Hasten": func(tx *store.Tx) error { return runs.Hasten(tx, 1, 9) },
		"Runs.Timer": func(tx *store.Tx) error {
			_, err := runs.Timer(tx, 1)
			return err
		},
		"Runs.Due":      func(ctx context.Context) error { _, _, err := runs.Due(ctx, 9, 9); return err },
		"Runs.NextDue":  func(ctx context.Context) error { _, err := runs.NextDue(ctx); return err },
		"Runs.Number":   func(tx *store.Tx) error { _, err := runs.Number(tx, 1); return err },
		"Runs.Hosted":   func(tx *store.Tx) error { _, err := runs.Hosted(tx, 1); return err },
		"Runs.HostRun":  func(tx *store.Tx) error { _, err := runs.HostRun(tx, 1); return err },
		"Runs.ThreadID": func(tx *store.Tx) error { _, err := runs.ThreadID(tx, 1); return err },
		"Runs.Children": func(tx *store.Tx) error { _, err := runs.Children(tx, 1); return err },
		"Runs.List": func(tx *store.Tx) error {
			for _, status := range []store.Status{"", store.Pending, store.Running, store.Awaiting, store.Completed, store.Failed, store.Aborted} {
				for _, owners := range [][]string{nil, {"a"}, {"b", "a"}} {
					for _, session := range []string{"", "s"} {
						for i := range 12 {
							f := store.RunFilter{Status: status, Agents: owners, Workflows: owners, Session: session, Parent: int64(i % 2), Before: 9 * int64(i/2%2), From: int64(i / 4 % 3), Hosted: i%5 == 0}
							if _, err := runs.List(tx, f); err != nil {
								return fmt.Errorf("%+v: %w", f, err)
							}
						}
					}
				}
			}
			return nil
		},
		"Runs.Awaiting": func(tx *store.Tx) error {
			return did(func() error { _, err := runs.Awaiting(tx, nil, nil); return err }, func() error { _, err := runs.Awaiting(tx, []string{"a", "b"}, []string{"w"}); return err })
		},
		"Runs.Open": func(tx *store.Tx) error {
			return did(func() error { _, err := runs.Open(tx, ""); return err }, func() error { _, err := runs.Open(tx, "s"); return err })
		},
		"Runs.Tree":       func(tx *store.Tx) error { _, err := runs.Tree(tx, 1, 9); return err },
		"Runs.Roots":      func(tx *store.Tx) error { _, err := runs.Roots(tx, "s", 0, 9); return err },
		"Runs.SpansFrom":  func(tx *store.Tx) error { _, err := runs.SpansFrom(tx, 1, 0, 9); return err },
		"Runs.SpansAfter": func(tx *store.Tx) error { _, err := runs.SpansAfter(tx, store.SpanBatch{}, 9); return err },
		"Runs.Events":     func(tx *store.Tx) error { _, err := runs.Events(tx, 1, 0, 9); return err },
		"Runs.FirstEvent": func(tx *store.Tx) error { _, err := runs.FirstEvent(tx, 1); return err },
		"Runs.Messages":   func(tx *store.Tx) error { _, err := runs.Messages(tx, 1); return err },
		"Runs.Message":    func(tx *store.Tx) error { _, err := runs.Message(tx, 1, 0); return err },
		"Runs.History": func(tx *store.Tx) error {
			return did(func() error { _, err := runs.History(tx, "s", 0, 9); return err }, func() error { _, err := runs.History(tx, "s", store.Window(9), 9); return err })
		},
		"Runs.FirstSince": func(tx *store.Tx) error { _, err := runs.FirstSince(tx, "s", 9); return err },
		"Runs.Steps":      func(tx *store.Tx) error { _, err := runs.Steps(tx, 1); return err },
		"Runs.Calls":      func(tx *store.Tx) error { _, err := runs.Calls(tx, 1); return err },
		"Runs.Above": func(tx *store.Tx) error {
			for _, run := range []store.Run{{Parent: 1}, {Host: 1}, {Origin: store.CalledOrigin("done:1:c")}} {
				if _, err := runs.Above(tx, &run); err != nil && !errors.Is(err, store.ErrNotFound) {
					return err
				}
			}
			return nil
		},
		"Runs.Rouse": func(tx *store.Tx) error { return runs.Rouse(tx, &store.Run{Origin: store.CalledOrigin("done:1:c")}) },
		"Runs.Slot":  func(tx *store.Tx) error { _, err := runs.Slot(tx, 1, 1); return err },
		"Runs.Slots": func(tx *store.Tx) error { _, err := runs.Slots(tx, 1); return err },
		"Runs.ReadSpill": func(ctx context.Context) error {
			_, _, err := runs.ReadSpill(ctx, "done", "x")
			return err
		},
		"Runs.Handoffs":  func(tx *store.Tx) error { _, err := runs.Handoffs(tx, 1); return err },
		"Runs.Exchanges": func(tx *store.Tx) error { _, err := runs.Exchanges(tx, 1); return err },
		"Runs.EachOfType": func(tx *store.Tx) error {
			return runs.EachOfType(tx, 1, "a", func(json.RawMessage) error { return nil })
		},
		"Sessions.Find": func(tx *store.Tx) error { _, err := sessions.Find(tx, "s"); return err },
		"Sessions.Hold": func(tx *store.Tx) error { return sessions.Hold(tx, "s", "a", []string{"b"}) },
		"Sessions.List": func(tx *store.Tx) error {
			for _, f := range [][2]string{{}, {"u"}, {"", "a"}, {"u", "a"}} {
				if _, err := sessions.List(tx, f[0], f[1]); err != nil {
					return err
				}
			}
			return nil
		},
		"Sessions.Messages": func(tx *store.Tx) error { _, err := sessions.Messages(tx, "s", 9); return err },
		"Sessions.Handoffs": func(tx *store.Tx) error { _, err := sessions.Handoffs(tx, "s"); return err },
		"Sessions.Outline":  func(tx *store.Tx) error { _, err := sessions.Outline(tx, "s"); return err },
		"Sessions.MessagePage": func(tx *store.Tx) error {
			_, err := sessions.MessagePage(tx, "s", 0, 9)
			return err
		},
		"Sessions.MessagesBefore": func(tx *store.Tx) error {
			_, err := sessions.MessagesBefore(tx, "s", 9)
			return err
		},
		"Sessions.HandoffPage": func(tx *store.Tx) error { _, err := sessions.HandoffPage(tx, "s", 0); return err },
		"Sessions.Erase":       func(tx *store.Tx) error { _, err := sessions.Erase(tx, "copy"); return err },
		"Tokens.Insert": func(ctx context.Context) error {
			return tokens.Insert(ctx, store.Token{ID: "t", Hash: "h", Scopes: []string{"a:b"}}, nil)
		},
		"Tokens.ByHash": func(ctx context.Context) error { _, err := tokens.ByHash(ctx, "h"); return err },
		"Tokens.Get":    func(ctx context.Context) error { _, err := tokens.Get(ctx, "t"); return err },
		"Tokens.List":   func(ctx context.Context) error { _, err := tokens.List(ctx, true); return err },
		"Tokens.Roots":  func(ctx context.Context) error { _, err := tokens.Roots(ctx, []string{"t"}); return err },
		"Tokens.Touch":  func(ctx context.Context) error { return tokens.Touch(ctx, map[string]int64{"t": 1}) },
		"Tokens.Revoke": func(ctx context.Context) error { _, err := tokens.Revoke(ctx, "t", nil); return err },
		"Tokens.RevokedSince": func(ctx context.Context) error {
			_, err := tokens.RevokedSince(ctx, 0)
			return err
		},
		"Keys.Put": func(tx *store.Tx) error {
			return keys.Put(tx, &store.KeyRecord{Key: "k", Fingerprint: []byte{1}})
		},
		"Keys.PutAbout": func(tx *store.Tx) error {
			return keys.PutAbout(tx, &store.KeyRecord{Key: "about", Fingerprint: []byte{1}, Run: "done"})
		},
		"Keys.Get":       func(ctx context.Context) error { _, err := keys.Get(ctx, "k"); return err },
		"Sessions.Close": func(tx *store.Tx) error { _, err := sessions.Close(tx, "copy"); return err },
		"Expiry.Spans": func(tx *store.Tx) error {
			_, err := expiry.Spans(tx, store.Place{}, store.Before(1), 9, false)
			return err
		},
		"Expiry.SpansOver": func(tx *store.Tx) error { _, err := expiry.SpansOver(tx, 9); return err },
		"Expiry.Firings": func(tx *store.Tx) error {
			_, err := expiry.Firings(tx, store.Place{}, store.Before(1<<60), 9, false)
			return err
		},
		"Expiry.Delivered": func(tx *store.Tx) error {
			_, err := expiry.Delivered(tx, store.Place{}, store.Before(1<<60), 9, false)
			return err
		},
		"Expiry.Dead": func(tx *store.Tx) error {
			_, err := expiry.Dead(tx, store.Place{}, store.Before(1<<60), 9, false)
			return err
		},
		"Expiry.FiringsOver": func(tx *store.Tx) error { _, err := expiry.FiringsOver(tx, 9); return err },
		"Expiry.Keys": func(tx *store.Tx) error {
			_, err := expiry.Keys(tx, store.Place{}, store.Before(1<<60), 9, false)
			return err
		},
		"Expiry.Sessions": func(tx *store.Tx) error { _, err := expiry.Sessions(tx, store.Place{}, 9, 9); return err },
		"Expiry.Session": func(tx *store.Tx) error {
			_, err := expiry.Session(tx, store.Place{ID: "copy"}, 1<<60, false)
			return err
		},
		"Expiry.Threads": func(tx *store.Tx) error { _, err := expiry.Threads(tx, store.Place{}, 9, 9); return err },
		"Expiry.Thread":  func(tx *store.Tx) error { _, err := expiry.Thread(tx, store.Place{Key: 1}, 9); return err },
		"Expiry.Runs":    func(tx *store.Tx) error { _, err := expiry.Runs(tx, store.Place{}, 9, 9); return err },
		"Expiry.Run":     func(tx *store.Tx) error { _, err := expiry.Run(tx, store.Place{Key: 1}, 9); return err },
		"Audit.Append": func(tx *store.Tx) error {
			var rows []store.AuditRow
			for i := range 17 {
				rows = append(rows, store.AuditRow{Seq: int64(i + 1), Prev: []byte{1}, Hash: []byte{1}, Seal: []byte{1}})
			}
			return a.Append(tx, rows)
		},
		"Audit.Ends":    func(ctx context.Context) error { _, _, err := a.Ends(ctx); return err },
		"Audit.Times":   func(ctx context.Context) error { _, _, err := a.Times(ctx, 1, 9); return err },
		"Audit.State":   func(ctx context.Context) error { _, err := a.State(ctx); return err },
		"Audit.StateIn": func(tx *store.Tx) error { _, err := a.StateIn(tx); return err },
		"Audit.Scan": func(ctx context.Context) error {
			for _, s := range []store.Span{{From: 1}, {From: 1, To: 2, Limit: 1, Newest: true}, {From: 1, Bare: true}} {
				if _, err := a.Scan(ctx, s, func(*store.AuditRow) error { return nil }); err != nil {
					return err
				}
			}
			return nil
		},
		"Audit.Prune": func(tx *store.Tx) error { _, err := a.Prune(tx, 2); return err },
		"Audit.Value": func(tx *store.Tx) error { _, err := a.Value(tx, "v"); return err },
		"Outbox.Append": func(tx *store.Tx) error {
			return outbox.Append(tx, []store.OutboxRow{{ID: 1, Sealed: []byte{1}}})
		},
		"Outbox.Last":   func(tx *store.Tx) error { _, err := outbox.Last(tx); return err },
		"Outbox.After":  func(ctx context.Context) error { _, _, err := outbox.After(ctx, 0, 9); return err },
		"Outbox.Delete": func(tx *store.Tx) error { return outbox.Delete(tx, 1) },
		"Audit.Set":     func(tx *store.Tx) error { return a.Set(tx, map[string][]byte{"v": {1}}) },

		"Notifications.Add": func(tx *store.Tx) error {
			return notes.Add(tx, &store.Notification{ID: "m", Target: "t", Body: []byte("{}")})
		},
		"Notifications.Target": func(ctx context.Context) error { _, err := notes.Target(ctx, "t"); return err },
		"Notifications.Next":   func(ctx context.Context) error { _, err := notes.Next(ctx, "t", 9); return err },
		"Notifications.Ended": func(tx *store.Tx) error {
			return notes.Ended(tx, &store.Notification{N: 1, State: "waiting"}, &store.NotifyTarget{ID: "t"})
		},
		"Notifications.Waiting": func(ctx context.Context) error { _, err := notes.Waiting(ctx, 9); return err },
		"Notifications.Bury":    func(tx *store.Tx) error { return notes.Bury(tx, 9) },
		"Notifications.Abandon": func(tx *store.Tx) error { _, err := notes.Abandon(tx, "t", 9); return err },
		"Notifications.Targets": func(ctx context.Context) error { _, err := notes.Targets(ctx); return err },
		"Notifications.Again":   func(tx *store.Tx) error { return notes.Again(tx, 1) },
		"Notifications.DeadOf":  func(tx *store.Tx) error { _, err := notes.DeadOf(tx, "t", 9); return err },
		"Notifications.Enable":  func(tx *store.Tx) error { return notes.Enable(tx, "t") },
		"Notifications.Get":     func(tx *store.Tx) error { _, err := notes.Get(tx, "m"); return err },
		"Notifications.List": func(ctx context.Context) error {
			for _, state := range []string{"", "waiting", "delivered", "dead"} {
				if _, err := notes.List(ctx, state, 9, 9); err != nil {
					return err
				}
			}
			return nil
		},
		"Triggers.Insert":    func(tx *store.Tx) error { return triggers.Insert(tx, &store.Trigger{ID: "t"}) },
		"Triggers.Set":       func(tx *store.Tx) error { return triggers.Set(tx, &store.Trigger{N: 1}) },
		"Triggers.All":       func(ctx context.Context) error { _, err := triggers.All(ctx); return err },
		"Triggers.Delete":    func(tx *store.Tx) error { return triggers.Delete(tx, 9) },
		"Triggers.Add":       func(tx *store.Tx) error { return triggers.Add(tx, firing("t:1")) },
		"Triggers.Change":    func(tx *store.Tx) error { f := firing("t:1"); f.N = 1; return triggers.Change(tx, f) },
		"Triggers.At":        func(tx *store.Tx) error { _, err := triggers.At(tx, 1, "t:1", ""); return err },
		"Triggers.Ledger":    func(tx *store.Tx) error { _, err := triggers.Ledger(tx, 1, 0, 9); return err },
		"Triggers.Accounted": func(tx *store.Tx) error { _, err := triggers.Accounted(tx, 1, 9, 99, 9); return err },
		"Triggers.Ahead":     func(tx *store.Tx) error { _, err := triggers.Ahead(tx, 1, 9, 9); return err },
		"Triggers.Cut": func(tx *store.Tx) error {
			return did(func() error { return triggers.Cut(tx, 9, 9, 0) }, func() error { return triggers.Cut(tx, 9, 9, 1) })
		},
		"Triggers.Queued": func(tx *store.Tx) error { _, err := triggers.Queued(tx, 1, 9); return err },
		"Triggers.Waiting": func(tx *store.Tx) error {
			_, _, err := triggers.Waiting(tx, 1)
			return err
		},
		"Triggers.Opened": func(ctx context.Context) error { _, err := triggers.Opened(ctx, 0, 9); return err },
		"Triggers.OfRun":  func(tx *store.Tx) error { _, err := triggers.OfRun(tx, "done"); return err },
		"Triggers.Activity": func(tx *store.Tx) error {
			for _, of := range [][2]string{{}, {"s"}, {"", "a"}} {
				if _, _, err := triggers.Activity(tx, of[0], of[1], nil, 9); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// without are the methods that have no statements of their own, or only those that ask how the file uses its pages.
var without = []string{"Space", "Compact", "WALSize", "Update", "UpdateSoon", "View", "Snapshot", "Checkpoint", "Close", "Path", "Ping", "Post", "Failed", "Sync", "Verify", "Join", "Kick"}

// walk matches a plan that reads a table from end to end. What follows the name says by which index, if any.
var walk = regexp.MustCompile(`^SCAN (\w+)`)

// small are the tables that do not grow with use: what a statement makes itself, and what an operator makes one by one.
var small = []string{"tree", "line", "CONSTANT", "auth_tokens", "workflow_definitions", "triggers", "audit_meta", "schema_migrations", "sqlite_schema"}

// sorted matches the statements that may sort what they have found: the newest of a list that stops at its limit, a tree that
// does, what one session has, what is open, and the tokens.
var sorted = regexp.MustCompile(`LIMIT [?0-9]+\)|UNION SELECT json_extract|INDEXED BY runs_open|FROM auth_tokens`)

// tiny are the statistics of a young database. With them, SQLite reads a table from end to end rather than a range of its keys,
// which no statement can forbid; an index that is named is used, and [TestNoStatistics] finds that no file keeps statistics.
const tiny = "1 1 1 1"

// TestPlans explains every statement of the repositories with the statistics that a file may have: none, those of a young
// database, which let a scan seem cheap, and those of a large one. None may scan a table that grows, but for lists that stop
// at their limit, or sort what it has found.
func TestPlans(t *testing.T) {
	dir := t.TempDir()
	db := storetest.OpenAt(t, filepath.Join(dir, "data.db"))
	a, err := store.OpenAudit(t.Context(), store.Options{Path: filepath.Join(dir, "audit.db")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	calls := called(db, a)
	for name, repository := range map[string]any{"Runs": db.Runs(), "Sessions": db.Sessions(), "Threads": db.Threads(), "Tokens": db.Tokens(), "Keys": db.Keys(), "Outbox": db.Outbox(),
		"Expiry": db.Expiry(), "Triggers": db.Triggers(), "Notifications": db.Notifications(), "Audit": a} {
		for method := range reflect.TypeOf(repository).Methods() {
			if calls[name+"."+method.Name] == nil && !slices.Contains(without, method.Name) {
				t.Errorf("%s.%s is not called here: its statements are not explained", name, method.Name)
			}
		}
	}
	first := []string{"Sessions.Insert", "Runs.Apply", "Sessions.Restore", "Threads.Apply", "Triggers.Insert", "Triggers.Add"}
	names := append(first, slices.DeleteFunc(slices.Sorted(maps.Keys(calls)), func(n string) bool { return slices.Contains(first, n) })...)
	for _, name := range names {
		update := db.Update
		if strings.HasPrefix(name, "Audit.") {
			update = a.Update
		}
		var err error
		switch fn := calls[name].(type) {
		case func(*store.Tx) error:
			err = update(t.Context(), fn)
		case func(context.Context) error:
			err = fn(t.Context())
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("%s: %v", name, err)
		}
	}
	explain(t, db.Path(), store.Statements(db))
	explain(t, a.Path(), store.Statements(a))
}

func explain(t *testing.T, path string, statements map[string]bool) {
	t.Helper()
	if len(statements) < 5 {
		t.Fatalf("%s: only %d statements were prepared", path, len(statements))
	}
	byRowid := map[string]bool{}
	for _, statistics := range []string{"", tiny, "1000000 1000 10 1"} {
		if statistics != "" {
			storetest.Behind(t, path, "ANALYZE", "DELETE FROM sqlite_stat1",
				"INSERT INTO sqlite_stat1 (tbl, idx, stat) SELECT tbl_name, name, '"+statistics+"' FROM sqlite_schema WHERE type = 'index'",
				"INSERT INTO sqlite_stat1 (tbl, idx, stat) SELECT name, NULL, '"+strings.Fields(statistics)[0]+"' FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
		}
		raw, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		for query := range statements {
			if strings.HasPrefix(query, "PRAGMA") || !strings.Contains(query, " ") {
				continue
			}
			args := make([]any, 1+strings.Count(query, "?"))
			for i := range args {
				args[i] = 1
			}
			if strings.Contains(query, "?1") {
				args = args[:2]
			}
			plan, err := planOf(raw, query, args[:len(args)-1])
			if err != nil {
				t.Errorf("%.200s: %v", query, err)
			}
			if statistics == "" {
				byRowid[query] = strings.Contains(strings.Join(plan, "\n"), "USING INTEGER PRIMARY KEY")
			}
			bounded := strings.Contains(query, " LIMIT ") && !slices.ContainsFunc(plan, func(step string) bool { return strings.HasPrefix(step, "USE TEMP B-TREE") })
			if statistics != tiny && slices.Contains(plan, "USE TEMP B-TREE FOR ORDER BY") && !sorted.MatchString(query) {
				t.Errorf("with statistics %q: %s\nis sorted: %q", statistics, query, plan)
			}
			for _, step := range plan {
				m := walk.FindStringSubmatch(step)
				if m == nil || slices.Contains(small, m[1]) || bounded || strings.HasSuffix(step, "VALUES CLAUSE") || strings.Contains(step, "USING INDEX runs_open") ||
					strings.Contains(step, "USING INDEX threads_blocked") { // what is open or blocked, and nothing else

					continue
				}
				if statistics != tiny || !byRowid[query] || strings.Contains(step, "USING") {
					t.Errorf("with statistics %q: %s\nis done as %q", statistics, query, plan)
				}
			}
		}
		raw.Close()
	}
}

func planOf(db *sql.DB, query string, args []any) (plan []string, err error) {
	rows, err := db.Query("EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var step string
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			return nil, err
		}
		plan = append(plan, step)
	}
	return plan, rows.Err()
}

// TestNoStatistics leaves the statistics of a young database. The next start deletes them, and a stop makes none.
func TestNoStatistics(t *testing.T) {
	path := filled(t, 1)
	storetest.Behind(t, path, "ANALYZE")
	for range 2 {
		db := storetest.OpenAt(t, path)
		if _, err := db.Runs().Get(t.Context(), "run-0"); err != nil {
			t.Error(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		raw, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if err := raw.QueryRow("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'sqlite_stat%'").Scan(&n); err != nil || n != 0 {
			t.Errorf("after a start and a stop there are %d tables of statistics, %v; want none", n, err)
		}
		raw.Close()
	}
}
