package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/server/takeover"
	"agentd/server/tool"
	"agentd/store"
	"agentd/store/storetest"
)

// rig is an engine on a store of its own. restart replaces the engine by another on the same file.
type rig struct {
	t      testing.TB
	path   string
	db     *store.DB
	hub    *hub.Hub
	engine *agent.Engine
	agents *agent.Registry
	make   func(*rig) []agent.Registration
	audit  func([]run.Happening) (func(*store.Tx) error, error)
	edited bool // somebody has changed the database, so that there are alarms
}

func newRig(t testing.TB, make func(*rig) []agent.Registration) *rig {
	return newAuditedRig(t, make, nil)
}

func newAuditedRig(t testing.TB, make func(*rig) []agent.Registration, audit func([]run.Happening) (func(*store.Tx) error, error)) *rig {
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "data.db"), make: make, audit: audit}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.t.Helper()
	r.db = storetest.OpenAt(r.t, r.path)
	r.hub = hub.New(hub.Options{MaxEvents: 100_000})
	r.agents = &agent.Registry{}
	r.engine = agent.New(r.agents, run.Options{Runs: r.db.Runs(), Sessions: r.db.Sessions(), Hub: r.hub, Audit: r.audit, AuditStarts: r.audit != nil})
	for _, reg := range r.make(r) {
		if err := r.agents.Register(reg); err != nil {
			r.t.Fatal(err)
		}
	}
}

// close stops the engine at once, as a kill would but for the goroutines.
func (r *rig) close() {
	r.t.Helper()
	if err := r.engine.Drain(ended()); err != nil {
		r.t.Errorf("Drain: %v", err)
	}
	if n := r.engine.Altered(); n > 0 && !r.edited {
		r.t.Errorf("%d stored calls seem to be changed", n)
	}
	if err := r.db.Close(); err != nil {
		r.t.Errorf("closing the store: %v", err)
	}
}

func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// restart opens the same store with a new engine and recovers.
func (r *rig) restart() int {
	r.t.Helper()
	r.close()
	r.open()
	n, err := r.engine.Recover(r.t.Context())
	if err != nil {
		r.t.Fatalf("Recover: %v", err)
	}
	return n
}

// crash opens what a kill at this moment would leave on disk, with a new engine, and recovers.
func (r *rig) crash() int {
	r.t.Helper()
	im := takeImage(r.t, r, "crash", nil)
	r.close()
	r.path = im.path
	r.open()
	n, err := r.engine.Recover(r.t.Context())
	if err != nil {
		r.t.Fatalf("Recover: %v", err)
	}
	return n
}

func (r *rig) start(req run.StartRequest) *agent.Handle {
	r.t.Helper()
	h, err := r.engine.Start(r.t.Context(), req)
	if err != nil {
		r.t.Fatalf("Start(%s): %v", req.Owner, err)
	}
	return h
}

// run starts an agent, waits for its end and checks what must hold for every run.
func (r *rig) run(agentID, input string) (agent.RunResult, []event.Event) {
	r.t.Helper()
	in, _ := json.Marshal(input)
	h := r.start(run.StartRequest{Owner: agentID, Input: in})
	return r.wait(h), r.events(agentID, h.ID)
}

func (r *rig) wait(h *agent.Handle) agent.RunResult {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	res, err := h.Wait(ctx)
	if err != nil {
		r.t.Fatalf("Wait(%s): %v", h.ID, err)
	}
	return res
}

// settled waits until a run that somebody else started has ended or waits.
func (r *rig) settled(runID string) agent.Snapshot {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	if _, _, _, err := r.engine.Engine.Wait(ctx, runID); err != nil {
		r.t.Fatalf("Wait(%s): %v", runID, err)
	}
	s, err := r.engine.Snapshot(r.t.Context(), runID)
	if err != nil {
		r.t.Fatalf("Snapshot(%s): %v", runID, err)
	}
	r.shown(runID)
	return s
}

