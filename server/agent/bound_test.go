package agent_test

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"testing/synctest"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

// edit changes the database of a server that does not run.
func (r *rig) edit(statement string) {
	r.t.Helper()
	r.close()
	r.edited = true
	db, err := sql.Open("sqlite", "file:"+r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer db.Close()
	res, err := db.Exec(statement)
	if err != nil {
		r.t.Fatal(err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		r.t.Fatalf("%s changed %d rows, %v, want some", statement, n, err)
	}
	r.open()
	if _, err := r.engine.Recover(r.t.Context()); err != nil {
		r.t.Fatalf("Recover: %v", err)
	}
}

// edits are what somebody may do to the stored arguments of a parked call of the tool a.
var edits = map[string]string{
	"the message":   `UPDATE run_messages SET body = replace(body, '"x":1', '"x":1000000') WHERE role = 'assistant'`,
	"its spelling":  `UPDATE run_messages SET body = replace(body, '"x":1', '"x":1,"x":1000000') WHERE role = 'assistant'`,
	"the tool":      `UPDATE run_messages SET body = replace(body, '"toolName":"a"', '"toolName":"b"') WHERE role = 'assistant'`,
	"the journal":   `UPDATE tool_calls SET name = 'b' WHERE name = 'a'`,
	"the approval":  `UPDATE run_slots SET json = replace(json, '"x":1', '"x":1000000') WHERE json LIKE '[{"toolCallId"%'`,
	"what is shown": `UPDATE run_slots SET json = replace(json, '"toolName":"a"', '"toolName":"b"') WHERE json LIKE '[{"toolCallId"%'`,
}

func TestEditedCallIsNotGranted(t *testing.T) {
	for name, statement := range edits {
		t.Run(name, func(t *testing.T) {
			make, count := gatedAgent(t, `{"name":"a","args":{"x":1.0}}`)
			r := newRig(t, make)
			res, events := r.run("a", "go")
			id, call := res.State.ID, res.State.PendingApprovals[0]
			if want := journal.ArgsDigest([]byte(`{"x":1}`)); call.ArgsDigest != want ||
				!contains(events, event.ApprovalRequested, `"toolName":"a","argsDigest":"`+want+`","args":{"x":1}`) {
				t.Fatalf("approval = %+v with events %v, want the digest %s", call, events, want)
			}
			r.edit(statement)
			if r.engine.Altered() != 1 {
				t.Errorf("%d alarms after the start, want one", r.engine.Altered())
			}
			waiting, err := r.engine.Approvals(t.Context(), nil, nil)
			if err != nil || len(waiting) != 1 || waiting[0].Mismatch == "" {
				t.Errorf("Approvals = %+v, %v, want one with a mismatch", waiting, err)
			}
			_, _, err = r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: call.ToolCallID, Granted: true}}, "tester", nil)
			if !fault.Is(err, fault.CallAltered) || !strings.Contains(err.Error(), call.ToolCallID) || r.engine.Altered() == 0 {
				t.Errorf("Resume = %v with %d alarms, want call-altered and some", err, r.engine.Altered())
			}
			if st := r.settled(id); st.Status != store.Awaiting {
				t.Errorf("the run is %s, want it to wait", st.Status)
			}
			if res := resume(t, r, id, run.Decision{ToolCallID: call.ToolCallID}); res.Status != store.Completed {
				t.Errorf("after a denial: %s %+v", res.Status, res.Error)
			}
			if n := count["a"].count() + count["b"].count(); n != 0 {
				t.Errorf("%d calls were made, want none", n)
			}
		})
	}
}

// TestDamagedCall: what cannot be read any more hides nothing else that waits, and is not granted.
func TestDamagedCall(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{"x":1}}`)
	r := newRig(t, make)
	res, _ := r.run("a", "go")
	r.run("a", "go")
	r.edit(`UPDATE run_messages SET body = replace(body, '"x":1', '"x":') WHERE role = 'assistant' AND key = (SELECT min(key) FROM run_messages WHERE role = 'assistant')`)
	waiting, err := r.engine.Approvals(t.Context(), nil, nil)
	if err != nil || len(waiting) != 2 || waiting[0].RunID != res.State.ID || waiting[0].Mismatch == "" || waiting[1].Mismatch != "" {
		t.Errorf("Approvals = %+v, %v, want two, the first with a mismatch", waiting, err)
	}
	_, _, err = r.engine.Resume(t.Context(), res.State.ID, []run.Decision{{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true}}, "tester", nil)
	if err == nil || count["a"].count() != 0 {
		t.Errorf("Resume = %v with %d calls, want an error and none", err, count["a"].count())
	}
}

// TestEditedSpelling: an edit that means the same changes nothing.
func TestEditedSpelling(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{"x":1}}`)
	var got []string
	count["a"].execute = func(_ context.Context, c tool.Call) (tool.Result, error) {
		got = append(got, string(c.Args))
		return tool.JSON("")
	}
	r := newRig(t, make)
	res, _ := r.run("a", "go")
	r.edit(`UPDATE run_messages SET body = replace(body, '"x":1', '"\u0078": 1e0') WHERE role = 'assistant'`)
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
	if r.engine.Altered() != 0 || res.Status != store.Completed || len(got) != 1 || got[0] != `{"x":1}` {
		t.Errorf("%s %+v with calls %v, want one with {\"x\":1}", res.Status, res.Error, got)
	}
}

