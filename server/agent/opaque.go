package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
)

// opaque drives an [Agent]: what happens inside is the agent's own business, and the engine records what it reports.
type opaque struct{ agent Agent }

func (opaque) accept(input json.RawMessage) (string, error) {
	var s string
	if json.Unmarshal(input, &s) == nil {
		return "text", nil
	}
	return "json", nil
}

func (opaque) open(*run, *move) {}

// resumable: only a checkpoint, or a decision, tells an opaque agent where it was.
func (o opaque) resumable(r *run) bool {
	_, can := o.agent.(Resumer)
	return can && (r.rec.checkpoint != nil || slices.ContainsFunc(r.rec.calls, openRequest))
}

func (o opaque) drive(r *run) error {
	if waits, err := r.waitOn(); waits || err != nil {
		return err
	}
	from, err := o.deliver(r)
	if err != nil {
		return err
	}
	in := Input{RunID: r.row.ID, AgentID: r.row.Owner, SessionID: r.row.Session, UserID: r.row.User, Payer: r.payer(), Input: r.input(),
		Messages: r.rec.history}
	out := &sink{r: r}
	type answer struct {
		res Result
		err error
	}
	answered := make(chan answer, 1)
	r.e.moving.Go(func() {
		var a answer
		a.err = guard(r, func() (err error) {
			a.res, err = o.call(r.ctx, in, out, from)
			return err
		})
		answered <- a
	})
	var a answer
	select {
	case a = <-answered:
	case <-r.ctx.Done():
		select {
		case a = <-answered:
		case <-time.After(grace): // the agent does not end; the run does
			a.err = context.Cause(r.ctx)
		}
	}
	if err := out.close(); err != nil {
		return err
	}
	if a.err == nil && r.ctx.Err() != nil {
		a.err = context.Cause(r.ctx)
	}
	if a.err != nil {
		return a.err
	}
	if len(r.rec.pending)+len(out.asked) > 0 {
		return r.await(out.asked, a.res)
	}
	return o.finish(r, a.res)
}

// payer is who uses up what is scarce: whom the principal that started the run counts as or, where nobody is known, the
// agent.
func (r *run) payer() string {
	if r.pays != "" {
		return r.pays
	}
	r.pays = "agent:" + r.row.Owner
	if by := r.row.StartedBy; by != "" && by != anonymous {
		r.pays = by
		if find := r.e.opts.Lineages; find != nil {
			if lineages, err := find(r.ctx, []string{by}); err == nil {
				r.pays = lineages[0]
			}
		}
	}
	return r.pays
}

// call lets the agent go on; from is nil for a run that begins, or that left nothing to go on from.
func (o opaque) call(ctx context.Context, in Input, out *sink, from *Resumption) (Result, error) {
	if s, ok := o.agent.(Resumer); ok && from != nil {
		return s.Resume(ctx, in, *from, out)
	}
	if s, ok := o.agent.(Streamer); ok {
		return s.Stream(ctx, in, out)
	}
	return o.agent.Run(ctx, in)
}

// finish records the answer. A text that the agent has said already is not kept again.
func (o opaque) finish(r *run, res Result) error {
	m := r.move()
	m.acknowledge(r)
	output, err := message.Encode(res.Output)
	if err != nil {
		return r.finish(m, store.Failed, fault.New(fault.AgentProtocol, "The agent's output does not encode as JSON."))
	}
	said := r.rec.lastText(r.row.Owner)
	var text string
	switch {
	case string(output) == "null":
	case json.Unmarshal(output, &text) != nil || text == "" && said != "":
		m.slot(store.OutputSlot, output)
		if r.row.Session != "" && said == "" {
			m.message(message.Message{Role: message.Assistant, AgentID: r.row.Owner, Content: message.Text(string(output))})
		}
	case text != said:
		m.message(message.Message{Role: message.Assistant, AgentID: r.row.Owner, Content: message.Text(text)})
	}
	if res.Usage != (message.Usage{}) {
		if m.row.Usage, err = message.Encode(res.Usage); err != nil {
			return err
		}
		m.row.Models, err = message.Encode(map[string]message.ModelUsage{r.row.Owner: {Usage: res.Usage, AttemptCount: 1}})
		if err != nil {
			return err
		}
	}
	return r.finish(m, store.Completed, nil)
}

