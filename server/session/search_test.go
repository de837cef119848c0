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
		text(message.Assistant, strings.Repeat("İ", 400)+" ärger in der STRASSE, Ärger IM Haus, Straße"),
		said(message.Tool, message.Outcome{ToolCallID: "d", ToolName: "look", Output: []byte(`"caf\u00e9"`)}),
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
		"ÄRGER im":     "assistant",
		"straße":       "assistant",
		"café":         "tool", // which wrote it with an escape
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

// What matches is found however much came since that does not, and the newest of it first.
func TestSearchOfALongSession(t *testing.T) {
	r := newRig(t)
	r.create(store.Session{ID: "s", User: "u", Agent: "a"})
	long := []store.Message{text(message.User, "the role of the content"), text(message.Assistant, "no role")}
	for range 3000 { // each has members "role" and "content"
		long = append(long, text(message.User, "x"))
	}
	r.run("s", "r", long)
	hits, err := r.svc.SearchSession(t.Context(), "s", "Role", 10)
	if err != nil || len(hits) != 2 || hits[0].Text != "no role" || hits[1].Text != "the role of the content" {
		t.Errorf("SearchSession(Role) = %v, %v; want both, the newest first", hits, err)
	}
	if hits, err = r.svc.SearchSession(t.Context(), "s", "x", 50); err != nil || len(hits) != 50 {
		t.Errorf("SearchSession(x) = %d hits, %v; want 50", len(hits), err)
	}
}

// A snippet is of the place that was found, also where letters before it change their length with their case.
func TestSnippet(t *testing.T) {
	r := newRig(t)
	r.create(store.Session{ID: "s", User: "u", Agent: "a"})
	r.run("s", "r", []store.Message{text(message.User, strings.Repeat("\u023a", 1000)+" FOUND "+strings.Repeat("y", 1000))})
	hits, err := r.svc.SearchSession(t.Context(), "s", "found", 1)
	if err != nil || len(hits) != 1 || !strings.Contains(hits[0].Text, " FOUND y") || len(hits[0].Text) > 500 {
		t.Errorf("SearchSession(found) = %v, %v; want a snippet of the place", hits, err)
	}
}

func BenchmarkSearch(b *testing.B) {
	r := newRig(b)
	r.create(store.Session{ID: "s", User: "u", Agent: "a"})
	long := make([]store.Message, 10_000)
	for i := range long {
		long[i] = text(message.Assistant, strings.Repeat("some words ", 50))
	}
	r.run("s", "r", long)
	for b.Loop() {
		if hits, err := r.svc.SearchSession(b.Context(), "s", "other", 10); err != nil || len(hits) > 0 {
			b.Fatal(hits, err)
		}
	}
}