// TestEditedCallIsNotMade edits a call that an earlier process had begun, and that recovery may make again.
func TestEditedCallIsNotMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counter{spec: tool.Spec{Name: "a", Description: "d", Idempotent: true}}
		hang(c)
		r := newRig(t, single(llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"a","args":{"x":1}}]},{"text":"end: {{lastTool}}"}]}`, c)))
		h := r.start(run.StartRequest{Owner: "a"})
		waitFor(t, func() bool { return c.count() == 1 })
		r.edit(edits["the message"])
		r.settled(h.ID)
		res, err := r.engine.Result(t.Context(), h.ID)
		if err != nil || res.Status != store.Completed || !strings.Contains(string(res.Output), "was changed") || c.count() != 1 || r.engine.Altered() != 1 {
			t.Errorf("%s %s, %v after %d calls with %d alarms, want completed, told of the change, with the call of before alone", res.Status, res.Output, err, c.count(), r.engine.Altered())
		}
	})
}

// TestEditedChildCall edits the copy of a child's approval that its parent shows, and the call of the child itself.
func TestEditedChildCall(t *testing.T) {
	for name, statement := range map[string]string{
		"the mirror": `UPDATE run_slots SET json = replace(json, '"x":1', '"x":2') WHERE json LIKE '%subRunToolCallId%'`,
		"the child":  `UPDATE run_messages SET body = replace(body, '"x":1', '"x":2') WHERE body LIKE '%"x":1%'`,
	} {
		t.Run(name, func(t *testing.T) {
			list, byName := tools("a")
			kid := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"a","args":{"x":1}}]},{"text":"end"}]}`, list...)
			kid.Policy.Tools = map[string]agent.Gate{"a": {Always: true}}
			top := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"subagent_kid","args":{"input":"go"}}]},{"text":"end"}]}`, agent.SubAgentTool("kid", ""))
			r := newRig(t, func(*rig) []agent.Registration {
				return []agent.Registration{{ID: "top", LLM: top}, {ID: "kid", LLM: kid}}
			})
			res, _ := r.run("top", "go")
			call := res.State.PendingApprovals[0]
			r.edit(statement)
			if waiting, err := r.engine.Approvals(t.Context(), nil, nil); err != nil || len(waiting) != 1 || waiting[0].Mismatch == "" {
				t.Errorf("Approvals = %+v, %v, want one with a mismatch", waiting, err)
			}
			_, _, err := r.engine.Resume(t.Context(), res.State.ID, []run.Decision{{ToolCallID: call.ToolCallID, SubRunToolCallID: call.SubRunToolCallID, Granted: true}}, "tester", nil)
			if !fault.Is(err, fault.CallAltered) || byName["a"].count() != 0 {
				t.Errorf("Resume = %v with %d calls, want call-altered and none", err, byName["a"].count())
			}
		})
	}
}

// TestCallsOfBefore: the journal of an earlier version has digests of texts that are kept nowhere.
func TestCallsOfBefore(t *testing.T) {
	make, count := gatedAgent(t, `{"name":"a","args":{"x":1}}`)
	r := newRig(t, make)
	res, _ := r.run("a", "go")
	r.edit(`UPDATE tool_calls SET args_canonical = 0, args_sha256 = x'00'`)
	if waiting, err := r.engine.Approvals(t.Context(), nil, nil); err != nil || len(waiting) != 1 || waiting[0].Mismatch != "" {
		t.Errorf("Approvals = %+v, %v, want one without a mismatch", waiting, err)
	}
	res = resume(t, r, res.State.ID, run.Decision{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true})
	if r.engine.Altered() != 0 || res.Status != store.Completed || count["a"].count() != 1 {
		t.Errorf("%s %+v with %d calls, want one", res.Status, res.Error, count["a"].count())
	}
}

// editable is an agent whose calls of a a person may change, but for x=9, which it may never make.
func editable(t *testing.T, gate agent.Gate) (func(*rig) []agent.Registration, *counter, *[]string) {
	c := &counter{spec: tool.Spec{Name: "a", Description: "d", Input: []byte(`{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}`)}}
	var made []string
	c.execute = func(_ context.Context, call tool.Call) (tool.Result, error) {
		made = append(made, string(call.Args))
		return tool.JSON("paid")
	}
	l := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"a","args":{"x":1}}]},{"text":"end: {{lastTool}}"}]}`, c)
	never, err := agent.ParsePattern("a:x=9")
	if err != nil {
		t.Fatal(err)
	}
	l.Policy.Deny, l.Policy.Tools = []agent.Pattern{never}, map[string]agent.Gate{"a": gate}
	return single(l), c, &made
}

