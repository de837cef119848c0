package config

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"agentd/server/secret"
	"agentd/server/shape"
)

// Limits of files that a configuration names.
const (
	maxTextBytes   = 1 << 20
	maxScriptBytes = 4 << 20
	maxFileBytes   = 64 << 20 // of all of them
)

// Millis is a time in milliseconds.
type Millis = shape.Millis

// Text is prose. In the file it is a text, a list of lines, or {"file": "path"} for the content of a file, without
// one line break at its end. Once it is loaded, only Text is set.
type Text struct {
	Text  string   `json:"-" bare:"text, lines or file"`
	Lines []string `json:"-" bare:"text, lines or file"`
	File  string   `json:"file" check:"required"`
}

// Settle reads the file, or joins the lines.
func (t *Text) Settle(open func(string, int64) ([]byte, error)) (member, message string) {
	switch {
	case t.Lines != nil:
		*t = Text{Text: strings.Join(t.Lines, "\n")}
	case t.File != "":
		b, err := open(t.File, maxTextBytes)
		switch {
		case err != nil:
			return "file", fmt.Sprintf("%.60q cannot be read: %v", t.File, err)
		case !utf8.Valid(b):
			return "file", fmt.Sprintf("%.60q is not UTF-8 text", t.File)
		}
		*t = Text{Text: strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")}
	}
	return "", ""
}

// Script is a file of turns, read when the configuration is loaded. In the file it is a path.
type Script struct {
	Path string `json:"-" bare:"path" check:"required"` // as it was written
	Data []byte `json:"-"`                              // its content; the provider checks that it is a script
}

// Settle reads the file.
func (s *Script) Settle(open func(string, int64) ([]byte, error)) (member, message string) {
	if open != nil {
		b, err := open(s.Path, maxScriptBytes)
		if err != nil {
			return "", fmt.Sprintf("%.60q cannot be read: %v", s.Path, err)
		}
		s.Data = b
	}
	return "", ""
}

// Value is a text or a reference to a secret. In the file it is a text or {"ref": "env:NAME"}.
type Value struct {
	Text string `json:"-" bare:"text or reference" check:"argument"` // unused when Ref is set
	Ref  Ref    `json:"ref" check:"required ref"`
}

// Approval says whether a person must allow a call. In the file it is "always", "never", or an object: {"when": {...}}
// with a condition over the arguments, or {"always": true}, each with or without "edit": true. The zero value is absent.
type Approval struct {
	Word   string          `json:"-" bare:"always, never, when or edit" enum:"always|never"`
	When   json.RawMessage `json:"when" check:"object"`
	Always bool            `json:"always"`
	Edit   bool            `json:"edit"` // whoever grants a call may change its arguments
}

// Mode is always, never, when or, where the approval leaves that open, empty.
func (a Approval) Mode() string {
	switch {
	case a.When != nil:
		return "when"
	case a.Always:
		return "always"
	}
	return a.Word
}

// Settle refuses objects that say nothing, or too much.
func (a *Approval) Settle(func(string, int64) ([]byte, error)) (member, message string) {
	switch {
	case a.Always && a.When != nil:
		return "", `want "when" or "always", not both`
	case a.Mode() == "" && !a.Edit:
		return "", `want "always", "never", {"when": {...}} or {"edit": true, ...}`
	}
	return "", ""
}

// ToolChoice says which tools a model may or must call: Mode is auto, required or none, or else Tool is the name of the
// one that it must call. In the file it is the mode, or {"tool": "name"}.
type ToolChoice struct {
	Mode string `json:"-" bare:"auto, required, none or tool" enum:"auto|required|none"`
	Tool string `json:"tool" check:"required"`
}

// Handoff is an agent that a conversation may be handed to. In the file it is the agent's id, or {"agent", "mode"}.
type Handoff struct {
	Agent string `json:"agent" bare:"id or {agent, mode}" check:"required id"`
	Mode  string `json:"mode" default:"return" enum:"return|transfer"`
}

// Ref is a reference to a secret, such as env:NAME or file:path; the secret itself is never in the configuration. The
// zero value is absent. A relative file is relative to the folder of the configuration. Package secret has its grammar.
type Ref string

// String is the reference for people, without what may be secret in it: a default, for instance.
func (r Ref) String() string {
	if r == "" {
		return ""
	}
	return secret.Show(string(r))
}

// MarshalJSON writes String.
func (r Ref) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }
