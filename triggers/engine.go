package triggers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"agentd/metrics"
	"agentd/server/fault"
	"agentd/server/tracecontext"
	"agentd/store"
)

// Options are what an engine works with.
type Options struct {
	Store   *store.Triggers
	Metrics *metrics.Inventory
	Logger  *slog.Logger
	// Start starts a run. What Also writes is in the transaction that makes the run.
	Start func(ctx context.Context, s Start) (runID string, err error)
	// Exists reports whether there is such an agent, or else such a workflow; nil: all exist.
	Exists func(agent, workflow string) bool
	// Missed, if not nil, is called in the transaction that records missed dues of a trigger, which starts an agent or a workflow.
	Missed func(tx *store.Tx, target string, f Firing) error
}

// A Start is what a firing starts.
type Start struct {
	Agent, Workflow string
	Input           json.RawMessage
	Session, User   string
	By              string // the principal: trigger: and the id
	FiredBy         string // who fired the trigger or emitted the event; empty: nobody
	MayJoin         bool   // the trigger's scopes allow it to join a session of another principal
	Origin          string // unique
	Also            func(tx *store.Tx, runID string, status store.Status) error
}

// Prefix is what the principal of a trigger's runs begins with; its id follows.
const Prefix = "trigger:"

// originPrefix is what the origin of a run begins with that a firing has started.
const originPrefix = "firing:"

// Engine fires triggers. It is safe for concurrent use.
type Engine struct {
	opts     Options
	mu       sync.Mutex        // guards the fields below
	compiler *Compiler         // of declarations; nil once they are loaded
	entries  map[string]*entry // by id
	order    []*entry          // by id; made by index, as are the next three
	numbers  map[int64]*entry
	events   map[string][]*entry // by the event's name, those that are declared
	idle     []string            // the principals of idle triggers
	turns    turns
	loaded   bool
	running  bool
	owed     map[*entry]int64 // when its turn came, until it is looked at without an error; nil: there are none
	ended    []ending
	last     time.Time // when the clock was last read
	lag      int64     // of the latest ordinary firing, in milliseconds
	fired    int64     // when the latest firing was, milliseconds since 1970

	wake chan struct{}
}

// An entry is a trigger: its row, and its declaration if it has one.
type entry struct {
	id string
	n  int64 // of the row; given by Load

	mu   sync.Mutex // guards the fields below; held while the trigger fires, so that its rows come one after the other
	row  store.Trigger
	decl *compiled // nil: an orphan
	gone bool      // it was deleted
	// queue says that firings may wait to be started.
	queue bool

	planned int64 // when it is looked at next; guarded by the engine's mu
}

// An ending is a run that has ended.
type ending struct {
	run    string
	status store.Status
}

// New makes an engine without triggers.
func New(o Options) *Engine {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New("")
	}
	return &Engine{opts: o, compiler: NewCompiler(), entries: map[string]*entry{}, wake: make(chan struct{}, 1)}
}

// Attach gives an engine that was made early what it works with. It is called once, before Load.
func (e *Engine) Attach(o Options) {
	o.Logger, o.Metrics = cmp.Or(o.Logger, e.opts.Logger), cmp.Or(o.Metrics, e.opts.Metrics)
	e.opts = o
}

// Declare adds a trigger. The error is config-invalid, with paths below the trigger's id. [Engine.Load] checks that what it starts exists.
func (e *Engine) Declare(id string, d Declaration) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loaded {
		return fault.Invalid("Triggers are declared before the server starts.", fault.At("was declared too late", "triggers", id))
	}
	c, problems := e.compiler.compile(id, d)
	var issues []fault.Issue
	for _, p := range problems {
		issues = append(issues, fault.At(p.Message, append([]any{"triggers", id}, p.Path...)...))
	}
	switch {
	case len(issues) > 0:
		return fault.Invalid("The trigger is not valid.", issues...)
	case !validID(id):
		return fault.Invalid("The trigger is not valid.", fault.At("an id has 1 to 128 characters of A-Z a-z 0-9 _ -", "triggers", id))
	case e.entries[id] != nil:
		return fault.Invalid("The trigger is not valid.", fault.At("is declared twice", "triggers", id))
	}
	schedule := c.key()
	_, after, _ := strings.Cut(schedule, " ")
	c.Spec = after[:len(c.Spec)] // shares the memory of the schedule
	e.entries[id] = &entry{id: id, decl: c, planned: never, row: store.Trigger{ID: id, Kind: c.Kind, Spec: c.Spec, Schedule: schedule, Disabled: c.Disabled}}
	return nil
}

func validID(id string) bool {
	return validName(id) && !strings.Contains(id, ".")
}

// rowsAtOnce is how many rows a transaction writes when the declarations have changed.
const rowsAtOnce = 1000

