package trace_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentd/server/message"
	"agentd/server/span"
	"agentd/server/trace"
	"agentd/store"
	"agentd/store/storetest"
)

// rig is a store with sessions, runs and their spans, and a service that replays them.
type rig struct {
	testing.TB
	db      *store.DB
	service *trace.Service
	runs    map[string]*store.Run
}

func newRig(t testing.TB) *rig {
	db := storetest.Open(t)
	return &rig{TB: t, db: db, service: trace.New(db.Runs(), db.Sessions()), runs: map[string]*store.Run{}}
}

func (r *rig) session(id string) {
	r.Helper()
	err := r.db.Sessions().Update(r.Context(), func(tx *store.Tx) error {
		return r.db.Sessions().Insert(tx, store.Session{ID: id, User: "u", Agent: "a", Created: tx.Now()})
	})
	if err != nil {
		r.Fatal(err)
	}
}

// run makes a run without anything in it; parent is the id of another run, or empty.
func (r *rig) run(id, session, parent string) {
	r.Helper()
	run := &store.Run{ID: id, Kind: "agent", Owner: "a", Current: "a", Session: session, Status: store.Running, Usage: json.RawMessage("{}"),
		Models: json.RawMessage("{}"), InputForm: "text", Created: 1}
	if parent != "" {
		run.Parent = r.runs[parent].N
	}
	r.runs[id] = run
	r.apply(id, store.Change{})
}

// apply writes what a change adds to a run. The run's counters follow from it.
func (r *rig) apply(id string, c store.Change) {
	r.Helper()
	run := r.runs[id]
	run.Messages += len(c.Messages)
	run.Calls += len(c.Calls)
	err := r.db.Runs().Update(r.Context(), func(tx *store.Tx) (err error) {
		c.Run = *run
		run.N, err = r.db.Runs().Apply(tx, &c)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	run.Version++
	run.Was = run.Status
}

// spans writes a batch.
func (r *rig) spans(id string, spans ...span.Span) {
	r.Helper()
	r.batches(id, spans)
}

// batchAt writes a batch whose commit was made at a time.
func (r *rig) batchAt(id string, at int64, spans ...span.Span) {
	r.Helper()
	body, err := message.Encode(spans)
	if err != nil {
		r.Fatal(err)
	}
	run := r.runs[id]
	first := run.Spans
	run.Spans += len(spans)
	r.apply(id, store.Change{Spans: []store.SpanBatch{{First: first, At: at, Body: body}}})
}

// batches writes several at once.
func (r *rig) batches(id string, batches ...[]span.Span) {
	r.Helper()
	run := r.runs[id]
	var c store.Change
	for _, spans := range batches {
		body, err := message.Encode(spans)
		if err != nil {
			r.Fatal(err)
		}
		c.Spans = append(c.Spans, store.SpanBatch{First: run.Spans, At: 1, Body: body})
		run.Spans += len(spans)
	}
	r.apply(id, c)
}

// id is the id of a span of a run.
func (r *rig) id(run string, number int) string { return span.ID(r.runs[run].N, span.Other, number) }

// span is a span of a run that began so many nanoseconds after 1970.
func (r *rig) span(run string, number int, start int64) span.Span {
	return span.Span{Type: span.Step, ID: r.id(run, number), TraceID: span.TraceID(run), Name: fmt.Sprint("step ", number), Start: start, End: start + 5,
		Status: span.OK}
}

// message adds a message to a run's transcript and returns its index.
func (r *rig) message(run string, role message.Role, at time.Time, body any) int {
	r.Helper()
	text, err := message.Encode(body)
	if err != nil {
		r.Fatal(err)
	}
	index := r.runs[run].Messages
	r.apply(run, store.Change{Messages: []store.Message{{Index: index, Role: string(role), At: at.UnixMilli(), Body: text}}})
	return index
}

func (r *rig) replay(t trace.Target, o trace.Options) trace.Replay {
	r.Helper()
	got, err := r.service.Replay(r.Context(), t, o)
	if err != nil {
		r.Fatalf("Replay(%v, %+v) = %v", t, o, err)
	}
	r.check(t, o, got)
	return got
}

// check holds a page to what is true of every page.
func (r *rig) check(t trace.Target, o trace.Options, got trace.Replay) {
	r.Helper()
	mode := map[bool]string{false: "sanitized", true: "raw"}[o.Raw]
	n := len(got.Events)
	first, last := got.Events[0], got.Events[n-1]
	if got.Mode != mode || first.Type != "replay.start" || *first.Target != t || first.Mode != mode || last.Type != "replay.end" {
		r.Errorf("Replay(%v, %+v) is of mode %s, from %+v to %+v; want %s, from replay.start to replay.end", t, o, got.Mode, first, last, mode)
	}
	if got.NextCursor != "" && !got.Truncated {
		r.Errorf("Replay(%v, %+v) has a cursor and is not truncated", t, o)
	}
	emitted, skipped := 0, 0
	for _, e := range got.Events[1 : n-1] {
		switch {
		case e.Type == "replay.event" && *e.Sanitized != o.Raw:
			emitted++
		case e.Type == "replay.skipped" && !o.Raw:
			skipped++
		default:
			r.Errorf("Replay(%v, %+v) has the event %+v", t, o, e)
		}
	}
	if *last.Emitted != emitted || *last.Skipped != skipped || *last.DurationMS < 0 {
		r.Errorf("Replay(%v, %+v) ends with %d, %d and %d ms; want %d and %d", t, o, *last.Emitted, *last.Skipped, *last.DurationMS, emitted, skipped)
	}
}

// ids are those of a page's spans; a skipped one has a ! before it.
func ids(p trace.Replay) string {
	var out []string
	for _, e := range p.Events[1 : len(p.Events)-1] {
		if e.Span != nil {
			out = append(out, e.Span.ID)
		} else {
			out = append(out, "!"+e.SpanID)
		}
	}
	return strings.Join(out, " ")
}

// walk reads all pages and returns their spans.
func (r *rig) walk(t trace.Target, o trace.Options) (all string, pages int) {
	r.Helper()
	var lists []string
	for {
		p := r.replay(t, o)
		if list := ids(p); list != "" {
			lists = append(lists, list)
		}
		pages++
		if o.Cursor = p.NextCursor; o.Cursor == "" {
			return strings.Join(lists, " "), pages
		}
	}
}
