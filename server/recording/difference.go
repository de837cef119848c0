package recording

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"agentd/server/message"
)

// difference finds the first message, tool or setting in which two requests differ; nil when there is none.
func difference(recorded, now *Request, ids []string) *Divergence {
	if d := messages(recorded.Messages, now.Messages, ids); d != nil {
		return d
	}
	if d := tools(recorded.Tools, now.Tools); d != nil {
		return d
	}
	return settings(&recorded.Terms, &now.Terms)
}

func messages(recorded, now []message.Message, ids []string) *Divergence {
	for i := range max(len(recorded), len(now)) {
		switch {
		case i >= len(recorded):
			return at("message", title(now, i), "(no message)", text(now[i], ids))
		case i >= len(now):
			return at("message", title(recorded, i), text(recorded[i], ids), "(no message)")
		}
		a, b := whole(recorded[i], ids), whole(now[i], ids)
		if a == b {
			continue
		}
		if s, t := text(recorded[i], ids), text(now[i], ids); recorded[i].Role == now[i].Role && s != t {
			a, b = s, t
		}
		return at("message", title(now, i), a, b)
	}
	return nil
}

// title names a message by its place, its role and, of a tool's, the tool.
func title(msgs []message.Message, i int) string {
	m := msgs[i]
	who := string(m.Role)
	if m.Role == message.Tool {
		for _, before := range msgs[:i] {
			for _, c := range before.ToolCalls {
				if c.ID == m.ToolCallID {
					who = "tool " + c.Name
				}
			}
		}
	}
	return fmt.Sprintf("message %d (%s)", i+1, who)
}

func whole(m message.Message, ids []string) string {
	return string(canonical(seen(m), ids...))
}

func text(m message.Message, ids []string) string {
	s := m.Content.String()
	for _, id := range ids {
		if id != "" {
			s = strings.ReplaceAll(s, id, thisRun)
		}
	}
	return s
}

func tools(recorded, now []Tool) *Divergence {
	find := func(list []Tool, name string) *Tool {
		if i := slices.IndexFunc(list, func(t Tool) bool { return t.Name == name }); i >= 0 {
			return &list[i]
		}
		return nil
	}
	for _, t := range recorded {
		if find(now, t.Name) == nil {
			return at("tool", "tool "+t.Name, "offered", "not offered")
		}
	}
	for _, t := range now {
		was := find(recorded, t.Name)
		switch {
		case was == nil:
			return at("tool", "tool "+t.Name, "not offered", "offered")
		case was.Description != t.Description:
			return at("tool", "description of the tool "+t.Name, was.Description, t.Description)
		case !same(was.Input, t.Input):
			return at("tool", "input schema of the tool "+t.Name, plain(was.Input), plain(t.Input))
		}
	}
	names := func(list []Tool) string {
		var names []string
		for _, t := range list {
			names = append(names, t.Name)
		}
		return strings.Join(names, ", ")
	}
	if a, b := names(recorded), names(now); a != b {
		return at("tool", "order of the tools", a, b)
	}
	return nil
}

func settings(recorded, now *Terms) *Divergence {
	limit := func(tokens int) any {
		if tokens == 0 {
			return nil
		}
		return tokens
	}
	for _, s := range []struct {
		name          string
		recorded, now any
	}{
		{"tool choice", recorded.ToolChoice, now.ToolChoice},
		{"temperature", recorded.Temperature, now.Temperature},
		{"longest answer in tokens", limit(recorded.MaxTokens), limit(now.MaxTokens)},
		{"output schema", recorded.Output, now.Output},
	} {
		if !same(s.recorded, s.now) {
			return at("setting", s.name, setting(s.recorded), setting(s.now))
		}
	}
	return nil
}

// setting is a value for people; what is absent is left to the model.
func setting(v any) string {
	switch s := plain(v); s {
	case `""`, "null":
		return "(not set)"
	default:
		return strings.Trim(s, `"`)
	}
}

func same(a, b any) bool { return bytes.Equal(canonical(a), canonical(b)) }

func plain(v any) string {
	if raw, ok := v.(json.RawMessage); ok && len(raw) == 0 {
		return ""
	}
	return string(canonical(v))
}

// at is a divergence of which only the surroundings are shown.
func at(kind, where, recorded, now string) *Divergence {
	a, b := excerpts(recorded, now)
	return &Divergence{Kind: kind, Where: where, Recorded: a, Now: b}
}

// Of two texts, so many bytes before their first difference and so many from there on are shown.
const (
	shownBefore = 40
	shownAfter  = 160
)

// excerpts cuts two texts to where they differ first.
func excerpts(a, b string) (string, string) {
	at := 0
	for at < min(len(a), len(b)) && a[at] == b[at] {
		at++
	}
	return excerpt(a, at), excerpt(b, at)
}

func excerpt(s string, at int) string {
	if s == "" {
		return "(nothing)"
	}
	from, to := boundary(s, max(0, at-shownBefore)), boundary(s, min(len(s), at+shownAfter))
	out := s[from:to]
	if from > 0 {
		out = "…" + out
	}
	if to < len(s) {
		out += "…"
	}
	return out
}

// boundary is the start of the character that byte i belongs to.
func boundary(s string, i int) int {
	for i > 0 && i < len(s) && !utf8.RuneStart(s[i]) {
		i--
	}
	return i
}