// shown checks that the JSON of a run is the same whether it is encoded now or was kept, for those who may see all of it
// and for those who may not.
func (r *rig) shown(runID string) {
	r.t.Helper()
	for _, whole := range []bool{true, false, true} {
		want := r.encode(runID, whole)
		run, err := r.engine.Identify(r.t.Context(), runID)
		if err != nil {
			r.t.Fatalf("Identify(%s): %v", runID, err)
		}
		got, err := r.engine.SnapshotJSON(r.t.Context(), run, whole)
		if err != nil {
			r.t.Fatalf("SnapshotJSON(%s): %v", runID, err)
		}
		if string(got) != want && want == r.encode(runID, whole) { // it has not changed meanwhile
			r.t.Errorf("SnapshotJSON(%s, %t) =\n%s\nwant\n%s", runID, whole, got, want)
		}
	}
}

func (r *rig) encode(runID string, whole bool) string {
	r.t.Helper()
	s, err := r.engine.Snapshot(r.t.Context(), runID)
	if err != nil {
		r.t.Fatalf("Snapshot(%s): %v", runID, err)
	}
	if !whole {
		s.State.Withhold()
	}
	b, err := message.Encode(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b) + "\n"
}

// events returns what was published on a run's subject, and checks that the durable part of it can be read back from
// the store as it was published, numbered without gaps.
func (r *rig) events(agentID, runID string) []event.Event {
	r.t.Helper()
	r.shown(runID)
	stored := 0
	r.engine.Replay(r.t.Context(), runID, event.RunView, 0, func(e *hub.Entry) error { //nolint:errcheck // the one below tells
		stored = e.Pos.Seq
		return nil
	})
	come := make(chan bool, 1<<20)
	queue := hub.NewQueue(1<<20, 1<<30, func() { come <- true })
	sub, ring := r.hub.Subscribe(event.OfAgentRun(agentID, runID).String(), queue, nil)
	defer sub.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	for len(ring) > 0 && ring[len(ring)-1].Pos.Seq < stored { // what is stored is published a moment later
		select {
		case <-come:
		case <-ctx.Done():
			r.t.Fatalf("the hub has %d of %d stored events of the run %s", ring[len(ring)-1].Pos.Seq, stored, runID)
		}
		queue.Drain(func(d hub.Delivery) { //nolint:errcheck // it has room for all
			if d.Entry != nil {
				ring = append(ring, d.Entry)
			}
		})
	}
	var durable []*hub.Entry
	var all []event.Event
	for _, e := range ring {
		all = append(all, event.Event{Type: e.Type, Payload: e.Body()})
		if e.Pos.Sub == 0 {
			durable = append(durable, e)
		}
	}
	i := 0
	err := r.engine.Replay(r.t.Context(), runID, event.RunView, 0, func(e *hub.Entry) error {
		if len(durable) == 0 || e.Pos.Seq < durable[0].Pos.Seq {
			return nil // published by an earlier process
		}
		if i >= len(durable) {
			r.t.Errorf("the store has an event %d %s that was not published", e.Pos.Seq, e.Type)
			return nil
		}
		heldOnly := durable[i].Lifecycle == "aborted" && e.Lifecycle == "paused" // it was held, and has gone on
		if d := durable[i]; e.Pos != d.Pos || e.Type != d.Type || string(e.Body()) != string(d.Body()) || e.ID != d.ID || e.Lifecycle != d.Lifecycle && !heldOnly {
			r.t.Errorf("event %d read back:\n got %s %s %s\nwant %s %s %s", i, e.ID, e.Body(), e.Lifecycle, d.ID, d.Body(), d.Lifecycle)
		}
		i++
		return nil
	})
	if err != nil || i != len(durable) {
		r.t.Errorf("Replay(%s) gave %d of %d durable events, %v", runID, i, len(durable), err)
	}
	r.checkNumbers(runID)
	return all
}

// checkNumbers checks that the durable events of a run are numbered 1, 2, 3, ...
func (r *rig) checkNumbers(runID string) {
	r.t.Helper()
	next := 1
	r.engine.Replay(r.t.Context(), runID, event.RunView, 0, func(e *hub.Entry) error {
		if e.Pos.Seq != next {
			r.t.Errorf("event number %d, want %d", e.Pos.Seq, next)
		}
		next++
		return nil
	})
}

