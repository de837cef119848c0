package external

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/proc"
	"agentd/server/secret"
)

// ExecOptions is what NewExec needs. ID, Command and Protocol are required.
type ExecOptions struct {
	ID         string
	Command    []string          // the program, looked up in the server's PATH, and its arguments
	Protocol   string            // "text" or "jsonl"
	Dir        string            // working folder; "" is the server's
	Env        map[string]string // the program's environment, besides InheritEnv
	InheritEnv []string          // names of the server's variables that the program gets too
	CleanEnv   bool              // it does not get PATH, HOME, LANG, TZ and TMPDIR of the server besides
	Timeout    time.Duration     // of a whole run, from the start of the program; 0 is DefaultTimeout
	MaxOutput  int64             // bytes of stdout; 0 is DefaultMaxOutput
	Limit      *proc.Limit       // of programs that run at once; nil: there is none
	// Known are the secrets that are taken out of what the program writes, but not out of its checkpoints and requests for
	// approvals; nil: there are none.
	Known *secret.Redactor
}

// NewExec makes an agent of a program, or returns config-invalid with all that is wrong. It starts nothing: each run
// is a process of its own, in its own process group, with no environment but the given one and AGENTD_RUN_ID and
// AGENTD_AGENT_ID. A program that could not be started fails its run with agent-unreachable, or with overloaded where the
// system or the queue of those that wait for a place is full: then nothing has happened.
//
// With protocol "text" the program gets the input's text on stdin. Its stdout becomes text.delta events, a final
// text.complete when there is any text, and the output, a string, as it was written but for secrets.
//
// With protocol "jsonl" the agent is an [agent.Resumer]. The program gets a line of type "run" or "resume", and when
// the run is aborted one of type "abort". It answers lines of at most 1 MiB with one JSON object each: events,
// "checkpoint" with a state, and at last "result" with an output and an optional usage. What it writes after that is
// ignored, its stdin ends, and it has two seconds to exit. The first line is in its stdin before it starts, as far as a pipe
// holds it; the rest is cut when the server dies, so a line that ends without a line feed is not to be acted on.
//
// In place of a result, the program can write "approval.request", with toolCallId, toolName, args and perhaps a reason,
// as often as [agent.ApprovalRequest] allows, and exit with 0. Arguments that can be read in more than one way, such as
// those with a name that is there twice, end the run. It must not wait for the answer: once all is decided, the program is
// started again with a line of type "resume", the state of its last checkpoint, null if it has none, and approvals, a list
// of {toolCallId, granted, reason?} in the order of the requests. They are told until the program's next checkpoint,
// request or result; a grant is told no second time without a person's word, see [agent.Resumption].
func NewExec(opts ExecOptions) (agent.Streamer, error) {
	limits, issues := limitsOf(opts.Timeout, opts.MaxOutput)
	issues = append(issues, idIssues(opts.ID)...)
	if len(opts.Command) == 0 || opts.Command[0] == "" {
		issues = append(issues, fault.At("names no program", "command"))
	}
	for i, arg := range opts.Command {
		if strings.Contains(arg, "\x00") {
			issues = append(issues, fault.At("has a NUL byte", "command", i))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(opts.Env)) {
		if !validVariable(name) || strings.Contains(opts.Env[name], "\x00") {
			issues = append(issues, fault.At("is not a variable: an empty name, an = in it, or a NUL byte", "env", name))
		}
	}
	for i, name := range opts.InheritEnv {
		if !validVariable(name) {
			issues = append(issues, fault.At("is not the name of a variable", "inheritEnv", i))
		}
	}
	if opts.Protocol != "text" && opts.Protocol != "jsonl" {
		issues = append(issues, fault.At(`is neither "text" nor "jsonl"`, "protocol"))
	}
	if issues != nil {
		return nil, fault.Invalid("The exec agent is not valid.", issues...)
	}
	p := program{opts.ID, slices.Clone(opts.Command), opts.Dir, maps.Clone(opts.Env), proc.Inherited(slices.Clone(opts.InheritEnv), opts.CleanEnv),
		limits, opts.Limit, opts.Known}
	if opts.Protocol == "text" {
		return &textAgent{p}, nil
	}
	return &lineAgent{p}, nil
}

func validVariable(name string) bool { return name != "" && !strings.ContainsAny(name, "=\x00") }

// A program is what the agents of both protocols start.
type program struct {
	id      string
	command []string
	dir     string
	env     map[string]string
	inherit []string
	limits  limits
	places  *proc.Limit
	known   *secret.Redactor
}

// ID is the agent's id.
func (p *program) ID() string { return p.id }

// start starts a process for the run, which ends with ctx. c holds what is to be said about its stdin.
func (p *program) start(ctx context.Context, in agent.Input, c proc.Command) (*proc.Process, error) {
	c.Argv = p.command
	c.Dir = p.dir
	c.Env = proc.Environ(p.env, p.inherit, "AGENTD_RUN_ID="+in.RunID, "AGENTD_AGENT_ID="+in.AgentID)
	c.MaxOutput = p.limits.maxOutput
	c.Limit, c.Payer = p.places, in.Payer
	process, err := proc.Start(ctx, c)
	if err == nil {
		return process, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	kind := fault.AgentUnreachable
	if failed, ok := errors.AsType[*proc.StartError](err); ok && failed.Busy {
		kind = fault.Overloaded
	}
	return nil, fault.New(kind, "The agent's program could not be started: %s.", outbound.Line(err.Error(), 200))
}

// startTimer ends a run, with the cause agent-timeout, when the agent's time is over.
func (l limits) startTimer(end context.CancelCauseFunc) *time.Timer {
	return time.AfterFunc(l.timeout, func() { end(l.timedOut()) })
}

// classify gives an error of reading from or waiting for a process its code.
func (p *program) classify(err error) error {
	if _, ok := errors.AsType[*proc.OverflowError](err); ok {
		return p.limits.tooLarge()
	}
	return err
}

// exited is the error for a program that failed.
func (p *program) exited(s proc.Status) error {
	if text := strings.TrimSpace(strings.ToValidUTF8(p.known.Piece(s.Stderr), "\uFFFD")); text != "" {
		return fault.New(fault.AgentExited, "The agent's program ended with %v: %s", s, text)
	}
	return fault.New(fault.AgentExited, "The agent's program ended with %v and an empty standard error.", s)
}
