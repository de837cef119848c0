package session_test

import (
	"strings"
	"testing"

	"agentd/server/message"
	"agentd/store"
)

func TestSearchSession(t *testing.T) {
	r := newRig(t)
	r.create(store.Session{ID: "s", User: "u", Agent: "a"})
	r.run("s", "r", []store.Message{
		text(message.User, "Say \"cheese\" to C:\\dir,\nthen 50% <off>_x"),
		said(message.Tool, message.Outcome{ToolCallID: "c", ToolName: "look", Output: []byte(`"a \"quoted\" result"`)}),
		text(message.Assistant, "content"),
	})
	for query, want := range map[string]string{
		"CHEESE":       "user",
		`"cheese" to`:  "user",
		"dir,\nthen":   "user",
		"50% <":        "user",
		">_x":          "user",
		"5_%":          "",
		`C:\dir`:       "user",
		`a "quoted" r`: "tool",
		`"cheese"`:     "user",
		"content":      "assistant", // every stored message has a member of this name
		"nothing":      "",
	} {
		hits, err := r.svc.SearchSession(t.Context(), "s", query, 10)
		var roles []string
		for _, h := range hits {
			roles = append(roles, string(h.Role))
		}
		if got := strings.Join(roles, " "); err != nil || got != want {
			t.Errorf("SearchSession(%q) = %q, %v; want %q", query, got, err, want)
		}
	}
}
