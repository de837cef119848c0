package storetest

import (
	"encoding/json"
	"fmt"
	"testing"

	"agentd/store"
)

// What Grow makes in every database, however many runs there are beside.
const (
	LongSession = "long"      // a session of LongRuns runs
	LongRuns    = 10_000      // of a question and an answer each
	LongRun     = "run-steps" // a run of LongSteps steps with a tool call each
	LongSteps   = 10_000
)

const (
	perSession = 10   // runs of each other session
	perUpdate  = 1000 // runs in one transaction
	grownAt    = 1_700_000_000_000
)

// Session is the id of the nth of the sessions that Grow makes beside LongSession.
func Session(n int) string { return fmt.Sprintf("s%010d", n) }

// Workflow is that of the threads that Grow makes.
const Workflow = "sleeper"

// Thread is the id of the nth thread that Grow makes.
func Thread(n int) string { return fmt.Sprintf("t%010d", n) }

// Grow fills a database with so many ended runs of a question and an answer in sessions of ten, of ten agents in turn, with a
// thread that sleeps for each session, and with a long session and a long run, both of the agent noop. Of a hundred runs, one
// failed. It writes through the store.
func Grow(tb testing.TB, path string, runs int) {
	tb.Helper()
	db, err := store.Open(tb.Context(), store.Options{Path: path, Durability: "normal"})
	if err != nil {
		tb.Fatal(err)
	}
	said := []store.Message{{Index: 0, Role: "user", Tokens: 6, At: 1, Body: []byte(`{"role":"user","content":"a question"}`)},
		{Index: 1, Role: "assistant", Tokens: 6, At: 1, Body: []byte(`{"role":"assistant","content":"an answer"}`)}}
	add := func(tx *store.Tx, id, owner, session string, status store.Status) error {
		_, err := db.Runs().Apply(tx, &store.Change{Run: grownRun(id, owner, session, status), Messages: said})
		return err
	}
	insert := func(tx *store.Tx, session, agent string) error {
		return db.Sessions().Insert(tx, store.Session{ID: session, User: "anonymous", Agent: agent, Maker: "anonymous", Created: grownAt})
	}
	for done := 0; done < runs+LongRuns; done += perUpdate {
		err := db.Update(tb.Context(), func(tx *store.Tx) error {
			for n := done; n < done+perUpdate; n++ {
				if n >= runs { // the newest, so that they are the last to be found by whoever begins at the other end
					if n == runs {
						if err := insert(tx, LongSession, "noop"); err != nil {
							return err
						}
					}
					if err := add(tx, fmt.Sprintf("long-%d", n-runs), "noop", LongSession, store.Completed); err != nil {
						return err
					}
					continue
				}
				owner, status := fmt.Sprintf("agent%d", n%10), store.Completed
				if n%perSession == 0 {
					if err := insert(tx, Session(n/perSession), owner); err != nil {
						return err
					}
					if err := AddThread(db, tx, Thread(n/perSession)); err != nil {
						return err
					}
				}
				if n%100 == 7 {
					status = store.Failed
				}
				if err := add(tx, fmt.Sprintf("run-%d", n), owner, Session(n/perSession), status); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	err = db.Update(tb.Context(), func(tx *store.Tx) error {
		c := store.Change{Run: grownRun(LongRun, "noop", "", store.Completed)}
		AddSteps(&c, "noop", LongSteps)
		_, err := db.Runs().Apply(tx, &c)
		return err
	})
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// AddThread adds a thread of [Workflow] that sleeps, with a value, a step and a task.
func AddThread(db *store.DB, tx *store.Tx, id string) error {
	row, due := grownRun("run-of-"+id, Workflow, "", store.Suspended), int64(1)<<45
	row.Kind = store.Workflow
	n, err := db.Runs().Apply(tx, &store.Change{Run: row, Due: &due})
	if err != nil {
		return err
	}
	return db.Threads().Apply(tx, &store.ThreadChange{
		Thread: store.Thread{N: n, Run: n, Workflow: Workflow, ID: id, Step: 1, Tasks: 2, Digest: []byte{1}, Input: json.RawMessage(`{}`)}, Status: store.Suspended,
		Values: []store.ThreadValue{{Key: "k", Value: json.RawMessage(`1`)}},
		Steps:  []store.ThreadStep{{Step: 1, Run: n, Node: "a", Status: "completed", Body: json.RawMessage(`{}`)}},
		Tasks:  []store.ThreadTask{{ID: 1, Body: json.RawMessage(`{}`)}},
	})
}

// AddSteps gives a run without any so many steps, each of which called the tool nop.
func AddSteps(c *store.Change, agent string, steps int) {
	c.Messages = append(c.Messages, store.Message{Role: "user", Tokens: 6, At: 1, Body: []byte(`{"role":"user","content":"go"}`)})
	for n := range steps {
		call, asked := fmt.Sprintf("call-%d", n), 1+2*n
		c.Messages = append(c.Messages,
			store.Message{Index: asked, Role: "assistant", Tokens: 6, At: 1, Body: fmt.Appendf(nil,
				`{"role":"assistant","content":"","agentId":%q,"toolCalls":[{"toolCallId":%q,"toolName":"nop","args":{}}]}`, agent, call)},
			store.Message{Index: asked + 1, Role: "tool", Tokens: 6, At: 1, Body: fmt.Appendf(nil, `{"toolCallId":%q,"toolName":"nop","output":"x","durationMs":0}`, call)})
		c.Steps = append(c.Steps, store.Step{Number: n + 1, Agent: agent, Usage: json.RawMessage(`{}`), Started: 1, Ended: 1})
		c.Calls = append(c.Calls, store.Call{Index: n, Step: n + 1, Origin: n + 1, ID: call, Name: "nop", Phase: store.CallDone, ArgsHash: []byte{1},
			Asked: asked, Answered: asked + 1, Attempts: 1, Claimed: 1, Settled: 1, Reported: true})
	}
	c.Run.Step, c.Run.Calls, c.Run.Messages = steps, steps, len(c.Messages)
}

func grownRun(id, owner, session string, status store.Status) store.Run {
	r := store.Run{ID: id, Kind: "agent", Owner: owner, Current: owner, Session: session, Status: status, Messages: 2, InputForm: "text",
		Usage: json.RawMessage(`{}`), Models: json.RawMessage(`{}`), Created: grownAt, Started: grownAt, Finished: grownAt}
	if status == store.Failed {
		r.Error = json.RawMessage(`{"message":"It failed.","code":"unknown"}`)
	}
	return r
}
