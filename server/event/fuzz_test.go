package event_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"agentd/server/event"
	"agentd/server/fuzztest"
)

// bytesCost is that of CheckBytes' contract.
var bytesCost = fuzztest.Cost{PerByte: 100}

// FuzzCheckBytes holds the search for bare bytes to a second one, over decoded values.
func FuzzCheckBytes(f *testing.F) {
	f.Add([]byte(`{"type":"file.generated","data":{"enc":"base64","data":"AAE="}}`))
	f.Add([]byte(`{"type":"file.generated","data":"AAE="}`))
	f.Add([]byte(`{"type":"tool.execute.partial","chunk":{"kind":"image","data":{"enc":"url","href":"x"}}}`))
	f.Add([]byte(`{"type":"subagent.event","event":{"type":"file.generated","data":[0,1]}}`))
	f.Add([]byte(`{"type":"subagent.event","event":` + strings.Repeat(`{"type":"subagent.event","event":`, 17) + `{"type":"a"}` + strings.Repeat("}", 18)))
	f.Fuzz(func(t *testing.T, payload []byte) {
		e, err := event.Parse(payload)
		if err != nil {
			return
		}
		bytesCost.Check(t, len(payload), func() { event.CheckBytes(e) }) //nolint:errcheck // it is looked at below
		err = event.CheckBytes(e)
		if err != nil && (strings.ContainsAny(err.Error(), "\r\n") || len(err.Error()) > 2000) {
			t.Errorf("CheckBytes(%q) = %v, want one line", payload, err)
		}
		// encoding/json takes "Data" for "data", too, and the last of several; both ways must see the same.
		var doc any
		if json.Unmarshal(payload, &doc) != nil || strings.ContainsAny(strings.ToLower(string(payload)), `\kſ`) || repeats(payload) {
			return
		}
		if sound := enveloped(doc, 0); sound != (err == nil) {
			t.Errorf("CheckBytes(%q) = %v, want that it is sound: %v", payload, err, sound)
		}
	})
}

// enveloped is what CheckBytes decides, over a decoded event.
func enveloped(v any, depth int) bool {
	e, _ := v.(map[string]any)
	switch e["type"] {
	case event.FileGenerated:
		return isEnvelope(e["data"])
	case event.ToolPartial:
		chunk, ok := e["chunk"].(map[string]any)
		kind, isText := chunk["kind"].(string)
		return (ok || e["chunk"] == nil) && (isText || chunk["kind"] == nil) && (kind != "image" || isEnvelope(chunk["data"]))
	case event.SubagentEvent:
		inner, err := json.Marshal(e["event"])
		if _, parseErr := event.Parse(inner); err != nil || parseErr != nil {
			return false
		}
		return depth < 16 && enveloped(e["event"], depth+1)
	}
	return true
}

func isEnvelope(v any) bool {
	e, ok := v.(map[string]any)
	enc, isEnc := e["enc"].(string)
	data, isData := e["data"].(string)
	href, isHref := e["href"].(string)
	if !ok || !isEnc || !isData && e["data"] != nil || !isHref && e["href"] != nil {
		return false
	}
	_, err := base64.StdEncoding.DecodeString(data)
	return enc == "url" && href != "" || enc == "base64" && isData && err == nil
}

// repeats reports whether an object in valid JSON may have a name twice, in whatever case.
func repeats(text []byte) bool {
	for _, name := range []string{"type", "data", "chunk", "kind", "event", "enc", "href"} {
		if strings.Count(strings.ToLower(string(text)), `"`+name+`"`) > strings.Count(string(text), `"`+name+`"`) {
			return true
		}
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	var walk func() bool
	walk = func() bool {
		tok, err := dec.Token()
		if err != nil {
			return false
		}
		d, open := tok.(json.Delim)
		seen := map[string]bool{}
		for open && dec.More() {
			if d == '{' {
				name, _ := dec.Token()
				if seen[name.(string)] {
					return true
				}
				seen[name.(string)] = true
			}
			if walk() {
				return true
			}
		}
		if open {
			dec.Token() //nolint:errcheck // the whole is valid
		}
		return false
	}
	return walk()
}

func TestCheckBytesCost(t *testing.T) {
	deep := fuzztest.Fill(strings.Repeat(`{"type":"subagent.event","event":`, 16)+`{"type":"a","x":"`, func(int) string { return "aaaa" }, `"}`+strings.Repeat("}", 16))
	e, err := event.Parse(deep)
	if err != nil {
		t.Fatal(err)
	}
	bytesCost.Check(t, len(deep), func() { err = event.CheckBytes(e) })
	if err != nil {
		t.Errorf("CheckBytes(16 events in each other) = %v", err)
	}
	for name, text := range fuzztest.JSON() {
		payload := []byte(`{"type":"file.generated","data":` + string(text) + `}`)
		if e, err = event.Parse(payload); err != nil {
			t.Logf("%s: %v", name, err)
			continue
		}
		bytesCost.Check(t, len(payload), func() { event.CheckBytes(e) }) //nolint:errcheck // only what it costs counts
	}
}
