package triggers_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/server/id"
	"agentd/store"
	"agentd/triggers"
)

// A rig is an engine on a database, and targets that make runs which go on until end ends them.
type rig struct {
	t     *testing.T
	path  string
	decls map[string]triggers.Declaration
	// committed, if not nil, is called after each transaction that has written or failed, before the next one begins.
	committed func(closures int, took time.Duration, err error)

	db     *store.DB
	engine *triggers.Engine
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	starts []triggers.Start
	runs   []string
	refuse error // of all starts
}

func newRig(t *testing.T, decls map[string]triggers.Declaration) *rig {
	return &rig{t: t, path: filepath.Join(t.TempDir(), "data.db"), decls: decls}
}

// open opens the database and loads the declarations; it does not fire.
func (r *rig) open() {
	r.t.Helper()
	var err error
	if r.db, err = store.Open(context.Background(), store.Options{Path: r.path, Committed: r.committed}); err != nil {
		r.t.Fatal(err)
	}
	r.engine = triggers.New(triggers.Options{})
	r.engine.Attach(triggers.Options{Store: r.db.Triggers(), Start: r.start})
	for id, d := range r.decls {
		if d.Agent == "" && d.Workflow == "" {
			d.Agent = "a"
		}
		if err := r.engine.Declare(id, d); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := r.engine.Load(context.Background(), false); err != nil {
		r.t.Fatal(err)
	}
}

// run starts the engine.
func (r *rig) run() {
	r.t.Helper()
	if r.db == nil {
		r.open()
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		if err := r.engine.Run(ctx); err != nil {
			r.t.Errorf("Run = %v", err)
		}
	}()
}

// stop ends the engine and closes the database.
func (r *rig) stop() {
	if r.cancel != nil {
		r.cancel()
		<-r.done
	}
	if r.db != nil {
		r.db.Close()
	}
	r.db, r.cancel = nil, nil
}

func (r *rig) start(ctx context.Context, s triggers.Start) (string, error) {
	r.mu.Lock()
	refuse := r.refuse
	r.mu.Unlock()
	if refuse != nil {
		return "", refuse
	}
	run := id.New()
	err := r.db.Runs().Update(ctx, func(tx *store.Tx) error {
		if s.Session != "" {
			if _, err := r.db.Sessions().Find(tx, s.Session); err != nil {
				if err := r.db.Sessions().Insert(tx, store.Session{ID: s.Session, User: "u", Agent: s.Agent, Created: tx.Now(), Maker: s.By}); err != nil {
					return err
				}
			}
		}
		c := &store.Change{Run: store.Run{Session: s.Session, ID: run, Kind: "agent", Owner: s.Agent, Current: s.Agent, Status: store.Running, InputForm: "text", Usage: json.RawMessage("{}"),
			Models: json.RawMessage("{}"), Created: tx.Now(), Started: tx.Now(), StartedBy: s.By, Origin: s.Origin, Attempt: 1}}
		if _, err := r.db.Runs().Apply(tx, c); err != nil {
			return err
		}
		return s.Also(tx, run, store.Running)
	})
	if err != nil {
		if strings.Contains(err.Error(), "broken") { // see TestFailingWrites
			err = fault.New(fault.StorageFailed, "The store could not write.").Because(err)
		}
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.starts, r.runs = append(r.starts, s), append(r.runs, run)
	return run, nil
}

// end ends a run, and tells the engine if told.
func (r *rig) end(run string, status store.Status, told bool) {
	r.t.Helper()
	var row *store.Run
	err := r.db.Runs().Update(context.Background(), func(tx *store.Tx) (err error) {
		if row, err = r.db.Runs().Find(tx, run); err != nil {
			return err
		}
		c := &store.Change{Run: *row}
		c.Run.Was, c.Run.Status, c.Run.Finished = row.Status, status, tx.Now()
		_, err = r.db.Runs().Apply(tx, c)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if row.Status = status; told {
		r.engine.Ended(row)
		synctest.Wait()
	}
}

// started is what was started so far, and begun the runs that this made.
func (r *rig) started() []triggers.Start {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.starts)
}

func (r *rig) begun() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.runs)
}

// last is the run that was started last.
func (r *rig) last() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.runs) == 0 {
		return ""
	}
	return r.runs[len(r.runs)-1]
}

// ledger is the rows of a trigger, the oldest first: origin, outcome, reason and how many dues, with the due since the bubble's start.
func (r *rig) ledger(trigger string) string {
	r.t.Helper()
	rows, _, err := r.engine.Firings(context.Background(), trigger, 0, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	var lines []string
	for _, f := range rows {
		due, err := time.Parse(time.RFC3339, f.Due)
		if err != nil {
			r.t.Fatal(err)
		}
		text := fmt.Sprint(due.Sub(begin), " ", f.Origin, " ", f.Outcome)
		if f.Reason != "" {
			text += " " + f.Reason
		}
		if f.LastDue != "" {
			last, _ := time.Parse(time.RFC3339, f.LastDue)
			text += fmt.Sprintf(" to %v (%d)", last.Sub(begin), f.Count)
		}
		lines = append([]string{text}, lines...)
	}
	return strings.Join(lines, "; ")
}

func (r *rig) want(trigger, want string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.ledger(trigger); got != want {
		r.t.Errorf("the ledger of %s is\n%s\nwant\n%s", trigger, got, want)
	}
}

var errStorage = fault.New(fault.StorageFailed, "The disk is full.")

var errTarget = fault.New(fault.RouteHandlerMissing, "There is no such agent.")

func code(err error) string {
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		return fmt.Sprint(err)
	}
	return f.Kind.Code
}
