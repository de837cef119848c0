// Package manifest builds and registers the providers, tools and agents that the configuration declares.
package manifest

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"agentd/server/agent"
	"agentd/server/config"
	"agentd/server/external"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/outbound"
	"agentd/server/proc"
	"agentd/server/provider"
	"agentd/server/recording"
	"agentd/server/schema"
	"agentd/server/secret"
	"agentd/server/shape"
	"agentd/server/tool"
)

// Options are what a manifest is built with.
type Options struct {
	Config   *config.Config
	Secrets  *secret.Resolver
	Spills   tool.SpillReader
	Sessions tool.SessionSearcher
	Logger   *slog.Logger
	Known    *secret.Redactor // the secrets that are taken out of messages, and of what programs write; nil: there are none
	Outbound *outbound.Guard  // makes the connections; nil: one without options
	Programs *proc.Limit      // of programs that run at once; nil: there is none
	// Workflow runs a workflow for a call of a tool; nil: the tools of workflows fail.
	Workflow func(ctx context.Context, id string, c tool.Call) (json.RawMessage, error)
	// Offline leaves secrets unread. The agents can then be examined, and run only with other providers and tools in the place
	// of theirs.
	Offline bool
}

// A Manifest is what the configuration declares.
type Manifest struct {
	Agents    []agent.Registration // in the order of their ids
	Tools     agent.Calls          // all tools, for those that name them without an agent; see [tool.Set.Whole]
	Providers []*provider.Watched  // in the order of their ids
	Close     func()               // releases what the providers hold; called when all runs have stopped
}

// Build makes what the configuration declares. It dials nothing. Errors are config-invalid with every problem, or
// pre-bind-secret-unresolvable.
func Build(o Options) (*Manifest, error) {
	b := &builder{Options: o, refs: map[config.Ref]string{}}
	if err := b.resolve(); err != nil {
		return nil, err
	}
	b.providers()
	b.tools()
	built := &Manifest{Providers: b.watched, Close: b.close}
	for _, id := range slices.Sorted(maps.Keys(o.Config.Agents)) {
		c := o.Config.Agents[id]
		reg := agent.Registration{ID: id, Description: c.Description.Text, FailOnRestart: c.Recovery == "fail"}
		var err error
		switch c.Kind {
		case "llm":
			reg.LLM, err = b.llm(id, c)
		case "exec":
			reg.Agent = external.NewExec(external.ExecOptions{ID: id, Program: b.program(c.Command, c.Cwd, c.Env, c.InheritEnv, c.CleanEnv, c.MaxOutputBytes),
				Protocol: c.Protocol, Timeout: c.Timeout.Duration(), Known: o.Known})
		case "http":
			reg.Agent, err = external.NewHTTP(external.HTTPOptions{ID: id, URL: c.URL, Headers: b.values(c.Headers), Stream: c.Stream,
				HMACKey: []byte(b.refs[c.HMACRef]), Timeout: c.Timeout.Duration(), MaxOutput: int64(c.MaxOutputBytes), Known: o.Known, Outbound: o.Outbound})
		}
		b.note(err, "agents", id)
		built.Agents = append(built.Agents, reg)
	}
	var err error
	built.Tools, err = b.calls()
	b.note(err, "tools")
	if b.issues != nil {
		b.close()
		return nil, fault.Invalid("The configuration declares something that agentd cannot build.", b.issues...)
	}
	return built, nil
}

type builder struct {
	Options
	refs    map[config.Ref]string
	models  map[string]*provider.Watched
	watched []*provider.Watched
	byName  map[string]tool.Tool
	issues  []fault.Issue
}

func (b *builder) close() {
	for _, w := range b.watched {
		if c, ok := w.Provider.(interface{ Close() }); ok {
			c.Close()
		}
	}
}

// note adds the problems of one declared thing, under its path.
func (b *builder) note(err error, path ...any) {
	if err == nil {
		return
	}
	f := fault.Of(err)
	if len(f.Issues) == 0 {
		b.issues = append(b.issues, fault.At(f.Message, path...))
	}
	for _, is := range f.Issues {
		b.issues = append(b.issues, fault.Issue{Path: append(slices.Clip(path), is.Path...), Message: is.Message})
	}
}

// resolve reads every secret that the configuration refers to, so that a missing one stops the start.
func (b *builder) resolve() error {
	if b.Offline {
		return nil
	}
	for _, r := range b.Config.Refs() {
		v, err := b.Secrets.Resolve(string(r.Ref))
		if err != nil {
			return secret.Unresolvable(shape.Dotted(r.Path), r.Ref.String(), err)
		}
		b.refs[r.Ref] = string(v)
	}
	return nil
}

func (b *builder) value(v config.Value) string {
	if v.Ref != "" {
		return b.refs[v.Ref]
	}
	return v.Text
}

func (b *builder) values(m map[string]config.Value) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = b.value(v)
	}
	return out
}

