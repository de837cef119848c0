package agent

import (
	"cmp"
	"context"
	"log/slog"
	"maps"

	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

// Engine runs agents: the kernel with the agents of a registry, and what shows their runs. It is safe for concurrent use.
type Engine struct {
	*run.Engine
	agents *Registry
	log    *slog.Logger
}

// New makes an engine for the agents of a registry. Of the options' Owner, Forms and Wait it sets what is of agents; those that
// are given are of other kinds.
func New(agents *Registry, o run.Options) *Engine {
	e := &Engine{agents: agents, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	others := o.Owner
	o.Owner = func(kind, id string) *run.Owner {
		if kind == "agent" || others == nil {
			return agents.owner(id)
		}
		return others(kind, id)
	}
	if o.Forms = maps.Clone(o.Forms); o.Forms == nil {
		o.Forms = map[string]journal.Form{}
	}
	o.Forms["agent"] = form{}
	wait := o.Wait
	o.Wait = func(ctx context.Context) {
		e.waitTools(ctx)
		if wait != nil {
			wait(ctx)
		}
	}
	e.Engine = run.New(o)
	return e
}

// Agents returns the registry.
func (e *Engine) Agents() *Registry { return e.agents }

// waitTools waits for tool calls that were given up and have not returned.
func (e *Engine) waitTools(ctx context.Context) {
	for _, reg := range e.agents.Agents() {
		if reg.LLM != nil {
			if err := reg.LLM.Tools.Wait(ctx); err != nil {
				e.log.Warn("a tool has not returned", "agent", reg.ID)
			}
		}
	}
}

// Handle follows a run that was started; see [run.Handle].
type Handle struct{ *run.Handle }

// Start is [run.Engine.Start].
func (e *Engine) Start(ctx context.Context, req run.StartRequest) (*Handle, error) {
	h, err := e.Engine.Start(ctx, req)
	if err != nil {
		return nil, err
	}
	return &Handle{h}, nil
}

// Resume is [run.Engine.Resume].
func (e *Engine) Resume(ctx context.Context, runID string, decisions []run.Decision, by string,
	also func(tx *store.Tx, decided []run.Verdict, unmatched []run.Decision) error) (*Handle, []run.Decision, error) {
	h, unmatched, err := e.Engine.Resume(ctx, runID, decisions, by, also)
	if h == nil {
		return nil, unmatched, err
	}
	return &Handle{h}, unmatched, nil
}

// Wait is [run.Handle.Wait] with the result that the run's end event shows.
func (h *Handle) Wait(ctx context.Context) (RunResult, error) { return resultOf(h.Handle.Wait(ctx)) }

// Brief is Wait for one who is not shown the state: that lacks what precedes the run in its session, which is not read.
func (h *Handle) Brief(ctx context.Context) (RunResult, error) {
	row, rec, at, err := h.Handle.Wait(ctx)
	if err != nil {
		return RunResult{}, err
	}
	brief := *rec
	brief.Past = nil
	return ResultAt(row, &brief, at)
}

// Wait is [run.Engine.Wait] with the result that the run's end event shows.
func (e *Engine) Wait(ctx context.Context, runID string) (RunResult, error) {
	return resultOf(e.Engine.Wait(ctx, runID))
}

func resultOf(row *store.Run, rec *journal.Record, at journal.End, err error) (RunResult, error) {
	if err != nil {
		return RunResult{}, err
	}
	return ResultAt(row, rec, at)
}
