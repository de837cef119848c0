package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/provider"
	"agentd/server/run"
	"agentd/server/schema"
	"agentd/server/tool"
	"agentd/store"
)

const twoTools = `{"turns":[
	{"when":{"step":0},"text":"Let me look.","toolCalls":[{"name":"a","args":{"x":1}},{"name":"b","args":{}}]},
	{"when":{"step":1},"text":"Found: {{lastTool}}"}]}`

func tools(names ...string) (list []tool.Tool, byName map[string]*counter) {
	byName = map[string]*counter{}
	for _, n := range names {
		c := &counter{spec: tool.Spec{Name: n, Description: "test", SideEffect: tool.SideEffecting}}
		list, byName[n] = append(list, c), c
	}
	return list, byName
}

func single(l *agent.LLM) func(*rig) []agent.Registration {
	return func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", LLM: l}} }
}

func TestToolCallingRun(t *testing.T) {
	list, byName := tools("a", "b")
	l := llm(t, twoTools, list...)
	l.Instructions = "You help."
	r := newRig(t, single(l))
	res, events := r.run("a", "hello")

	want := "agent.start step.start text.delta* tool.call.start tool.call.delta* tool.call.start tool.call.delta* tool.call.end tool.call.end " +
		"text.complete tool.execute.start tool.execute.start tool.execute.end tool.execute.end step.end " +
		"step.start text.delta* text.complete step.end agent.end"
	if got := types(events); got != want {
		t.Errorf("events:\n got %s\nwant %s", got, want)
	}
	if res.Status != store.Completed || string(res.Output) != `"Found: did b"` {
		t.Errorf("result = %s %s %+v, want completed with the tool's answer", res.Status, res.Output, res.Error)
	}
	var roles []string
	for _, m := range res.State.Messages {
		roles = append(roles, string(m.Role)+"="+m.Content.String())
	}
	if got, want := strings.Join(roles, "|"), "system=You help.|user=hello|assistant=Let me look.|tool=did a|tool=did b|assistant=Found: did b"; got != want {
		t.Errorf("messages = %s, want %s", got, want)
	}
	if s := res.State.Steps; len(s) != 2 || len(s[0].ToolCalls) != 2 || s[0].ToolCalls[0].Call.Name != "a" || s[0].EndedAt == "" || s[1].StepNumber != 2 {
		t.Errorf("steps = %+v", s)
	}
	if byName["a"].count() != 1 || byName["b"].count() != 1 {
		t.Errorf("executions = %d, %d, want 1 each", byName["a"].count(), byName["b"].count())
	}
	if u := res.State.UsageByModel["m"]; u.AttemptCount != 2 || u.TotalTokens == 0 || u.TotalTokens != res.Usage.TotalTokens {
		t.Errorf("usage = %+v, by model %+v", res.Usage, u)
	}
}

func TestUnknownToolAndBadArgumentsGoBackToTheModel(t *testing.T) {
	strict := &counter{spec: tool.Spec{Name: "strict", Description: "d", Input: []byte(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)}}
	r := newRig(t, single(llm(t, `{"turns":[
		{"when":{"step":0},"toolCalls":[{"name":"nope","args":{}},{"name":"strict","args":{"n":"x"}}]},
		{"when":{"step":1},"text":"sorry"}]}`, strict)))
	res, events := r.run("a", "go")
	if res.Status != store.Completed || strict.count() != 0 {
		t.Errorf("status %s with %d executions, want completed with none", res.Status, strict.count())
	}
	if !contains(events, "tool.execute.error", `"kind":"unknown_tool"`) || !contains(events, "tool.execute.error", `"kind":"invalid_input"`) {
		t.Errorf("events = %v", events)
	}
}

