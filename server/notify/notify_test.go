package notify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/config"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/graph"
	"agentd/server/notify"
	"agentd/server/run"
	"agentd/server/webhook"
	"agentd/store"
)

var key = []byte("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")

// A got is a request that a receiver has got and verified.
type got struct {
	at       time.Duration // since the begin
	id, body string
	sequence int64
	trace    string
}

// A receiver answers requests as its function says; the request is the nth.
type receiver struct {
	t      *testing.T
	begin  time.Time
	answer func(ctx context.Context, n int) (status int, header http.Header, err error)

	mu   sync.Mutex
	list []got
}

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	verifier, err := webhook.New(webhook.Scheme{Name: webhook.Standard}, key)
	if err != nil {
		r.t.Error(err)
	}
	if id, err := verifier.Verify(req.Header, text); err != nil || id != req.Header.Get("Webhook-Id") {
		r.t.Errorf("the signature of %s does not verify: %v", text, err)
	}
	var b struct{ Sequence int64 }
	if err := json.Unmarshal(text, &b); err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	r.list = append(r.list, got{time.Since(r.begin), req.Header.Get("Webhook-Id"), string(text), b.Sequence, req.Header.Get("Traceparent")})
	n := len(r.list)
	r.mu.Unlock()
	status, header := 204, http.Header{}
	if r.answer != nil {
		if status, header, err = r.answer(req.Context(), n); err != nil {
			return nil, err
		}
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader("secret of the receiver"))}, nil
}

func (r *receiver) got() []got {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

const hooks = "https://hooks.example/in?token=hunter2"

func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &receiver{t: t, begin: time.Now()}
		r := newRig(t, target(t, in, hooks, notify.HealthFailing))
		defer r.stop()
		r.write(notify.AuditBroken, 1) // nobody wants it
		r.write(notify.HealthFailing, 20)
		r.run()
		time.Sleep(time.Second)
		all := in.got()
		for i, v := range all {
			if v.sequence != int64(i+1) {
				t.Errorf("request %d has sequence %d: %s", i+1, v.sequence, v.body)
			}
		}
		if len(all) != 20 || len(r.list("delivered")) != 20 || len(r.list("")) != 20 {
			t.Errorf("%d requests, rows %v; want 20 delivered", len(all), r.list(""))
		}
		if id := r.list("")[0].Target; !strings.HasPrefix(id, "hooks.example#") || strings.Contains(id, "hunter2") {
			t.Errorf("the target is named %q, which must not show its query", id)
		}
	})
}

// A failed notification is tried again beside the others, which arrive meanwhile.
func TestFailureHoldsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &receiver{t: t, begin: time.Now(), answer: func(ctx context.Context, n int) (int, http.Header, error) {
			switch n {
			case 1:
				return 500, nil, nil
			case 3:
				<-ctx.Done() // it stalls
				return 0, nil, ctx.Err()
			case 5:
				return 302, http.Header{"Location": {"https://elsewhere.example/"}}, nil
			case 6:
				return 0, nil, errors.New("dial tcp 10.1.2.3:443: no route to hunter2")
			}
			return 200, nil, nil
		}}
		r := newRig(t, target(t, in, hooks, notify.HealthFailing))
		defer r.stop()
		r.write(notify.HealthFailing, 8)
		r.run()
		time.Sleep(11 * time.Second)
		failures := map[int64]string{}
		for _, v := range r.list("waiting") {
			failures[v.Sequence] = v.Failure
		}
		if len(failures) != 3 || len(r.list("delivered")) != 5 { // the first is through by now
			t.Errorf("after 11 s, %v wait and %d are delivered", failures, len(r.list("delivered")))
		}
		if text := fmt.Sprint(failures); strings.Contains(text, "10.1.2.3") || strings.Contains(text, "hunter2") || !strings.Contains(text, "it answered 302") || !strings.Contains(text, "did not answer in time") {
			t.Errorf("failures = %v", failures)
		}
		time.Sleep(time.Minute)
		ids := map[string]int{}
		for _, v := range in.got() {
			ids[v.id]++
		}
		if len(r.list("delivered")) != 8 || len(ids) != 8 {
			t.Errorf("rows %v, attempts by id %v; want 8 delivered under 8 ids", r.list(""), ids)
		}
	})
}

