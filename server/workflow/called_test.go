package workflow_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/server/workflow"
	"agentd/store"
	"agentd/store/storetest"
)

// A duo is an agent that calls a workflow as a tool, on a store of their own. The workflow waits for an approval, and then makes
// a call with an effect.
type duo struct {
	tb       testing.TB
	path     string
	db       *store.DB
	agents   *agent.Engine
	registry *agent.Registry
	*workflow.Workflows
	mu      sync.Mutex      // guards effects
	effects map[string]bool // by the key of the call
}

const paying = `{"output":"${ state.done }","state":{"done":{}},"start":"ask","nodes":{
	"ask":{"kind":"approval","name":"pay","next":"pay"},
	"pay":{"kind":"tool","tool":"pay","args":{},"save":"done","next":"end"}}}`

// openDuo opens the file, and returns how many runs its recovery set going.
func openDuo(tb testing.TB, path string, effects map[string]bool) (*duo, int) {
	tb.Helper()
	d := &duo{tb: tb, path: path, Workflows: workflow.New(), effects: effects, registry: &agent.Registry{}}
	d.db = storetest.OpenAt(tb, path)
	pay := tool.Func(tool.Spec{Name: "pay", Idempotent: true}, func(_ context.Context, c tool.Call) (tool.Result, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.effects[c.Key] = true
		return tool.JSON("paid")
	})
	(&rig{tb: tb, Workflows: d.Workflows}).declare("paying", paying)
	script, err := provider.NewScripted("s", []byte(`{"turns":[{"when":{"step":0},"toolCalls":[{"name":"workflow_paying","args":{}}]},{"text":"Done."}]}`))
	if err != nil {
		tb.Fatal(err)
	}
	set, err := tool.NewSet(tool.Func(tool.Spec{Name: "workflow_paying", Idempotent: true, Timeout: time.Hour}, func(ctx context.Context, c tool.Call) (tool.Result, error) {
		output, err := d.Call(ctx, "paying", c)
		return tool.Result{Output: output}, err
	}))
	if err != nil {
		tb.Fatal(err)
	}
	llm := &agent.LLM{Models: []agent.Model{{Provider: script, Model: "m"}}, Tools: set}
	hasty := *llm
	hasty.Budget.Wall = 300 * time.Millisecond
	for id, llm := range map[string]*agent.LLM{"clerk": llm, "hasty": &hasty} {
		if err := d.registry.Register(agent.Registration{ID: id, LLM: llm}); err != nil {
			tb.Fatal(err)
		}
	}
	d.agents = agent.New(d.registry, run.Options{Owner: d.Owner, Forms: map[string]journal.Form{store.Workflow: d.Form()}, Runs: d.db.Runs(), Sessions: d.db.Sessions(),
		Hub: hub.New(hub.Options{MaxEvents: 1000, TTL: time.Minute})})
	d.Attach(workflow.Options{Kernel: d.agents.Engine, Threads: d.db.Threads(), Runs: d.db.Runs(), Tools: newTools(tb, pay)})
	n, err := d.agents.Recover(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(d.close)
	return d, n
}

func (d *duo) close() {
	if d.db == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.agents.Drain(ctx); err != nil {
		d.tb.Error(err)
	}
	d.db.Close()
	d.db = nil
}

// until waits for what must come.
func (d *duo) until(what string, is func() bool) {
	d.tb.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			d.tb.Fatalf("%s: not within 20 s; %d runs move", what, d.agents.Moving())
		}
	}
}

func (d *duo) start(session string) *agent.Handle {
	d.tb.Helper()
	h, err := d.agents.Start(context.Background(), run.StartRequest{Owner: "clerk", Input: []byte(`"go"`), SessionID: session, Queue: true, By: "token:t"})
	if err != nil {
		d.tb.Fatal(err)
	}
	return h
}

