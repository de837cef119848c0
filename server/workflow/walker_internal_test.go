package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"agentd/server/fault"
)

// walker moves the supersteps of a definition in memory.
type walker struct {
	*superstep
	t     *testing.T
	ids   int
	steps int
	asked map[int]*wish        // by task: what it waits for
	wrong map[int]*fault.Error // by task: why it failed
}

// walk begins a run, which must be possible.
func walk(t *testing.T, d Definition, input string) *walker {
	t.Helper()
	p, err := d.compile()
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.start([]byte(input))
	if err != nil {
		t.Fatal(err)
	}
	return &walker{superstep: s, t: t, asked: map[int]*wish{}, wrong: map[int]*fault.Error{}}
}

// start is a run that begins.
func (p *program) start(input []byte) (*superstep, error) {
	if err := (&registration{graph: p.graph(), program: p}).accept(input); err != nil {
		return nil, err
	}
	return &superstep{program: p, frontier: *p.first(), state: p.begin(input)}, nil
}

func (w *walker) id() int { w.ids++; return w.ids }

func (w *walker) keep(context.Context, []entry) error { return nil }

func (w *walker) emit(string, json.RawMessage) {}

// once runs one task to its next pause or its end.
func (w *walker) once(task *task) {
	w.t.Helper()
	w.reload()
	ended := make(chan ending)
	c := &Context{Context: context.Background(), thread: "t", step: w.steps, id: task.ID, node: task.Node, args: task.Go.Args, host: w, journal: slices.Clone(task.Go.Journal)}
	go w.run(c, State{maps.Clone(w.state)}, func(e ending) { ended <- e })
	e := <-ended
	task.Go.Journal = e.journal
	switch {
	case e.asked != nil:
		w.asked[task.ID] = e.asked
	case e.err != nil:
		w.wrong[task.ID] = fault.Of(e.err)
		task.Go.Journal = task.Go.Journal[:task.Go.settled()]
	default:
		task.Phase, task.Go.Writes, task.Go.Dispatch = done, e.writes, e.dispatch
	}
}

// reload passes what is stored through JSON, as a restart does.
func (w *walker) reload() {
	w.t.Helper()
	for _, part := range []any{&w.frontier, &w.state} {
		text, err := json.Marshal(part)
		if err == nil {
			err = json.Unmarshal(text, part)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// on moves until the run has ended, waits or fails, and says which.
func (w *walker) on() string {
	w.t.Helper()
	for {
		if len(w.tasks) == 0 {
			if len(w.After) > 0 {
				return "after " + strings.Join(w.After, " ")
			}
			switch ended, err := w.plan(w.id); {
			case err != nil:
				return "failed " + fault.Of(err).Kind.Code
			case ended:
				return "completed"
			}
		}
		for _, task := range slices.Backward(w.tasks) { // the planned order counts, not that of the ends
			if task.Phase != done && w.asked[task.ID] == nil && !slices.ContainsFunc(w.tasks, held) {
				w.once(task)
			}
		}
		for _, task := range w.tasks {
			if err := w.wrong[task.ID]; err != nil {
				return "failed " + err.Kind.Code + " at " + task.Node
			}
		}
		_, _, place, err := w.merge()
		if err != nil {
			return "failed " + fault.Of(err).Kind.Code + " at " + place
		}
		w.steps++
		if waits := w.waiting(); waits != "" {
			return "waits " + waits
		}
	}
}

func held(t *task) bool { return t.Go.Held }

func (w *walker) waiting() string {
	var all []string
	for _, t := range w.tasks {
		if t.Go.Held {
			all = append(all, t.Node+":held")
		} else if asked := w.asked[t.ID]; asked != nil {
			all = append(all, t.Node+":"+described(asked.Kind, asked.Name))
		}
	}
	return strings.Join(all, " ")
}

func (w *walker) answer(node, value string) {
	for _, t := range w.tasks {
		switch asked := w.asked[t.ID]; {
		case t.Node != node:
		case t.Go.Held:
			t.Go.Held = false
			return
		case asked != nil:
			t.Go.Journal = append(t.Go.Journal, entry{Kind: asked.Kind, Name: asked.Name, Value: json.RawMessage(value)})
			delete(w.asked, t.ID)
			return
		}
	}
	w.t.Fatalf("%q does not wait", node)
}

func (w *walker) now() string {
	text, err := json.Marshal(State{w.state})
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// says is a node that writes values given as pairs of channel and value.
func says(pairs ...any) Node {
	return Node{Run: func(*Context, State) (Result, error) {
		r := Result{Write: map[string]any{}}
		for i := 0; i < len(pairs); i += 2 {
			r.Write[pairs[i].(string)] = pairs[i+1]
		}
		return r, nil
	}}
}

func does(run func(*Context, State) (Result, error)) Node { return Node{Run: run} }

// line is the edges of a sequence, and fan those of nodes that run side by side.
func line(names ...string) (edges []Edge) {
	for i, to := range append(names, End) {
		edges = append(edges, Edge{From: append([]string{Start}, names...)[i], To: to})
	}
	return edges
}

func fan(names ...string) (edges []Edge) {
	for _, name := range names {
		edges = append(edges, Edge{From: Start, To: name}, Edge{From: name, To: End})
	}
	return edges
}

func sum(current, update json.RawMessage) (any, error) {
	var a, b float64
	if err := errors.Join(json.Unmarshal(current, &a), json.Unmarshal(update, &b)); err != nil {
		return nil, err
	}
	if b < 0 {
		return nil, fmt.Errorf("%v is negative", b)
	}
	if b == 13 {
		panic("unlucky")
	}
	return a + b, nil
}