// A receiver that never answers does not slow another one.
func TestStalledReceivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := func(ctx context.Context, _ int) (int, http.Header, error) { <-ctx.Done(); return 0, nil, ctx.Err() }
		quick := &receiver{t: t, begin: time.Now()}
		targets := []notify.Target{target(t, quick, hooks, notify.HealthFailing)}
		for i := range notify.MaxTargets - 1 {
			targets = append(targets, target(t, &receiver{t: t, answer: stalled}, fmt.Sprintf("https://stalled.example/%d", i), notify.HealthFailing))
		}
		r := newRig(t, targets...)
		defer r.stop()
		r.run()
		for range 10 {
			r.write(notify.HealthFailing, 1)
			time.Sleep(6 * time.Second)
		}
		for i, v := range quick.got() {
			if late := v.at - time.Duration(i)*6*time.Second; late > time.Second {
				t.Errorf("notification %d came %s late", i+1, late)
			}
		}
		if n := len(quick.got()); n != 10 {
			t.Errorf("%d requests, want 10", n)
		}
	})
}

func TestThreeDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := false
		in := &receiver{t: t, begin: time.Now(), answer: func(context.Context, int) (int, http.Header, error) {
			if up {
				return 200, nil, nil
			}
			return 503, nil, nil
		}}
		to := target(t, in, hooks, notify.HealthFailing)
		r := newRig(t, to)
		defer r.stop()
		r.write(notify.HealthFailing, 1)
		r.run()
		time.Sleep(71 * time.Hour)
		waiting := r.list("waiting")
		if len(waiting) != 1 || waiting[0].Attempts < 10 || waiting[0].DueAt == "" {
			t.Fatalf("after 71 hours: %+v", r.list(""))
		}
		st, err := r.d.Status(t.Context())
		if err != nil || len(st.Failing) != 1 || st.Waiting != 1 || st.Full() {
			t.Errorf("Status = %+v, %v; want a receiver that fails", st, err)
		}
		time.Sleep(2 * time.Hour)
		dead := r.list("dead")
		if len(dead) != 1 || dead[0].Failure != "it answered 503" || dead[0].Status != 503 {
			t.Fatalf("after 73 hours: %+v", r.list(""))
		}
		up = true
		if n, err := r.retry(nil, to.ID); n != 1 || err != nil {
			t.Fatalf("Retry = %d, %v", n, err)
		}
		time.Sleep(time.Second)
		all := in.got()
		if done := r.list("delivered"); len(done) != 1 || all[0].id != all[len(all)-1].id || all[0].sequence != 1 {
			t.Errorf("after a retry: %+v; %v", r.list(""), all[len(all)-1])
		}
		if _, err := r.retry([]string{all[0].id}, ""); !fault.Is(err, fault.NotificationDelivered) {
			t.Errorf("Retry of what was delivered = %v", err)
		}
	})
}