// sink records what an agent reports, until the run goes on without it.
type sink struct {
	mu     sync.Mutex // guards the fields below; whoever holds it acts for the run
	r      *run
	closed bool
	err    error
	asked  []Approval // requests that are not durable yet
}

var errClosed = errors.New("agent: the run has gone on without this agent")

// maxCheckpoint is how large an agent's state may be.
const maxCheckpoint = 1 << 20

func (s *sink) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.err
}

// record runs fn for the run unless that has gone on. A failure to record is final.
func (s *sink) record(fn func(m *move)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.closed {
		return errClosed
	}
	m := s.r.move()
	fn(m)
	s.err = s.r.commit(m)
	return s.err
}

func (s *sink) Emit(ev event.Event) error {
	switch ev.Type {
	case event.AgentStart, event.AgentEnd, event.AgentError, event.AgentCancelling:
		return nil
	}
	if err := event.CheckBytes(ev); err != nil {
		return fault.New(fault.AgentProtocol, "The agent's event cannot be delivered: %v.", err)
	}
	if event.Transient(ev.Type) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.closed {
			return errClosed
		}
		s.r.transient(ev)
		return s.err
	}
	return s.record(func(m *move) {
		switch ev.Type {
		case event.TextComplete:
			var body struct{ Text string }
			if json.Unmarshal(ev.Payload, &body) == nil && body.Text != "" {
				i := m.message(message.Message{Role: message.Assistant, AgentID: s.r.row.Owner, Content: message.Text(body.Text)})
				m.emit(textComplete(body.Text), i, struct{}{})
				return
			}
		case event.StepStart, event.StepEnd:
			s.step(m, ev)
		}
		m.emit(ev, -1, nil)
	})
}

// step keeps the run's own count of steps in line with what the agent tells.
func (s *sink) step(m *move, ev event.Event) {
	var body struct {
		StepNumber int
		Usage      *message.Usage
	}
	if json.Unmarshal(ev.Payload, &body) != nil || body.StepNumber < 1 || body.StepNumber > 1<<20 {
		return
	}
	steps := s.r.rec.steps
	switch {
	case ev.Type == event.StepStart && body.StepNumber > m.row.Step:
		m.row.Step = body.StepNumber
		m.steps = append(m.steps, store.Step{Number: body.StepNumber, Agent: m.row.Owner, Started: m.at})
	case ev.Type == event.StepEnd && len(steps) > 0 && steps[len(steps)-1].Number == body.StepNumber:
		st := steps[len(steps)-1]
		st.Ended = m.at
		if body.Usage != nil {
			st.Usage, _ = message.Encode(body.Usage)
		}
		m.steps = append(m.steps, st)
	}
}

func (s *sink) Checkpoint(state json.RawMessage) error {
	if len(state) > maxCheckpoint || !json.Valid(state) {
		return fault.New(fault.AgentProtocol, "A checkpoint is JSON of at most %d bytes.", maxCheckpoint)
	}
	return s.record(func(m *move) {
		m.progress()
		m.slot(store.CheckpointSlot, state)
		m.acknowledge(s.r)
		if len(s.asked) > 0 {
			m.pending = m.request(s.r, s.asked)
			kept, _ := message.Encode(m.pending)
			m.slot(store.PendingSlot, kept)
			s.asked = nil
		}
	})
}

// guard turns a panic into an error: a run is one of the two edges at which panics stop.
func guard(r *run, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			r.e.log.Error("agent panicked", "run", r.row.ID, "agent", r.row.Owner, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.New(fault.AgentPanic, "The agent panicked.")
		}
	}()
	return fn()
}
