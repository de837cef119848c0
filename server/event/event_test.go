package event_test

import (
	"encoding/json"
	"testing"

	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/fuzztest"
)

func TestNew(t *testing.T) {
	for _, tc := range []struct {
		fields any
		want   string
	}{
		{nil, `{"type":"text.delta"}`},
		{map[string]any{}, `{"type":"text.delta"}`},
		{map[string]any{"delta": "a<b"}, `{"type":"text.delta","delta":"a<b"}`},
	} {
		if got := string(event.New(event.TextDelta, tc.fields).Payload); got != tc.want {
			t.Errorf("New(%v) = %s, want %s", tc.fields, got, tc.want)
		}
	}
}

func TestParseRefusesWhatCannotBeDelivered(t *testing.T) {
	for _, in := range []string{``, `null`, `[]`, `"x"`, `{}`, `{"type":""}`, `{"type":1}`, `{"Type":"x"}`, `{"type":"a\nid: 7"}`, `{"type":"x"`, `{"type":"x"} {}`} {
		if ev, err := event.Parse([]byte(in)); err == nil {
			t.Errorf("Parse(%s) = %v, want an error", in, ev)
		}
	}
	ev, err := event.Parse([]byte(` {"type":"my.event","n":1} `))
	if err != nil || ev.Type != "my.event" || string(ev.Payload) != `{"type":"my.event","n":1}` {
		t.Errorf("Parse(valid) = %s %s, %v", ev.Type, ev.Payload, err)
	}
}

func TestBytesAreInEnvelopes(t *testing.T) {
	nest := func(payload string) string {
		return `{"type":"subagent.event","toolCallId":"c","agentName":"a","event":` + payload + `}`
	}
	deep := `{"type":"x"}`
	for range 17 {
		deep = nest(deep)
	}
	for payload, good := range map[string]bool{
		`{"type":"file.generated","mimeType":"a/b","data":{"enc":"base64","data":"AQ=="}}`:               true,
		`{"type":"file.generated","mimeType":"a/b","data":{"enc":"base64","data":""}}`:                   true,
		`{"type":"file.generated","mimeType":"a/b","data":{"enc":"url","href":"https://x/y"}}`:           true,
		`{"type":"file.generated","mimeType":"a/b","data":{"enc":"base64","data":"AQ"}}`:                 false,
		`{"type":"file.generated","mimeType":"a/b","data":{"enc":"base64"}}`:                             false,
		`{"type":"file.generated","mimeType":"a/b","data":"AQ=="}`:                                       false,
		`{"type":"file.generated","mimeType":"a/b","data":{"0":137}}`:                                    false,
		`{"type":"file.generated","mimeType":"a/b"}`:                                                     false,
		`{"type":"tool.execute.partial","chunk":{"kind":"text","text":"x"}}`:                             true,
		`{"type":"tool.execute.partial","chunk":{"kind":"image","data":{"enc":"base64","data":"AQ=="}}}`: true,
		`{"type":"tool.execute.partial","chunk":{"kind":"image","data":[137]}}`:                          false,
		`{"type":"text.delta","delta":"AQ=="}`:                                                           true,
		nest(`{"type":"file.generated","data":{"enc":"base64","data":"AQ=="}}`):                          true,
		nest(nest(`{"type":"file.generated","data":"AQ=="}`)):                                            false,
		nest(`7`): false,
		deep:      false,
	} {
		ev, err := event.Parse([]byte(payload))
		if err == nil {
			err = event.CheckBytes(ev)
		}
		if (err == nil) != good {
			t.Errorf("CheckBytes(%s) = %v, want good %v", payload, err, good)
		}
	}
}