// program is what an exec agent or tool starts.
func (b *builder) program(argv []string, cwd string, env map[string]config.Value, inherit []string, clean bool, maxOutput int) proc.Command {
	return proc.Command{Argv: argv, Dir: b.Config.Resolve(cwd), Env: proc.Environ(b.values(env), inherit, clean), MaxOutput: int64(maxOutput), Limit: b.Programs}
}

func (b *builder) providers() {
	b.models = map[string]*provider.Watched{}
	for _, id := range slices.Sorted(maps.Keys(b.Config.Providers)) {
		c := b.Config.Providers[id]
		prices := provider.Prices{}
		for model, p := range c.Prices {
			prices[model] = provider.Price(p)
		}
		var p provider.Provider
		var err error
		switch c.Kind {
		case "scripted":
			p, err = provider.NewScripted(id, c.Script.Data)
		case "openai-compatible":
			o := provider.OpenAIOptions{Name: id, BaseURL: c.BaseURL, APIKey: b.refs[c.APIKeyRef], Headers: b.values(c.Headers), Timeout: c.Timeout.Duration(),
				IdleTimeout: c.IdleTimeout.Duration(), Retries: c.Retries, Whole: !c.Stream, Prices: prices, Logger: b.Logger, Known: b.Known,
				Outbound: b.Outbound}
			p, err = provider.NewOpenAI(o)
		}
		b.note(err, "providers", id)
		if err == nil {
			w := &provider.Watched{Provider: p}
			b.models[id] = w
			b.watched = append(b.watched, w)
		}
	}
}

// tools makes the declared tools and the built-in ones.
func (b *builder) tools() {
	b.byName = map[string]tool.Tool{}
	for _, t := range []tool.Tool{tool.NewClock(), tool.NewCalculator(), tool.NewReadResult(b.Spills), tool.NewSessionSearch(b.Sessions)} {
		b.byName[t.Spec().Name] = t
	}
	for _, name := range slices.Sorted(maps.Keys(b.Config.Tools)) {
		c := b.Config.Tools[name]
		spec := tool.Spec{Name: name, Description: c.Description.Text, Input: c.Input, SideEffect: tool.SideEffect(c.SideEffect),
			Idempotent: c.Idempotent, OnUnknownOutcome: tool.OnUnknown(c.OnUnknownOutcome), Sequential: c.ExecutionMode == "sequential",
			Timeout: c.Timeout.Duration(), MaxResultTokens: c.MaxResultTokens, Truncation: tool.Truncation(c.Truncation)}
		if c.MaxResultTokens == 0 {
			spec.MaxResultTokens = -1
		}
		if limits := c.Limits; limits != (config.Limits{}) {
			spec.Limit = tool.NewLimit(limits.Concurrent, limits.PerMinute)
		}
		var t tool.Tool
		var err error
		switch c.Kind {
		case "http":
			t, err = tool.NewHTTP(tool.HTTPOptions{Spec: spec, Method: c.Method, URL: c.URL, Headers: b.values(c.Headers), Body: c.Body,
				AllowHosts: c.AllowHosts, MaxBytes: int64(c.MaxBytes), Known: b.Known, Outbound: b.Outbound})
		case "exec":
			t = tool.NewExec(tool.ExecOptions{Spec: spec, Program: b.program(c.Command, c.Cwd, c.Env, c.InheritEnv, c.CleanEnv, c.MaxOutputBytes), Known: b.Known})
		}
		b.note(err, "tools", name)
		if err == nil {
			b.byName[name] = t
		}
	}
}

