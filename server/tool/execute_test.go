package tool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tool"
)

type execute = func(context.Context, tool.Call) (tool.Result, error)

func one(t testing.TB, s tool.Spec, f execute) *tool.Set {
	t.Helper()
	s.Name = "t"
	return set(t, tool.Func(s, f))
}

func result(output string) execute {
	return func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{Output: json.RawMessage(output)}, nil
	}
}

func failing(err error) execute {
	return func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{}, err }
}

var call = tool.Call{RunID: "r1", AgentID: "a1", ID: "c1", Key: "r1:2:c1", StepNumber: 2, Args: json.RawMessage(`{}`)}

func TestExecuteOutcomes(t *testing.T) {
	for _, tc := range []struct {
		name string
		f    execute
		want string // of the outcome's JSON, without call id, name and duration
	}{
		{"text", result(`"hi <b>"`), `{"output":"hi <b>"}`},
		{"object, made compact", result("{\n \"a\": 1}"), `{"output":{"a":1}}`},
		{"nothing", failing(nil), `{"output":null}`},
		{"broken UTF-8", result("\"a\xff\""), `{"output":"a�"}`},
		{"not JSON", result(`{a}`), `{"kind":"invalid_output","message":"The tool's result is not JSON.","hint":"The call itself was made; do not repeat it only for its result.","recoveryHint":"try_alternative"}`},
		{"plain error", failing(errors.New("disk full")), `{"kind":"execution_failed","message":"disk full","recoveryHint":"try_alternative"}`},
		{"empty error", failing(errors.New("")), `{"kind":"execution_failed","message":"The tool failed without saying why.","recoveryHint":"try_alternative"}`},
		{"typed error", failing(&tool.Error{Kind: message.CapabilityBlocked, Message: "No.", Hint: "Ask."}),
			`{"kind":"capability_blocked","message":"No.","hint":"Ask.","recoveryHint":"report_to_user"}`},
		{"typed error with its own advice", failing(&tool.Error{Message: "Busy.", RecoveryHint: message.RetryLater}),
			`{"kind":"execution_failed","message":"Busy.","recoverable":true,"recoveryHint":"retry_later"}`},
		{"fault keeps its cause", failing(fault.New(fault.SessionNotFound, "No session.").Because(errors.New("secret"))),
			`{"kind":"execution_failed","message":"No session.","hint":"List the sessions with ` + "`GET /sessions`" + `.","recoveryHint":"try_alternative"}`},
		{"rate limit of what may not be repeated", failing(&tool.Error{Kind: message.RateLimited, Message: "Slow down."}),
			`{"kind":"rate_limited","message":"Slow down.","recoverable":true,"recoveryHint":"retry_later"}`},
		{"goexit", func(context.Context, tool.Call) (tool.Result, error) { runtime.Goexit(); return tool.Result{}, nil },
			`{"kind":"execution_failed","message":"The tool ended without an answer.","recoveryHint":"try_alternative"}`},
		{"too large for anything", result(`"` + strings.Repeat("x", 32<<20) + `"`),
			`{"kind":"invalid_output","message":"The tool's result has more than 32 MiB.","hint":"The call itself was made; do not repeat it only for its result.","recoveryHint":"try_alternative"}`},
	} {
		got := one(t, tool.Spec{}, tc.f).Execute(t.Context(), "t", call)
		o := got.Outcome
		if o.ToolCallID != "c1" || o.ToolName != "t" || got.Spill != nil {
			t.Errorf("%s: Execute = %+v, want call c1 of t without spill", tc.name, got)
		}
		o.ToolCallID, o.ToolName, o.DurationMS = "", "", 0
		want := strings.Replace(tc.want, `{`, `{"toolCallId":"","toolName":"",`, 1)
		if o.Failed() {
			want = strings.Replace(want, `"kind"`, `"durationMs":0,"kind"`, 1)
		} else {
			want = strings.TrimSuffix(want, "}") + `,"durationMs":0}`
		}
		if got, err := message.Encode(o); err != nil || string(got) != want {
			t.Errorf("%s: Execute = %.500s, %v, want %s", tc.name, got, err, want)
		}
	}
}

func TestExecuteUnknownTool(t *testing.T) {
	got := set(t).Execute(t.Context(), "x", call).Outcome
	if got.Kind != message.UnknownTool || got.ToolCallID != "c1" || got.ToolName != "x" || got.Hint != "There are no tools." {
		t.Errorf("Execute(x) = %+v, want unknown_tool", got)
	}
}

