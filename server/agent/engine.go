package agent

import (
	"context"
	"log/slog"

	"agentd/metrics"
	"agentd/server/hub"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

// Options are what an engine works with; see [run.Options].
type Options struct {
	Agents   *Registry
	Runs     *store.Runs
	Sessions *store.Sessions
	Hub      *hub.Hub
	Metrics  *metrics.Inventory
	Logger   *slog.Logger
	MaxRuns  int
	Redact   func(string) string
	Audit    func(context.Context, []run.Happening) error
	Lineages func(ctx context.Context, principals []string) ([]string, error)
}

// Engine runs agents: the kernel with the agents of a registry, and what shows their runs. It is safe for concurrent use.
type Engine struct {
	*run.Engine
	opts Options
}

// New makes an engine.
func New(o Options) *Engine {
	e := &Engine{opts: o}
	e.Engine = run.New(run.Options{Owner: o.Agents.owner, Forms: map[string]journal.Form{"agent": form{}}, Runs: o.Runs, Sessions: o.Sessions, Hub: o.Hub,
		Metrics: o.Metrics, Logger: o.Logger, MaxRuns: o.MaxRuns, Redact: o.Redact, Audit: o.Audit, Lineages: o.Lineages, Wait: e.waitTools})
	return e
}

// Agents returns the registry.
func (e *Engine) Agents() *Registry { return e.opts.Agents }

// waitTools waits for tool calls that were given up and have not returned.
func (e *Engine) waitTools(ctx context.Context) {
	for _, reg := range e.opts.Agents.Agents() {
		if reg.LLM != nil {
			if err := reg.LLM.Tools.Wait(ctx); err != nil && e.opts.Logger != nil {
				e.opts.Logger.Warn("a tool has not returned", "agent", reg.ID)
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
