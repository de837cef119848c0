package agent_test

import (
	"bytes"
	"testing"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/recording"
	"agentd/server/run"
	"agentd/store"
)

// TestCassetteOfARestartedRun parks a run, starts another engine and goes on. record says what the agent's setting is
// before and after.
func TestCassetteOfARestartedRun(t *testing.T) {
	for _, tc := range []struct {
		name   string
		record [2]bool
		want   *fault.Kind
	}{
		{"recorded", [2]bool{true, true}, nil},
		{"not recorded", [2]bool{false, false}, fault.RunNotRecorded},
		{"recorded from the middle on", [2]bool{false, true}, fault.RunNotRecorded},
		{"recorded up to the middle", [2]bool{true, false}, fault.RunNotRecorded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opened := 0
			r := newRig(t, func(r *rig) []agent.Registration {
				make, _ := gatedAgent(t, `{"name":"a","args":{"x":1}},{"name":"b","args":{}}`)
				regs := make(r)
				if tc.record[opened] {
					regs[0].LLM.NewTape = recording.NewTape
				}
				opened++
				return regs
			})
			res, _ := r.run("a", "go")
			id := res.State.ID
			var out bytes.Buffer
			if err := recording.Export(t.Context(), r.engine, id, &out); !fault.Is(err, fault.RunNotEnded) {
				t.Errorf("Cassette of a run that waits = %v, want run-not-ended", err)
			}
			r.restart()
			if res = resume(t, r, id, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true}); res.Status != store.Completed {
				t.Fatalf("the run is %s %+v", res.Status, res.Error)
			}
			err := recording.Export(t.Context(), r.engine, id, &out)
			if tc.want != nil {
				if !fault.Is(err, tc.want) || out.Len() > 0 {
					t.Errorf("Cassette = %v and %d bytes, want %s and none", err, out.Len(), tc.want.Code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			rec, err := recording.Read(&out)
			if err != nil {
				t.Fatal(err)
			}
			if len(rec.ModelCalls) != 2 || len(rec.ToolCalls) != 2 || len(rec.Approvals) != 1 || rec.Result.Status != "completed" {
				t.Errorf("the cassette has %d model calls, %d tool calls, %d approvals and the result %+v", len(rec.ModelCalls), len(rec.ToolCalls), len(rec.Approvals), rec.Result)
			}
			if a := rec.Approvals[0]; a.By != "tester" || a.ToolName != "a" || a.StepNumber != 2 || a.Granted == nil || !*a.Granted {
				t.Errorf("approval = %+v, want that of a, granted by tester in step 2", a)
			}
			if c := rec.ToolCalls[1]; c.ToolName != "a" || c.StepNumber != 2 || c.IdempotencyKey != id+":1:"+c.ToolCallID || string(c.Args) != `{"x":1}` || string(c.Output) != `"did a"` {
				t.Errorf("the granted call = %+v", c)
			}
		})
	}
	r := newRig(t, single(llm(t, twoTools)))
	if err := recording.Export(t.Context(), r.engine, "none", new(bytes.Buffer)); !fault.Is(err, fault.RunNotFound) {
		t.Errorf("Cassette of no run = %v, want run-not-found", err)
	}
}
