// Package takeover imports a run from the state that another server exported.
package takeover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/store"
)

// Taking over a run of another server. Its state becomes the rows that the run would have had here, so that from then
// on nothing tells it apart:
//
//	messages        the run's own, all of them, the history of its session included; an outcome lies where it is told
//	                or, while its call waits, in the place that the engine would have reserved for it
//	tool calls      done when a tool message answers them, awaiting when an approval or a child run does; others have
//	                no row: nobody knows what became of them, and no model is shown them
//	steps           as they are; what calls they had is kept where the rows would tell it otherwise
//	child runs      rows of their own, below their calls
//	what is left    a slot of the run (see imported)
//	events          agent.end alone, with the number 1: what happened elsewhere was never told here
//
// That the run then shows the state that was given is checked before anything is written.

// Options say how a state is taken over.
type Options struct {
	SessionID string // of the session that the run is to belong to; empty: the one in the state
	By        string // the principal that imports; anonymous when empty
	Lineage   string // whom the principal counts as; By when empty
	MayJoin   bool   // it may join a session that another has made
	// May refuses an agent that the principal may not run: the state's, those of its child runs, also ended ones, and those
	// that waiting calls would call. Its error is the import's. Nil: every agent may be run.
	May func(agentID string) error
	// Also is written in the transaction that makes the run; its error keeps the run from being made.
	Also func(*store.Tx, Imported) error
}

// Imported tells what an import made.
type Imported struct {
	RunID     string
	Status    store.Status
	SessionID string // empty: none
	Children  int    // child runs, at all depths
	Warnings  []string
}

// Import makes a run of a state that [runstate.Read] has read, whose run has ended, waits for approvals, or was aborted
// while they were held. It takes st over and changes it to what the run then shows:
//
//   - Times have milliseconds and are UTC. A run that waits has no time at which it finished.
//   - Who granted an approval elsewhere is nobody here, so grants begin anew. Whoever imports the run counts as the one
//     that started it. What an approval takes is the stricter of what the state and the agent here ask for; a term that
//     the agent sets begins with the import.
//   - Approvals show the arguments that their calls would be made with, and those of a child run are shown alike above.
//   - Child runs belong to the session of the run.
//   - Where the first message is a system message that was withheld and the run goes on, it has the instructions of the agent
//     here. No model is sent another one that was withheld.
//
// Messages have the time of the import, since states tell none. Before the run goes on, an agent here must be able to
// make each call that waits: with its tool, its arguments and its permissions. The whole state is checked before
// anything is written, and all of it is written in one transaction.
//
// Errors: run-state-unfit with every problem, up to 100, and its place; run-exists; session-exists, when something was
// said in the session before; session-busy and config-invalid as with [Engine.Start]; server-draining, overloaded,
// storage-failed.
func Import(ctx context.Context, e *agent.Engine, st *runstate.State, o Options) (Imported, error) {
	if o.SessionID != "" {
		if !event.ValidID(o.SessionID) {
			return Imported{}, fault.Invalid("The session id is not valid.", fault.At("has 1 to 128 characters of A-Z a-z 0-9 _ -", "sessionId"))
		}
		st.SessionID = o.SessionID
	}
	t := &takeover{e: e, by: cmp.Or(o.By, run.Anonymous), at: time.Now().UnixMilli(), ids: map[string]bool{}}
	if err := t.mayRun(st, o.May, 0); err != nil {
		return Imported{}, err
	}
	root, err := t.prepare(st)
	if err != nil {
		return Imported{}, err
	}
	made := Imported{RunID: st.ID, Status: root.Move.Run.Status, SessionID: st.SessionID, Children: len(t.ids) - 1, Warnings: t.warnings()}
	err = e.Adopt(ctx, root.Adoption, func(tx *store.Tx) error { return t.room(tx, st, o) }, func(tx *store.Tx) error {
		if o.Also == nil {
			return nil
		}
		return o.Also(tx, made)
	})
	if err != nil {
		return Imported{}, err
	}
	return made, nil
}