func (b *builder) llm(id string, c config.Agent) (*agent.LLM, error) {
	a := &agent.LLM{Instructions: c.Instructions.Text, Temperature: c.Temperature, MaxTokens: c.MaxOutputTokens, MaxSteps: c.MaxSteps,
		MaxParallel: c.MaxParallelTools, HistoryTokens: c.HistoryTokens,
		Budget: agent.Budget{Tokens: int64(c.Budget.Tokens), CostUSD: c.Budget.CostUSD, ToolCalls: c.Budget.ToolCalls, Wall: c.Budget.Wall.Duration()}}
	if c.Record {
		a.NewTape = recording.NewTape
	}
	if a.ToolChoice.Tool = config.ToolName(c.ToolChoice.Tool); c.ToolChoice.Mode != "auto" {
		a.ToolChoice.Mode = c.ToolChoice.Mode
	}
	a.Forward, a.CallerInstructions = c.ForwardEvents, c.CallerInstructions == "append"
	a.Filter = agent.HandoffFilter(c.HandoffFilter)
	for _, m := range append([]config.Fallback{{Provider: c.Provider, Model: c.Model}}, c.Fallbacks...) {
		if p := b.models[m.Provider]; p != nil { // absent: it is in the issues already
			a.Models = append(a.Models, agent.Model{Provider: p, Model: m.Model})
		}
	}
	names := slices.Clone(c.Tools)
	if len(names)+len(c.SubAgents)+len(c.Handoffs) > 0 && !slices.Contains(names, message.ReadResultName) {
		names = append(names, message.ReadResultName) // any tool may return a result that is too large to show
	}
	var tools []tool.Tool
	for _, name := range names {
		if id, is := strings.CutPrefix(name, config.WorkflowTool); is {
			tools = append(tools, b.workflow(id))
		} else if t := b.byName[name]; t != nil {
			tools = append(tools, t)
		}
	}
	for _, other := range c.SubAgents {
		tools = append(tools, agent.SubAgentTool(other, b.Config.Agents[other].Description.Text))
	}
	for _, h := range c.Handoffs {
		offer := agent.HandoffTool
		if h.Mode == "transfer" {
			offer = agent.TransferTool
		}
		tools = append(tools, offer(h.Agent, b.Config.Agents[h.Agent].Description.Text))
	}
	var err error
	if a.Tools, err = tool.NewSet(tools...); err != nil {
		return nil, err
	}
	if a.Policy, err = b.policy(c); err != nil {
		return nil, err
	}
	a.Tools.Logger, a.Tools.Known = b.Logger, b.Known
	a.Tools.Retry = tool.RetryPolicy{MaxAttempts: c.ToolRetry.MaxAttempts, Backoff: c.ToolRetry.Backoff.Duration()}
	if len(c.Output) > 0 && string(c.Output) != "null" {
		s, err := schema.Compile(c.Output)
		if err != nil {
			return nil, fault.Invalid("The output schema cannot be used.", fault.At(err.Error(), "output"))
		}
		a.Output = &agent.Output{Schema: s, Spec: provider.OutputSpec{Name: id, Schema: c.Output}}
	}
	return a, nil
}

// workflow offers a workflow as a tool. A call with the same key waits for the same run, so it is made again after a crash.
func (b *builder) workflow(id string) tool.Tool {
	w := b.Config.Workflows[id]
	description := "Run the workflow " + id + "."
	if w.Description != "" {
		description = "Run the workflow " + id + ": " + w.Description
	}
	spec := tool.Spec{Name: config.ToolName(config.WorkflowTool + id), Description: description, Input: w.Input, Idempotent: true, Timeout: noTimeout, Truncation: tool.Spill}
	return tool.Func(spec, func(ctx context.Context, c tool.Call) (tool.Result, error) {
		if b.Workflow == nil {
			return tool.Result{}, &tool.Error{Message: "Workflows run in the server only."}
		}
		output, err := b.Workflow(ctx, id, c)
		return tool.Result{Output: output}, err
	})
}

// noTimeout is longer than any run: a workflow may wait for as long as it likes, and has a timeout of its own.
const noTimeout = 100 * 365 * 24 * time.Hour

// policy combines an agent's permissions and its tools' own terms.
func (b *builder) policy(c config.Agent) (p agent.Policy, err error) {
	for _, set := range []struct {
		name string
		from []string
		to   *[]agent.Pattern
	}{{"deny", c.Permissions.Deny, &p.Deny}, {"ask", c.Permissions.Ask, &p.Ask}, {"allow", c.Permissions.Allow, &p.Allow}} {
		for i, text := range set.from {
			pattern, err := agent.ParsePattern(text)
			if err != nil {
				return p, fault.Invalid("A permission is not valid.", fault.At(err.Error(), "permissions", set.name, i))
			}
			*set.to = append(*set.to, pattern)
		}
	}
	p.Tools = map[string]agent.Gate{}
	for _, name := range c.Tools {
		if t, ok := b.Config.Tools[name]; ok { // else it is a built-in, which changes nothing
			p.Tools[name] = gate(t)
		}
	}
	return p, nil
}

// gate is what a tool itself says about the approval of its calls.
func gate(t config.Tool) agent.Gate {
	return agent.Gate{Always: t.Approval.Mode() == "always", When: t.Approval.When, Edit: t.Approval.Edit,
		Default: t.Approval.Mode() == "" && t.EffectiveApproval() == "always",
		Terms:   journal.Terms{Expires: t.ApprovalTerms.Expires.Duration(), Approvers: t.ApprovalTerms.Approvers, Different: t.ApprovalTerms.RequireDifferentPrincipal}}
}

// calls are those of all tools, for callers that name them without an agent. Naming a tool allows its calls, so that only those
// need a grant whose tool says so itself. Their results are never cut.
func (b *builder) calls() (c agent.Calls, err error) {
	c.Policy.Tools = map[string]agent.Gate{}
	var tools []tool.Tool
	for _, name := range slices.Sorted(maps.Keys(b.byName)) {
		tools = append(tools, b.byName[name])
		own := gate(b.Config.Tools[name])
		own.Default = false
		c.Policy.Tools[name] = own
	}
	set, err := tool.NewSet(tools...)
	if err != nil {
		return c, err
	}
	set.Logger, set.Known = b.Logger, b.Known
	c.Set = set.Whole()
	return c, nil
}