func TestPanicGoesToTheLog(t *testing.T) {
	var log bytes.Buffer
	s := one(t, tool.Spec{}, func(context.Context, tool.Call) (tool.Result, error) { panic("secret detail") })
	s.Logger = slog.New(slog.NewTextHandler(&log, nil))
	o := s.Execute(t.Context(), "t", call).Outcome
	if o.Kind != message.ExecutionFailed || o.Message != "The tool failed unexpectedly." || strings.Contains(o.Hint, "secret") {
		t.Errorf("Execute = %+v, want execution_failed without details", o)
	}
	for _, want := range []string{"secret detail", "tool=t", "run=r1", "call=c1", "execute_test.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, &log)
		}
	}
}

func TestTimeout(t *testing.T) {
	for _, tc := range []struct {
		name        string
		spec        tool.Spec
		recoverable bool
		hint        message.RecoveryHint
	}{
		{"read-only", tool.Spec{SideEffect: tool.ReadOnly}, true, message.RetryLater},
		{"idempotent", tool.Spec{Idempotent: true}, true, message.RetryLater},
		{"side-effecting", tool.Spec{}, false, message.ReportToUser},
	} {
		synctest.Test(t, func(t *testing.T) {
			tc.spec.Timeout = 3 * time.Second
			release := make(chan struct{})
			var late tool.Call
			live := 0
			s := one(t, tc.spec, func(ctx context.Context, c tool.Call) (tool.Result, error) {
				late = c
				<-release // deaf to ctx
				c.Stream(tool.Chunk{Kind: tool.Text, Text: "too late"})
				return tool.Result{Output: json.RawMessage(`"too late"`)}, nil
			})
			s.Logger = slog.New(slog.DiscardHandler)
			c := call
			c.Stream = func(tool.Chunk) { live++ }
			start := time.Now()
			o := s.Execute(t.Context(), "t", c).Outcome
			if took := time.Since(start); took != 3050*time.Millisecond || o.DurationMS != 3050 {
				t.Errorf("%s: Execute took %v (%d ms), want 3.05 s", tc.name, took, o.DurationMS)
			}
			if o.Kind != message.Timeout || o.Message != "The tool did not answer within 3s." || o.Recoverable != tc.recoverable || o.RecoveryHint != tc.hint {
				t.Errorf("%s: Execute = %+v, want timeout, recoverable %v, %s", tc.name, o, tc.recoverable, tc.hint)
			}
			if strings.Contains(o.Hint, "may have happened") != !tc.recoverable {
				t.Errorf("%s: hint %q", tc.name, o.Hint)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := s.Wait(ctx); err != context.DeadlineExceeded {
				t.Errorf("%s: Wait = %v while the tool runs, want its deadline", tc.name, err)
			}
			close(release)
			if err := s.Wait(t.Context()); err != nil {
				t.Errorf("%s: Wait = %v, want nil", tc.name, err)
			}
			late.Progress(1, 2, "later still")
			if live != 0 {
				t.Errorf("%s: %d chunks after the end were passed on", tc.name, live)
			}
		})
	}
}

func TestWaitOfAnIdleSet(t *testing.T) {
	if err := set(t).Wait(t.Context()); err != nil {
		t.Errorf("Wait() = %v, want nil", err)
	}
}

// A tool that answers within the grace is believed: its effect is known.
func TestAnswerWithinTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := one(t, tool.Spec{Timeout: time.Second}, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			<-ctx.Done()
			<-time.After(49 * time.Millisecond)
			return tool.Result{Output: json.RawMessage(`"done"`)}, nil
		})
		if o := s.Execute(t.Context(), "t", call).Outcome; o.Failed() || string(o.Output) != `"done"` {
			t.Errorf("Execute = %+v, want done", o)
		}
	})
}

func TestAbort(t *testing.T) {
	for _, tc := range []struct {
		name, hint string
		effect     tool.SideEffect
	}{
		{"read-only", "", tool.ReadOnly},
		{"side-effecting", "Its effect may have happened; check before calling it again.", tool.SideEffecting},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := one(t, tool.Spec{SideEffect: tc.effect}, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
			cancel()
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		})
		o := s.Execute(ctx, "t", call).Outcome
		if o.Kind != message.AbortedCall || o.Recoverable || o.RecoveryHint != "" || o.Hint != tc.hint {
			t.Errorf("%s: Execute = %+v, want aborted with hint %q", tc.name, o, tc.hint)
		}
		o = s.Execute(ctx, "t", call).Outcome
		if o.Kind != message.AbortedCall || o.Message != "The call was aborted before it began." || o.Hint != "" {
			t.Errorf("%s: Execute with a dead context = %+v, want aborted before it began", tc.name, o)
		}
	}
}

