package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/run"
	"agentd/server/tool"
	"agentd/store"
)

const (
	pngData = "\x89PNG\xff\xfe"
	pngJSON = `{"enc":"base64","data":"iVBOR//+"}`
	urlJSON = `{"enc":"url","href":"https://x.test/a.pdf"}`
)

// photo is a tool that streams an image, among other chunks, and returns media of every type.
func photo() tool.Tool {
	return tool.Func(tool.Spec{Name: "photo", Description: "d"}, func(_ context.Context, c tool.Call) (tool.Result, error) {
		c.Stream(tool.Chunk{Kind: tool.Image, Data: []byte(pngData), MediaType: "image/png"})
		c.Stream(tool.Chunk{Kind: tool.Image})
		c.Stream(tool.Chunk{Kind: tool.JSONDelta, Value: json.RawMessage(`{"a":1}`)})
		c.Stream(tool.Chunk{Kind: tool.JSONDelta, Path: "/a", Value: json.RawMessage(`{`)})
		c.Stream(tool.Chunk{Kind: tool.Text})
		return tool.Result{Output: json.RawMessage(`"done"`), Parts: []message.Part{
			{Type: "image", Image: &message.Bytes{Data: []byte(pngData)}, MimeType: "image/png"},
			{Type: "audio", Audio: &message.Bytes{Enc: "base64", Data: []byte(pngData)}},
			{Type: "file", File: &message.Bytes{Enc: "url", Href: "https://x.test/a.pdf"}},
		}}, nil
	})
}

const photoScript = `{"turns":[{"when":{"lastTool":"."},"text":"seen"},{"toolCalls":[{"name":"photo","args":{}}]}]}`

// member is what is at a path of an event's payload or of a part of it; "" is nothing.
func member(t *testing.T, payload json.RawMessage, path ...any) string {
	t.Helper()
	for _, key := range path {
		var err error
		switch key := key.(type) {
		case string:
			var o map[string]json.RawMessage
			err = json.Unmarshal(payload, &o)
			payload = o[key]
		case int:
			var a []json.RawMessage
			err = json.Unmarshal(payload, &a)
			if payload = nil; key < len(a) {
				payload = a[key]
			}
		}
		if err != nil || payload == nil {
			return ""
		}
	}
	return string(payload)
}

func payloads(events []event.Event, typ string) (all []json.RawMessage) {
	for _, e := range events {
		if e.Type == typ {
			all = append(all, e.Payload)
		}
	}
	return all
}

// inner are the payloads of the events of a type that a parent passed on from its child.
func inner(t *testing.T, events []event.Event, typ string) (all []json.RawMessage) {
	t.Helper()
	for _, p := range payloads(events, event.SubagentEvent) {
		if member(t, p, "event", "type") == `"`+typ+`"` {
			all = append(all, json.RawMessage(member(t, p, "event")))
		}
	}
	return all
}

func wantMember(t *testing.T, what string, payload json.RawMessage, want string, path ...any) {
	t.Helper()
	if got := member(t, payload, path...); got != want {
		t.Errorf("%s %v = %s, want %s in %s", what, path, got, want, payload)
	}
}

