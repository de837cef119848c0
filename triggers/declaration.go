package triggers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"agentd/auth"
	"agentd/server/expr"
	"agentd/server/graph"
	"agentd/server/shape"
)

// Kinds of triggers.
const (
	CronKind     = "cron"
	IntervalKind = "interval"
	IdleKind     = "idle"
	EventKind    = "event"
)

// Catch-up policies: what happens to dues that were missed.
const (
	CatchUpNone = "none" // none of them fires
	CatchUpLast = "last" // the newest one fires
	CatchUpAll  = "all"  // the newest ones fire, up to a number, one after the other
)

// What becomes of a firing while an earlier run of the trigger has not ended.
const (
	OverlapSkip  = "skip"
	OverlapQueue = "queue" // it starts when that run has ended
	OverlapAllow = "allow" // it starts beside that run
)

// Bounds of a declaration.
const (
	Floor       = time.Second // the shortest interval
	maxQueue    = 100_000
	maxCatchUp  = 1000
	maxAttempts = 100
	maxJitter   = 24 * time.Hour
	maxMillis   = int64(maxEvery / time.Millisecond)

	eventQueue  = 1000 // default of an event's queue
	dayMs       = int64(24 * time.Hour / time.Millisecond)
	maxTextSize = 64 << 10 // bytes of the session or the condition
)

// Retry says how often a start that fails is tried. No start is tried again once a run exists.
type Retry struct {
	MaxAttempts int   // in all; 0 and 1: no retries
	BackoffMs   int64 // before the second attempt; it doubles with each further one
}

// A Declaration says when a trigger fires and what it starts. A zero field has the default that its comment names.
type Declaration struct {
	Kind            string
	Spec            string // of cron: the text; of event: the name
	Timezone        string // of cron; UTC
	EveryMs         int64  // of interval
	AfterMs         int64  // of idle: the quiet time
	Agent, Workflow string // what it starts: one of them; of idle without a session: also the agent that must be quiet

	Input   json.RawMessage // with ${ expressions }; an empty text for an agent, {} for a workflow
	Session string          // of the run, with ${ expressions }; for idle: what must be quiet
	If      string          // of event: a condition; every event fires
	User    string          // of the run; none

	CatchUpPolicy   string // none
	MaxCatchUpRuns  int    // of all; 1
	CatchUpWindowMs int64  // the greater of a day and two periods
	JitterMs        int64  // moves the start of each due by a fixed part of this; 0
	ExpiresAt       int64  // milliseconds since 1970; never
	Overlap         string // skip; of event: allow
	QueueMax        int    // 1; of event: 1000
	Retry           Retry
	DisableAfter    int      // failed starts and runs in a row; never
	Scopes          []string // of the runs' principal; its target only
	Tags            []string
	Disabled        bool // when it is declared for the first time
}

// Vars are the variables of the expressions of a kind of triggers. Those of an event have event, what it carries, and headers, those
// of the webhook that brought it.
func Vars(kind string) expr.Vars {
	vars := expr.Vars{"due": {}, "trigger": {}, "now": {}}
	if kind == EventKind {
		vars["event"], vars["headers"] = nil, nil
	}
	return vars
}

// A compiled declaration is checked, and has its defaults.
type compiled struct {
	*common
	Spec  string
	cron  Cron
	delay int64 // milliseconds from a due to its start
}

// common is what triggers share whose declarations differ in nothing but Spec, because there may be many.
type common struct {
	Declaration                // without Spec
	zone        *time.Location // of cron
	input       *expr.Template // nil: the target's default
	session     *expr.Template // nil: none
	condition   *expr.Program  // nil: always true
	grant       auth.Grant     // of Scopes
}

// A Compiler checks declarations, and keeps what several of them have in common. It is not safe for concurrent use.
type Compiler struct {
	zones  Zones
	common map[string]*common // those without issues, by the JSON of the declaration
}

// NewCompiler makes a compiler.
func NewCompiler() *Compiler { return &Compiler{Zones{}, map[string]*common{}} }

// Check returns what is wrong with a declaration, with paths of the configuration's names.
func (k *Compiler) Check(d Declaration) []graph.Problem {
	_, problems := k.compile("", d)
	return problems
}