func TestHowRunsFail(t *testing.T) {
	loop := `{"turns":[{"toolCalls":[{"name":"a","args":{}}],"usage":{"promptTokens":100,"completionTokens":0,"totalTokens":100}}]}`
	outSchema, err := schema.Compile([]byte(`{"type":"object","required":["n"]}`))
	if err != nil {
		t.Fatal(err)
	}
	out := &agent.Output{Schema: outSchema, Spec: provider.OutputSpec{Name: "o", Schema: []byte(`{}`)}}
	for _, tc := range []struct {
		name, script string
		edit         func(*agent.LLM)
		code         *fault.Kind
	}{
		{"step limit", loop, func(l *agent.LLM) { l.MaxSteps = 3 }, fault.StopCondition},
		{"tokens", loop, func(l *agent.LLM) { l.Budget.Tokens = 250 }, fault.BudgetExceeded},
		{"tool calls", loop, func(l *agent.LLM) { l.Budget.ToolCalls = 2 }, fault.BudgetExceeded},
		{"unpriced", loop, func(l *agent.LLM) { l.Budget.CostUSD = 1 }, fault.BudgetUnpriced},
		{"wall time", `{"turns":[{"text":"x","delayMs":60000}]}`, func(l *agent.LLM) { l.Budget.Wall = 1e7 }, fault.BudgetExceeded},
		{"provider", `{"turns":[{"error":{"kind":"unauthorized","message":"no"}}]}`, nil, fault.Unauthorized},
		{"no turn fits", `{"turns":[{"when":{"lastUser":"never"},"text":"x"}]}`, nil, fault.InvalidRequest},
		{"no JSON", `{"turns":[{"text":"hi"}]}`, func(l *agent.LLM) { l.Output = out }, fault.OutputInvalid},
		{"wrong JSON", `{"turns":[{"text":"{}"}]}`, func(l *agent.LLM) { l.Output = out }, fault.OutputInvalid},
		{"filter", `{"turns":[{"text":"x","finishReason":"content-filter"}]}`, nil, fault.ContentFilter},
	} {
		t.Run(tc.name, func(t *testing.T) {
			list, _ := tools("a")
			l := llm(t, tc.script, list...)
			if tc.edit != nil {
				tc.edit(l)
			}
			r := newRig(t, single(l))
			res, events := r.run("a", "go")
			if res.Status != store.Failed || res.Error == nil || res.Error.Code != tc.code.Code || res.Error.Hint == "" {
				t.Errorf("result = %s %+v, want failed with %s and a hint", res.Status, res.Error, tc.code.Code)
			}
			if n := len(events); n < 2 || events[n-1].Type != "agent.end" || events[n-2].Type != "agent.error" {
				t.Errorf("events = %s, want agent.error agent.end last", types(events))
			}
		})
	}
}

func TestStructuredOutput(t *testing.T) {
	l := llm(t, "{\"turns\":[{\"text\":\"```json\\n{\\\"n\\\": 7}\\n```\"}]}")
	l.Output = &agent.Output{Spec: provider.OutputSpec{Name: "o"}}
	r := newRig(t, single(l))
	if res, _ := r.run("a", "go"); string(res.Output) != `{"n": 7}` && string(res.Output) != `{"n":7}` {
		t.Errorf("output = %s, %+v", res.Output, res.Error)
	}
}

func TestFallback(t *testing.T) {
	l := llm(t, `{"turns":[{"text":"half","chunkSize":4,"error":{"kind":"capacity","message":"full","afterChunks":1}}]}`)
	l.Models = append(l.Models, agent.Model{Provider: scripted(t, `{"turns":[{"text":"whole"}]}`), Model: "n"})
	r := newRig(t, single(l))
	res, events := r.run("a", "go")
	if string(res.Output) != `"whole"` || !contains(events, "agent.model.fellback", `"from":"m","to":"n","reason":"capacity"`) {
		t.Errorf("output = %s; events %s", res.Output, types(events))
	}
	if _, ok := res.State.UsageByModel["n"]; !ok {
		t.Errorf("usage by model = %v, want it under n", res.State.UsageByModel)
	}
}

func TestLargeResultIsSpilledAndReadable(t *testing.T) {
	big := &counter{spec: tool.Spec{Name: "big", Description: "d", SideEffect: tool.ReadOnly}}
	big.execute = func(context.Context, tool.Call) (tool.Result, error) {
		return tool.JSON(map[string]string{"v": strings.Repeat("x", 100_000)})
	}
	r := newRig(t, func(r *rig) []agent.Registration {
		return []agent.Registration{{ID: "a", LLM: llm(t, `{"turns":[
			{"when":{"step":0},"toolCalls":[{"name":"big","args":{}}]},
			{"when":{"toolName":"big"},"toolCalls":[{"name":"read_result","args":{"handle":"HANDLE","offset":0,"length":10}}]},
			{"text":"{{lastTool}}"}]}`, big, tool.NewReadResult(r.db.Runs()))}}
	})
	res, _ := r.run("a", "go")
	o := res.State.Steps[0].ToolCalls[0].Outcome
	if o.ResultHandle == nil || o.ResultHandle.Bytes != 100_008 {
		t.Fatalf("outcome = %+v, want a handle of 100008 bytes", o)
	}
	name := o.ResultHandle.URI[strings.LastIndex(o.ResultHandle.URI, "/")+1:]
	if _, data, err := r.db.Runs().ReadSpill(t.Context(), res.State.ID, name); err != nil || len(data) != 100_008 {
		t.Errorf("ReadSpill(%s) = %d bytes, %v", name, len(data), err)
	}
}

