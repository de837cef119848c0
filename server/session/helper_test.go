package session_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"agentd/server/message"
	"agentd/server/session"
	"agentd/server/transcript"
	"agentd/store"
	"agentd/store/storetest"
)

// rig is a service on a store of its own.
type rig struct {
	t   testing.TB
	db  *store.DB
	svc *session.Service
}

func newRig(t testing.TB) *rig {
	db := storetest.Open(t)
	return &rig{t, db, session.New(db.Sessions())}
}

func (r *rig) update(fn func(*store.Tx) error) {
	r.t.Helper()
	if err := r.db.Update(r.t.Context(), fn); err != nil {
		r.t.Fatal(err)
	}
}

// create makes a session.
func (r *rig) create(v store.Session) {
	r.t.Helper()
	if _, err := r.svc.Create(r.t.Context(), v, nil); err != nil {
		r.t.Fatal(err)
	}
}

// run adds a run to a session.
func (r *rig) run(sessionID, id string, messages []store.Message, handoffs ...store.Handoff) {
	r.t.Helper()
	for i := range messages {
		m := &messages[i]
		msg, _, err := transcript.Decode(*m)
		if err != nil {
			r.t.Fatal(err)
		}
		m.Index, m.Tokens = i, transcript.Tokens(msg)
	}
	r.update(func(tx *store.Tx) error {
		_, err := r.db.Runs().Apply(tx, &store.Change{Messages: messages, Handoffs: handoffs,
			Run: store.Run{ID: id, Kind: "agent", Owner: "clerk", Current: "clerk", Session: sessionID, Status: store.Completed, Messages: len(messages),
				InputForm: "text", Usage: json.RawMessage("{}"), Models: json.RawMessage("{}"), Created: 1}})
		return err
	})
}

// said is a stored message, or of a tool message the outcome.
func said(role message.Role, body any) store.Message {
	b, err := message.Encode(body)
	if err != nil {
		panic(err)
	}
	return store.Message{Role: string(role), At: 1_750_000_000_123, Body: b}
}

func text(role message.Role, s string) store.Message {
	return said(role, message.Message{Role: role, Content: message.Text(s)})
}

func handoff(index int, from, to string) store.Handoff {
	return store.Handoff{Index: index, At: 5, Body: json.RawMessage(fmt.Sprintf(
		`{"fromAgentId":%q,"toAgentId":%q,"stepNumber":2,"at":"2026-01-02T03:04:05.006Z","reason":"better at it","inputFilter":{"kind":"none"},"secretsInheritance":"isolated","inheritedSecrets":["A"]}`, from, to))}
}

// conversation makes a session with one message of every form.
func (r *rig) conversation(id string) {
	r.t.Helper()
	r.create(store.Session{ID: id, User: "ann", Agent: "clerk", Title: "A \"title\" <b>", Tags: []string{"x", ""}})
	r.run(id, id+"-1", []store.Message{
		text(message.System, "prompt-secret"),
		said(message.User, message.Message{Role: message.User, UserID: "ann", Content: message.Content{Parts: []message.Part{
			{Type: "text", Text: "what \u2028 is\nthis\x00?"},
			{Type: "image", MimeType: "image/png", Image: &message.Bytes{Enc: "base64", Data: []byte{0, 255, 1}}},
			{Type: "file", Filename: "a", File: &message.Bytes{Enc: "url", Href: "https://a.example/x"}}}}}),
		said(message.Assistant, message.Message{Role: message.Assistant, AgentID: "clerk", ToolCalls: []message.ToolCall{
			{ID: "c1", Name: "look", Args: json.RawMessage(`{"at":"<here>"}`)}, {ID: "c2", Name: "look", Args: json.RawMessage(`"broken {"`)}}}),
		said(message.Tool, message.Outcome{ToolCallID: "c2", ToolName: "look", Kind: message.InvalidInput, Message: "bad", Hint: "h", DurationMS: 3}),
		said(message.Tool, message.Outcome{ToolCallID: "c1", ToolName: "look", Output: json.RawMessage(`{"b":1,"a":"é"}`), DurationMS: 7, Truncated: true,
			ContentParts: []message.Part{{Type: "image", Image: &message.Bytes{Enc: "base64", Data: []byte{9}}}},
			ResultHandle: &message.Handle{URI: "svc-spill:x/y.txt", Kind: "spill-file", Preview: "p", Bytes: 10}}),
		said(message.Assistant, message.Message{Role: message.Assistant, AgentID: "expert", Content: message.Text("a cat")}),
	}, handoff(0, "clerk", "triage"), handoff(1, "triage", "expert"))
	r.run(id, id+"-2", []store.Message{text(message.User, "thanks"), text(message.Assistant, "welcome")}, handoff(0, "expert", "clerk"))
}

func (r *rig) export(id string) string {
	r.t.Helper()
	var out bytes.Buffer
	if err := r.svc.Export(r.t.Context(), id, &out, session.ExportOptions{Version: "0.1", Hash: true}); err != nil {
		r.t.Fatalf("Export(%s) = %v, want none", id, err)
	}
	return out.String()
}

func (r *rig) importAs(file, as string) session.Imported {
	r.t.Helper()
	v, err := r.svc.Import(r.t.Context(), strings.NewReader(file), session.ImportOptions{As: as})
	if err != nil {
		r.t.Fatalf("Import(as %q) = %v, want none", as, err)
	}
	return v
}

// lines splits a file.
func lines(file string) []string { return strings.Split(strings.TrimSuffix(file, "\n"), "\n") }

// file is a whole export with a body of the given lines and the right footer, without checksum.
func file(body ...string) string {
	count := func(kind string) (n int) {
		for _, l := range body {
			if strings.HasPrefix(l, `{"kind":"`+kind+`"`) {
				n++
			}
		}
		return n
	}
	footer := fmt.Sprintf(`{"kind":"footer","recordCount":%d,"messageCount":%d,"handoffCount":%d,"agentCount":%d,"writtenAtIso":"2026-01-01T00:00:00Z"}`,
		len(body)+2, count("message"), count("handoff"), count("agent"))
	return strings.Join(append(append([]string{meta}, body...), footer, ""), "\n")
}

const (
	meta    = `{"kind":"meta","version":"1.0","format":"svc-session-export","createdAt":"2026-01-01T00:00:00Z","writer":"x@1","minRuntimeVersion":"0.1.0"}`
	theFile = `{"kind":"session","id":"s","userId":"ann","agentId":"clerk","createdAt":"2026-01-01T00:00:00.000Z"}`
)

// line is a message record.
func line(sequence int, msg string) string {
	return fmt.Sprintf(`{"kind":"message","sessionId":"s","messageId":"m%d","sequence":%[1]d,"createdAt":"2026-01-01T00:00:00Z","message":%s}`, sequence, msg)
}