// A 410 ends the deliveries to a receiver, also over a restart, until a test succeeds.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 410
		in := &receiver{t: t, begin: time.Now(), answer: func(context.Context, int) (int, http.Header, error) { return status, nil, nil }}
		r := newRig(t, target(t, in, hooks, notify.HealthFailing))
		r.write(notify.HealthFailing, 1)
		r.run()
		time.Sleep(time.Second)
		r.write(notify.HealthFailing, 2)
		r.stop()
		r.open()
		defer func() { r.stop() }()
		r.run()
		time.Sleep(time.Hour)
		if n := len(in.got()); n != 1 || len(r.list("dead")) != 1 || len(r.list("waiting")) != 2 {
			t.Fatalf("%d requests; %+v", n, r.list(""))
		}
		if list, err := r.d.Receivers(t.Context()); err != nil || !list[0].Disabled {
			t.Errorf("Receivers = %+v, %v", list, err)
		}
		if res, err := r.d.Test(t.Context(), ""); err != nil || res[0].OK || res[0].Status != 410 {
			t.Errorf("Test = %+v, %v", res, err)
		}
		status = 200
		if res, err := r.d.Test(t.Context(), r.targets[0].ID); err != nil || len(res) != 1 || !res[0].OK {
			t.Errorf("Test = %+v, %v", res, err)
		}
		time.Sleep(2 * time.Second)
		if len(r.list("delivered")) != 2 {
			t.Errorf("after a test that succeeded: %+v", r.list(""))
		}
		if _, err := r.d.Test(t.Context(), "nobody"); !fault.Is(err, fault.NotFound) {
			t.Errorf("Test of nobody = %v", err)
		}
	})
}

// What waits for a receiver that is declared no more dies, and is not retried.
func TestRemovedReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &receiver{t: t, begin: time.Now()}
		old := target(t, in, "https://old.example/", notify.HealthFailing)
		r := newRig(t, old)
		r.write(notify.HealthFailing, 2100)
		r.db.Close()
		r.targets = []notify.Target{target(t, in, hooks, notify.HealthFailing)}
		r.open()
		defer r.stop()
		r.run()
		time.Sleep(time.Minute)
		dead := r.list("dead")
		if len(dead) != 1000 || len(r.list("waiting")) != 0 || dead[0].Failure != "the receiver is declared no more" || len(in.got()) != 0 {
			t.Errorf("%d dead, %d waiting, %d requests", len(dead), len(r.list("waiting")), len(in.got()))
		}
		for _, ids := range [][]string{{dead[0].ID}, {"msg_none"}} {
			if _, err := r.retry(ids, ""); !fault.Is(err, fault.NotFound) {
				t.Errorf("Retry of %s = %v", ids, err)
			}
		}
		if n, err := r.retry(nil, old.ID); n != 0 || !fault.Is(err, fault.NotFound) {
			t.Errorf("Retry of what is declared no more = %d, %v", n, err)
		}
	})
}

// A restart loses nothing, and repeats under the same id what was in progress.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &receiver{t: t, begin: time.Now()}
		in.answer = func(ctx context.Context, n int) (int, http.Header, error) {
			if n%3 == 0 {
				<-ctx.Done()
				return 0, nil, ctx.Err()
			}
			return 200, nil, nil
		}
		r := newRig(t, target(t, in, hooks, notify.HealthFailing))
		defer func() { r.stop() }()
		r.write(notify.HealthFailing, 9)
		for range 20 {
			r.run()
			time.Sleep(time.Second)
			r.stop()
			r.open()
		}
		ids := map[string]int64{}
		for _, v := range in.got() {
			if s, known := ids[v.id]; known && s != v.sequence {
				t.Errorf("%s has sequences %d and %d", v.id, s, v.sequence)
			}
			ids[v.id] = v.sequence
		}
		if len(r.list("delivered")) != 9 || len(ids) != 9 {
			t.Errorf("%+v under %d ids", r.list(""), len(ids))
		}
	})
}

