package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"agentd/server/fault"
)

// Limits of files that a configuration names.
const (
	maxTextBytes   = 1 << 20
	maxScriptBytes = 4 << 20
	maxFileBytes   = 64 << 20 // of all of them
)

// Text is prose. In the file it is a text, a list of lines, or {"file": "path"} for the content of a file, without
// one line break at its end; here it is the text itself.
type Text string

func (t *Text) decode(l *loader, n *node, path []any) {
	switch n.kind {
	case stringNode:
		*t = Text(n.text)
	case arrayNode:
		lines := make([]string, len(n.items))
		for i, item := range n.items {
			l.expect(item, stringNode, under(path, i), "")
			lines[i] = item.text
		}
		*t = Text(strings.Join(lines, "\n"))
	case objectNode:
		file, ok := l.single(n, "file", path)
		if !ok || !l.expect(file, stringNode, under(path, "file"), "") {
			return
		}
		b, ok := l.read(file, maxTextBytes, under(path, "file"))
		if ok && !utf8.Valid(b) {
			l.report(file.pos, under(path, "file"), quoted(file.text)+" is not UTF-8 text")
			return
		}
		*t = Text(strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"))
	default:
		l.expect(n, stringNode, path, `text, a list of lines or {"file": "path"}`)
	}
}

func (*Text) check() string { return "" }

func (*Text) form() (string, map[string]any) {
	text := map[string]any{"type": "string"}
	return "text, lines or file", map[string]any{"anyOf": []any{
		text,
		map[string]any{"type": "array", "items": text},
		only("file", text),
	}}
}

// Script is a file of turns, read when the configuration is loaded. In the file it is a path.
type Script struct {
	Path string // absolute; as written where Options.Files is set
	Data []byte // its content; whether it is a script is for the provider to say
}

func (s *Script) decode(l *loader, n *node, path []any) {
	if !l.expect(n, stringNode, path, "") {
		return
	}
	if b, ok := l.read(n, maxScriptBytes, path); ok {
		s.Path, s.Data = n.text, b
		if l.opts.Files == nil {
			s.Path = resolve(l.opts.Dir, n.text)
		}
	}
}

func (*Script) check() string { return "" }

func (*Script) form() (string, map[string]any) {
	return "path", map[string]any{"type": "string", "minLength": 1}
}

// MarshalJSON writes the path.
func (s Script) MarshalJSON() ([]byte, error) { return encode(s.Path), nil }

// Value is a text or a reference to a secret. In the file it is a text or {"ref": "env:NAME"}.
type Value struct {
	Text string // unused when Ref is set
	Ref  Ref
}

func (v *Value) decode(l *loader, n *node, path []any) {
	switch n.kind {
	case stringNode:
		*v = Value{Text: n.text}
	case objectNode:
		ref, ok := l.single(n, "ref", path)
		if !ok || !l.expect(ref, stringNode, under(path, "ref"), "") {
			return
		}
		if l.accept(ref, under(path, "ref"), Ref(ref.text).check()) {
			*v = Value{Ref: Ref(ref.text)}
		}
	default:
		l.expect(n, stringNode, path, `text or {"ref": "env:NAME"}`)
	}
}

func (v *Value) check() string {
	switch {
	case v.Ref != "":
		return v.Ref.check()
	case strings.ContainsRune(v.Text, 0):
		return "want a text without NUL"
	}
	return ""
}

func (*Value) form() (string, map[string]any) {
	return "text or reference", map[string]any{"anyOf": []any{map[string]any{"type": "string"}, only("ref", refSchema())}}
}

// MarshalJSON writes the text or the reference.
func (v Value) MarshalJSON() ([]byte, error) {
	if v.Ref != "" {
		return encode(map[string]Ref{"ref": v.Ref}), nil
	}
	return encode(v.Text), nil
}

// Approval says whether a person must allow a call: Mode is always, never, or when, with the condition over the
// arguments in When; empty is absent. Edit says that whoever grants a call may change its arguments.
type Approval struct {
	Mode string
	When json.RawMessage // a JSON object
	Edit bool
}

func (a *Approval) decode(l *loader, n *node, path []any) {
	switch n.kind {
	case stringNode:
		*a = Approval{Mode: n.text}
	case objectNode:
		a.decodeObject(l, n, path)
	default:
		l.expect(n, stringNode, path, approvalForms)
	}
}

const approvalForms = `"always", "never", {"when": {...}} or {"edit": true, ...}`

func (a *Approval) decodeObject(l *loader, n *node, path []any) {
	*a = Approval{}
	if len(n.members) == 0 {
		l.report(n.pos, path, "want "+approvalForms)
	}
	for _, m := range n.members {
		at := under(path, m.key)
		switch m.key {
		case "when":
			if l.expect(m.value, objectNode, at, "") {
				a.Mode, a.When = "when", m.value.appendJSON(nil)
			}
		case "always", "edit":
			if !l.expect(m.value, boolNode, at, "") {
				continue
			}
			if m.value.text != "true" {
				l.report(m.value.pos, at, "want true, or leave it out")
			}
			if m.key == "edit" {
				a.Edit = true
			} else if a.Mode == "" {
				a.Mode = "always"
			}
		default:
			l.report(m.pos, at, "unknown key "+quoted(m.key)+`; want "when", "always" or "edit"`)
		}
	}
	if n.member("when") != nil && n.member("always") != nil {
		l.report(n.pos, path, `want "when" or "always", not both`)
	}
}

func (a *Approval) check() string {
	switch {
	case a.Mode == "", a.Mode == "always", a.Mode == "never":
		return ""
	case a.Mode == "when" && a.When != nil:
		return ""
	}
	return fmt.Sprintf("want %s, got %s", approvalForms, quoted(a.Mode))
}

func (*Approval) form() (string, map[string]any) {
	return "always, never, when or edit", map[string]any{"anyOf": []any{
		map[string]any{"enum": []any{"always", "never"}},
		map[string]any{
			"type": "object", "minProperties": 1, "additionalProperties": false, "not": map[string]any{"required": []string{"always", "when"}},
			"properties": map[string]any{"when": map[string]any{"type": "object"}, "always": map[string]any{"const": true}, "edit": map[string]any{"const": true}},
		},
	}}
}

// MarshalJSON writes the form of the file.
func (a Approval) MarshalJSON() ([]byte, error) {
	if !a.Edit && a.Mode != "when" {
		return encode(a.Mode), nil
	}
	form := map[string]any{}
	if a.Edit {
		form["edit"] = true
	}
	switch a.Mode {
	case "when":
		form["when"] = a.When
	case "always":
		form["always"] = true
	}
	return encode(form), nil
}

// ToolChoice says which tools a model may or must call: Mode is auto, required, none, or tool, with the name in Tool.
type ToolChoice struct {
	Mode string
	Tool string
}

func (c *ToolChoice) decode(l *loader, n *node, path []any) {
	switch n.kind {
	case stringNode:
		*c = ToolChoice{Mode: n.text}
	case objectNode:
		tool, ok := l.single(n, "tool", path)
		if ok && l.expect(tool, stringNode, under(path, "tool"), "") {
			*c = ToolChoice{Mode: "tool", Tool: tool.text}
		}
	default:
		l.expect(n, stringNode, path, `"auto", "required", "none" or {"tool": "name"}`)
	}
}

func (c *ToolChoice) check() string {
	switch {
	case c.Mode == "auto", c.Mode == "required", c.Mode == "none":
		return ""
	case c.Mode == "tool" && c.Tool != "":
		return ""
	}
	return fmt.Sprintf(`want "auto", "required", "none" or {"tool": "name"}, got %s`, quoted(c.Mode))
}

func (*ToolChoice) form() (string, map[string]any) {
	return "auto, required, none or tool", map[string]any{"anyOf": []any{
		map[string]any{"enum": []any{"auto", "required", "none"}},
		only("tool", map[string]any{"type": "string", "minLength": 1}),
	}}
}

// MarshalJSON writes the form of the file.
func (c ToolChoice) MarshalJSON() ([]byte, error) {
	if c.Mode == "tool" {
		return encode(map[string]string{"tool": c.Tool}), nil
	}
	return encode(c.Mode), nil
}

// Handoff is an agent that a conversation may be handed to: Mode is return or transfer.
type Handoff struct {
	Agent string
	Mode  string
}

const handoffForms = `the id of an agent or {"agent": "id", "mode": "transfer"}`

var handoffModes = []string{"return", "transfer"}

func (h *Handoff) decode(l *loader, n *node, path []any) {
	switch n.kind {
	case stringNode:
		*h = Handoff{Agent: n.text, Mode: "return"}
	case objectNode:
		*h = Handoff{Mode: "return"}
		for _, m := range n.members { // reports are about the item, so that no other follows about an agent that was not read
			switch m.key {
			case "agent":
				if l.expect(m.value, stringNode, path, "the id of an agent") && l.accept(m.value, path, textRules["id"].check(m.value.text)) {
					h.Agent = m.value.text
				}
			case "mode":
				if l.expect(m.value, stringNode, path, alternatives(handoffModes)) && l.accept(m.value, path, (&rules{enum: handoffModes}).checkText(m.value.text)) {
					h.Mode = m.value.text
				}
			default:
				l.report(m.pos, path, "unknown key "+quoted(m.key)+didYouMean(fault.Nearest(m.key, []string{"agent", "mode"})))
			}
		}
		if n.member("agent") == nil {
			l.report(n.pos, path, `"agent" is missing`)
		}
	default:
		l.expect(n, stringNode, path, handoffForms)
	}
}

func (h *Handoff) check() string {
	if message := textRules["id"].check(h.Agent); message != "" {
		return message
	}
	return (&rules{enum: handoffModes}).checkText(h.Mode)
}

func (*Handoff) form() (string, map[string]any) {
	id := (&rules{text: textRules["id"]}).textSchema()
	return "id or {agent, mode}", map[string]any{"anyOf": []any{id, map[string]any{
		"type": "object", "required": []string{"agent"}, "additionalProperties": false,
		"properties": map[string]any{"agent": id, "mode": map[string]any{"enum": handoffModes, "default": "return"}},
	}}}
}

// MarshalJSON writes the id alone for what returns.
func (h Handoff) MarshalJSON() ([]byte, error) {
	if h.Mode != "transfer" {
		return encode(h.Agent), nil
	}
	return encode(map[string]string{"agent": h.Agent, "mode": h.Mode}), nil
}

// only is the schema of an object with exactly one member.
func only(key string, schema map[string]any) map[string]any {
	return map[string]any{
		"type": "object", "properties": map[string]any{key: schema},
		"required": []string{key}, "additionalProperties": false,
	}
}
