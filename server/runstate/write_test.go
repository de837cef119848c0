package runstate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"agentd/server/message"
	"agentd/server/openapi"
	"agentd/server/runstate"
)

// TestExtraPointers shows what unknown members are called.
func TestExtraPointers(t *testing.T) {
	s := read(t, fixtures(t)["run-state-1.9-future"])
	want := []string{
		"", "/error", "/handoffs/0", "/handoffs/0/inputFilter", "/messages/0", "/messages/0/content/0",
		"/pendingApprovals/h2", "/pendingApprovals/x~1y~1h3", "/pendingSubRuns/h4",
		"/steps/0", "/steps/0/providerResponse", "/steps/0/toolCalls/0", "/steps/0/toolCalls/0/call", "/steps/0/toolCalls/0/outcome",
		"/steps/0/toolCalls/0/outcome/contentParts/0", "/steps/0/toolCalls/0/outcome/contentParts/1",
		"/steps/0/toolCalls/0/outcome/contentParts/2/image", "/steps/0/usage", "/steps/0/usage/cost",
		"/taintSummary", "/todos/t9", "/usage", "/usageByModel/m~1next",
	}
	if got := slices.Sorted(maps.Keys(s.Extra)); !slices.Equal(got, want) {
		t.Errorf("pointers in Extra = %q\nwant %q", got, want)
	}
	if got, want := string(s.Extra["/pendingApprovals/x~1y~1h3"]), `{"mode":"defer"}`; got != want {
		t.Errorf("Extra of the second approval = %s, want %s", got, want)
	}
	child := s.PendingSubRuns[0].State.Extra
	if got := slices.Sorted(maps.Keys(child)); !slices.Equal(got, []string{"", "/messages/0"}) {
		t.Errorf("pointers in the child's Extra = %q, want its own and its message's", got)
	}
}

// TestExtraFollowsItsOwner changes a state as a run does, and looks where the unknown members go.
func TestExtraFollowsItsOwner(t *testing.T) {
	const future = `,"userId":"u","tide":"high","todos":[{"id":"1","content":"c","status":"s","due":1},{"id":"2","content":"c","status":"s","due":2}],` +
		`"error":{"message":"m","code":"c","severity":3}`
	base := strings.Replace(fmt.Sprintf(minimal, future), `"pendingApprovals":[]`, `"pendingApprovals":[`+
		`{"toolCallId":"c1","toolName":"n","requestedAt":"t","mode":"ask"},{"toolCallId":"c2","toolName":"n","requestedAt":"t","mode":"defer"},`+
		`{"toolCallId":"c2","toolName":"n","requestedAt":"t","subRunToolCallId":"c9","mode":"child"}]`, 1)
	base = strings.Replace(base, `"messages":[]`, `"messages":[{"role":"user","content":[{"type":"text","text":"x","language":"en"}]}]`, 1)
	const approval = `{"toolCallId":"c2","toolName":"n","args":{},"requestedAt":"t"`
	for _, tc := range []struct {
		name   string
		change func(*runstate.State)
		want   string // a part of what is written
	}{
		{"as it was", func(*runstate.State) {}, `"severity":3},"tide":"high"}`},
		{"a decision was taken", func(s *runstate.State) { s.PendingApprovals = s.PendingApprovals[1:] },
			`"pendingApprovals":[` + approval + `,"mode":"defer"},` + approval + `,"subRunToolCallId":"c9","mode":"child"}]`},
		{"a todo is gone", func(s *runstate.State) { s.Todos = s.Todos[1:] }, `"todos":[{"id":"2","content":"c","status":"s","due":2}]`},
		{"a message more", func(s *runstate.State) {
			s.Messages = append(s.Messages, message.Message{Role: message.Assistant, Content: message.Text("<y>")})
		}, `"messages":[{"role":"user","content":[{"type":"text","text":"x","language":"en"}]},{"role":"assistant","content":"<y>"}]`},
		{"the owner is gone", func(s *runstate.State) { s.Error = nil }, `"startedAt":"2026-01-02T03:04:05.000Z","tide":"high"}`},
		{"the owner is no object any more", func(s *runstate.State) { s.Messages[0].Content = message.Text("z") }, `"messages":[{"role":"user","content":"z"}]`},
		{"the member is known meanwhile", func(s *runstate.State) { s.Extra[""] = json.RawMessage(`{ "userId": "other", "x": [ 1 ] }`) },
			`"severity":3},"x":[1]}`},
		{"a pointer to nowhere", func(s *runstate.State) { s.Extra["/id/0/x"] = json.RawMessage(`{"y":1}`) }, `"id":"r","agentId"`},
	} {
		s := read(t, []byte(base))
		tc.change(s)
		got := encode(t, s)
		if !bytes.Contains(got, []byte(tc.want)) {
			t.Errorf("%s: Encode =\n%s\nwant it to have\n%s", tc.name, got, tc.want)
		}
		checkStable(t, got)
		if byValue := encode(t, struct{ S runstate.State }{*s}); string(byValue) != `{"S":`+string(got)+"}" {
			t.Errorf("%s: Encode of a value =\n%s\nwant the same as of a pointer", tc.name, byValue)
		}
	}
}

func TestExtraMustBeObjects(t *testing.T) {
	for _, bad := range []string{``, `{`, `1`, `[]`, `{} {}`} {
		s := runstate.State{Extra: map[string]json.RawMessage{"/usage": json.RawMessage(bad)}}
		if b, err := message.Encode(s); err == nil {
			t.Errorf("Encode with %q in Extra = %s, want an error", bad, b)
		}
	}
	s := runstate.State{Extra: map[string]json.RawMessage{"usage": json.RawMessage("{}")}}
	if b, err := message.Encode(s); err == nil {
		t.Errorf("Encode with a bad pointer in Extra = %s, want an error", b)
	}
}

// TestResultIsIndependent changes the input after it was read.
func TestResultIsIndependent(t *testing.T) {
	data := bytes.Clone(fixtures(t)["run-state-1.9-future"])
	s := read(t, data)
	want := encode(t, s)
	clear(data)
	if got := encode(t, s); !bytes.Equal(got, want) {
		t.Errorf("after the input changed, Encode = %s, want %s", got, want)
	}
}

// TestSchema checks that the OpenAPI document describes a state by its fields.
func TestSchema(t *testing.T) {
	b := openapi.Document(openapi.Info{Title: "t", Version: "1"}, []openapi.Operation{{
		Method: "GET", Path: "/", Responses: []openapi.Response{{Status: 200, Type: reflect.TypeFor[runstate.State]()}},
	}})
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Required   []string
				Properties map[string]json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	state := doc.Components.Schemas["State"]
	if len(state.Required) != 12 || len(state.Properties) != 20 || state.Properties["Extra"] != nil {
		t.Errorf("schema of State requires %q and has %d properties, want 12 and 20", state.Required, len(state.Properties))
	}
	if got, want := string(doc.Components.Schemas["SubRun"].Properties["state"]), `"$ref": "#/components/schemas/State"`; !strings.Contains(got, want) {
		t.Errorf("schema of a child's state = %s, want %s", got, want)
	}
}
