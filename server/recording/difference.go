package recording

import (
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
	toolsWere, settingsWere := parts(&recorded.Terms)
	toolsAre, settingsAre := parts(&now.Terms)
	if d := compare(toolsWere, toolsAre); d != nil {
		return d
	}
	return compare(settingsWere, settingsAre)
}

func messages(recorded, now []message.Message, ids []string) *Divergence {
	for i := range max(len(recorded), len(now)) {
		switch {
		case i >= len(recorded):
			return at("message", title(now, i), "(no message)", text(now[i], ids))
		case i >= len(now):
			return at("message", title(recorded, i), text(recorded[i], ids), "(no message)")
		}
		a, b := string(canonical(seen(recorded[i]), ids...)), string(canonical(seen(now[i]), ids...))
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
	for _, before := range msgs[:i] {
		for _, c := range before.ToolCalls {
			if m.Role == message.Tool && c.ID == m.ToolCallID {
				who = "tool " + c.Name
			}
		}
	}
	return fmt.Sprintf("message %d (%s)", i+1, who)
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

// A part is one of the terms of a request, as people read it.
type part struct{ kind, where, text string }

func parts(t *Terms) (tools, settings []part) {
	var names []string
	var details []part
	for _, tool := range t.Tools {
		input := ""
		if len(tool.Input) > 0 {
			input = string(canonical(tool.Input))
		}
		names = append(names, tool.Name)
		tools = append(tools, part{"tool", "tool " + tool.Name, "offered"})
		details = append(details, part{"tool", "description of the tool " + tool.Name, tool.Description},
			part{"tool", "input schema of the tool " + tool.Name, input})
	}
	var limit any // none
	if t.MaxTokens != 0 {
		limit = t.MaxTokens
	}
	settings = []part{{"tool", "order of the tools", strings.Join(names, ", ")}}
	for _, s := range []struct {
		name  string
		value any
	}{{"tool choice", t.ToolChoice}, {"temperature", t.Temperature}, {"longest answer in tokens", limit}, {"output schema", t.Output}} {
		text := strings.Trim(string(canonical(s.value)), `"`)
		if text == "" || text == "null" {
			text = "(not set)" // it is left to the model
		}
		settings = append(settings, part{"setting", s.name, text})
	}
	return append(tools, details...), settings
}

// compare finds the first part that differs. A part that is not there belongs to a tool that is not offered.
func compare(recorded, now []part) *Divergence {
	find := func(list []part, where string) string {
		if i := slices.IndexFunc(list, func(p part) bool { return p.where == where }); i >= 0 {
			return list[i].text
		}
		return "not offered"
	}
	for _, p := range slices.Concat(recorded, now) {
		if was, is := find(recorded, p.where), find(now, p.where); was != is {
			return at(p.kind, p.where, was, is)
		}
	}
	return nil
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
