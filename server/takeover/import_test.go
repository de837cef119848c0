package takeover_test

import (
	"encoding/json"
	"strings"
	"testing"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/journal"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/runstate"
	"agentd/server/takeover"
	"agentd/store"
)

// TestImportShowsTheSameState: of each version, with everything that this version has no place for.
func TestImportShowsTheSameState(t *testing.T) {
	future := []string{`"suspended"`, `"completed"`, `"observer"`, `"user"`, `"args": {"pier": 3}}]`,
		`"args": {"pier": 3}}, {"toolCallId": "h4", "toolName": "subagent_pilot", "args": {}, "signature": 1}]`}
	cases := []struct {
		version string
		edits   []string
		changed func(*runstate.State) // by the import, as its documentation says
	}{
		{version: "1.0"},
		{version: "1.1"},
		{version: "1.2", edits: []string{"2026-03-10T10:02:12.000Z", "2999-03-10T11:02:12+01:00"}, changed: func(st *runstate.State) {
			st.PendingApprovals[0].GrantedBy, st.PendingApprovals[0].ExpiresAt = nil, "2999-03-10T10:02:12.000Z"
			kid := &st.PendingSubRuns[0].State.PendingApprovals[0]
			kid.ApproversNeeded, kid.ExpiresAt = 2, st.PendingApprovals[0].ExpiresAt
		}},
		{version: "1.9-future", edits: future, changed: func(st *runstate.State) { st.PendingSubRuns[0].State.UsageByModel = nil }},
	}
	register, _ := strangers(t)
	r := newRig(t, register)
	wanted := map[string]*runstate.State{}
	for _, tc := range cases {
		want := fixture(t, tc.version, tc.edits...)
		if tc.changed != nil {
			tc.changed(want)
		}
		canonicalApprovals(t, want)
		wanted[tc.version] = marked(want)
		r.imports(fixture(t, tc.version, tc.edits...), takeover.Options{})
		if got := r.events(want.ID); got != "agent.end" {
			t.Errorf("%s: events %s, want agent.end alone", tc.version, got)
		}
	}
	for _, when := range []string{"at once", "after a restart"} {
		for version, want := range wanted {
			if got, want := encode(t, r.state(want.ID)), encode(t, want); got != want {
				t.Errorf("%s, %s:\n got %s\nwant %s", version, when, got, want)
			}
			r.events(want.ID)
		}
		if n := r.restart(); n != 0 {
			t.Errorf("a restart took up %d runs, want none", n)
		}
	}
}

// TestImportedRunGoesOn: what was imported waits, is decided on, runs once, and the model is told.
func TestImportedRunGoesOn(t *testing.T) {
	for _, restart := range []bool{false, true} {
		register, count := strangers(t)
		r := newRig(t, register)
		made := r.imports(fixture(t, "1.1"), takeover.Options{By: "token:me"})
		if made.Status != store.Awaiting || made.Children != 1 || made.SessionID != "sess-orchard" || len(made.Warnings) != 1 {
			t.Errorf("Import = %+v", made)
		}
		before := encode(t, r.state(made.RunID).Messages)
		if restart {
			r.restart()
		}
		waiting, err := r.engine.Approvals(t.Context(), nil, nil)
		if err != nil || len(waiting) != 1 || waiting[0].SubRunToolCallID != "o2" || waiting[0].ToolName != "send_mail" {
			t.Fatalf("Approvals = %+v, %v", waiting, err)
		}
		res := r.resume(made.RunID, run.Decision{ToolCallID: "m1", SubRunToolCallID: "o2", Granted: true})
		if res.Status != store.Completed || count["send_mail"].count() != 1 || string(res.Output) != `"I was told: I was told: did send_mail"` {
			t.Errorf("resumed: %s %s %+v, %d mails", res.Status, res.Output, res.Error, count["send_mail"].count())
		}
		st := r.state(made.RunID)
		if after := encode(t, st.Messages); !strings.HasPrefix(after, strings.TrimSuffix(before, "]")) || len(st.Messages) != 7 {
			t.Errorf("what was said before has changed:\n got %s\nwant %s...", after, before)
		}
		if st.TaintSummary == nil || len(st.Todos) != 2 || len(st.PromotedTools) != 1 || st.Extra["/messages/2/content/1"] == nil {
			t.Errorf("what has no column was lost: %+v", st)
		}
		if st.UsageByModel["mailer"].TotalTokens != 175 || st.UsageByModel["m-large"].TotalTokens != 2746 || st.Usage.TotalTokens < 2921+175 {
			t.Errorf("usage %+v, want what the child used folded in", st.UsageByModel)
		}
		if got := r.events(made.RunID); !restart && !strings.HasPrefix(got, "agent.end agent.start tool.approval.granted") {
			t.Errorf("events %s", got)
		}
		kid := r.state("run_01J2CHILD7")
		if kid.Status != "completed" || kid.Messages[2].Role != message.Tool {
			t.Errorf("the child: %s %+v", kid.Status, kid.Messages)
		}
	}
}