// called returns the runs of the workflow.
func (d *duo) called(status store.Status) (list []*store.Run) {
	d.tb.Helper()
	err := d.db.Runs().View(context.Background(), func(tx *store.Tx) (err error) {
		list, err = d.db.Runs().List(tx, store.RunFilter{Agents: []string{}, Status: status, Limit: 1000})
		return err
	})
	if err != nil {
		d.tb.Fatal(err)
	}
	return list
}

func (d *duo) row(id string) *store.Run {
	d.tb.Helper()
	row, err := d.agents.Find(context.Background(), id)
	if err != nil {
		d.tb.Fatal(err)
	}
	return row
}

func (d *duo) approve(child *store.Run) {
	d.tb.Helper()
	_, rec, err := d.agents.Read(context.Background(), child.ID)
	if err != nil {
		d.tb.Fatal(err)
	}
	for _, a := range rec.Pending {
		if _, _, err := d.agents.Engine.Resume(context.Background(), child.ID, []run.Decision{{ToolCallID: a.ToolCallID, Granted: true}}, "token:u", nil); err != nil {
			d.tb.Fatal(err)
		}
	}
}

// TestDormantRuns: runs of an agent that wait for threads have no goroutines, in this process and the next, keep their turn, can
// be aborted, and all end when their threads do.
func TestDormantRuns(t *testing.T) {
	const n = 50
	d, _ := openDuo(t, filepath.Join(t.TempDir(), "agentd.db"), map[string]bool{})
	idle := runtime.NumGoroutine()
	var handles []*agent.Handle
	for range n {
		handles = append(handles, d.start(""))
	}
	handles = append(handles, d.start("s"))
	next := d.start("s")
	asleep := func() bool { return len(d.called(store.Awaiting)) == n+1 && d.agents.Moving() == 0 }
	d.until("the runs become dormant", asleep)
	d.until("their goroutines end", func() bool { return runtime.NumGoroutine() <= idle+5 })
	before := d.row(handles[0].ID)
	if status := d.row(next.ID).Status; !before.Dormant() || status != store.Pending {
		t.Errorf("the runs are %+v, and the next of the session %s, want dormant and pending", before, status)
	}
	waited := make(chan store.Status)
	go func() {
		res, err := handles[1].Wait(t.Context())
		if err != nil {
			t.Error(err)
		}
		waited <- res.Status
	}()
	if status, err := d.agents.Abort(t.Context(), handles[2].ID, run.AbortOptions{NoWait: true}); status != store.Aborted || err != nil {
		t.Errorf("Abort of a dormant run = %s, %v, want aborted", status, err)
	}
	if aborted := d.called(store.Aborted); len(aborted) != 1 || aborted[0].Caller() != handles[2].ID {
		t.Errorf("the abort left %d threads aborted, want that of its run", len(aborted))
	}
	for _, child := range d.called(store.Awaiting) {
		if child.Caller() == handles[1].ID {
			d.approve(child)
		}
	}
	if status := <-waited; status != store.Completed {
		t.Errorf("Wait = %s, want completed", status)
	}
	effects := d.effects
	d.close()
	d, going := openDuo(t, d.path, effects)
	if after := d.row(handles[0].ID); going != 0 || d.agents.Moving() != 0 || after.Version != before.Version || after.Attempt != before.Attempt {
		t.Errorf("the next start set %d runs going, and changed one from %+v to %+v", going, before, after)
	}
	if status, err := d.agents.Abort(t.Context(), handles[3].ID, run.AbortOptions{}); status != store.Aborted || err != nil {
		t.Errorf("Abort after a restart = %s, %v, want aborted", status, err)
	}
	d.until("all end", func() bool {
		for _, child := range d.called(store.Awaiting) {
			d.approve(child)
		}
		return d.row(next.ID).Status == store.Completed
	})
	for i, h := range handles {
		d.until("a run ends", func() bool { return d.row(h.ID).Status.Terminal() })
		want := store.Completed
		if i == 2 || i == 3 {
			want = store.Aborted
		}
		if status := d.row(h.ID).Status; status != want {
			t.Errorf("run %d is %s, want %s", i, status, want)
		}
	}
	if len(d.effects) != n { // without those of two that were aborted, with that of next
		t.Errorf("%d effects, want %d", len(d.effects), n)
	}
}

