package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/store"
)

// opaque is the driver of an [Agent]: what happens inside is the agent's own business, and its run records what it reports.
type opaque struct{ agent Agent }

func (opaque) Accept(input json.RawMessage) (string, error) {
	var s string
	if json.Unmarshal(input, &s) == nil {
		return "text", nil
	}
	return "json", nil
}

func (opaque) Open(*run.Run, *run.Move) {}

// Resumable is a part of [run.Driver]: only a checkpoint, or a decision, shows an opaque agent where it was.
func (o opaque) Resumable(r *run.Run) bool {
	_, can := o.agent.(Resumer)
	return can && (r.Record.Holds(store.CheckpointSlot) || slices.ContainsFunc(r.Record.Calls, journal.OpenRequest))
}

// Drive is a part of [run.Driver].
func (o opaque) Drive(r *run.Run) error {
	if waits, err := waitOn(r); waits || err != nil {
		return err
	}
	from, err := deliver(r)
	if err != nil {
		return err
	}
	in := Input{RunID: r.Row.ID, AgentID: r.Row.Owner, SessionID: r.Row.Session, UserID: r.Row.User, Payer: r.Payer(), Input: inputOf(r),
		Messages: r.Record.Past.Messages}
	out := &sink{r: r, agent: o.agent}
	type answer struct {
		res Result
		err error
	}
	answered := make(chan answer, 1)
	r.Go(func() {
		var a answer
		a.err = r.Guard(func() (err error) {
			a.res, err = o.call(r.Within(span.OfRun, 0), in, out, from)
			return err
		})
		answered <- a
	})
	var a answer
	select {
	case a = <-answered:
	case <-r.Context().Done():
		select {
		case a = <-answered:
		case <-time.After(run.Grace): // the agent does not return; the run continues without it
			a.err = context.Cause(r.Context())
		}
	}
	if err := out.close(); err != nil {
		return err
	}
	if a.err == nil && r.Context().Err() != nil {
		a.err = context.Cause(r.Context())
	}
	if a.err != nil {
		return a.err
	}
	if len(r.Record.Pending)+len(out.asked) > 0 {
		return await(r, out.asked, a.res)
	}
	return o.finish(r, a.res)
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
func (o opaque) finish(r *run.Run, res Result) error {
	m := r.Move()
	m.Acknowledge(r)
	output, err := message.Encode(res.Output)
	if err != nil {
		return r.End(m, store.Failed, fault.New(fault.AgentProtocol, "The agent's output cannot be encoded as JSON."))
	}
	owner := r.Row.Owner
	said := r.Record.LastText(owner)
	var text string
	switch {
	case string(output) == "null":
	case json.Unmarshal(output, &text) != nil || text == "" && said != "":
		m.Slot(store.OutputSlot, output)
		if r.Row.Session != "" && said == "" {
			m.Message(message.Message{Role: message.Assistant, AgentID: owner, Content: message.Text(string(output))})
		}
	case text != said:
		m.Message(message.Message{Role: message.Assistant, AgentID: owner, Content: message.Text(text)})
	}
	if res.Usage != (message.Usage{}) {
		m.SetUsage(res.Usage, map[string]message.ModelUsage{owner: {Usage: res.Usage, AttemptCount: 1}})
	}
	return r.End(m, store.Completed, nil)
}

// sink records what an agent reports, until the run goes on without it.
type sink struct {
	mu     sync.Mutex // guards the fields below; whoever holds it acts for the run
	r      *run.Run
	agent  Agent
	closed bool
	err    error
	asked  []journal.Approval // requests that are not durable yet
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
func (s *sink) record(fn func(m *run.Move)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.closed {
		return errClosed
	}
	m := s.r.Move()
	fn(m)
	s.err = s.r.Commit(m)
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
		s.r.Transient(ev)
		return s.err
	}
	return s.record(func(m *run.Move) {
		switch ev.Type {
		case event.TextComplete:
			var body struct{ Text string }
			if json.Unmarshal(ev.Payload, &body) == nil && body.Text != "" {
				i := m.Message(message.Message{Role: message.Assistant, AgentID: s.r.Row.Owner, Content: message.Text(body.Text)})
				m.Emit(textComplete(body.Text), i, struct{}{})
				return
			}
		case event.StepStart, event.StepEnd:
			s.step(m, ev)
		}
		m.Emit(ev, -1, nil)
	})
}

// step keeps the run's own count of steps in line with what the agent tells.
func (s *sink) step(m *run.Move, ev event.Event) {
	var body struct {
		StepNumber int
		Usage      *message.Usage
	}
	if json.Unmarshal(ev.Payload, &body) != nil || body.StepNumber < 1 || body.StepNumber > 1<<20 {
		return
	}
	steps := s.r.Record.Steps
	switch {
	case ev.Type == event.StepStart && body.StepNumber > m.Run.Step:
		m.Run.Step = body.StepNumber
		m.Steps = append(m.Steps, store.Step{Number: body.StepNumber, Agent: m.Run.Owner, Started: m.At})
	case ev.Type == event.StepEnd && len(steps) > 0 && steps[len(steps)-1].Number == body.StepNumber:
		st := steps[len(steps)-1]
		st.Ended = m.At
		if body.Usage != nil {
			st.Usage, _ = message.Encode(body.Usage)
		}
		m.Steps = append(m.Steps, st)
	}
}

func (s *sink) Checkpoint(state json.RawMessage) error {
	if len(state) > maxCheckpoint || !json.Valid(state) {
		return fault.New(fault.AgentProtocol, "A checkpoint is JSON of at most %d bytes.", maxCheckpoint)
	}
	return s.record(func(m *run.Move) {
		m.Progress()
		m.Slot(store.CheckpointSlot, state)
		m.Acknowledge(s.r)
		if len(s.asked) > 0 {
			m.Request(s.r, s.asked)
			s.asked = nil
		}
	})
}
