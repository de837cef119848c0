// Package takeover imports a run from the state that another server exported: the state becomes the rows that the run would
// have had here, so that it is a run like any other.
//
//	messages        the run's own, all of them, the history of its session included; an outcome lies where the state has
//	                it or, while its call waits, in the place that the engine would have reserved for it
//	tool calls      done when a tool message answers them, awaiting when an approval or a child run does; others have
//	                no row: nobody knows what became of them, and no model sees them
//	steps           as they are; what calls they had is kept where the rows differ from it
//	child runs      rows of their own, below their calls
//	what is left    a slot of the run (see [agent.Imported])
//	events          agent.end alone, with the number 1: what happened elsewhere was never published here
//
// Before anything is written, the import checks that the run then shows the state that was given.
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
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/store"
)

// Options say how a state is taken over.
type Options struct {
	SessionID string // of the session for the run; empty: the one in the state
	By        string // the principal that imports; anonymous when empty
	Lineage   string // whom the principal counts as; By when empty
	MayJoin   bool   // it may join a session that another has made
	// May refuses an agent that the principal may not run: the state's, those of its child runs, also ended ones, and those
	// that waiting calls would call. Its error is the import's. Nil: every agent may be run.
	May func(agentID string) error
	// Also is written in the transaction that makes the run; its error keeps the run from being made.
	Also func(*store.Tx, Imported) error
}

// Imported is what an import made.
type Imported struct {
	RunID     string       `json:"runId"`
	Status    store.Status `json:"status" enum:"awaiting_approval|completed|failed|aborted"`
	SessionID string       `json:"sessionId,omitempty"`
	Children  int          `json:"children" doc:"Imported child runs, at all depths."`
	Warnings  []string     `json:"warnings" doc:"What the import omits from the state, and why."`
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
//   - If the run waits and its first message is a system message that was withheld, the message gets the instructions of the
//     agent here. Models see no other message that was withheld.
//
// Messages have the time of the import, since states contain none. An agent here must be able to make each call that
// waits: with its tool, its arguments and its permissions. Import checks the whole state before it writes anything, and
// writes all of it in one transaction.
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
	t := &takeover{e: e, by: cmp.Or(o.By, run.Anonymous), now: time.Now().UnixMilli(), ids: map[string]bool{}}
	if o.May != nil {
		if err := t.mayRun(st, o.May, 0); err != nil {
			return Imported{}, err
		}
	}
	root, err := t.prepare(st)
	if err != nil {
		return Imported{}, err
	}
	made := Imported{RunID: st.ID, Status: root.Move.Run.Status, SessionID: st.SessionID, Children: len(t.ids) - 1, Warnings: t.warnings()}
	var also func(*store.Tx) error
	if o.Also != nil {
		also = func(tx *store.Tx) error { return o.Also(tx, made) }
	}
	return made, e.Adopt(ctx, root, func(tx *store.Tx) error { return t.room(tx, st, o) }, also)
}

// mayRun asks whether each agent of a state may be run.
func (t *takeover) mayRun(st *runstate.State, may func(agentID string) error, depth int) error {
	if depth > run.MaxDepth { // the check refuses deeper ones
		return nil
	}
	agents := []string{st.AgentID}
	if reg := t.e.Agents().Agent(st.AgentID); reg != nil && reg.LLM != nil {
		for _, p := range st.PendingApprovals {
			if callee := reg.LLM.Callee(p.ToolName); callee != "" {
				agents = append(agents, callee)
			}
		}
	}
	for _, id := range agents {
		if err := may(id); err != nil {
			return err
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
	sess, _, err := t.e.JoinSession(tx, run.StartRequest{Owner: st.AgentID, SessionID: st.SessionID, UserID: st.UserID, By: o.By, Lineage: o.Lineage, MayJoin: o.MayJoin})
	if busy, ok := errors.AsType[*fault.Error](err); ok && busy.Kind == fault.SessionBusy {
		return busy.Advise("Wait for that run, or choose another `sessionId` for this one.")
	}
	if err != nil {
		return err
	}
	if sess.Sequence > 0 {
		err = fault.New(fault.SessionExists, "The session %q is not empty, and the run brings its own history.", st.SessionID).
			Advise("Choose a new `sessionId` for the run.")
	}
	return err
}

// A takeover prepares an import. It collects what is wrong with the state.
type takeover struct {
	e      *agent.Engine
	by     string
	now    int64           // milliseconds since 1970
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

// warnings list what of the state is not in the run.
func (t *takeover) warnings() []string {
	list := []string{}
	for _, w := range []struct {
		n    int
		what string
	}{
		{t.grants, "Grants given elsewhere, which do not count here"},
		{t.spills, "Results of which the state holds only the beginning, so that nobody can read on"},
		{t.withheld, "System messages that were withheld where the state comes from; the instructions of the agents here take their place"},
	} {
		if w.n > 0 {
			list = append(list, fmt.Sprintf("%s: %d.", w.what, w.n))
		}
	}
	return list
}

// prepare checks a state and makes the moves that write it.
func (t *takeover) prepare(st *runstate.State) (*run.Adoption, error) {
	if st.Status != string(store.Awaiting) && !store.Status(st.Status).Terminal() {
		t.bad(fmt.Sprintf("is %.40q; a run can be taken over once it is completed, failed, aborted or awaiting_approval", st.Status), "status")
	}
	if st.SessionID != "" && !event.ValidID(st.SessionID) {
		t.bad("is no id of a session here: choose another with the parameter sessionId", "sessionId")
	}
	live := suspended(st)
	place{takeover: t}.check(st, live, 0)
	if err := t.err(); err != nil {
		return nil, err
	}
	root, err := t.build(st, live)
	if err != nil {
		return nil, err
	}
	if shown, err := t.shown(root, t.now); err != nil {
		return nil, err
	} else if !sameJSON(shown, st) {
		return nil, fmt.Errorf("the run %s would show another state than the imported one", st.ID)
	}
	return root, nil
}

// suspended reports whether a decision lets the run of a state continue.
func suspended(st *runstate.State) bool {
	return st.Status == string(store.Awaiting) || st.Status == string(store.Aborted) && len(st.PendingApprovals) > 0
}