func TestNote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all, some := &receiver{t: t}, &receiver{t: t}
		every := []string{notify.ApprovalRequested, notify.RunCompleted, notify.RunFailed, notify.BudgetExceeded}
		narrow := target(t, some, "https://some.example/", notify.ApprovalRequested)
		narrow.Agents = []string{"clerk"}
		template, problems := graph.Template(json.RawMessage(`{"text": "${ data.toolName } with ${ arguments.to } by ${ data.owner } at ${ sequence }", "type": "${ type }", "args": "${ arguments }"}`), config.NotifyVars())
		if problems != nil {
			t.Fatal(problems)
		}
		narrow.Template = template
		r := newRig(t, target(t, all, hooks, every...), narrow)
		defer r.stop()
		r.args = map[string]string{"c1": `{"to": "ann", "pin": "hunter2"}`}
		commit := func(id, owner string, status, was store.Status, cause string, list ...run.Happening) {
			t.Helper()
			c := store.Change{Run: store.Run{ID: id, Kind: "agent", Owner: owner, Current: owner, Status: status, InputForm: "text",
				Usage: json.RawMessage("{}"), Models: json.RawMessage("{}"), Created: 1, Error: json.RawMessage(cause)}}
			note := r.d.Note(&c.Run, was, list)
			err := r.db.Runs().Update(t.Context(), func(tx *store.Tx) error {
				if _, err := r.db.Runs().Apply(tx, &c); err != nil || note == nil {
					return err
				}
				return note(tx)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		asked := run.Happening{Event: event.ApprovalRequested, ToolCallID: "c1", ToolName: "pay", ArgsDigest: "ab"}
		commit("r1", "clerk", store.Awaiting, store.Running, "", asked)
		commit("r2", "other", store.Awaiting, store.Running, "", asked)
		commit("r3", "other", store.Completed, store.Running, "")
		commit("r4", "other", store.Failed, store.Running, `{"code": "budget-exceeded"}`)
		commit("r5", "other", store.Failed, store.Failed, `{"code": "again"}`)
		r.run()
		time.Sleep(time.Second)
		var types []string
		for _, v := range all.got() {
			var b struct {
				Type string
				Data map[string]any
			}
			if err := json.Unmarshal([]byte(v.body), &b); err != nil {
				t.Fatal(err)
			}
			types = append(types, fmt.Sprint(b.Type, " ", b.Data["runId"], " ", b.Data["errorCode"]))
			if !strings.HasPrefix(v.trace, "00-") || strings.Contains(v.body, "ann") {
				t.Errorf("traceparent %q, body %s", v.trace, v.body)
			}
		}
		want := []string{"approval.requested r1 <nil>", "approval.requested r2 <nil>", "run.completed r3 <nil>", "run.failed r4 budget-exceeded", "budget.exceeded r4 budget-exceeded"}
		if !slices.Equal(types, want) {
			t.Errorf("got %q, want %q", types, want)
		}
		if list := some.got(); len(list) != 1 || list[0].body != `{"args":{"pin":"[hidden]","to":"ann"},"text":"pay with ann by clerk at 1","type":"approval.requested"}` {
			t.Errorf("the template made %v", list)
		}
	})
}

// The oldest of too many die, and the status shows it for an hour.
func TestOverflow(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes 100,000 rows")
	}
	synctest.Test(t, func(t *testing.T) {
		in := &receiver{t: t, answer: func(context.Context, int) (int, http.Header, error) { return 410, nil, nil }}
		r := newRig(t, target(t, in, hooks, notify.HealthFailing))
		defer r.stop()
		r.write(notify.HealthFailing, 100_500)
		r.run()
		time.Sleep(11 * time.Second)
		st, err := r.d.Status(t.Context())
		if err != nil || st.Waiting > 100_000 || st.Waiting < 99_990 || !st.Full() {
			t.Errorf("Status = %+v, %v", st, err)
		}
		if dead := r.list("dead"); len(dead) < 500 || len(dead) > 502 || dead[len(dead)-1].Sequence > 2 {
			t.Errorf("%d are dead, the oldest %+v", len(dead), dead[len(dead)-1])
		}
		if st.Disabled != 1 {
			t.Errorf("Status = %+v, want a disabled receiver", st)
		}
	})
}

// What the store cannot take is sent once, without a row.
func TestTellWithoutStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &receiver{t: t}
		r := newRig(t, target(t, in, hooks, notify.HealthFailing))
		r.db.Close()
		r.d.Tell(t.Context(), notify.HealthFailing, map[string]string{"check": "storage"})
		if list := in.got(); len(list) != 1 || !strings.Contains(list[0].body, `"check":"storage"`) || strings.Contains(list[0].body, "sequence") {
			t.Errorf("got %v", list)
		}
	})
}