// mayRun asks whether each agent of a state may be run.
func (t *takeover) mayRun(st *runstate.State, may func(agentID string) error, depth int) error {
	if may == nil || depth > run.MaxDepth { // deeper ones are refused anyway
		return nil
	}
	if err := may(st.AgentID); err != nil {
		return err
	}
	if reg := t.e.Agents().Agent(st.AgentID); reg != nil && reg.LLM != nil {
		for _, p := range st.PendingApprovals {
			if callee := reg.LLM.Callee(p.ToolName); callee != "" {
				if err := may(callee); err != nil {
					return err
				}
			}
		}
	}
	for i := range st.PendingSubRuns {
		if err := t.mayRun(&st.PendingSubRuns[i].State, may, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// room makes or finds the session.
func (t *takeover) room(tx *store.Tx, st *runstate.State, o Options) error {
	if st.SessionID == "" {
		return nil
	}
	_, err := t.e.JoinSession(tx, run.StartRequest{Owner: st.AgentID, SessionID: st.SessionID, UserID: st.UserID, By: o.By, Lineage: o.Lineage, MayJoin: o.MayJoin})
	if busy, ok := errors.AsType[*fault.Error](err); ok && busy.Kind == fault.SessionBusy {
		return busy.Advise("Wait for that run, or choose another `sessionId` for this one.")
	}
	if err != nil {
		return err
	}
	_, latest, err := t.e.Runs().Window(tx, st.SessionID, 0)
	if err == nil && latest > 0 {
		err = fault.New(fault.SessionExists, "The session %q is not empty, and the run brings its own history.", st.SessionID).
			Advise("Choose a new `sessionId` for the run.")
	}
	return err
}

// A newcomer is a run that is imported.
type newcomer struct {
	*run.Adoption
	st   *runstate.State
	reg  *agent.Registration // nil where none is registered
	live bool                // a decision lets it continue
}

// A takeover prepares an import. It collects what is wrong with the state.
type takeover struct {
	e      *agent.Engine
	by     string
	at     int64
	ids    map[string]bool // of the run and its children
	issues []fault.Issue
	more   int // problems that are not listed
	grants int // given elsewhere
	spills int // results that stay elsewhere

	withheld int // system messages that stay elsewhere
}

const maxImportIssues = 100

func (t *takeover) bad(problem string, path ...any) {
	if len(t.issues) == maxImportIssues {
		t.more++
		return
	}
	t.issues = append(t.issues, fault.At(problem, path...))
}

func (t *takeover) err() error {
	if len(t.issues) == 0 {
		return nil
	}
	if t.more > 0 {
		t.issues = append(t.issues, fault.At(fmt.Sprintf("has %d more problems, which are not listed", t.more)))
	}
	e := fault.New(fault.RunStateUnfit, "The run state cannot be taken over.")
	e.Issues = t.issues
	return e
}

// warnings tell what of the state is not in the run.
func (t *takeover) warnings() []string {
	list := []string{}
	if t.grants > 0 {
		list = append(list, fmt.Sprintf("Grants given elsewhere, which do not count here: %d.", t.grants))
	}
	if t.spills > 0 {
		list = append(list, fmt.Sprintf("Results of which the state holds only the beginning, so that nobody can read on: %d.", t.spills))
	}
	if t.withheld > 0 {
		list = append(list, fmt.Sprintf("System messages that were withheld where the state comes from; the instructions of the agents here take their place: %d.", t.withheld))
	}
	return list
}

// prepare checks a state and makes the moves that write it.
func (t *takeover) prepare(st *runstate.State) (*newcomer, error) {
	if st.Status != string(store.Awaiting) && !store.Status(st.Status).Terminal() {
		t.bad(fmt.Sprintf("is %.40q; a run can be taken over once it is completed, failed, aborted or awaiting_approval", st.Status), "status")
	}
	if st.SessionID != "" && !event.ValidID(st.SessionID) {
		t.bad("is no id of a session here: choose another with the parameter sessionId", "sessionId")
	}
	t.check(st, family{live: suspended(st)}, nil)
	if err := t.err(); err != nil {
		return nil, err
	}
	root, err := t.build(st, nil)
	if err != nil {
		return nil, err
	}
	if shown, err := agent.ResultAt(&root.Move.Run, root.Record, journal.EndOf(&root.Move.Run, root.Record, t.at)); err != nil {
		return nil, err
	} else if !sameJSON(shown.State, *st) {
		return nil, fmt.Errorf("the run %s would show another state than the imported one", st.ID)
	}
	return root, nil
}

// suspended reports whether a decision lets the run of a state go on.
func suspended(st *runstate.State) bool {
	return st.Status == string(store.Awaiting) || st.Status == string(store.Aborted) && len(st.PendingApprovals) > 0
}

// moment brings a time of a state to the form that it has here, and returns it in milliseconds since 1970; 0 for none.
func (t *takeover) moment(text *string, path []any, name ...any) int64 {
	if *text == "" {
		return 0
	}
	at, err := time.Parse(time.RFC3339, *text)
	if err != nil || at.UnixMilli() <= 0 || at.UTC().Year() > 9999 {
		t.bad(fmt.Sprintf("is no time: %.40q", *text), join(path, name...)...)
		return 0
	}
	*text = message.Millis(at.UnixMilli())
	return at.UnixMilli()
}

// join is a path with more at its end.
func join(path []any, more ...any) []any { return append(path[:len(path):len(path)], more...) }