// compile checks a declaration and completes it.
func (k *Compiler) compile(id string, d Declaration) (c *compiled, problems []graph.Problem) {
	c = &compiled{Spec: d.Spec, delay: Jitter(id, time.Duration(d.JitterMs)*time.Millisecond).Milliseconds()}
	add := func(name string, found ...graph.Problem) {
		for _, p := range found {
			p.Path = append([]any{name}, p.Path...)
			problems = append(problems, p)
		}
	}
	bad := func(name, format string, args ...any) {
		add(name, graph.Problem{Offset: -1, Message: fmt.Sprintf(format, args...)})
	}
	c.spec(d, add, bad)
	d.Spec = ""
	key, err := json.Marshal(d)
	if c.common = k.common[string(key)]; c.common != nil && err == nil {
		return c, problems
	}
	before := len(problems)
	c.common = &common{Declaration: d}
	c.rest(k.zones, add, bad)
	if len(problems) == before && err == nil {
		k.common[string(key)] = c.common
	}
	return c, problems
}

// An adder adds problems of a field.
type adder func(name string, found ...graph.Problem)

// spec reads the text that triggers do not share.
func (c *compiled) spec(d Declaration, add adder, bad func(string, string, ...any)) {
	var err error
	switch d.Kind {
	case CronKind:
		if c.cron, err = Parse(d.Spec); err != nil {
			syntax, _ := errors.AsType[*SyntaxError](err)
			add("spec", graph.Problem{Offset: syntax.Offset, Message: err.Error()})
		} else if c.cron.never() {
			bad("spec", "no day of these months has such a date, so it is never due")
		}
	case IntervalKind:
		c.Spec = strconv.FormatInt(d.EveryMs, 10)
	case IdleKind:
		c.Spec = strconv.FormatInt(d.AfterMs, 10)
	case EventKind:
		if !validName(d.Spec) {
			bad("event", "want 1 to 128 characters of A-Z a-z 0-9 . _ -")
		}
	}
}

// rest checks and completes all but the spec.
func (c *common) rest(zones Zones, add adder, bad func(string, string, ...any)) {
	d := c.Declaration
	within := func(name string, n, least, most int64) {
		if n < least || n > most {
			bad(name, "want a number from %d to %d", least, most)
		}
	}
	c.schedule(zones, bad, within)
	switch {
	case d.Agent == "" && d.Workflow == "":
		bad("agent", "name an agent or a workflow to start")
	case d.Agent != "" && d.Workflow != "":
		bad("workflow", "a trigger starts an agent or a workflow, not both")
	}
	scheduled := d.Kind == CronKind || d.Kind == IntervalKind
	for _, only := range []struct {
		name string
		set  bool
		of   bool
	}{
		{"catchupPolicy", d.CatchUpPolicy != "", scheduled}, {"maxCatchupRuns", d.MaxCatchUpRuns != 0, scheduled},
		{"catchupWindowMs", d.CatchUpWindowMs != 0, scheduled}, {"jitterMs", d.JitterMs != 0, scheduled},
		{"if", d.If != "", d.Kind == EventKind},
	} {
		if only.set && !only.of {
			bad(only.name, "has no meaning for this trigger")
		}
	}
	c.CatchUpPolicy = cmp.Or(d.CatchUpPolicy, CatchUpNone)
	if !slices.Contains([]string{CatchUpNone, CatchUpLast, CatchUpAll}, c.CatchUpPolicy) {
		bad("catchupPolicy", "want none, last or all")
	}
	overlap, queue := OverlapSkip, 1
	if d.Kind == EventKind {
		overlap, queue = OverlapAllow, eventQueue
	}
	c.Overlap, c.QueueMax, c.MaxCatchUpRuns = cmp.Or(d.Overlap, overlap), cmp.Or(d.QueueMax, queue), cmp.Or(d.MaxCatchUpRuns, 1)
	if !slices.Contains([]string{OverlapSkip, OverlapQueue, OverlapAllow}, c.Overlap) {
		bad("overlap", "want skip, queue or allow")
	}
	within("queueMax", int64(c.QueueMax), 1, maxQueue)
	within("maxCatchupRuns", int64(c.MaxCatchUpRuns), 1, maxCatchUp)
	within("catchupWindowMs", d.CatchUpWindowMs, 0, maxMillis)
	within("jitterMs", d.JitterMs, 0, int64(maxJitter/time.Millisecond))
	within("disableAfterFailures", int64(d.DisableAfter), 0, 1_000_000)
	within("retry.maxAttempts", int64(d.Retry.MaxAttempts), 0, maxAttempts)
	within("retry.backoffMs", d.Retry.BackoffMs, 0, maxMillis)
	if d.ExpiresAt < 0 {
		bad("expiresAt", "want a time after 1970")
	}
	for i, text := range d.Scopes {
		scope, err := auth.ParseScope(text)
		if err != nil {
			bad("scopes", "number %d: %v", i+1, err)
		}
		c.grant = append(c.grant, scope)
	}
	if target := c.target(); len(d.Scopes) > 0 && !c.grant.Covers(target) && (d.Agent == "") != (d.Workflow == "") {
		bad("scopes", "do not allow the trigger to start its target: add %v", target)
	}
	c.expressions(add, bad)
}

