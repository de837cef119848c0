package workflow_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"agentd/server/workflow"
	"agentd/store"
)

// TestFoldHosted: a thread that loops keeps neither the runs that it hosted for folded steps nor their threads, however long it
// loops, and keeps those that its open tasks need.
func TestFoldHosted(t *testing.T) {
	r := newRig(t, map[string]string{
		"outer": `{"maxSteps":100000,"keepSteps":20,"state":{"n":{"merge":"sum"},"kept":{}},"start":"both","nodes":{
			"both":{"kind":"parallel","branches":["old","loop"],"next":"end"},
			"old":{"kind":"workflow","workflow":"fails","save":"kept","retry":{"maxAttempts":2,"backoffMs":3600000,"maxBackoffMs":3600000,"on":["later"]},"next":"end"},
			"loop":{"kind":"workflow","workflow":"inner","next":"add"},
			"add":{"kind":"set","values":{"n":"${ 1 }"},"next":"more"},
			"more":{"kind":"branch","cases":[{"if":"state.n % 100 > 0","next":"loop"}],"else":"stop"},
			"stop":{"kind":"await","name":"x","timeoutMs":3600000,"late":"gone","next":"loop"},"gone":{"kind":"set","values":{"n":"${ 0 }"},"next":"end"}}}`,
		"fails": `{"start":"f","nodes":{"f":{"kind":"fail","code":"later","message":"Later."}}}`,
		"inner": `{"start":"s","nodes":{"s":{"kind":"workflow","workflow":"leaf","next":"end"}}}`,
		"leaf":  `{"state":{"v":{}},"start":"s","nodes":{"s":{"kind":"set","values":{"v":1},"next":"end"}}}`})
	_, err := r.Execute(context.Background(), workflow.ExecuteRequest{WorkflowID: "outer", ThreadID: "t"})
	if err != nil {
		t.Fatal(err)
	}
	var rows []int
	for n := 100; n <= 400; n += 100 {
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
			s, err := r.State(context.Background(), "outer", "t")
			if err != nil || time.Now().After(end) {
				t.Fatalf("State = %+v, %v", s, err)
			}
			if string(s.State["n"]) == strconv.Itoa(n) && slices.ContainsFunc(s.PendingPauses, func(p workflow.Pause) bool { return p.Name == "x" }) {
				break
			}
		}
		rows = append(rows, rowsOf(t, r))
		if err := r.resume("outer", "t", "x", `1`); err != nil {
			t.Fatal(err)
		}
	}
	// At most keepSteps and those of the 128 steps between two folds, of which a third hosts two runs.
	if most := 3*(20+128) + 50; rows[2] > most || rows[3] > most {
		t.Errorf("after 100, 200, 300 and 400 hosted threads there are %v runs and threads, want at most %d", rows, most)
	}
	if damage, err := r.db.Verify(context.Background()); err != nil || len(damage) > 0 {
		t.Errorf("Check = %v, %v", damage, err)
	}
	var failed int
	if err := r.db.View(context.Background(), func(tx *store.Tx) error {
		runs, err := r.db.Runs().List(tx, store.RunFilter{Parent: 1, Workflows: []string{"fails"}, Agents: []string{}})
		failed = len(runs)
		return err
	}); err != nil || failed != 1 {
		t.Errorf("%d runs of the attempt that is tried again are kept (%v), want 1", failed, err)
	}
}

// rowsOf counts the runs that are stored.
func rowsOf(t *testing.T, r *rig) (rows int) {
	t.Helper()
	if err := r.db.View(context.Background(), func(tx *store.Tx) error {
		for n := range int64(3000) {
			_, err := r.db.Runs().Number(tx, n)
			if err == nil {
				rows++
			} else if !errors.Is(err, store.ErrNotFound) {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return rows
}
