package run

import (
	"context"
	"encoding/json"
	"fmt"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/store"
)

// An Owner is what runs can be started of.
type Owner struct {
	ID            string
	Driver        Driver
	HistoryTokens int  // how much of its session's transcript precedes a run, in estimated tokens; 0: nothing
	FailOnRestart bool // a run that a restart interrupted ends as failed, also where it could continue
}

// A Driver moves the runs of one owner. Its methods are called on the goroutine of the run; they may be called
// concurrently for different runs.
type Driver interface {
	// Accept checks an input before the run exists. It returns the form in which the run's first messages hold it: text,
	// json or messages.
	Accept(input json.RawMessage) (form string, err error)
	// Open adds what the driver needs to the move that starts a run, and to the move that takes a run up after a restart;
	// the record of the latter has steps, messages or slots already.
	Open(r *Run, m *Move)
	// Drive moves the run until it has ended or waits. An error ends the run.
	Drive(r *Run) error
	// Resumable reports whether a run can continue from what is on disk.
	Resumable(r *Run) bool
}

// A Caller is a Driver whose runs make journalled calls with [Run.Claim] and [Run.Dispatch].
type Caller interface {
	Driver
	// Job prepares a call for dispatch; args are its arguments in canonical form, nil for a child whose stored arguments
	// were changed.
	Job(r *Run, c store.Call, args json.RawMessage) (Job, error)
	// Known reports whether the owner can still make a call.
	Known(c *store.Call) bool
	// Doubt says what becomes of a call whose outcome is unknown.
	Doubt(c *store.Call) Doubt
	// Terms completes an approval with what it takes to grant it.
	Terms(r *Run, a journal.Approval) journal.Approval
	// Edit checks arguments that a person gives a call instead of its own and returns their canonical form. The text of an
	// error is the reason for refusing them, as a clause.
	Edit(c *store.Call, args json.RawMessage) (json.RawMessage, error)
	// Answer settles a call with the output of the child that it was.
	Answer(r *Run, c *store.Call, output json.RawMessage) Settled
	// Label names the child of a call in messages.
	Label(c *store.Call) string
	// Forwards reports whether runs pass on events of a type from their children.
	Forwards(typ string) bool
}

// Doubt is what becomes of a call whose outcome is unknown.
type Doubt int

const (
	AskPerson    Doubt = iota // a person decides
	SettleFailed              // it is settled as failed
	MakeAgain                 // it is made again, since making it twice does no harm
	Departed                  // the owner does not know it any more: it is settled as failed
)

// A Job is how one call is made: by a function or as a child run.
type Job struct {
	Do    func(ctx context.Context) Settled // called from a goroutine of its own
	Child *ChildSpec                        // instead of Do
	// Admit waits until the call may begin, and returns what is called when it has ended, or why it may not begin. Before it
	// waits, it calls wait, which makes durable that the call has not begun; the error of that ends it. Nil: it may begin.
	Admit      func(ctx context.Context, wait func() error) (release func(), refusal *message.Outcome)
	Sequential bool   // made before the others, one after the other
	Span       string // type of the call's span; span.Tool when empty
}

// A ChildSpec describes the child run of a call, for the case that it is yet to be made.
type ChildSpec struct {
	Owner string
	Form  string // of the input, as [Driver.Accept] returns it
	Input json.RawMessage
	Slots map[store.Slot]json.RawMessage // that the child begins with
}

// Settled is how a call ended. Spill, where there is one, is stored with the outcome, which names it. Unknown says that
// the call may have had its effect and must not be made twice; Outcome.Message then says what is known. With Waits, it has not
// ended: it waits for the run with that id, which it has started, and is made again when that has ended.
type Settled struct {
	Outcome message.Outcome
	Spill   *store.Spill
	Unknown bool
	Waits   string
}

// owner returns what a run belongs to; a stand-in whose runs fail where it is not registered any more.
func (e *Engine) owner(row *store.Run) *Owner {
	if o := e.opts.Owner(row.Kind, row.Owner); o != nil {
		return o
	}
	return &Owner{ID: row.Owner, Driver: absent{row.Kind, row.Owner}}
}

// absent stands for an owner that is not registered any more.
type absent struct{ kind, id string }

func (absent) Accept(json.RawMessage) (string, error) { return "", nil }
func (absent) Open(*Run, *Move)                       {}
func (absent) Resumable(*Run) bool                    { return false }
func (a absent) Drive(*Run) error {
	return fault.New(fault.ServerRestarted, "The %s %q is no longer registered.", a.kind, a.id)
}

func (o *Owner) absent() bool {
	_, is := o.Driver.(absent)
	return is
}

// caller returns the driver's side of the journal, or one that knows no call where the owner is another now.
func (r *Run) caller() Caller {
	if c, ok := r.owner.Driver.(Caller); ok {
		return c
	}
	return unable{r.owner.Driver}
}

// unable is the caller of runs whose owner makes no calls.
type unable struct{ Driver }

func (unable) Known(*store.Call) bool                            { return false }
func (unable) Doubt(*store.Call) Doubt                           { return AskPerson }
func (unable) Terms(_ *Run, a journal.Approval) journal.Approval { return a }
func (unable) Label(c *store.Call) string                        { return fmt.Sprintf("call of %q", c.Name) }
func (unable) Forwards(typ string) bool                          { return event.ForChildren(typ) }
func (unable) Job(*Run, store.Call, json.RawMessage) (Job, error) {
	return Job{Child: &ChildSpec{}}, nil
}

func (unable) Edit(*store.Call, json.RawMessage) (json.RawMessage, error) {
	return nil, fmt.Errorf("its owner makes no calls.")
}

func (unable) Answer(_ *Run, _ *store.Call, output json.RawMessage) Settled {
	return Settled{Outcome: message.Outcome{Output: output}}
}