// TestImportedChain: a chain of three that waits is approved by its path, is aborted, or is denied. What then is said
// is what would have been said at home.
func TestImportedChain(t *testing.T) {
	for _, tc := range []struct {
		name   string
		decide func(*rig, string, journal.Approval)
		paid   int
		status store.Status
	}{
		{"granted", func(r *rig, id string, p journal.Approval) {
			r.resume(id, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
		}, 1, store.Completed},
		{"denied", func(r *rig, id string, p journal.Approval) {
			r.resume(id, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Reason: "no"})
		}, 0, store.Completed},
		{"aborted", func(r *rig, id string, _ journal.Approval) {
			if _, err := r.engine.Abort(t.Context(), id, run.AbortOptions{}); err != nil {
				t.Error(err)
			}
		}, 0, store.Aborted},
		{"held", func(r *rig, id string, p journal.Approval) {
			if _, err := r.engine.Abort(t.Context(), id, run.AbortOptions{OnPending: "hold"}); err != nil {
				t.Error(err)
			}
			r.resume(id, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
		}, 1, store.Completed},
	} {
		var said []string
		regs, _ := chain(t)
		home := newRig(t, regs)
		res := home.say("desk", "pay the bill")
		parked, p := encode(t, res.State), res.State.PendingApprovals[0]
		tc.decide(home, res.State.ID, p)
		said = append(said, encode(t, home.state(res.State.ID)))

		regs, pay := chain(t)
		away := newRig(t, regs)
		made := away.imports(state(t, parked), takeover.Options{})
		if got := encode(t, away.state(made.RunID)); made.Children != 2 || got != encode(t, marked(state(t, parked))) {
			t.Errorf("%s: %d children, state\n got %s\nwant %s", tc.name, made.Children, got, parked)
		}
		away.restart()
		tc.decide(away, made.RunID, p)
		if got := away.state(made.RunID); got.Status != string(tc.status) || pay.count() != tc.paid {
			t.Errorf("%s: %s with %d payments", tc.name, got.Status, pay.count())
		}
		said = append(said, encode(t, away.state(made.RunID)))
		away.events(made.RunID)
		away.events(made.RunID)
		var states [2]runstate.State
		for i := range said {
			if err := json.Unmarshal([]byte(said[i]), &states[i]); err != nil {
				t.Fatal(err)
			}
		}
		if a, b := encode(t, states[0].Messages), encode(t, states[1].Messages); a != b {
			t.Errorf("%s: the transcripts differ:\nhome %s\naway %s", tc.name, a, b)
		}
		if a, b := encode(t, states[0].Handoffs), encode(t, states[1].Handoffs); a != b {
			t.Errorf("%s: the hand-offs differ:\nhome %s\naway %s", tc.name, a, b)
		}
		if a, b := encode(t, states[0].UsageByModel), encode(t, states[1].UsageByModel); a != b {
			t.Errorf("%s: the usage differs:\nhome %s\naway %s", tc.name, a, b)
		}
	}
}

// TestImportHeld: a run that was aborted while its approvals were held is imported as that.
func TestImportHeld(t *testing.T) {
	regs, _ := chain(t)
	home := newRig(t, regs)
	res := home.say("desk", "pay the bill")
	if _, err := home.engine.Abort(t.Context(), res.State.ID, run.AbortOptions{OnPending: "hold"}); err != nil {
		t.Fatal(err)
	}
	held := encode(t, home.state(res.State.ID))
	regs, pay := chain(t)
	away := newRig(t, regs)
	if made := away.imports(state(t, held), takeover.Options{}); made.Status != store.Aborted {
		t.Fatalf("Import = %+v", made)
	}
	if got := encode(t, away.state(res.State.ID)); got != encode(t, marked(state(t, held))) {
		t.Errorf("state\n got %s\nwant %s", got, held)
	}
	p := res.State.PendingApprovals[0]
	res = away.resume(res.State.ID, run.Decision{ToolCallID: p.ToolCallID, SubRunToolCallID: p.SubRunToolCallID, Granted: true})
	if res.Status != store.Completed || pay.count() != 1 {
		t.Errorf("resumed: %s, %d payments", res.Status, pay.count())
	}
}

// TestImportPartlyDecided: outcomes keep their places among calls that still wait, whichever way round they were told.
func TestImportPartlyDecided(t *testing.T) {
	for _, order := range []string{"calls", "answers"} {
		regs, _ := gatedAgent(t, `{"name":"a","args":{}},{"name":"b","args":{}},{"name":"c","args":{"n":3}}`)
		home := newRig(t, regs)
		res := home.say("a", "go")
		if len(res.State.PendingApprovals) != 2 {
			t.Fatalf("pending = %+v", res.State.PendingApprovals)
		}
		first := res.State.PendingApprovals[0]
		if order == "answers" { // as a program that appends outcomes as they come would have it
			res = home.resume(res.State.ID, run.Decision{ToolCallID: first.ToolCallID, Granted: true})
			n := len(res.State.Messages)
			res.State.Messages[n-1], res.State.Messages[n-2] = res.State.Messages[n-2], res.State.Messages[n-1]
		}
		regs, count := gatedAgent(t, `{"name":"a","args":{}},{"name":"b","args":{}},{"name":"c","args":{"n":3}}`)
		away := newRig(t, regs)
		parked := encode(t, res.State)
		id := away.imports(state(t, parked), takeover.Options{}).RunID
		if got := encode(t, away.state(id)); got != encode(t, marked(state(t, parked))) {
			t.Errorf("%s: state\n got %s\nwant %s", order, got, parked)
		}
		var words []run.Decision
		for _, p := range away.state(id).PendingApprovals {
			words = append(words, run.Decision{ToolCallID: p.ToolCallID, Granted: true})
		}
		away.resume(id, words...)
		var told []string
		for _, m := range away.state(id).Messages {
			if m.Role == message.Tool {
				told = append(told, m.Content.Text)
			}
		}
		want := map[string]string{"calls": "did a,did b,did c", "answers": "did b,did a,did c"}[order]
		if strings.Join(told, ",") != want || count["c"].count() != 1 || count["b"].count() != 0 {
			t.Errorf("%s: outcomes %q, want %q", order, told, want)
		}
	}
}

// TestImportTerms: what an approval takes is the stricter of both sides, and grants of elsewhere do not count.
func TestImportTerms(t *testing.T) {
	regs, count := gatedAgent(t, `{"name":"a","args":{}}`)
	home := newRig(t, regs)
	res := home.say("a", "go")
	st := res.State
	st.PendingApprovals[0].GrantedBy, st.PendingApprovals[0].ApproversNeeded = []string{"token:x"}, 2
	st.PendingApprovals[0].ExpiresAt = "2999-01-01T00:00:00.000Z"
	regs, count = gatedAgent(t, `{"name":"a","args":{}}`)
	regs[0].LLM.Policy.Tools["a"] = agent.Gate{Always: true, Terms: journal.Terms{Different: true, Expires: 1 << 40}}
	away := newRig(t, regs)
	made := away.imports(state(t, encode(t, st)), takeover.Options{By: "token:me"})
	p := away.state(made.RunID).PendingApprovals[0]
	if p.NotBy != "token:me" || p.ApproversNeeded != 2 || p.GrantedBy != nil || p.ExpiresAt == "" || p.ExpiresAt > "2998" || len(made.Warnings) != 1 {
		t.Errorf("the approval takes %+v, warnings %q", p, made.Warnings)
	}
	grant := []run.Decision{{ToolCallID: p.ToolCallID, Granted: true}}
	if _, _, err := away.engine.Resume(t.Context(), made.RunID, grant, "token:me", nil); !fault.Is(err, fault.ApproverRefused) {
		t.Errorf("Resume by the importer = %v, want approver-refused", err)
	}
	for i, by := range []string{"token:x", "token:y"} {
		h, _, err := away.engine.Resume(t.Context(), made.RunID, grant, by, nil)
		if err != nil || (h != nil) != (i == 1) {
			t.Fatalf("Resume by %s = %v, %v", by, h, err)
		}
		if h != nil {
			away.wait(h)
		}
	}
	if count["a"].count() != 1 {
		t.Errorf("%d executions, want 1", count["a"].count())
	}
}

// TestImportBecomesASession: the session has what was said, later runs have it as history, and erasing it leaves nothing.
func TestImportBecomesASession(t *testing.T) {
	register, _ := strangers(t)
	r := newRig(t, register)
	r.imports(fixture(t, "1.0"), takeover.Options{SessionID: "moved"})
	msgs := r.run(run.StartRequest{Owner: "luggage-desk", SessionID: "moved", UserID: "marta", Input: json.RawMessage(`"And now?"`)}).State.Messages
	if len(msgs) != 7 || msgs[3].Content.Text != "No courier drives on Sundays." || msgs[0].Content.Parts[1].Image == nil {
		t.Errorf("the next run has the history %s", encode(t, msgs))
	}
	r.imports(fixture(t, "1.2", "2026-03-10T", "2999-03-10T"), takeover.Options{})
	if err := r.engine.EraseSession(t.Context(), "sess-theatre", nil); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"run_01K4STAGE", "run_01K4VAULT"} {
		if _, err := r.engine.Find(t.Context(), id); !fault.Is(err, fault.RunNotFound) {
			t.Errorf("Find(%s) after the erasure = %v", id, err)
		}
	}
	r.imports(fixture(t, "1.2", "2026-03-10T", "2999-03-10T"), takeover.Options{})
}
