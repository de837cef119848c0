package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/store"
)

// What is to be written with an effect is written in its transaction: where it fails, there is no effect.
func TestAlsoIsPartOfTheEffect(t *testing.T) {
	make, _ := gatedAgent(t, `{"name":"a","args":{}}`)
	r := newRig(t, make)
	refused := errors.New("not with this")
	if _, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "a", SessionID: "s", Also: func(tx *store.Tx, runID string, status store.Status) error {
		if runID == "" || status != store.Running {
			t.Errorf("Also(%q, %s), want the id of a running run", runID, status)
		}
		return refused
	}}); !errors.Is(err, refused) {
		t.Errorf("Start = %v, want the error of Also", err)
	}
	if runs, _, err := r.engine.List(t.Context(), store.RunFilter{Limit: 10}); err != nil || len(runs) > 0 {
		t.Errorf("there are the runs %+v, %v; want none", runs, err)
	}
	h := r.start(run.StartRequest{Owner: "a", SessionID: "s"})
	res := r.wait(h)
	r.start(run.StartRequest{Owner: "a", SessionID: "s", Queue: true, Also: func(_ *store.Tx, _ string, status store.Status) error {
		if status != store.Pending {
			t.Errorf("Also of a run that waits its turn is told %s, want pending", status)
		}
		return nil
	}})
	decisions := []run.Decision{{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true}, {ToolCallID: "x"}}
	if _, _, err := r.engine.Resume(t.Context(), h.ID, decisions, "", func(_ *store.Tx, decided []run.Verdict, unmatched []run.Decision) error {
		if want := (run.Verdict{RunID: h.ID, ToolCallID: decisions[0].ToolCallID, ToolName: "a", ArgsDigest: journal.ArgsDigest(nil), Granted: true}); len(decided) != 1 || decided[0] != want {
			t.Errorf("decided = %v, want %v", decided, want)
		}
		if len(unmatched) != 1 || unmatched[0].ToolCallID != "x" {
			t.Errorf("unmatched = %v, want x", unmatched)
		}
		return refused
	}); !errors.Is(err, refused) {
		t.Errorf("ResumeAlso = %v, want the error of also", err)
	}
	if s := r.settled(h.ID); s.Status != store.Awaiting {
		t.Errorf("after a decision that was refused the run is %s, want it to wait", s.Status)
	}
	if err := r.engine.EraseSession(t.Context(), "s", func(*store.Tx) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("EraseSession = %v, want the error of also", err)
	}
	if s := r.settled(h.ID); s.Status != store.Awaiting {
		t.Errorf("after an erasure that was refused the run is %s, want it to wait", s.Status)
	}
}

func TestWaitForAnyRun(t *testing.T) {
	r := newRig(t, single(llm(t, `{"turns":[{"text":"x","delayMs":60000}]}`)))
	wait := func(ctx context.Context, id string) chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := r.engine.Wait(ctx, id)
			ended <- err
		}()
		return ended
	}
	if err := <-wait(t.Context(), "nobody"); !fault.Is(err, fault.RunNotFound) {
		t.Errorf("Wait of no run = %v, want run-not-found", err)
	}
	h := r.start(run.StartRequest{Owner: "a"})
	if err := <-wait(ended(), h.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context = %v, want its cause", err)
	}
	waiting := wait(t.Context(), h.ID)
	closing, stop := context.WithCancel(t.Context())
	stop()
	if err := r.hub.Run(closing, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; !fault.Is(err, fault.ServerDraining) {
		t.Errorf("Wait when the server stops = %v, want server-draining", err)
	}
}
