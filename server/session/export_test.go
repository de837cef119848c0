package session_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/session"
	"agentd/store"
)

// minted are the ids that an import makes anew.
var minted = regexp.MustCompile(`"(messageId|id)":"(msg|handoff)-[^"]*"`)

// TestRoundTrip moves a session to another id and shows that all of it has come along.
func TestRoundTrip(t *testing.T) {
	r := newRig(t)
	r.conversation("s")
	first := r.export("s")
	if got := r.importAs(first, "t"); got.Session.ID != "t" || got.Messages != 7 || got.Handoffs != 3 || len(got.Warnings) != 0 || got.Warnings == nil {
		t.Errorf("Import = %+v, want session t with 7 messages, 3 hand-offs and no warnings", got)
	}
	second := r.export("t")
	was, is := lines(first), lines(second)
	if len(was) != len(is) || len(was) != 1+1+3+7+3+1 {
		t.Fatalf("the exports have %d and %d lines, want 16:\n%s\n%s", len(was), len(is), first, second)
	}
	for i := 1; i < len(was)-1; i++ {
		want := minted.ReplaceAllString(strings.NewReplacer(`"sessionId":"s"`, `"sessionId":"t"`, `"session","id":"s"`, `"session","id":"t"`).Replace(was[i]), "$1")
		if got := minted.ReplaceAllString(is[i], "$1"); got != want {
			t.Errorf("line %d = %s\nwant %s", i+1, got, want)
		}
	}
	for i, kind := range []string{"meta", "session", "agent", "agent", "agent", "message", "message", "message", "message", "message", "message", "message",
		"handoff", "handoff", "handoff", "footer"} {
		if !strings.HasPrefix(was[i], `{"kind":"`+kind+`"`) {
			t.Errorf("line %d = %s, want a %s", i+1, was[i], kind)
		}
	}
	if strings.Contains(first, "prompt-secret") {
		t.Error("the export has a system prompt")
	}
	for _, want := range []string{`"writer":"agentd@0.1"`, `"counts":{"messages":7,"handoffs":3,"agents":3}`, `"image":{"enc":"base64","data":"AP8B"}`,
		`"recordCount":16,"messageCount":7,"handoffCount":3,"agentCount":3,"checksum":"sha256:`} {
		if !strings.Contains(first, want) {
			t.Errorf("the export lacks %s:\n%s", want, first)
		}
	}

	// What is read of both is the same too, and later messages go on behind.
	r.run("t", "later", []store.Message{text(message.User, "more")})
	a, _ := r.svc.Messages(t.Context(), "s", 0)
	b, err := r.svc.Messages(t.Context(), "t", 0)
	if err != nil || len(b) != len(a)+1 || b[len(a)].Sequence != a[len(a)-1].Sequence+1 {
		t.Fatalf("Messages = %d and %d messages, %v; want one more, in sequence", len(a), len(b), err)
	}
	for i := range a {
		a[i].MessageID, b[i].MessageID = "", ""
		want, _ := message.Encode(a[i])
		if got, _ := message.Encode(b[i]); string(got) != string(want) {
			t.Errorf("message %d = %s, want %s", i, got, want)
		}
	}
}

func TestHandoffs(t *testing.T) {
	r := newRig(t)
	r.conversation("s")
	list, err := r.svc.Handoffs(t.Context(), "s")
	if err != nil || len(list) != 3 {
		t.Fatalf("Handoffs = %v, %v; want 3", list, err)
	}
	var ids, way []string
	for _, h := range list {
		ids, way = append(ids, h.ID), append(way, h.FromAgentID+">"+h.ToAgentID)
	}
	if got := strings.Join(ids, " "); got != "handoff-1-0 handoff-1-1 handoff-2-0" {
		t.Errorf("ids = %s", got)
	}
	if got := strings.Join(way, " "); got != "clerk>triage triage>expert expert>clerk" {
		t.Errorf("hand-offs = %s", got)
	}
	b, _ := message.Encode(list[0])
	want := `{"id":"handoff-1-0","sessionId":"s","fromAgentId":"clerk","toAgentId":"triage","stepNumber":2,"at":"2026-01-02T03:04:05.006Z","reason":"better at it",` +
		`"inputFilter":{"kind":"none"},"secretsInheritance":"isolated","inheritedSecrets":["A"]}`
	if string(b) != want {
		t.Errorf("hand-off = %s, want %s", b, want)
	}
	if list, err := r.svc.Handoffs(t.Context(), "none"); err != nil || list == nil || len(list) != 0 {
		t.Errorf("Handoffs of no session = %v, %v; want an empty list", list, err)
	}
}

func TestExportOfNothing(t *testing.T) {
	r := newRig(t)
	var out bytes.Buffer
	if err := r.svc.Export(t.Context(), "none", &out, session.ExportOptions{}); !fault.Is(err, fault.SessionNotFound) || out.Len() > 0 {
		t.Errorf("Export(none) = %v and %q, want session-not-found and nothing", err, out.String())
	}
	r.create(store.Session{ID: "empty", User: "u", Agent: "a"})
	if err := r.svc.Export(t.Context(), "empty", &out, session.ExportOptions{}); err != nil || len(lines(out.String())) != 4 ||
		strings.Contains(out.String(), "checksum") {
		t.Errorf("Export(empty) = %v:\n%s\nwant meta, session, agent and footer, without checksum", err, out.String())
	}
	if got := r.importAs(out.String(), "again"); got.Messages != 0 {
		t.Errorf("Import = %+v, want no messages", got)
	}
}