// types lists the types of events, repeated deltas folded into one with a star.
func types(events []event.Event) string {
	var out []string
	for _, e := range events {
		name := e.Type
		if event.Transient(name) {
			name += "*"
		}
		if len(out) == 0 || out[len(out)-1] != name || !event.Transient(e.Type) {
			out = append(out, name)
		}
	}
	return strings.Join(out, " ")
}

func scripted(t testing.TB, script string) provider.Provider {
	t.Helper()
	p, err := provider.NewScripted("script", []byte(script))
	if err != nil {
		t.Fatalf("script: %v", err)
	}
	return p
}

func llm(t testing.TB, script string, tools ...tool.Tool) *agent.LLM {
	t.Helper()
	set, err := tool.NewSet(tools...)
	if err != nil {
		t.Fatal(err)
	}
	return &agent.LLM{Models: []agent.Model{{Provider: scripted(t, script), Model: "m"}}, Tools: set, HistoryTokens: 1000}
}

// counter is a tool that notes each execution.
type counter struct {
	spec    tool.Spec
	mu      sync.Mutex
	keys    []string
	execute func(ctx context.Context, c tool.Call) (tool.Result, error)
}

func (c *counter) Spec() tool.Spec { return c.spec }

func (c *counter) Execute(ctx context.Context, call tool.Call) (tool.Result, error) {
	c.mu.Lock()
	c.keys = append(c.keys, call.Key)
	execute := c.execute
	c.mu.Unlock()
	if execute != nil {
		return execute(ctx, call)
	}
	return tool.JSON("did " + c.spec.Name)
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.keys)
}

// goAgent is an agent made of functions.
type goAgent struct {
	id     string
	run    func(ctx context.Context, in agent.Input) (agent.Result, error)
	stream func(ctx context.Context, in agent.Input, out agent.Sink) (agent.Result, error)
}

func (g goAgent) ID() string { return g.id }

func (g goAgent) Run(ctx context.Context, in agent.Input) (agent.Result, error) {
	if g.run == nil {
		return agent.Result{}, errors.New("no run function")
	}
	return g.run(ctx, in)
}

type streamAgent struct{ goAgent }

func (g streamAgent) Stream(ctx context.Context, in agent.Input, out agent.Sink) (agent.Result, error) {
	return g.stream(ctx, in, out)
}

type resumeAgent struct {
	streamAgent
	resume func(ctx context.Context, in agent.Input, from agent.Resumption, out agent.Sink) (agent.Result, error)
}

func (g resumeAgent) Resume(ctx context.Context, in agent.Input, from agent.Resumption, out agent.Sink) (agent.Result, error) {
	return g.resume(ctx, in, from, out)
}

func contains(events []event.Event, typ, part string) bool {
	return slices.ContainsFunc(events, func(e event.Event) bool { return e.Type == typ && strings.Contains(string(e.Payload), part) })
}

// hang makes a tool wait for the end of its context.
func hang(c *counter) {
	c.execute = func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		<-ctx.Done()
		return tool.Result{}, ctx.Err()
	}
}

// succeed has all calls from now on succeed.
func (c *counter) succeed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.execute = nil
}

// waitFor lets a bubble come to rest, again after each moment of its time, until ok is true.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for range 1000 {
		if synctest.Wait(); ok() {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatal("it did not happen")
}

// bubble runs a test in a bubble of its own.
func bubble(test func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

// state reads a run's state as an import does.
func state(t testing.TB, text string) *runstate.State {
	t.Helper()
	st, err := runstate.Read([]byte(text))
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return st
}

func encode(t testing.TB, v any) string {
	t.Helper()
	b, err := message.Encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func (r *rig) imports(st *runstate.State) {
	r.t.Helper()
	if _, err := takeover.Import(r.t.Context(), r.engine, st, takeover.Options{}); err != nil {
		r.t.Fatalf("Import: %v %v", err, fault.Of(err).Issues)
	}
}

func (r *rig) state(runID string) *runstate.State {
	r.t.Helper()
	s, err := r.engine.Snapshot(r.t.Context(), runID)
	if err != nil {
		r.t.Fatal(err)
	}
	r.shown(runID)
	return s.State
}