// TestDormantBudget: the budget of time of a dormant run ends it, and its thread.
func TestDormantBudget(t *testing.T) {
	d, _ := openDuo(t, filepath.Join(t.TempDir(), "agentd.db"), map[string]bool{})
	h, err := d.agents.Start(context.Background(), run.StartRequest{Owner: "hasty", Input: []byte(`"go"`), By: "token:t"})
	if err != nil {
		t.Fatal(err)
	}
	d.until("the run ends", func() bool { return d.row(h.ID).Status.Terminal() })
	row := d.row(h.ID)
	if row.Status != store.Failed || !bytes.Contains(row.Error, []byte(`"budget-exceeded"`)) || len(d.called(store.Aborted)) != 1 {
		t.Errorf("the run ends as %s with %s, and %d threads are aborted", row.Status, row.Error, len(d.called(store.Aborted)))
	}
}

// TestCalledCrashAtEveryStep takes images of the disk while an agent's run becomes dormant and is woken, or aborted. Each must
// recover to the same end, with one effect, or with nothing left open.
func TestCalledCrashAtEveryStep(t *testing.T) {
	for _, end := range []store.Status{store.Completed, store.Aborted} {
		t.Run(string(end), func(t *testing.T) {
			d, _ := openDuo(t, filepath.Join(t.TempDir(), "agentd.db"), map[string]bool{})
			var images []*duo
			var last []byte
			snap := func() {
				err := d.db.Update(context.Background(), func(*store.Tx) error { // nobody else writes meanwhile
					log, err := os.ReadFile(d.path + "-wal")
					if err != nil || bytes.Equal(log, last) {
						return err
					}
					last = log
					im := &duo{path: filepath.Join(t.TempDir(), "agentd.db")}
					d.mu.Lock()
					im.effects = maps.Clone(d.effects)
					d.mu.Unlock()
					images = append(images, im)
					main, err := os.ReadFile(d.path)
					return errors.Join(err, os.WriteFile(im.path, main, 0o600), os.WriteFile(im.path+"-wal", log, 0o600))
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			h := d.start("")
			d.until("the run becomes dormant", func() bool { snap(); return d.row(h.ID).Dormant() })
			child := d.called(store.Awaiting)[0]
			over := make(chan struct{})
			go func() {
				defer close(over)
				if end == store.Completed {
					d.approve(child)
				} else if _, err := d.agents.Abort(context.Background(), h.ID, run.AbortOptions{}); err != nil {
					t.Error(err)
				}
			}()
			d.until("the run ends", func() bool { snap(); return d.row(h.ID).Status.Terminal() })
			<-over
			snap()
			d.close()
			if len(images) < 4 {
				t.Fatalf("only %d images were taken", len(images))
			}
			for i, im := range images {
				t.Run(fmt.Sprint(i), func(t *testing.T) {
					d, _ := openDuo(t, im.path, im.effects)
					if end == store.Aborted && !d.row(h.ID).Status.Terminal() {
						if _, err := d.agents.Abort(context.Background(), h.ID, run.AbortOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					d.until("the run ends", func() bool {
						for _, child := range d.called(store.Awaiting) {
							if end == store.Completed {
								d.approve(child)
							}
						}
						return d.row(h.ID).Status.Terminal()
					})
					row, rec, err := d.agents.Read(context.Background(), h.ID)
					if err != nil || row.Status != end {
						t.Errorf("the run ends as %v, %v, want %s", row, err, end)
					}
					text, _ := json.Marshal(rec.Messages)
					if end == store.Completed && (len(d.effects) != 1 || !bytes.Contains(text, []byte("paid"))) {
						t.Errorf("effects %v, want one; messages %s", d.effects, text)
					}
					d.until("its thread ends", func() bool {
						return len(d.called(store.Awaiting))+len(d.called(store.Running))+len(d.called(store.Suspended)) == 0
					})
				})
			}
			t.Logf("%d images", len(images))
		})
	}
}