// many makes a session with n short messages and as many hand-offs as are asked for.
func (r *rig) many(id string, n, handoffs int) {
	r.create(store.Session{ID: id, User: "u", Agent: "a"})
	messages := make([]store.Message, n)
	for i := range messages {
		messages[i] = text([]message.Role{message.User, message.Assistant}[i%2], fmt.Sprint("m", i))
	}
	list := make([]store.Handoff, handoffs)
	for i := range list {
		list[i] = handoff(i, "a", fmt.Sprint("b", i%3))
	}
	r.run(id, id+"-run", messages, list...)
}

func TestExportOfALongSession(t *testing.T) {
	r := newRig(t)
	r.many("s", 5001, 1203)
	out := r.export("s")
	if got := strings.Count(out, `{"kind":"message"`); got != 5001 {
		t.Errorf("the export has %d messages, want 5001", got)
	}
	if got := strings.Count(out, `{"kind":"handoff"`); got != 1203 {
		t.Errorf("the export has %d hand-offs, want 1203", got)
	}
	if !strings.Contains(out, `"recordCount":6211,"messageCount":5001,"handoffCount":1203,"agentCount":4`) {
		t.Errorf("footer = %s", lines(out)[len(lines(out))-1])
	}
	if got := r.importAs(out, "t"); got.Messages != 5001 || got.Handoffs != 1203 {
		t.Errorf("Import = %d messages and %d hand-offs, want 5001 and 1203", got.Messages, got.Handoffs)
	}
	if list, err := r.svc.Handoffs(t.Context(), "t"); err != nil || len(list) != 1000 || !strings.HasSuffix(list[999].ID, "-1202") {
		t.Errorf("Handoffs = %d, %v; want the newest 1000", len(list), err)
	}
}

// A hook is a writer that does something before its first write.
type hook struct {
	io.Writer
	first func()
}

func (h *hook) Write(p []byte) (int, error) {
	if h.first != nil {
		h.first()
		h.first = nil
	}
	return h.Writer.Write(p)
}

// What is said and handed on while a session is exported is not in the file, whose counts are right all the same.
func TestExportWhileTheSessionGrows(t *testing.T) {
	r := newRig(t)
	r.many("s", 2000, 600)
	var out bytes.Buffer
	grow := func() { r.run("s", "later", []store.Message{text(message.User, "later")}, handoff(0, "a", "c")) }
	if err := r.svc.Export(t.Context(), "s", &hook{&out, grow}, session.ExportOptions{Hash: true}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "later") || strings.Contains(out.String(), `"toAgentId":"c"`) {
		t.Error("the export has what came after its beginning")
	}
	if got := r.importAs(out.String(), "t"); got.Messages != 2000 || got.Handoffs != 600 {
		t.Errorf("Import = %d messages and %d hand-offs, want 2000 and 600", got.Messages, got.Handoffs)
	}
}

func TestExportWhileTheSessionIsErased(t *testing.T) {
	r := newRig(t)
	r.many("s", 2000, 0)
	var out bytes.Buffer
	erase := func() { r.update(func(tx *store.Tx) error { _, err := r.db.Sessions().Erase(tx, "s"); return err }) }
	err := r.svc.Export(t.Context(), "s", &hook{&out, erase}, session.ExportOptions{})
	if !fault.Is(err, fault.SessionNotFound) || strings.Contains(out.String(), "footer") {
		t.Errorf("Export = %v, want session-not-found and no footer", err)
	}
}

// A session that has the id of one that is erased while it is exported is another one.
func TestExportWhileTheSessionIsReplaced(t *testing.T) {
	r := newRig(t)
	v := r.importAs(file(theFile), "old").Session
	messages := func() (list []store.Message) {
		for i := range 2000 {
			list = append(list, text(message.User, fmt.Sprint(i)))
		}
		return list
	}
	r.run("old", "first", messages())
	var out bytes.Buffer
	replace := func() {
		r.update(func(tx *store.Tx) error { _, err := r.db.Sessions().Erase(tx, "old"); return err })
		r.create(store.Session{ID: "old", User: v.User, Agent: v.Agent})
		r.run("old", "second", messages())
	}
	err := r.svc.Export(t.Context(), "old", &hook{&out, replace}, session.ExportOptions{})
	if !fault.Is(err, fault.SessionNotFound) || strings.Contains(out.String(), "footer") {
		t.Errorf("Export of a session that is replaced = %v, want session-not-found and no footer", err)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestExportWithoutRoom(t *testing.T) {
	r := newRig(t)
	r.many("s", 2000, 0)
	r.many("few", 1, 0)
	for _, id := range []string{"s", "few"} {
		if err := r.svc.Export(t.Context(), id, full{}, session.ExportOptions{}); !errors.Is(err, errFull) {
			t.Errorf("Export(%s) to a full disk = %v, want its error", id, err)
		}
	}
}

// BenchmarkExport measures a session of 10000 short messages.
func BenchmarkExport(b *testing.B) {
	r := newRig(b)
	r.many("s", 10_000, 0)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.svc.Export(b.Context(), "s", io.Discard, session.ExportOptions{Hash: true}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*10_000/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkImport measures the same session.
func BenchmarkImport(b *testing.B) {
	r := newRig(b)
	r.many("s", 10_000, 0)
	out, n := r.export("s"), 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		r.importAs(out, fmt.Sprint("t", n))
	}
	b.ReportMetric(float64(b.N)*10_000/b.Elapsed().Seconds(), "messages/s")
}
