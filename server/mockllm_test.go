package server_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"agentd/server/event"
	"agentd/server/rest"
	"agentd/store"
)

// mockModels are the ways in which servers that others wrote answer our requests. The rules of the servers are in
// testdata/mockllm and testdata/aimock; .ci/run starts the servers and tells in the environment where they are.
var mockModels = []struct {
	name    string
	env     string // holds the server's address
	headers string // of the provider, as JSON
	quotes  bool   // the answer quotes what the tool said
	counts  bool   // the server tells the usage
}{
	{name: "mock-llm one chunk", env: "AGENTD_MOCK_LLM", headers: `{}`, quotes: true},
	{name: "mock-llm no stream", env: "AGENTD_MOCK_LLM", headers: `{"Content-Type": "application/x-yaml"}`},
	{name: "aimock", env: "AGENTD_AIMOCK", headers: `{}`, counts: true},
}

// mockConfig declares an agent with a built-in tool and a program. It takes the address, the headers and what the
// program says.
const mockConfig = `{
	"providers": {"other": {"kind": "openai-compatible", "baseUrl": %q, "headers": %s, "retries": 0}},
	"tools": {"locate": {
		"kind": "exec", "description": "Tells where an item is.", "sideEffect": "read-only",
		"input": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
		"command": ["/bin/sh", "-c", "cat >>calls; printf %%s \"$AISLE\""], "env": {"AISLE": %q}}},
	"agents": {"clerk": {"kind": "llm", "provider": "other", "model": "some-model", "instructions": "You help in a shop.",
		"tools": ["calculator", "locate"], "maxSteps": 3, "maxParallelTools": 1}}
}`

// TestLLMAgainstOtherServers runs a whole conversation, tool calls included, with servers that we did not write: their
// reading of the protocol is not ours.
func TestLLMAgainstOtherServers(t *testing.T) {
	for _, m := range mockModels {
		address := os.Getenv(m.env)
		t.Run(m.name, func(t *testing.T) {
			if address == "" {
				t.Skipf("%s is not set: .ci/run sets it to the address of a model server and runs this test against it", m.env)
			}
			for _, streamed := range []bool{false, true} {
				t.Run(map[bool]string{false: "run", true: "stream"}[streamed], func(t *testing.T) {
					aisle := "aisle-" + rand.Text()
					r := newRig(t, fmt.Sprintf(mockConfig, address+"/v1", m.headers, aisle), nil)
					got := mockAsk(t, r, streamed)

					want := `"42 lamps are there."`
					if m.quotes {
						want = fmt.Sprintf(`"42 lamps in %s."`, aisle)
					}
					if got.Status != store.Completed || string(got.Result.Output) != want {
						t.Fatalf("the run is %s with %s %+v, want completed with %s", got.Status, got.Result.Output, got.Result.Error, want)
					}
					if calls, err := os.ReadFile(r.cfg.Resolve("calls")); err != nil || string(calls) != `{"item":"lamp"}`+"\n" {
						t.Errorf("the program was called with %q, %v, want one call with {\"item\":\"lamp\"}", calls, err)
					}
					mockCheckState(t, got, aisle)
					if used := got.Result.Usage; used.TotalTokens == 0 || used.Estimated == m.counts {
						t.Errorf("the run used %+v, and the server tells the usage: %t; want it, or an estimate", used, m.counts)
					}
				})
			}
		})
	}
}

// mockAsk runs the agent and returns what the run route answers or would have answered.
func mockAsk(t *testing.T, r *rig, streamed bool) (run rest.RunAnswer) {
	t.Helper()
	const body = `{"input": "How many lamps are there, and where?"}`
	path, headers := "/v1/agents/clerk/run", []string{"Content-Type: application/json"}
	if streamed {
		path, headers = "/v1/agents/clerk/stream", append(headers, "Accept: text/event-stream")
	}
	ans := r.do("POST", path, r.admin, body, headers...)
	if ans.StatusCode != http.StatusOK {
		t.Fatalf("POST %s = %d %s, want 200", path, ans.StatusCode, ans.body)
	}
	end := ans.body
	if streamed {
		types, payloads := mockEvents(t, ans.body)
		want := []string{"agent.start",
			"step.start", "tool.call.start", "tool.call.start", "tool.call.end", "tool.call.end",
			"tool.execute.start", "tool.execute.start", "tool.execute.end", "tool.execute.end", "step.end",
			"step.start", "text.complete", "step.end", "agent.end", "lifecycle"}
		if !slices.Equal(types, want) {
			t.Errorf("the events are %q, want %q", types, want)
		}
		if !strings.Contains(ans.body, "event: "+event.TextDelta+"\n") {
			t.Error("no event is text.delta")
		}
		end = payloads[event.AgentEnd]
	}
	if err := json.Unmarshal([]byte(end), &run); err != nil {
		t.Fatalf("the end of the run is %s: %v", end, err)
	}
	run.Status = run.Result.Status // agent.end tells it there only
	return run
}

// mockEvents reads an event stream: the types but for the transient ones, whose number is the server's choice, and the
// last payload of each.
func mockEvents(t *testing.T, stream string) (types []string, payloads map[string]string) {
	t.Helper()
	payloads = map[string]string{}
	for block := range strings.SplitSeq(strings.TrimSpace(stream), "\n\n") {
		var typ, data string
		for line := range strings.SplitSeq(block, "\n") {
			if v, ok := strings.CutPrefix(line, "event: "); ok {
				typ = v
			} else if v, ok := strings.CutPrefix(line, "data: "); ok {
				data = v
			}
		}
		if typ == "" || event.Transient(typ) { // a comment has no type
			continue
		}
		var frame struct{ Payload json.RawMessage }
		if err := json.Unmarshal([]byte(data), &frame); err != nil {
			t.Fatalf("the data of %s is %q: %v", typ, data, err)
		}
		types, payloads[typ] = append(types, typ), string(frame.Payload)
	}
	return types, payloads
}

// mockCheckState compares the run's steps and messages with the conversation.
func mockCheckState(t *testing.T, run rest.RunAnswer, aisle string) {
	t.Helper()
	state := run.Result.State
	var said []string
	for _, m := range state.Messages {
		said = append(said, string(m.Role))
		for _, c := range m.ToolCalls {
			said = append(said, c.Name+string(c.Args))
		}
	}
	if want := []string{"system", "user", "assistant", `calculator{"expression":"6*7"}`, `locate{"item":"lamp"}`, "tool", "tool", "assistant"}; !slices.Equal(said, want) {
		t.Errorf("the messages are %q, want %q", said, want)
	}
	var outcomes []string
	for _, s := range state.Steps {
		for _, c := range s.ToolCalls {
			outcomes = append(outcomes, fmt.Sprintf("%d %s %s", s.StepNumber, c.Call.Name, c.Outcome.Output))
		}
	}
	if want := []string{`1 calculator {"result":"42","exact":true}`, fmt.Sprintf("1 locate %q", aisle)}; !slices.Equal(outcomes, want) {
		t.Errorf("the outcomes are %q, want %q", outcomes, want)
	}
	if u := state.UsageByModel["some-model"]; u.AttemptCount != 2 {
		t.Errorf("the model was called %d times, want 2", u.AttemptCount)
	}
}