// Load reads the triggers of the store and, unless readOnly, writes those whose declaration is new or has another schedule. It is
// called once, before all that follows. The error is config-invalid when a trigger is to start what does not exist.
func (e *Engine) Load(ctx context.Context, readOnly bool) error {
	if err := e.checkTargets(); err != nil {
		return err
	}
	rows, err := e.opts.Store.All(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now().UnixMilli()
	var changed []*entry
	for _, row := range rows {
		en := e.entries[row.ID]
		if en == nil {
			e.entries[row.ID] = &entry{id: row.ID, n: row.N, row: row, planned: never}
			e.opts.Logger.Warn("a trigger has no declaration and does not fire; delete it, or declare it again", "trigger", row.ID)
			continue
		}
		declared := en.row
		en.row, en.n = row, row.N
		en.row.Kind, en.row.Spec, en.row.Schedule = declared.Kind, declared.Spec, declared.Schedule // most have the same, and share its memory
		switch {
		case row.Schedule != declared.Schedule:
			en.row.Cursor, en.row.Missed, en.row.Updated = now, 0, now
		case row.Cursor > now+dayMs: // the clock was set back by more than a day
			en.row.Cursor, en.row.Updated = now, now
		default:
			continue
		}
		changed = append(changed, en)
	}
	for _, en := range e.entries {
		if en.n == 0 {
			en.row.Cursor, en.row.Created, en.row.Updated = now, now, now
			changed = append(changed, en)
		}
	}
	slices.SortFunc(changed, func(a, b *entry) int { return strings.Compare(a.id, b.id) })
	for some := range slices.Chunk(changed, rowsAtOnce) {
		if readOnly {
			break
		}
		if err := e.opts.Store.Update(ctx, func(tx *store.Tx) error {
			for _, en := range some {
				row := en.row
				if row.N == 0 {
					err = e.opts.Store.Insert(tx, &row)
				} else if err = e.unmiss(tx, en.decl, &row); err == nil {
					err = e.opts.Store.Set(tx, &row)
				}
				if err != nil {
					return err
				}
				en.row, en.n = row, row.N
			}
			return nil
		}); err != nil {
			return err
		}
	}
	e.loaded, e.compiler = true, nil
	e.indexLocked()
	return nil
}

// maxIssues is how many triggers without a target are named.
const maxIssues = 100

// checkTargets reports triggers that are to start what does not exist.
func (e *Engine) checkTargets() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var issues []fault.Issue
	for id, en := range e.entries {
		if e.opts.Exists == nil || e.opts.Exists(en.decl.Agent, en.decl.Workflow) {
			continue
		}
		what, name := "agent", en.decl.Agent
		if name == "" {
			what, name = "workflow", en.decl.Workflow
		}
		issues = append(issues, fault.At(fmt.Sprintf("there is no %s %q", what, name), "triggers", id, what))
	}
	if len(issues) == 0 {
		return nil
	}
	slices.SortFunc(issues, func(a, b fault.Issue) int { return strings.Compare(a.Path[1].(string), b.Path[1].(string)) })
	return fault.Invalid("Triggers start what does not exist.", issues[:min(len(issues), maxIssues)]...).Advise("Register the agent or workflow before the server starts, or name another one.")
}

// find returns a trigger, or trigger-not-found.
func (e *Engine) find(id string) (*entry, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if en := e.entries[id]; en != nil {
		return en, nil
	}
	return nil, fault.New(fault.TriggerNotFound, "There is no trigger %q.", id)
}

// indexLocked makes what finds triggers. The caller holds e.mu. Slices that others have are not changed.
func (e *Engine) indexLocked() {
	e.order, e.numbers, e.events, e.idle = make([]*entry, 0, len(e.entries)), make(map[int64]*entry, len(e.entries)), map[string][]*entry{}, nil
	for _, en := range e.entries {
		e.order = append(e.order, en)
	}
	slices.SortFunc(e.order, func(a, b *entry) int { return strings.Compare(a.id, b.id) })
	for _, en := range e.order {
		e.numbers[en.n] = en
		switch {
		case en.decl == nil:
		case en.decl.Kind == EventKind:
			e.events[en.decl.Spec] = append(e.events[en.decl.Spec], en)
		case en.decl.Kind == IdleKind:
			e.idle = append(e.idle, en.principal())
		}
	}
}

// all returns the triggers in the order of their ids. Their ids, numbers and declarations do not change.
func (e *Engine) all() []*entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.order
}

// numbered returns the trigger with a number; nil: there is none.
func (e *Engine) numbered(n int64) *entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.numbers[n]
}

// Ended tells the engine that a run has ended, after that is durable. It does not wait.
func (e *Engine) Ended(run *store.Run) {
	if !strings.HasPrefix(run.Origin, originPrefix) {
		return
	}
	e.mu.Lock()
	e.ended = append(e.ended, ending{run.ID, run.Status})
	e.mu.Unlock()
	e.nudge()
}

// nudge has Run look again.
func (e *Engine) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// firable reports why a trigger does not fire now; nil: it does.
func (en *entry) firable(now int64) error {
	because := ""
	switch {
	case en.gone:
		return fault.New(fault.TriggerNotFound, "There is no trigger %q any more.", en.id)
	case en.decl == nil:
		because = "the configuration does not declare it"
	case en.row.Disabled:
		because = "it is disabled"
	case en.expired(now):
		because = "it has expired"
	default:
		return nil
	}
	return fault.New(fault.TriggerNotFirable, "The trigger %q does not fire: %s.", en.id, because).With("triggerId", en.id)
}

func (en *entry) expired(now int64) bool {
	return en.decl != nil && en.decl.ExpiresAt != 0 && now >= en.decl.ExpiresAt
}

// log is the engine's log, with the ids of the request that a context belongs to.
func (e *Engine) log(ctx context.Context) *slog.Logger {
	return tracecontext.Log(ctx, e.opts.Logger)
}
