package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/schema"
	"agentd/server/secret"
)

// A Set is the tools of an agent. It is safe for concurrent use once its fields are set.
type Set struct {
	Retry  RetryPolicy      // NewSet sets 3 attempts and 250 ms
	Logger *slog.Logger     // takes panics of tools; nil is slog.Default()
	Known  *secret.Redactor // secrets that are taken out of the texts of failed outcomes; nil: there are none

	order    []*entry
	byName   map[string]*entry
	recorded func(name string, call Call) message.Outcome // see Recorded
	calls    sync.WaitGroup                               // the goroutines of calls that have not returned
}

// A RetryPolicy says how often a call that was refused as rate_limited is tried, if its tool is repeatable. The wait
// starts at Backoff and doubles; a longer wait that the tool names wins. A wait that does not fit in the tool's timeout
// ends the attempts.
type RetryPolicy struct {
	MaxAttempts int
	Backoff     time.Duration
}

type entry struct {
	tool  Tool
	spec  Spec // with defaults
	args  *schema.Schema
	whole bool // see Whole
}

var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// NewSet makes a set, or returns config-invalid with everything that is wrong with the tools. It starts nothing.
func NewSet(tools ...Tool) (*Set, error) {
	s := &Set{Retry: RetryPolicy{MaxAttempts: 3, Backoff: 250 * time.Millisecond}, byName: map[string]*entry{}}
	var issues []fault.Issue
	for _, t := range tools {
		e := &entry{tool: t, spec: t.Spec()}
		name := e.spec.Name
		if !validName.MatchString(name) {
			issues = append(issues, fault.At("the name of a tool is 1 to 64 letters, digits, _ and -", name))
		}
		if s.byName[name] != nil {
			issues = append(issues, fault.At("two tools have this name", name))
		}
		issues = append(issues, e.complete()...)
		s.order, s.byName[name] = append(s.order, e), e
	}
	if issues != nil {
		return nil, fault.Invalid("Some tools cannot be used.", issues...)
	}
	return s, nil
}

// complete fills the defaults of the spec, checks it and compiles its schema.
func (e *entry) complete() (issues []fault.Issue) {
	s := &e.spec
	s.SideEffect = cmp.Or(s.SideEffect, SideEffecting)
	s.OnUnknownOutcome = cmp.Or(s.OnUnknownOutcome, Ask)
	s.Truncation = cmp.Or(s.Truncation, Middle)
	s.Timeout = cmp.Or(s.Timeout, defaultTimeout)
	s.MaxResultTokens = cmp.Or(s.MaxResultTokens, defaultMaxResultTokens)
	if len(s.Input) == 0 {
		s.Input = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	if s.OnUnknownOutcome == Retry && !s.Idempotent {
		issues = append(issues, fault.At("retry is for idempotent tools only", s.Name, "onUnknownOutcome"))
	}
	var err error
	if e.args, err = schema.Compile(s.Input); err != nil {
		problems, _ := errors.AsType[*schema.Error](err)
		for _, p := range problems.Issues {
			issues = append(issues, fault.At(p.String(), s.Name, "input"))
		}
	}
	return issues
}

// Specs returns the tools' specs, with defaults filled in, in the order they were given. The caller owns the slice.
func (s *Set) Specs() []Spec {
	specs := make([]Spec, len(s.order))
	for i, e := range s.order {
		specs[i] = e.spec
	}
	return specs
}

// Spec returns the spec of a tool, with defaults filled in.
func (s *Set) Spec(name string) (Spec, bool) {
	e := s.byName[name]
	if e == nil {
		return Spec{}, false
	}
	return e.spec, true
}

// Whole makes a set of the same tools, with the same settings, whose results are never cut or spilled: MaxResultTokens does not
// hold. A result that its tool's limit in bytes has cut, or of more than 32 MiB, is an error.
func (s *Set) Whole() *Set {
	w := &Set{Retry: s.Retry, Logger: s.Logger, Known: s.Known, byName: map[string]*entry{}, recorded: s.recorded}
	for _, e := range s.order {
		whole := &entry{e.tool, e.spec, e.args, true}
		whole.spec.MaxResultTokens = -1
		w.order, w.byName[e.spec.Name] = append(w.order, whole), whole
	}
	return w
}

// Recorded makes a set of the same names and specs that runs nothing: a call ends with what outcome returns, which is neither
// cut nor spilled. outcome may be called concurrently. The replay of a recorded run uses it.
func (s *Set) Recorded(outcome func(name string, call Call) message.Outcome) *Set {
	r := &Set{byName: map[string]*entry{}, recorded: outcome}
	for _, e := range s.order {
		played := &entry{Func(e.spec, nil), e.spec, e.args, false}
		played.spec.Limit = nil
		r.order, r.byName[e.spec.Name] = append(r.order, played), played
	}
	return r
}

// Get finds a tool by its name.
func (s *Set) Get(name string) (Tool, bool) {
	e := s.byName[name]
	if e == nil {
		return nil, false
	}
	return e.tool, true
}

// Check puts the arguments of a call into their canonical form and returns nil for a call that can be made, else its
// outcome: unknown_tool, or invalid_input with every problem of the arguments. Arguments without a canonical form stay as
// they are. Execute does not check again.
func (s *Set) Check(call *message.ToolCall) *message.Outcome {
	args, err := message.Arguments(call.Args)
	if err == nil {
		call.Args = args
	}
	e := s.byName[call.Name]
	if e == nil {
		return s.unknown(call.ID, call.Name)
	}
	if err != nil {
		return message.Fail(call.ID, call.Name, message.InvalidInput, "The arguments can be read in more than one way: "+err.Error()+".",
			"Send each name once, and numbers of more than 15 digits as texts.")
	}
	if args[0] != '{' {
		return message.Fail(call.ID, call.Name, message.InvalidInput, "The arguments are not a JSON object.",
			"Send one JSON object that fits the tool's schema.")
	}
	if issues := e.args.Validate(args); issues != nil {
		return message.Fail(call.ID, call.Name, message.InvalidInput, "The arguments do not fit the tool's schema: "+schema.Join(issues)+".",
			"Correct the named arguments.")
	}
	return nil
}

func (s *Set) unknown(id, name string) *message.Outcome {
	const shown = 30
	var names []string
	for _, e := range s.order[:min(len(s.order), shown)] {
		names = append(names, e.spec.Name)
	}
	hint := "There are no tools."
	if len(names) > 0 {
		hint = "The tools are " + strings.Join(names, ", ")
		if more := len(s.order) - shown; more > 0 {
			hint += fmt.Sprintf(" and %d more", more)
		}
		hint += "."
	}
	return message.Fail(id, name, message.UnknownTool, fmt.Sprintf("There is no tool named %.80q.", name), hint)
}
