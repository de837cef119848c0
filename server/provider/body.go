package provider

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"agentd/server/message"
)

type wireMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content"` // string, []wirePart or nil
	ToolCalls  []wireCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type wirePart struct {
	Type     string     `json:"type"`
	Text     string     `json:"text,omitempty"`
	ImageURL *wireImage `json:"image_url,omitempty"`
	File     *wireFile  `json:"file,omitempty"`
}

type wireFile struct {
	Filename string `json:"filename"`
	FileData string `json:"file_data"` // a data URL
}

type wireImage struct {
	URL string `json:"url"`
}

type wireCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function wireFunction `json:"function"`
}

type wireFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// wireBody makes the body of a request without the parameters in omit.
func wireBody(req *Request, omit omission, whole bool) (map[string]any, error) {
	messages := make([]wireMessage, 0, len(req.Messages)+1)
	for i, m := range req.Messages {
		w, err := wireOf(m)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		messages = append(messages, w)
	}
	body := map[string]any{"model": req.Model, "stream": !whole}
	if !whole {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	if req.Temperature != nil {
		body["temperature"] = *req.Temperature
	}
	if req.MaxTokens > 0 {
		body["max_tokens"] = req.MaxTokens
	}
	if len(req.Tools) > 0 {
		body["tools"] = wireTools(req.Tools)
		if choice := wireChoice(req.ToolChoice); choice != nil {
			body["tool_choice"] = choice
		}
	}
	if out := req.Output; out != nil {
		if omit&responseFormat == 0 {
			body["response_format"] = map[string]any{"type": "json_schema",
				"json_schema": map[string]any{"name": schemaName(out.Name), "schema": out.Schema, "strict": true}}
		} else {
			messages = append(messages, wireMessage{Role: "system", Content: instruction(out)})
		}
	}
	body["messages"] = messages
	omit.apply(body)
	return body, nil
}

func wireOf(m message.Message) (wireMessage, error) {
	w := wireMessage{Role: string(m.Role), Content: m.Content.String()}
	switch m.Role {
	case message.System:
	case message.User:
		parts, err := wireParts(m.Content.Parts)
		if err != nil {
			return w, err
		}
		if parts != nil {
			w.Content = parts
		}
	case message.Assistant:
		for _, c := range m.ToolCalls {
			w.ToolCalls = append(w.ToolCalls, wireCall{ID: c.ID, Type: "function", Function: wireFunction{Name: c.Name, Arguments: wireArgs(c.Args)}})
		}
		if w.Content == "" && w.ToolCalls != nil {
			w.Content = nil
		}
	case message.Tool:
		w.ToolCallID = m.ToolCallID
	default:
		return w, fmt.Errorf("role %q is not known", m.Role)
	}
	return w, nil
}

// wireParts is nil where all parts are text, which every server takes as a plain string.
func wireParts(parts []message.Part) ([]wirePart, error) {
	var out []wirePart
	media := false
	for _, p := range parts {
		switch {
		case p.Type == "text":
			out = append(out, wirePart{Type: "text", Text: p.Text})
		case p.Type == "image" && p.Image != nil:
			media = true
			out = append(out, wirePart{Type: "image_url", ImageURL: &wireImage{URL: mediaURL(p.Image, p.MimeType)}})
		case p.Type == "file" && p.File != nil && p.File.Enc != "url":
			media = true
			out = append(out, wirePart{Type: "file", File: &wireFile{Filename: cmp.Or(p.Filename, "file"), FileData: mediaURL(p.File, p.MimeType)}})
		case p.Type == "reasoning":
		default:
			return nil, fmt.Errorf("a part of type %q cannot be sent, only text, images, and files with their content", p.Type)
		}
	}
	if !media {
		return nil, nil
	}
	return out, nil
}

func mediaURL(b *message.Bytes, mime string) string {
	if b.Enc == "url" {
		return b.Href
	}
	if mime == "" {
		mime = http.DetectContentType(b.Data)
	}
	return "data:" + mime + ";base64," + base64.StdEncoding.EncodeToString(b.Data)
}

// wireArgs is the JSON text of a call's arguments. Servers put it into prompt templates that fail on anything but an
// object, so the broken arguments that a model once wrote go back inside one.
func wireArgs(args json.RawMessage) string {
	text := strings.TrimSpace(string(args))
	switch {
	case text == "":
		return "{}"
	case text[0] == '{' && json.Valid(args):
		return text
	}
	wrapped, err := message.Encode(map[string]json.RawMessage{"invalidArguments": args})
	if err != nil {
		wrapped, _ = message.Encode(map[string]string{"invalidArguments": text})
	}
	return string(wrapped)
}

func wireTools(tools []ToolSpec) []any {
	out := make([]any, 0, len(tools))
	for _, t := range tools {
		function := map[string]any{"name": t.Name, "parameters": t.Input}
		if t.Description != "" {
			function["description"] = t.Description
		}
		out = append(out, map[string]any{"type": "function", "function": function})
	}
	return out
}

// wireChoice is nil where the model decides.
func wireChoice(c ToolChoice) any {
	switch {
	case c.Tool != "":
		return map[string]any{"type": "function", "function": map[string]any{"name": c.Tool}}
	case c.Mode != "":
		return c.Mode
	}
	return nil
}

var unfitInName = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// schemaName makes a name that the protocol takes: 1 to 64 characters of A-Z a-z 0-9 _ -.
func schemaName(name string) string {
	clean := unfitInName.ReplaceAllString(cmp.Or(name, "output"), "_")
	return clean[:min(len(clean), 64)]
}

// instruction asks in words for what response_format asks for on servers that know it.
func instruction(out *OutputSpec) string {
	return "Answer with one JSON value and nothing else: no other text and no code fence around it." +
		"\nIt must match this JSON Schema:\n" + string(out.Schema)
}