func TestRetry(t *testing.T) {
	limited := &tool.Error{Kind: message.RateLimited, Message: "Slow down."}
	for _, tc := range []struct {
		name     string
		spec     tool.Spec
		policy   tool.RetryPolicy // zero: as NewSet sets it
		err      *tool.Error
		succeeds int // at this attempt
		stream   bool
		attempts int
		took     time.Duration
	}{
		{name: "second attempt", spec: tool.Spec{SideEffect: tool.Pure}, err: limited, succeeds: 2, attempts: 2, took: 250 * time.Millisecond},
		{name: "the wait doubles", spec: tool.Spec{Idempotent: true}, err: limited, attempts: 3, took: 750 * time.Millisecond},
		{name: "not repeatable", err: limited, attempts: 1},
		{name: "not repeatable, but not begun", succeeds: 2, err: &tool.Error{Kind: message.RateLimited, NotBegun: true}, attempts: 2, took: 250 * time.Millisecond},
		{name: "another error", spec: tool.Spec{SideEffect: tool.Pure}, err: &tool.Error{Message: "x"}, attempts: 1},
		{name: "after output", spec: tool.Spec{SideEffect: tool.Pure}, err: limited, stream: true, attempts: 1},
		{name: "a longer wait is asked for", spec: tool.Spec{SideEffect: tool.Pure}, succeeds: 2,
			err: &tool.Error{Kind: message.RateLimited, RetryAfter: 5 * time.Second}, attempts: 2, took: 5 * time.Second},
		{name: "it does not fit in the timeout", spec: tool.Spec{SideEffect: tool.Pure, Timeout: 4 * time.Second},
			err: &tool.Error{Kind: message.RateLimited, RetryAfter: 5 * time.Second}, attempts: 1},
		{name: "policy", spec: tool.Spec{SideEffect: tool.Pure}, policy: tool.RetryPolicy{MaxAttempts: 2, Backoff: time.Second},
			err: limited, attempts: 2, took: time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			attempts := 0
			s := one(t, tc.spec, func(_ context.Context, c tool.Call) (tool.Result, error) {
				if attempts++; attempts == tc.succeeds {
					return tool.Result{}, nil
				}
				if tc.stream {
					c.Stream(tool.Chunk{Kind: tool.Text, Text: "x"})
				}
				return tool.Result{}, tc.err
			})
			if tc.policy != (tool.RetryPolicy{}) {
				s.Retry = tc.policy
			}
			start := time.Now()
			o := s.Execute(t.Context(), "t", call).Outcome
			if o.Failed() != (tc.succeeds == 0) || attempts != tc.attempts || time.Since(start) != tc.took {
				t.Errorf("%s: Execute = %+v after %d attempts and %v, want %d and %v", tc.name, o, attempts, time.Since(start), tc.attempts, tc.took)
			}
			if tc.stream && !strings.Contains(o.Hint, "was streamed before") {
				t.Errorf("%s: hint %q does not tell of the output", tc.name, o.Hint)
			}
		})
	}
}

func TestAbortDuringTheWaitForARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		s := one(t, tool.Spec{SideEffect: tool.Pure}, failing(&tool.Error{Kind: message.RateLimited}))
		if o := s.Execute(ctx, "t", call).Outcome; o.Kind != message.AbortedCall || o.DurationMS != 100 {
			t.Errorf("Execute = %+v, want aborted after 100 ms", o)
		}
	})
}

func TestCallReachesTheTool(t *testing.T) {
	var got tool.Call
	var notes []string
	s := one(t, tool.Spec{}, func(_ context.Context, c tool.Call) (tool.Result, error) {
		got = c
		c.Progress(1, 2, "half")
		return tool.Result{}, nil
	})
	c := call
	c.Args = nil
	c.Progress = func(current, total float64, note string) { notes = append(notes, note) }
	s.Execute(t.Context(), "t", c)
	if got.RunID != "r1" || got.Key != "r1:2:c1" || got.StepNumber != 2 || string(got.Args) != "{}" || len(notes) != 1 || notes[0] != "half" {
		t.Errorf("the tool got %+v and reported %q", got, notes)
	}
	// Without receivers the tool may report all the same.
	if o := s.Execute(t.Context(), "t", call).Outcome; o.Failed() {
		t.Errorf("Execute without receivers = %+v", o)
	}
}