// A reader is a model that reads the end of the first result that was too large for it.
type reader struct{}

func (reader) Name() string { return "reader" }

func (reader) Stream(_ context.Context, req *provider.Request, _ func(provider.Delta)) (*provider.Response, error) {
	call := func(name, args string) (*provider.Response, error) {
		return &provider.Response{Finish: provider.FinishToolCalls, Model: "m", ToolCalls: []message.ToolCall{{ID: name, Name: name, Args: json.RawMessage(args)}}}, nil
	}
	last := req.Messages[len(req.Messages)-1]
	text := last.Content.String()
	_, rest, handle := strings.Cut(text, "svc-spill:")
	switch {
	case last.Role == message.User:
		return call("big", "{}")
	case last.ToolCallID == "big" && handle:
		uri := "svc-spill:" + rest[:strings.Index(rest, ".json")+len(".json")]
		return call("read_result", fmt.Sprintf(`{"handle":%q,"offset":99990}`, uri))
	}
	return &provider.Response{Finish: provider.FinishStop, Text: text, Model: "m"}, nil
}

func TestModelReadsALargeResultByItsHandle(t *testing.T) {
	big := &counter{spec: tool.Spec{Name: "big", Description: "d", SideEffect: tool.ReadOnly}}
	big.execute = func(context.Context, tool.Call) (tool.Result, error) {
		return tool.JSON(map[string]string{"v": strings.Repeat("x", 99_990) + "the end"})
	}
	r := newRig(t, func(r *rig) []agent.Registration {
		l := llm(t, `{"turns":[{"text":"x"}]}`, big, tool.NewReadResult(r.db.Runs()))
		l.Models[0].Provider = reader{}
		return []agent.Registration{{ID: "a", LLM: l}}
	})
	res, _ := r.run("a", "go")
	var said string
	json.Unmarshal(res.Output, &said)
	if want := `{"content":"xxxxxxthe end\"}","offset":99990,"bytes":15,"totalBytes":100005,"eof":true}`; res.Status != store.Completed || said != want {
		t.Errorf("the model read %s (%s %+v), want %s", said, res.Status, res.Error, want)
	}
}

// A primary whose server answers 429 is given up for the second model, and the events say so.
func TestFallbackAfterTooManyRequests(t *testing.T) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer srv.Close()
	primary, err := provider.NewOpenAI(provider.OpenAIOptions{Name: "busy", BaseURL: srv.URL, Timeout: time.Minute, IdleTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	l := llm(t, `{"turns":[{"text":"whole"}]}`)
	l.Models = []agent.Model{{Provider: primary, Model: "m"}, {Provider: l.Models[0].Provider, Model: "n"}}
	r := newRig(t, single(l))
	res, events := r.run("a", "go")
	want := "agent.start step.start agent.model.fellback text.delta* text.complete step.end agent.end"
	if got := types(events); got != want || !contains(events, "agent.model.fellback", `"from":"m","to":"n","reason":"rate-limit"`) {
		t.Errorf("events = %s, want %s, because of the rate limit", got, want)
	}
	if res.Status != store.Completed || string(res.Output) != `"whole"` || asked != 1 {
		t.Errorf("the run is %s with %s after %d requests to the primary, want completed by the second model after one", res.Status, res.Output, asked)
	}
}

func TestSessionsCarryTheTranscript(t *testing.T) {
	var seen [][]message.Message
	spy := goAgent{id: "spy", run: func(_ context.Context, in agent.Input) (agent.Result, error) {
		before, err := in.Messages()
		seen = append(seen, before)
		return agent.Result{Output: "ok " + in.Text()}, err
	}}
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "spy", Agent: spy}} })
	for _, in := range []string{`"one"`, `"two"`} {
		r.wait(r.start(run.StartRequest{Owner: "spy", SessionID: "s", UserID: "u", Input: json.RawMessage(in)}))
	}
	if len(seen) != 2 || len(seen[0]) != 0 || len(seen[1]) != 2 || seen[1][0].Content.String() != "one" || seen[1][1].Content.String() != "ok one" {
		t.Errorf("histories = %+v, want none and then the first exchange", seen)
	}
	if _, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "spy", SessionID: "s", UserID: "other"}); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("Start as another user = %v, want config-invalid", err)
	}
	if _, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "spy", SessionID: "a/b"}); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("Start with a bad session id = %v, want config-invalid", err)
	}
}

