package takeover_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/journal"
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
	testing.TB
	path   string
	db     *store.DB
	engine *agent.Engine
	regs   []agent.Registration
}

func newRig(t testing.TB, regs []agent.Registration) *rig {
	r := &rig{TB: t, path: filepath.Join(t.TempDir(), "data.db"), regs: regs}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.Helper()
	agents := &agent.Registry{}
	for _, reg := range r.regs {
		if err := agents.Register(reg); err != nil {
			r.Fatal(err)
		}
	}
	r.db = storetest.OpenAt(r, r.path)
	r.engine = agent.New(agents, run.Options{Runs: r.db.Runs(), Sessions: r.db.Sessions(), Hub: hub.New(hub.Options{})})
}

func (r *rig) close() {
	r.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.engine.Drain(ended); err != nil || r.engine.Altered() > 0 {
		r.Errorf("Drain: %v, %d stored calls seem to be changed", err, r.engine.Altered())
	}
	if err := r.db.Close(); err != nil {
		r.Error(err)
	}
}

// restart opens the same store with a new engine and returns how many runs it takes up.
func (r *rig) restart() int {
	r.Helper()
	r.close()
	r.open()
	n, err := r.engine.Recover(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// say runs an agent with a text.
func (r *rig) say(agentID, text string) agent.RunResult {
	r.Helper()
	return r.run(run.StartRequest{Owner: agentID, Input: json.RawMessage(encode(r, text))})
}

func (r *rig) run(req run.StartRequest) agent.RunResult {
	r.Helper()
	h, err := r.engine.Start(r.Context(), req)
	if err != nil {
		r.Fatal(err)
	}
	return r.wait(h)
}

func (r *rig) wait(h *agent.Handle) agent.RunResult {
	r.Helper()
	res, err := h.Wait(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return res
}

func (r *rig) resume(runID string, decisions ...run.Decision) agent.RunResult {
	r.Helper()
	h, unmatched, err := r.engine.Resume(r.Context(), runID, decisions, "tester", nil)
	if err != nil || len(unmatched) > 0 {
		r.Fatalf("Resume(%v) = %v unmatched, %v", decisions, unmatched, err)
	}
	return r.wait(h)
}

func (r *rig) imports(st *runstate.State, o takeover.Options) takeover.Imported {
	r.Helper()
	made, err := takeover.Import(r.Context(), r.engine, st, o)
	if err != nil {
		r.Fatalf("Import: %v %v", err, fault.Of(err).Issues)
	}
	return made
}

func (r *rig) state(runID string) *runstate.State {
	r.Helper()
	s, err := r.engine.Snapshot(r.Context(), runID)
	if err != nil {
		r.Fatal(err)
	}
	return s.State
}

// events lists the types of a run's events, which are numbered 1, 2, 3, ...
func (r *rig) events(runID string) string {
	r.Helper()
	var types []string
	err := r.engine.Replay(r.Context(), runID, event.RunView, 0, func(e *hub.Entry) error {
		if types = append(types, e.Type); e.Pos.Seq != len(types) {
			r.Errorf("event %d of %s has the number %d", len(types), runID, e.Pos.Seq)
		}
		return nil
	})
	if err != nil {
		r.Fatal(err)
	}
	return strings.Join(types, " ")
}

// fixture is a state of the given version, edited by old and new texts.
func fixture(t testing.TB, version string, edits ...string) *runstate.State {
	t.Helper()
	b, err := os.ReadFile("../runstate/testdata/run-state-" + version + ".json")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(edits); i += 2 {
		if !strings.Contains(string(b), edits[i]) {
			t.Fatalf("the fixture %s has no %q", version, edits[i])
		}
	}
	return state(t, strings.NewReplacer(edits...).Replace(string(b)))
}

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

// counter is a tool that counts its calls.
type counter struct {
	name string
	mu   sync.Mutex // guards n
	n    int
}

func (c *counter) Spec() tool.Spec {
	return tool.Spec{Name: c.name, Description: "test", SideEffect: tool.SideEffecting}
}

func (c *counter) Execute(context.Context, tool.Call) (tool.Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return tool.JSON("did " + c.name)
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// tools makes counters, each in the list and by its name.
func tools(names ...string) (list []tool.Tool, byName map[string]*counter) {
	byName = map[string]*counter{}
	for _, n := range names {
		byName[n] = &counter{name: n}
		list = append(list, byName[n])
	}
	return list, byName
}

// llm is an agent with a scripted model; a person must allow the gated tools.
func llm(t testing.TB, turns string, gated []string, list ...tool.Tool) *agent.LLM {
	t.Helper()
	p, err := provider.NewScripted("script", []byte(`{"turns":[`+turns+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	set, err := tool.NewSet(list...)
	if err != nil {
		t.Fatal(err)
	}
	l := &agent.LLM{Models: []agent.Model{{Provider: p, Model: "m"}}, Tools: set, HistoryTokens: 1000}
	l.Policy.Tools = map[string]agent.Gate{}
	for _, name := range gated {
		l.Policy.Tools[name] = agent.Gate{Always: true}
	}
	return l
}

// program is an agent that no model drives.
type program struct{}

func (program) ID() string { return "program" }

func (program) Run(context.Context, agent.Input) (agent.Result, error) { return agent.Result{}, nil }

// strangers are the agents of the fixtures, with tools that count their calls.
func strangers(t testing.TB) ([]agent.Registration, map[string]*counter) {
	list, byName := tools("find_bag", "fetch_forecast", "send_mail", "publish", "transfer", "close_gate")
	with := func(more ...tool.Tool) *agent.LLM {
		return llm(t, `{"when":{"lastTool":"."},"text":"I was told: {{lastTool}}"},{"text":"hello"}`, []string{"send_mail", "publish", "transfer"},
			slices.Concat(list, more)...)
	}
	return []agent.Registration{
		{ID: "luggage-desk", LLM: with()},
		{ID: "orchard", LLM: with(agent.SubAgentTool("mailer", ""))}, {ID: "mailer", LLM: with()},
		{ID: "stage-manager", LLM: with(agent.HandoffTool("scout", ""), agent.SubAgentTool("treasurer", ""))},
		{ID: "scout", LLM: with()}, {ID: "treasurer", LLM: with()},
		{ID: "harbour", LLM: with(agent.SubAgentTool("pilot", ""))}, {ID: "pilot", LLM: with()},
		{ID: "program", Agent: program{}},
	}, byName
}

// gatedAgent is an agent that makes the given calls at once; a person must allow a, and c with 3 for n.
func gatedAgent(t testing.TB, calls string) ([]agent.Registration, map[string]*counter) {
	list, byName := tools("a", "b", "c")
	l := llm(t, `{"when":{"step":0},"toolCalls":[`+calls+`]},{"when":{"step":1},"text":"end: {{lastTool}}"}`, []string{"a"}, list...)
	l.Policy.Tools["c"] = agent.Gate{When: json.RawMessage(`{"n":3}`)}
	return []agent.Registration{{ID: "a", LLM: l}}, byName
}

// chain is a desk that hands a conversation to a clerk who calls a payer, whose call a person must allow.
func chain(t testing.TB) ([]agent.Registration, *counter) {
	list, byName := tools("pay")
	turns := func(name, text, call, args string, used int) string {
		usage := fmt.Sprintf(`"usage":{"promptTokens":%d,"completionTokens":1,"totalTokens":%d}`, used, used+1)
		return `{"when":{"lastTool":"."},"text":"` + name + `: {{lastTool}}",` + usage + `},
			{"text":"` + text + `","toolCalls":[{"name":"` + call + `","args":` + args + `}],` + usage + `}`
	}
	desk := llm(t, turns("desk", "", "transfer_to_clerk", `{}`, 100), nil, agent.HandoffTool("clerk", "does the books"))
	clerk := llm(t, turns("clerk", "let me see", "subagent_payer", `{"input":"pay 12"}`, 10), nil, agent.SubAgentTool("payer", ""))
	payer := llm(t, turns("payer", "", "pay", `{"n":12}`, 1), []string{"pay"}, list...)
	desk.Instructions, clerk.Instructions = "You are the desk.", "You are the clerk."
	return []agent.Registration{{ID: "desk", LLM: desk}, {ID: "clerk", LLM: clerk}, {ID: "payer", LLM: payer}}, byName["pay"]
}

// marked is the state after its import: its approvals say where they come from.
func marked(st *runstate.State) *runstate.State {
	if st.Status == string(store.Completed) {
		return st // nothing of it waits
	}
	for i := range st.PendingApprovals {
		p, of := &st.PendingApprovals[i], st
		for head, rest, _ := strings.Cut(p.SubRunToolCallID, "/"); head != ""; head, rest, _ = strings.Cut(rest, "/") {
			at := slices.IndexFunc(of.PendingSubRuns, func(s runstate.SubRun) bool { return s.ToolCallID == head })
			of = &of.PendingSubRuns[at].State
		}
		p.Imported, p.RequestedBy, p.RequestedByAgent = true, "anonymous", of.AgentID
	}
	for i := range st.PendingSubRuns {
		marked(&st.PendingSubRuns[i].State)
	}
	return st
}

// canonicalApprovals puts the arguments of approvals into the form in which the calls are made.
func canonicalApprovals(t *testing.T, st *runstate.State) {
	t.Helper()
	for i := range st.PendingApprovals {
		var err error
		p := &st.PendingApprovals[i]
		if p.Args, err = message.Arguments(p.Args); err != nil {
			t.Fatal(err)
		}
		p.ArgsDigest = journal.ArgsDigest(p.Args)
	}
	for i := range st.PendingSubRuns {
		canonicalApprovals(t, &st.PendingSubRuns[i].State)
	}
}
