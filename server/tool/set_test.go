package tool_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/tool"
)

func spec(name string) tool.Spec { return tool.Spec{Name: name} }

func set(t testing.TB, tools ...tool.Tool) *tool.Set {
	t.Helper()
	s, err := tool.NewSet(tools...)
	if err != nil {
		t.Fatalf("NewSet: %v", err)
	}
	return s
}

func TestNewSetReportsEveryProblem(t *testing.T) {
	for _, tc := range []struct {
		name  string
		specs []tool.Spec
		want  []string
	}{
		{"fine", []tool.Spec{{Name: "a_B-1"}, {Name: strings.Repeat("x", 64)}}, nil},
		{"names", []tool.Spec{{Name: ""}, {Name: "a b"}, {Name: "é"}, {Name: strings.Repeat("x", 65)}},
			[]string{"[] the name", "[a b] the name", "[é] the name", "the name"}},
		{"duplicate", []tool.Spec{{Name: "a"}, {Name: "a"}}, []string{"[a] two tools"}},
		{"schema", []tool.Spec{{Name: "a", Input: json.RawMessage(`{"type":"objekt","required":1}`)}},
			[]string{"[a input] /required", "[a input] /type"}},
		{"retry of what is not idempotent", []tool.Spec{{Name: "a", OnUnknownOutcome: tool.Retry}}, []string{"[a onUnknownOutcome] retry is for idempotent"}},
		{"retry of what is idempotent", []tool.Spec{{Name: "a", OnUnknownOutcome: tool.Retry, Idempotent: true}}, nil},
	} {
		var tools []tool.Tool
		for _, s := range tc.specs {
			tools = append(tools, tool.Func(s, nil))
		}
		_, err := tool.NewSet(tools...)
		if tc.want == nil {
			if err != nil {
				t.Errorf("%s: NewSet = %v, want no error", tc.name, err)
			}
			continue
		}
		if !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("%s: NewSet = %v, want config-invalid", tc.name, err)
			continue
		}
		if got := len(fault.Of(err).Issues); got != len(tc.want) {
			t.Errorf("%s: NewSet found %d issues, want %d: %v", tc.name, got, len(tc.want), err)
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: NewSet = %v, want %q in it", tc.name, err, want)
			}
		}
	}
}

func TestSpecsHaveDefaults(t *testing.T) {
	s := set(t, tool.Func(spec("b"), nil), tool.Func(spec("a"), nil))
	got := s.Specs()
	if len(got) != 2 || got[0].Name != "b" || got[1].Name != "a" {
		t.Fatalf("Specs() = %v, want b and a in this order", got)
	}
	d := got[0]
	if d.SideEffect != tool.SideEffecting || d.OnUnknownOutcome != tool.Ask || d.Timeout != time.Minute || d.MaxResultTokens != 16384 ||
		d.Truncation != tool.Middle || string(d.Input) != `{"type":"object","properties":{}}` {
		t.Errorf("Specs()[0] = %+v, want the defaults", d)
	}
	if _, ok := s.Get("b"); !ok {
		t.Error("Get(b) found nothing")
	}
	if _, ok := s.Get("c"); ok {
		t.Error("Get(c) found something")
	}
}

func TestRepeatable(t *testing.T) {
	for _, tc := range []struct {
		spec tool.Spec
		want bool
	}{
		{tool.Spec{}, false},
		{tool.Spec{SideEffect: tool.SideEffecting}, false},
		{tool.Spec{SideEffect: tool.ExternalStateful}, false},
		{tool.Spec{SideEffect: tool.ReadOnly}, true},
		{tool.Spec{SideEffect: tool.Pure}, true},
		{tool.Spec{SideEffect: tool.SideEffecting, Idempotent: true}, true},
	} {
		if got := tc.spec.Repeatable(); got != tc.want {
			t.Errorf("%+v.Repeatable() = %v, want %v", tc.spec, got, tc.want)
		}
	}
}

func TestCheck(t *testing.T) {
	s := set(t, tool.Func(tool.Spec{Name: "weather", Input: json.RawMessage(
		`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}`)}, nil),
		tool.Func(tool.Spec{Name: "any", Input: json.RawMessage(`true`)}, nil))
	for _, tc := range []struct {
		tool, args, kind, message string
	}{
		{"weather", `{"city":"Rome"}`, "", ""},
		{"weather", `{"days":"x"}`, "invalid_input", "The arguments do not fit the tool's schema: /city: required; /days: got string, want integer."},
		{"weather", "", "invalid_input", "The arguments do not fit the tool's schema: /city: required."},
		{"weather", string(message.Args(`{"city":`)), "invalid_input", "The arguments are not a JSON object."},
		{"any", `[1]`, "invalid_input", "The arguments are not a JSON object."},
		{"any", "", "", ""},
		{"whether", `{}`, "unknown_tool", `There is no tool named "whether".`},
	} {
		o := s.Check(&message.ToolCall{ID: "c1", Name: tc.tool, Args: json.RawMessage(tc.args)})
		if tc.kind == "" {
			if o != nil {
				t.Errorf("Check(%s %s) = %+v, want nil", tc.tool, tc.args, o)
			}
			continue
		}
		if o == nil || string(o.Kind) != tc.kind || o.Message != tc.message || o.ToolCallID != "c1" || o.ToolName != tc.tool || o.Recoverable {
			t.Errorf("Check(%s %s) = %+v, want %s: %s", tc.tool, tc.args, o, tc.kind, tc.message)
		}
	}
	o := s.Check(&message.ToolCall{Name: "x"})
	if o.Hint != "The tools are weather, any." || o.RecoveryHint != message.TryAlternative {
		t.Errorf("Check(x) = %+v, want a hint with the names", o)
	}
}
