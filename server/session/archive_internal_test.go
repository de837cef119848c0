package session

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"agentd/server/fuzztest"
	"agentd/server/transcript"
)

// FuzzArchive feeds files to the reader: what it takes can be stored and read.
func FuzzArchive(f *testing.F) {
	const meta = `{"kind":"meta","version":"1.0","format":"svc-session-export"}` + "\n"
	const session = `{"kind":"session","id":"s","userId":"u","agentId":"a","createdAt":"2026-01-01T00:00:00Z"}` + "\n"
	message := func(sequence, msg string) string {
		return `{"kind":"message","sessionId":"s","sequence":` + sequence + `,"createdAt":"2026-01-01T00:00:00Z","message":` + msg + "}\n"
	}
	f.Add([]byte(meta + session + `{"kind":"footer","recordCount":1,"messageCount":0,"handoffCount":0,"agentCount":0}`))
	f.Add([]byte(meta + session + message("1", `{"role":"user","content":[{"type":"image","image":{"enc":"base64","data":"AA=="}}]}`) +
		message("2", `{"role":"assistant","content":null,"toolCalls":[{"toolCallId":"c","toolName":"t","args":{}}]}`) +
		`{"kind":"footer","recordCount":5,"messageCount":2,"handoffCount":0,"agentCount":0}` + "\n"))
	f.Add([]byte(meta + session + message("1", `{"role":"tool","toolCallId":"c","content":"x"}`) +
		`{"kind":"handoff","sessionId":"s","fromAgentId":"a","toAgentId":"b","at":"2026-01-01T00:00:00+02:00","inputFilter":{"a":1}}` + "\n" +
		`{"kind":"footer","recordCount":5,"messageCount":1,"handoffCount":1,"agentCount":0,"checksum":""}` + "\n\n"))
	f.Add([]byte(`{"enc":"AA=="}`))
	f.Fuzz(func(t *testing.T, file []byte) {
		archiveCost.Check(t, len(file), func() { readArchive(bytes.NewReader(file)) }) //nolint:errcheck // it is looked at below
		a, err := readArchive(bytes.NewReader(file))
		if err != nil {
			if a != nil {
				t.Errorf("readArchive = %v and %v, want one of them", a, err)
			}
			return
		}
		if a.session.ID == "" || a.session.User == "" || a.session.Agent == "" || a.warnings == nil {
			t.Errorf("readArchive = %+v, want a session and warnings", a)
		}
		var sequence int64
		for i, m := range a.messages {
			if m.Index != i || m.Sequence <= sequence || m.Role == "system" {
				t.Errorf("message %d = %+v after sequence %d", i, m, sequence)
			}
			sequence = m.Sequence
			msg, _, err := transcript.Decode(m)
			if err != nil || string(msg.Role) != m.Role {
				t.Errorf("Decode(%s) = %v, %v; want a %s", m.Body, msg, err, m.Role)
			}
		}
		for _, h := range a.handoffs {
			if v, err := handoffOf("s", h); err != nil || v.FromAgentID == "" || v.ToAgentID == "" {
				t.Errorf("handoffOf(%s) = %v, %v", h.Body, v, err)
			}
		}
	})
}

// The answers of many calls take about as long as those of none, whose file is of the same size.
func TestImportOfManyCalls(t *testing.T) {
	const n = 60_000
	var calls, answers strings.Builder
	for i := range n {
		fmt.Fprintf(&calls, `,{"toolCallId":"c%d","toolName":"t%[1]d"}`, i)
		fmt.Fprintf(&answers, `{"kind":"message","sessionId":"s","sequence":%d,"createdAt":"2026-01-01T00:00:00Z","message":{"role":"tool","toolCallId":"c%d","content":""}}`+"\n", i+2, n-1-i)
	}
	read := func(member string) (*archive, time.Duration) {
		file := `{"kind":"meta","version":"1.0","format":"svc-session-export"}
{"kind":"session","id":"s","userId":"u","agentId":"a","createdAt":"2026-01-01T00:00:00Z"}
{"kind":"message","sessionId":"s","sequence":1,"createdAt":"2026-01-01T00:00:00Z","message":{"role":"assistant","content":"","` + member + `":[` + calls.String()[1:] + "]}}\n" +
			answers.String() + fmt.Sprintf(`{"kind":"footer","recordCount":%d,"messageCount":%d,"handoffCount":0,"agentCount":0}`, n+2, n+1)
		began := time.Now()
		a, err := readArchive(strings.NewReader(file))
		if err != nil || len(a.messages) != n+1 {
			t.Fatalf("readArchive = %v, want %d messages", err, n+1)
		}
		return a, time.Since(began)
	}
	_, without := read("noCalls")
	a, took := read("toolCalls")
	if len(a.warnings) != 0 {
		t.Errorf("warnings = %v, want none", a.warnings)
	}
	for _, i := range []int{0, 1, n - 1} {
		if _, o, err := transcript.Decode(a.messages[i+1]); err != nil || o.ToolName != fmt.Sprint("t", n-1-i) {
			t.Errorf("answer %d = %+v, %v; want one of the tool t%d", i, o, err, n-1-i)
		}
	}
	if took > 5*without+time.Second {
		t.Errorf("readArchive of %d calls took %v, and %v without the calls", n, took, without)
	}
}

// archiveCost is that of Import's contract.
var archiveCost = fuzztest.Cost{PerByte: 500, Base: 256 << 10}

func TestArchiveCost(t *testing.T) {
	const meta = `{"kind":"meta","version":"1.0","format":"svc-session-export"}` + "\n"
	const session = `{"kind":"session","id":"s","userId":"u","agentId":"a","createdAt":"2026-01-01T00:00:00Z"}` + "\n"
	for name, text := range fuzztest.JSON() {
		for _, line := range []string{
			`{"kind":"message","sessionId":"s","sequence":1,"createdAt":"2026-01-01T00:00:00Z","message":{"role":"user","content":%s}}`,
			`{"kind":"message","sessionId":"s","sequence":1,"createdAt":"2026-01-01T00:00:00Z","message":%s}`,
			`{"kind":"handoff","sessionId":"s","fromAgentId":"a","toAgentId":"b","at":"2026-01-01T00:00:00Z","inputFilter":%s}`,
			`{"kind":"x","x":%s}`,
		} {
			file := fmt.Appendf([]byte(meta+session), line, text)
			archiveCost.Check(t, len(file), func() { readArchive(bytes.NewReader(file)) }) //nolint:errcheck // only what it costs counts
			if t.Failed() {
				t.Fatal(name, line)
			}
		}
	}
}
