// Package recording records runs in files, runs a recorded run again offline with the present form of its agent, and
// reports the first difference.
//
// The real engine makes the run, on a database in a temporary folder. The replay removes that folder; a later replay
// removes the folder of one that was killed. Models give the recorded answers, tools have the recorded outcomes, and
// approvals are decided as before: the replay contacts nobody and starts no program. It compares the request of each
// model call, each tool call and its need for approval, and the end of the run.
package recording

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/id"
	"agentd/server/run"
	"agentd/server/transcript"
	"agentd/store"
)

// Report is what came of a replay.
type Report struct {
	ModelCalls int         `json:"modelCalls"` // that were answered
	ToolCalls  int         `json:"toolCalls"`  // that have an outcome
	Divergence *Divergence `json:"divergence"` // nil: there is none
	Notes      []string    `json:"notes,omitempty"`
}

// Divergence is the first difference between a recorded run and its replay. Recorded and Now are excerpts, in which
// {run} stands for the id of either run.
type Divergence struct {
	Kind     string `json:"kind"` // message, tool, setting, request, fallback, model-call, tool-call, approval or end
	Step     int    `json:"stepNumber"`
	Where    string `json:"where"`
	Recorded string `json:"recorded"`
	Now      string `json:"now"`
}

// Replay replays a recording with an agent, which is not changed. Errors: config-invalid for an agent that no model drives,
// cassette-invalid for a recording that has not all that a replay needs, and those of the file system.
func Replay(ctx context.Context, reg agent.Registration, rec *Recording) (Report, error) {
	switch {
	case reg.LLM == nil:
		return Report{}, fault.Invalid(fmt.Sprintf("The agent %q has no model. Only agents of kind llm are recorded.", reg.ID))
	case rec.Input == nil || rec.Result == nil || len(rec.ModelCalls) == 0:
		return Report{}, fault.New(fault.CassetteInvalid, "The recording holds only tool calls. A replay also needs the input, the model calls and the result.")
	}
	p := newPlayer(rec)
	cast := p.cast(reg)
	dir, err := folder()
	if err != nil {
		return Report{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it is a temporary folder
	s, err := open(ctx, filepath.Join(dir, database), cast)
	if err != nil {
		return Report{}, err
	}
	defer s.close()
	runID, err := s.drive(ctx, p)
	if err != nil {
		return Report{}, err
	}
	return s.report(ctx, p, runID)
}

// A stage is the engine on its temporary database.
type stage struct {
	db     *store.DB
	engine *agent.Engine
	agent  string
}

func open(ctx context.Context, path string, reg agent.Registration) (*stage, error) {
	agents := &agent.Registry{}
	if err := agents.Register(reg); err != nil {
		return nil, err
	}
	db, err := store.Open(ctx, store.Options{Path: path, Durability: "normal"})
	if err != nil {
		return nil, err
	}
	return &stage{db, agent.New(agents, run.Options{Runs: db.Runs(), Sessions: db.Sessions(), Hub: hub.New(hub.Options{}),
		Logger: slog.New(slog.DiscardHandler)}), reg.ID}, nil
}

// close cancels what still moves, which is nothing unless the replay was interrupted.
func (s *stage) close() {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	s.engine.Drain(ended) //nolint:errcheck // nothing of it is kept
	s.db.Close()          //nolint:errcheck
}

// drive runs the replay until it ends or differs.
func (s *stage) drive(ctx context.Context, p *player) (runID string, err error) {
	in, meta := p.rec.Input, p.rec.Meta
	req := run.StartRequest{Owner: s.agent, Input: in.Input, UserID: in.UserID, SessionID: meta.SessionID, MayJoin: true}
	if len(in.History) > 0 {
		req.SessionID = cmp.Or(req.SessionID, "replay")
		if err := s.seed(ctx, req, in.History); err != nil {
			return "", err
		}
	}
	h, err := s.engine.Start(ctx, req)
	if err != nil {
		return "", err
	}
	runID = h.ID
	for {
		res, err := h.Wait(ctx)
		if err != nil {
			return runID, err
		}
		if res.Status != store.Awaiting {
			p.end(res)
			return runID, nil
		}
		for h = nil; h == nil; { // a decision may need a second one before the run continues
			decisions, by := p.decide(res.State.PendingApprovals)
			if p.stopped() {
				return runID, nil
			}
			var unmatched []run.Decision
			if h, unmatched, err = s.engine.Resume(ctx, runID, decisions, by, nil); fault.Is(err, fault.ApprovalNotWaiting) {
				unmatched, err = decisions, nil
			}
			if err != nil {
				return runID, err
			}
			if len(unmatched) > 0 {
				p.unasked(unmatched[0].ToolCallID)
				return runID, nil
			}
		}
	}
}

// seed puts what came before the run into its session.
func (s *stage) seed(ctx context.Context, req run.StartRequest, history []Past) error {
	now := time.Now().UnixMilli()
	before := store.Change{Run: store.Run{ID: id.New(), Kind: "agent", Owner: s.agent, Current: s.agent, Session: req.SessionID, User: req.UserID,
		Status: store.Completed, InputForm: "text", Messages: len(history), Usage: []byte("{}"), Models: []byte("{}"), Created: now, Started: now, Finished: now}}
	for i, h := range history {
		b, err := transcript.Body(h.Message, transcript.Outcome(h.Message, ""))
		if err != nil {
			return err
		}
		before.Messages = append(before.Messages, store.Message{Index: i, Role: string(h.Message.Role), Tokens: h.Tokens, At: now, Body: b})
	}
	return s.db.Runs().Update(ctx, func(tx *store.Tx) error {
		if err := s.db.Sessions().Insert(tx, store.Session{ID: req.SessionID, User: cmp.Or(req.UserID, "anonymous"), Agent: s.agent, Created: now}); err != nil {
			return err
		}
		_, err := s.db.Runs().Apply(tx, &before)
		return err
	})
}

func (s *stage) report(ctx context.Context, p *player, runID string) (Report, error) {
	res, err := s.engine.Result(ctx, runID)
	if err != nil {
		return Report{}, err
	}
	rep := Report{ModelCalls: p.next, Divergence: p.first, Notes: slices.Concat(p.rec.Warnings, p.notes)}
	for _, step := range res.State.Steps {
		rep.ToolCalls += len(step.ToolCalls)
	}
	return rep, nil
}