func TestSubjects(t *testing.T) {
	for text, scope := range map[string]string{
		"session:s-1/events":           "sessions:read:s-1",
		"session:s/runs/r_9/events":    "sessions:read:s",
		"agent:clerk/runs/0-1/events":  "agents:read:clerk",
		"workflow:w/events":            "workflows:read:w",
		"workflow:w/runs/r/events":     "workflows:read:w",
		"memory/conflicts":             "memory:read",
		"audit/events":                 "audit:read",
		"session:runs/events":          "sessions:read:runs",
		"session:events/runs/x/events": "sessions:read:events",
	} {
		s, err := event.ParseSubject(text)
		if err != nil || s.String() != text || s.Scope() != scope {
			t.Errorf("ParseSubject(%q) = %v with scope %s, %v; want scope %s", text, s, s.Scope(), err, scope)
		}
	}
	for text, reason := range map[string]string{
		"": "subject-malformed", "agent:*/runs/x/events": "subject-wildcard", "audit/#": "subject-wildcard",
		"agent:a/events": "subject-unknown", "run:x/events": "subject-unknown", "agent:a.b/runs/x/events": "subject-unknown",
		"session:/events": "subject-unknown", "session:a/runs//events": "subject-unknown", "session:a/events/": "subject-unknown",
		"session:a/runs/b/runs/c/events": "subject-unknown", "Session:a/events": "subject-unknown",
		"session:" + string(make([]byte, 200)) + "/events": "subject-malformed",
	} {
		_, err := event.ParseSubject(text)
		if got := fault.Of(err); got == nil || got.Extra["reason"] != reason {
			t.Errorf("ParseSubject(%q) error = %v, want reason %s", text, err, reason)
		}
	}
}

func TestCatalogueHasNoDoubles(t *testing.T) {
	seen := map[string]bool{}
	for _, typ := range event.Catalogue() {
		if seen[typ.Name] || typ.Fields == "" || typ.When == "" {
			t.Errorf("catalogue row %q is double or not documented", typ.Name)
		}
		seen[typ.Name] = true
	}
	if !event.Transient(event.TextDelta) || event.Transient(event.TextComplete) || event.Transient("my.event") {
		t.Error("Transient: deltas only")
	}
}

func FuzzParseSubject(f *testing.F) {
	f.Add("session:a/runs/b/events")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := event.ParseSubject(text); err == nil && s.String() != text {
			t.Errorf("ParseSubject(%q).String() = %q", text, s)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"type":"text.delta","delta":"x"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		fuzztest.Cost{PerByte: 64}.Check(t, len(in), func() { event.Parse(in) }) //nolint:errcheck // it is looked at below
		if ev, err := event.Parse(in); err == nil && !json.Valid(ev.Payload) {
			t.Errorf("Parse(%q) accepted what is not JSON", in)
		}
	})
}

func TestCursorRoundTrip(t *testing.T) {
	for _, c := range []event.Cursor{{event.RunView, "0192-a_b", 1, 0}, {event.SessionView, "r-1", 70000, 36}, {event.SessionRunView, "x", 0, 1}} {
		if got, ok := event.ParseCursor(c.String()); !ok || got != c {
			t.Errorf("ParseCursor(%s) = %+v, %v; want %+v", c, got, ok, c)
		}
	}
	for _, id := range []string{"", "evt-", "evt-r-", "evt-r-x", "evt-r-x-", "evt-r-x-01", "evt-r-x-1.0", "evt-r-x-1.", "evt-r-a b-1", "evt-lx2k9q-1f"} {
		if c, ok := event.ParseCursor(id); ok {
			t.Errorf("ParseCursor(%q) = %+v, want it unknown", id, c)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("evt-r-0192-a-1.2")
	f.Fuzz(func(t *testing.T, id string) {
		fuzztest.Check(t, len(id), func() { event.ParseCursor(id) })
		if c, ok := event.ParseCursor(id); ok && c.String() != id {
			t.Errorf("ParseCursor(%q).String() = %q", id, c.String())
		}
	})
}

func TestDelta(t *testing.T) {
	for _, text := range []string{"", "word ", `"quoted"` + "\n"} {
		want := event.New(event.TextDelta, map[string]string{"delta": text})
		if got := event.Delta(event.TextDelta, "delta", text); got.Type != want.Type || string(got.Payload) != string(want.Payload) {
			t.Errorf("Delta(%q) = %s %s, want %s %s", text, got.Type, got.Payload, want.Type, want.Payload)
		}
	}
}