// covers reports whether the trigger's runs may do something.
func (c *common) covers(required auth.Scope) bool {
	return c.grant.Covers(required) || len(c.Scopes) == 0 && auth.Grant{c.target()}.Covers(required)
}

// target is the scope that starts the target.
func (c *common) target() auth.Scope {
	if c.Agent != "" {
		return auth.Scope{Resource: "agents", Action: "invoke", Target: c.Agent}
	}
	return auth.Scope{Resource: "workflows", Action: "execute", Target: c.Workflow}
}

// schedule reads what the dues follow from.
func (c *common) schedule(zones Zones, bad func(string, string, ...any), within func(string, int64, int64, int64)) {
	var err error
	switch c.Kind {
	case CronKind:
		if c.zone, err = zones.Load(cmp.Or(c.Timezone, "UTC")); err != nil {
			bad("timezone", "%q is no time zone: %v", c.Timezone, err)
		}
	case IntervalKind:
		within("everyMs", c.EveryMs, Floor.Milliseconds(), maxMillis)
	case IdleKind:
		within("afterMs", c.AfterMs, Floor.Milliseconds(), maxMillis)
	case EventKind:
	default:
		bad("kind", "want cron, interval, idle or event")
	}
	for _, f := range []struct {
		name string
		set  bool
		kind string
	}{{"timezone", c.Timezone != "", CronKind}, {"everyMs", c.EveryMs != 0, IntervalKind}, {"afterMs", c.AfterMs != 0, IdleKind}} {
		if f.set && f.kind != c.Kind {
			bad(f.name, "is only for triggers of the kind %s", f.kind)
		}
	}
}

// expressions compiles the texts with expressions.
func (c *common) expressions(add adder, bad func(string, string, ...any)) {
	vars := Vars(c.Kind)
	var problems []graph.Problem
	c.input, problems = graph.Template(c.Input, vars)
	add("input", problems...)
	switch {
	case len(c.Session) > maxTextSize || len(c.If) > maxTextSize:
		bad("session", "this text or that of if is longer than %d bytes", maxTextSize)
	case c.Session != "":
		c.session, problems = graph.Template(shape.Encode(c.Session), vars)
		add("session", problems...)
		if c.Kind == IdleKind && problems == nil && !c.session.Constant() {
			bad("session", "an idle trigger watches one session: want an id without expressions")
		}
	}
	if c.If != "" {
		c.condition, problems = graph.Condition(c.If, vars)
		add("if", problems...)
	}
}

// validName reports whether a name is that of an event.
func validName(name string) bool {
	return name != "" && len(name) <= 128 && !slices.ContainsFunc([]byte(name), func(b byte) bool {
		return (b < 'a' || b > 'z') && (b < 'A' || b > 'Z') && (b < '0' || b > '9') && b != '.' && b != '_' && b != '-'
	})
}

// dues is the schedule of a trigger whose cursor is at a time; false for one without.
func (c *compiled) dues(cursor int64) (Schedule, bool) {
	switch c.Kind {
	case CronKind:
		return c.cron.In(c.zone), true
	case IntervalKind:
		return Schedule{every: c.EveryMs, from: cursor}, true
	}
	return Schedule{}, false
}

// key is all that the dues follow from, as the store keeps it.
func (c *compiled) key() string {
	if c.Kind == CronKind {
		return c.Kind + " " + c.Spec + " " + cmp.Or(c.Timezone, "UTC")
	}
	return c.Kind + " " + c.Spec
}

// window is how old a missed due may be that is caught up: by default the greater of a day and two periods from a time on.
func (c *compiled) window(s Schedule, at int64) int64 {
	if c.CatchUpWindowMs != 0 {
		return c.CatchUpWindowMs
	}
	next := s.Upcoming(time.UnixMilli(at), 2)
	if len(next) < 2 {
		return dayMs
	}
	return max(dayMs, 2*next[1].Sub(next[0]).Milliseconds())
}

// queueBound is how many firings may wait. Dues that are caught up run one after the other, so those always have room.
func (c *common) queueBound() int {
	if c.CatchUpPolicy == CatchUpAll {
		return max(c.QueueMax, c.MaxCatchUpRuns)
	}
	return c.QueueMax
}