func TestInputForms(t *testing.T) {
	r := newRig(t, single(llm(t, `{"turns":[{"text":"{{lastUser}}"}]}`)))
	for in, want := range map[string]string{
		``: "", `null`: "", `"x"`: "x", `{"role":"user","content":"y"}`: "y",
		`[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":[{"type":"text","text":"c"}]}]`: "c",
	} {
		res := r.wait(r.start(run.StartRequest{Owner: "a", Input: json.RawMessage(in)}))
		got := ""
		json.Unmarshal(res.Output, &got)
		if res.Status != store.Completed || got != want {
			t.Errorf("input %s: %s %q %+v, want %q", in, res.Status, got, res.Error, want)
		}
	}
	for _, in := range []string{`7`, `{"a":1}`, `[]`, `[{"role":"robot","content":"x"}]`, `[1]`} {
		if _, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "a", Input: json.RawMessage(in)}); !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("Start with input %s = %v, want config-invalid", in, err)
		}
	}
}

func TestDeniedCalls(t *testing.T) {
	list, byName := tools("a", "b")
	l := llm(t, twoTools, list...)
	for _, p := range []string{"a:x=1", "zzz"} {
		pattern, err := agent.ParsePattern(p)
		if err != nil {
			t.Fatal(err)
		}
		l.Policy.Deny = append(l.Policy.Deny, pattern)
	}
	r := newRig(t, single(l))
	_, events := r.run("a", "go")
	if byName["a"].count() != 0 || byName["b"].count() != 1 || !contains(events, "tool.execute.error", "capability_blocked") {
		t.Errorf("executions %d and %d, want the denied call not to run", byName["a"].count(), byName["b"].count())
	}
}

func TestPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, name, args string
		want                bool
	}{
		{"deploy", "deploy", `{}`, true}, {"deploy", "deployx", `{}`, false}, {"dep*", "deploy", `{}`, true},
		{"deploy:env=prod*", "deploy", `{"env":"prod-eu"}`, true}, {"deploy:env=prod*", "deploy", `{"env":"staging"}`, false},
		{"deploy:env=prod", "deploy", `{}`, false}, {"deploy:n=1*", "deploy", `{"n":12}`, true}, {"deploy:a=*", "deploy", `[]`, false},
		{"t:x=*b*d", "t", `{"x":"abcd"}`, true}, {"t:x=*b*d", "t", `{"x":"abc"}`, false}, {"t:x=a*a", "t", `{"x":"a"}`, false},
	} {
		p, err := agent.ParsePattern(tc.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(tc.name, json.RawMessage(tc.args)); got != tc.want {
			t.Errorf("%s matches %s %s = %v, want %v", tc.pattern, tc.name, tc.args, got, tc.want)
		}
	}
	for _, bad := range []string{"", ":a=b", "t:", "t:=x", "t:a"} {
		if p, err := agent.ParsePattern(bad); err == nil {
			t.Errorf("ParsePattern(%q) = %+v, want an error", bad, p)
		}
	}
}

// TestInputWithToolMessages: a tool message of an input stays what it was.
func TestInputWithToolMessages(t *testing.T) {
	r := newRig(t, single(llm(t, `{"turns":[{"text":"hello"}]}`)))
	input := `[{"role":"user","content":"sum"},{"role":"assistant","content":"","toolCalls":[{"toolCallId":"c","toolName":"add","args":{}}]},
		{"role":"tool","toolCallId":"c","content":"42"},{"role":"user","content":"thanks"}]`
	h := r.start(run.StartRequest{Owner: "a", Input: json.RawMessage(input)})
	r.wait(h)
	r.restart()
	if msg := r.state(h.ID).Messages[2]; msg.Role != message.Tool || msg.Content.Text != "42" || msg.ToolCallID != "c" {
		t.Errorf("the tool message became %s", encode(t, msg))
	}
}