func TestChangedArguments(t *testing.T) {
	make, _, made := editable(t, agent.Gate{Always: true, Edit: true})
	var told []run.Happening // by the run's goroutine and by Resume, one after the other
	r := newAuditedRig(t, make, (&book{look: func(h run.Happening) { told = append(told, h) }}).write)
	res, _ := r.run("a", "go")
	id, call := res.State.ID, res.State.PendingApprovals[0]
	for args, want := range map[string]string{`{"x":"many"}`: "do not fit", `{"x":2,"x":3}`: "twice", `{"x":9.0}`: "may not make", `null`: "not a JSON object", `{"x"`: "not JSON"} {
		_, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: call.ToolCallID, Granted: true, Args: []byte(args)}}, "tester", nil)
		if !fault.Is(err, fault.EditRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("Resume with %s = %v, want edit-refused: %s", args, err, want)
		}
	}
	if _, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: call.ToolCallID, Args: []byte(`{"x":2}`)}}, "tester", nil); !fault.Is(err, fault.EditRefused) {
		t.Errorf("a denial with arguments = %v, want edit-refused", err)
	}
	r.restart()
	res = resume(t, r, id, run.Decision{ToolCallID: call.ToolCallID, Granted: true, Args: []byte(` {"x": 2.0}`), Reason: "less"})
	if res.Status != store.Completed || len(*made) != 1 || (*made)[0] != `{"x":2}` || !strings.Contains(string(res.Output), `A person allowed this call with other arguments: {\"x\":2}`) {
		t.Fatalf("%s %s %+v with the calls %v, want one with {\"x\":2}, of which the model is told", res.Status, res.Output, res.Error, *made)
	}
	asked, now := journal.ArgsDigest([]byte(`{"x":1}`)), journal.ArgsDigest([]byte(`{"x":2}`))
	for _, h := range told {
		if h.Event == event.ApprovalGranted && (h.ArgsDigest != now || h.AskedDigest != asked || h.Reason != "less" || h.By != "tester") || h.Event == event.ApprovalRequested && h.ArgsDigest != asked {
			t.Errorf("the audit is told %+v", h)
		}
	}
	st := res.State
	if got := string(st.Steps[1].ToolCalls[0].Call.Args); got != `{"x":2}` {
		t.Errorf("the state shows the call with %s, want {\"x\":2}", got)
	}
	if got := string(st.Messages[1].ToolCalls[0].Args); got != `{"x":1}` {
		t.Errorf("the message shows the call with %s, want what the model asked for", got)
	}
}

// TestChangesAreRefused: where nobody may change arguments.
func TestChangesAreRefused(t *testing.T) {
	for name, gate := range map[string]agent.Gate{
		"not said":      {Always: true},
		"two approvers": {Always: true, Edit: true, Terms: journal.Terms{Approvers: 2}},
	} {
		make, _, made := editable(t, gate)
		r := newRig(t, make)
		res, _ := r.run("a", "go")
		_, _, err := r.engine.Resume(t.Context(), res.State.ID, []run.Decision{{ToolCallID: res.State.PendingApprovals[0].ToolCallID, Granted: true, Args: []byte(`{"x":2}`)}}, "tester", nil)
		if !fault.Is(err, fault.EditRefused) || len(*made) != 0 {
			t.Errorf("%s: Resume = %v with %d calls, want edit-refused and none", name, err, len(*made))
		}
	}
}

// TestChangedCallAfterACrash: a call that was changed and of unknown outcome is shown, and made again, as it was changed.
func TestChangedCallAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		make, c, made := editable(t, agent.Gate{Always: true, Edit: true})
		record := c.execute
		hang(c)
		r := newRig(t, make)
		res, _ := r.run("a", "go")
		id, call := res.State.ID, res.State.PendingApprovals[0].ToolCallID
		if _, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: call, Granted: true, Args: []byte(`{"x":2}`)}}, "tester", nil); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return c.count() == 1 })
		r.crash()
		c.execute = record
		if st := r.settled(id); st.Status != store.Awaiting || string(st.PendingApprovals[0].Args) != `{"x":2}` {
			t.Fatalf("after the crash: %s %+v, want it to wait with {\"x\":2}", st.Status, st.PendingApprovals)
		}
		if _, _, err := r.engine.Resume(t.Context(), id, []run.Decision{{ToolCallID: call, Granted: true, Again: true, Args: []byte(`{"x":3}`)}}, "tester", nil); !fault.Is(err, fault.EditRefused) {
			t.Errorf("another change = %v, want edit-refused", err)
		}
		res = resume(t, r, id, run.Decision{ToolCallID: call, Granted: true, Again: true})
		if res.Status != store.Completed || len(*made) != 1 || (*made)[0] != `{"x":2}` {
			t.Errorf("%s %+v with the calls %v, want one with {\"x\":2}", res.Status, res.Error, *made)
		}
	})
}
