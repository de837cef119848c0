package agent_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
	"agentd/store/storetest"
)

func size(t *testing.T, path string) int64 {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size()
}

// emptyStore is the path of a database that holds nothing but its tables.
func emptyStore(t *testing.T) string {
	t.Helper()
	db := storetest.Open(t)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return db.Path()
}

// TestTranscriptIsStoredOnce makes a run of 100 tool calls and 200 000 tokens and compares the database with the bytes
// that were said: each text must lie on disk once, though events, journal and transcript all tell it.
func TestTranscriptIsStoredOnce(t *testing.T) {
	unique := atomic.Int64{}
	random := func(n int) string {
		b := make([]byte, n/2)
		rand.Read(b)
		unique.Add(int64(n))
		return hex.EncodeToString(b)
	}
	read := &counter{spec: tool.Spec{Name: "read", Description: "d", SideEffect: tool.ReadOnly}}
	read.execute = func(context.Context, tool.Call) (tool.Result, error) { return tool.JSON(random(6000)) }
	var turns []string
	for range 100 {
		turns = append(turns, fmt.Sprintf(`{"when":{"step":%d},"text":%q,"chunkSize":4000,"toolCalls":[{"name":"read","args":{"q":%q}}]}`, len(turns), random(1000), random(1000)))
	}
	turns = append(turns, `{"text":"done"}`)
	l := llm(t, `{"turns":[`+strings.Join(turns, ",")+`]}`, read)
	l.MaxSteps = 200
	r := newRig(t, single(l))
	res, _ := r.run("a", "go")
	if res.Status != store.Completed || read.count() != 100 {
		t.Fatalf("status %s after %d calls: %+v", res.Status, read.count(), res.Error)
	}
	tokens := 0
	for _, m := range res.State.Messages {
		tokens += message.Estimate(m.Content.String())
		for _, c := range m.ToolCalls {
			tokens += message.Estimate(string(c.Args))
		}
	}
	r.close() // folds the log into the file
	used := size(t, r.path) - size(t, emptyStore(t))
	ratio := float64(used) / float64(unique.Load())
	t.Logf("%d tokens, %d bytes said, %d bytes on disk: %.2f", tokens, unique.Load(), used, ratio)
	if tokens < 190_000 || ratio > 1.9 {
		t.Errorf("%d tokens, disk use %.2f times what was said; want at least 190000 and at most 1.9", tokens, ratio)
	}
	r.open()
}

// BenchmarkStep measures what a durable step costs: runs of 20 steps whose model and tool take no time. Beside it stands
// what a commit of one row takes in the same minute.
func BenchmarkStep(b *testing.B) { // P5
	const steps = 20
	nop := &counter{spec: tool.Spec{Name: "nop", Description: "d", SideEffect: tool.ReadOnly}}
	l := llm(b, `{"turns":[{"toolCalls":[{"name":"nop","args":{}}]}]}`, nop)
	l.MaxSteps = steps
	r := newRig(b, single(l))
	b.ResetTimer()
	for b.Loop() {
		h := r.start(run.StartRequest{Owner: "a", Input: json.RawMessage(`"go"`)})
		if _, err := h.Wait(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/steps, "µs/step")
	const commits = 200
	begun := time.Now()
	for i := range int64(commits) {
		if err := r.db.Update(b.Context(), func(tx *store.Tx) error { return r.db.Runs().SetTimer(tx, 1, i+1) }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(begun).Microseconds())/commits, "µs/commit")
}

// always answers each request with a text or, without one, with a call of the tool nop.
type always struct {
	text string
	n    int
}

func (*always) Name() string { return "always" }

func (p *always) Stream(_ context.Context, req *provider.Request, _ func(provider.Delta)) (*provider.Response, error) {
	if p.text != "" {
		return &provider.Response{Model: req.Model, Finish: provider.FinishStop, Text: p.text}, nil
	}
	p.n++
	return &provider.Response{Model: req.Model, Finish: provider.FinishToolCalls,
		ToolCalls: []message.ToolCall{{ID: fmt.Sprint("again-", p.n), Name: "nop", Args: json.RawMessage("{}")}}}, nil
}

// BenchmarkStepOfALongRun measures the CPU of a step at different places of a run whose model and tool take no time.
func BenchmarkStepOfALongRun(b *testing.B) { // G5
	for _, at := range []int{20, 10_000} {
		b.Run(fmt.Sprintf("step=%d", at), func(b *testing.B) {
			var made int
			var began, took time.Duration
			through := make(chan bool)
			nop := &counter{spec: tool.Spec{Name: "nop", Description: "d", SideEffect: tool.ReadOnly}}
			nop.execute = func(context.Context, tool.Call) (tool.Result, error) {
				switch made++; made {
				case 3: // the run is read, and the model was shown it
					began = cpu(b)
				case 3 + b.N:
					took = cpu(b) - began
					close(through)
				}
				return tool.JSON("x")
			}
			l := llm(b, `{"turns":[{"text":"unused"}]}`, nop)
			l.Models[0].Provider, l.MaxSteps = &always{}, at+b.N+3
			r := newRig(b, single(l))
			c := store.Change{Run: store.Run{ID: "long", Kind: "agent", Owner: "a", Current: "a", Status: store.Running, InputForm: "text",
				Usage: json.RawMessage(`{}`), Models: json.RawMessage(`{}`), Created: 1, Started: 1}}
			storetest.AddSteps(&c, "a", at)
			c.Run.Step++
			c.Steps = append(c.Steps, store.Step{Number: c.Run.Step, Agent: "a", Started: 1})
			if err := r.db.Update(b.Context(), func(tx *store.Tx) error { _, err := r.db.Runs().Apply(tx, &c); return err }); err != nil {
				b.Fatal(err)
			}
			if n := r.restart(); n != 1 {
				b.Fatalf("%d runs were taken up", n)
			}
			<-through
			if _, _, _, err := r.engine.Engine.Wait(b.Context(), "long"); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(took.Microseconds())/float64(b.N), "cpu-µs/step")
		})
	}
}

// cpu is what the process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkShow measures (P3) how a run is shown: read and encoded, the check that one has not changed although others have,
// and one that is kept while nothing was committed.
func BenchmarkShow(b *testing.B) {
	r := newRig(b, single(llm(b, `{"turns":[{"text":"hello"}]}`)))
	res := r.wait(r.start(run.StartRequest{Owner: "a"}))
	id, err := r.engine.Identify(b.Context(), res.State.ID)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		show func() error
	}{
		{"anew", func() error {
			r.engine.Forget([]*store.Run{{ID: id.ID}})
			_, err := r.engine.SnapshotJSON(b.Context(), id, true)
			return err
		}},
		{"unchanged", func() error { _, err := r.db.Runs().Version(b.Context(), id.Number, id.ID); return err }},
		{"kept", func() error { _, err := r.engine.SnapshotJSON(b.Context(), id, true); return err }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := c.show(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAbort measures the time from the request to the end of a run that waits for its model.
func BenchmarkAbort(b *testing.B) {
	r := newRig(b, single(llm(b, `{"turns":[{"text":"x","delayMs":600000}]}`)))
	for b.Loop() {
		h := r.start(run.StartRequest{Owner: "a", Input: json.RawMessage(`"go"`)})
		if status, err := r.engine.Abort(b.Context(), h.ID, run.AbortOptions{}); status != store.Aborted || err != nil {
			b.Fatalf("Abort = %s, %v", status, err)
		}
	}
}