func wantChunks(t *testing.T, what string, partials []json.RawMessage) {
	t.Helper()
	want := []string{
		`{"kind":"image","data":` + pngJSON + `,"mediaType":"image/png"}`,
		`{"kind":"image","data":{"enc":"base64","data":""},"mediaType":""}`,
		`{"kind":"json-delta","path":"","value":{"a":1}}`,
		`{"kind":"json-delta","path":"/a","value":null}`,
		`{"kind":"text","text":""}`,
	}
	var got []string
	for _, p := range partials {
		got = append(got, member(t, p, "chunk"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: chunks =\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func wantParts(t *testing.T, what string, end json.RawMessage) {
	t.Helper()
	parts := []any{"result", "state", "steps", 0, "toolCalls", 0, "outcome", "contentParts"}
	for i, tc := range []struct{ field, want string }{{"image", pngJSON}, {"audio", pngJSON}, {"file", urlJSON}} {
		wantMember(t, what, end, tc.want, append(slices.Clone(parts), i, tc.field)...)
	}
}

// TestEnvelopesInEvents looks for bytes in every place of the events of runs of models where there can be any. That
// they are read back from disk as they were published, rig.events checks.
func TestEnvelopesInEvents(t *testing.T) {
	input := fmt.Sprintf(`[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image","image":%s}]},`+
		`{"role":"assistant","content":[{"type":"file","file":%s},{"type":"audio","audio":{"enc":"base64","data":""}}]},{"role":"user","content":"go"}]`,
		pngJSON, urlJSON)
	start := func(t *testing.T, r *rig, agentID string) (agent.RunResult, []event.Event) {
		h := r.start(run.StartRequest{Owner: agentID, Input: json.RawMessage(input)})
		return r.wait(h), r.events(agentID, h.ID)
	}
	t.Run("a run", func(t *testing.T) {
		r := newRig(t, func(*rig) []agent.Registration {
			return []agent.Registration{{ID: "a", LLM: llm(t, photoScript, photo())}}
		})
		res, events := start(t, r, "a")
		if res.Status != store.Completed {
			t.Fatalf("the run is %s: %+v", res.Status, res.Error)
		}
		wantChunks(t, "of the run", payloads(events, event.ToolPartial))
		end := payloads(events, event.AgentEnd)[0]
		wantParts(t, "agent.end", end)
		wantMember(t, "agent.end", end, pngJSON, "result", "state", "messages", 0, "content", 1, "image")
		wantMember(t, "agent.end", end, urlJSON, "result", "state", "messages", 1, "content", 0, "file")
		wantMember(t, "agent.end", end, `{"enc":"base64","data":""}`, "result", "state", "messages", 1, "content", 1, "audio")
	})
	t.Run("of children", func(t *testing.T) {
		r := newRig(t, func(*rig) []agent.Registration {
			top := llm(t, strings.ReplaceAll(photoScript, `"photo","args":{}`, `"subagent_middle","args":{"input":"x"}`), agent.SubAgentTool("middle", ""))
			middle := llm(t, strings.ReplaceAll(photoScript, "photo", "transfer_to_a"), agent.HandoffTool("a", ""))
			top.Forward, middle.Forward = "all", "all"
			return []agent.Registration{{ID: "top", LLM: top}, {ID: "middle", LLM: middle}, {ID: "a", LLM: llm(t, photoScript, photo())}}
		})
		_, events := start(t, r, "top")
		var nested []event.Event
		for _, p := range inner(t, events, event.SubagentEvent) {
			nested = append(nested, event.Event{Type: event.SubagentEvent, Payload: p})
		}
		wantChunks(t, "of a grandchild", inner(t, nested, event.ToolPartial))
		ends := inner(t, nested, event.AgentEnd)
		if len(ends) != 1 {
			t.Fatalf("%d ends of a grandchild were passed on, want 1: %s", len(ends), types(events))
		}
		wantParts(t, "agent.end of a grandchild", ends[0])
	})
	t.Run("of a child that waits", func(t *testing.T) {
		r := newRig(t, func(*rig) []agent.Registration {
			top := llm(t, strings.ReplaceAll(photoScript, "photo", "transfer_to_middle"), agent.HandoffTool("middle", ""))
			middle := llm(t, strings.ReplaceAll(photoScript, "photo", "transfer_to_a"), agent.HandoffTool("a", ""))
			a := llm(t, `{"turns":[{"when":{"step":0},"toolCalls":[{"name":"photo","args":{}}]},{"toolCalls":[{"name":"ask","args":{}}]}]}`,
				photo(), &counter{spec: tool.Spec{Name: "ask", Description: "d"}})
			a.Policy.Tools = map[string]agent.Gate{"ask": {Always: true}}
			return []agent.Registration{{ID: "top", LLM: top}, {ID: "middle", LLM: middle}, {ID: "a", LLM: a}}
		})
		res, events := start(t, r, "top")
		if res.Status != store.Awaiting {
			t.Fatalf("the run is %s: %+v", res.Status, res.Error)
		}
		end := payloads(events, event.AgentEnd)[0]
		sub := member(t, end, "result", "state", "pendingSubRuns", 0, "state", "pendingSubRuns", 0, "state")
		state := json.RawMessage(`{"result":{"state":` + sub + `}}`)
		wantParts(t, "pendingSubRuns of pendingSubRuns", state)
		messages := member(t, json.RawMessage(sub), "messages")
		if !strings.Contains(messages, pngJSON) || !strings.Contains(messages, urlJSON) {
			t.Errorf("messages of pendingSubRuns of pendingSubRuns = %s, want the media in them", messages)
		}
	})
}

func TestMediaOutsideAnEnvelopeAreRefused(t *testing.T) {
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", LLM: llm(t, photoScript)}} })
	for _, image := range []string{`null`, `{}`, `{"0":137,"1":80}`, `{"data":"AA=="}`, `{"enc":"gzip","data":"AA=="}`, `{"enc":"url"}`} {
		input := `[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image","image":` + image + `}]}]`
		_, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "a", Input: json.RawMessage(input)})
		if !fault.Is(err, fault.ConfigInvalid) || fmt.Sprint(fault.Of(err).Issues[0].Path) != "[input 0 content 1 image]" {
			t.Errorf("Start(%s) = %v, want config-invalid with an issue of the image", input, err)
		}
	}
}

func TestPartsOfUnknownTypesAreRefused(t *testing.T) {
	r := newRig(t, func(*rig) []agent.Registration { return []agent.Registration{{ID: "a", LLM: llm(t, photoScript)}} })
	for _, part := range []string{`{"type":"video"}`, `{}`, `{"type":"image_url"}`, `{"type":"image_url","image_url":{"url":"data:image/png;base64,?"}}`} {
		_, err := r.engine.Start(t.Context(), run.StartRequest{Owner: "a", Input: json.RawMessage(`[{"role":"user","content":[` + part + `]}]`)})
		if !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("Start with %s = %v, want config-invalid", part, err)
		}
	}
}

// maker is an agent that makes a file.
type maker struct{}

func (maker) ID() string { return "maker" }

func (maker) Run(context.Context, agent.Input) (agent.Result, error) { return agent.Result{}, nil }

func (maker) Stream(_ context.Context, _ agent.Input, out agent.Sink) (agent.Result, error) {
	return agent.Result{Output: "made"}, out.Emit(event.New(event.FileGenerated, struct {
		MimeType string        `json:"mimeType"`
		Data     message.Bytes `json:"data"`
	}{"image/png", message.Bytes{Data: []byte(pngData)}}))
}

func TestEnvelopeOfAGeneratedFile(t *testing.T) {
	r := newRig(t, func(*rig) []agent.Registration {
		top := llm(t, strings.ReplaceAll(photoScript, `"photo","args":{}`, `"subagent_maker","args":{"input":"x"}`), agent.SubAgentTool("maker", ""))
		top.Forward = "all"
		return []agent.Registration{{ID: "maker", Agent: maker{}}, {ID: "top", LLM: top}}
	})
	_, events := r.run("maker", "x")
	files := payloads(events, event.FileGenerated)
	_, events = r.run("top", "x")
	files = append(files, inner(t, events, event.FileGenerated)...)
	if len(files) != 2 {
		t.Fatalf("%d files were told of, want one by the agent and one by its parent", len(files))
	}
	for _, file := range files {
		wantMember(t, "file.generated", file, pngJSON, "data")
	}
}
