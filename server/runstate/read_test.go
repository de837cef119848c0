package runstate_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/golden"
	"agentd/server/message"
	"agentd/server/runstate"
)

// fixtures are the snapshots of each version.
func fixtures(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/run-state-*.json")
	if err != nil || len(paths) != 4 {
		t.Fatalf("Glob = %q, %v, want four fixtures", paths, err)
	}
	all := map[string][]byte{}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".json")] = b
	}
	return all
}

func read(t testing.TB, data []byte) *runstate.State {
	t.Helper()
	s, err := runstate.Read(data)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return s
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	b, err := message.Encode(v)
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	return b
}

// TestGolden compares every fixture with what it is in 1.2.
func TestGolden(t *testing.T) {
	for name, data := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := json.Indent(&got, encode(t, read(t, data)), "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			golden.Check(t, filepath.Join("testdata", name+".golden"), got.String())
			checkStable(t, data)
		})
	}
}

// TestCurrentIsFixed holds the writer to the form of 1.2, with the members in order.
func TestCurrentIsFixed(t *testing.T) {
	data := fixtures(t)["run-state-1.2"]
	var want bytes.Buffer
	if err := json.Compact(&want, data); err != nil {
		t.Fatal(err)
	}
	if got := encode(t, read(t, data)); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("Encode(Read(1.2)) =\n%s\nwant\n%s", got, want.Bytes())
	}
}

// checkStable reads, writes and reads again.
func checkStable(t *testing.T, data []byte) {
	t.Helper()
	first := read(t, data)
	written := encode(t, first)
	second, err := runstate.Read(written)
	if err != nil {
		t.Fatalf("Read(%s) = %v, want what was written to be read", written, err)
	}
	if again := encode(t, second); !bytes.Equal(again, written) {
		t.Errorf("second Encode =\n%s\nwant the first\n%s", again, written)
	}
	if plain := encode(t, first.Plain()); !bytes.Equal(plain, written) {
		t.Errorf("Encode(Plain()) =\n%s\nwant\n%s", plain, written)
	}
}

// minimal has every required member and, at %s, what a test adds.
const minimal = `{"version":"svc-run-state/1.2","id":"r","agentId":"a","sessionId":"s","status":"running","steps":[],"messages":[],` +
	`"pendingApprovals":[],"handoffs":[],"usage":{},"startedAt":"2026-01-02T03:04:05.000Z"%s}`

// with returns a valid state in which the member of that name has another value, or is absent when there is none.
func with(t testing.TB, name, v string) []byte {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(fmt.Appendf(nil, minimal, ""), &m); err != nil {
		t.Fatal(err)
	}
	if m[name] = json.RawMessage(v); v == "" {
		delete(m, name)
	}
	return encode(t, m)
}

func TestMalformed(t *testing.T) {
	doc := func(members string) []byte { return fmt.Appendf(nil, minimal, members) }
	msg := func(m string) []byte { return with(t, "messages", "["+m+"]") }
	step := func(s string) []byte { return with(t, "steps", "["+s+"]") }
	outcome := func(o string) []byte {
		return step(`{"stepNumber":1,"startedAt":"t","toolCalls":[{"call":{"toolCallId":"c","toolName":"n"},"outcome":` + o + `,"stepNumber":1}]}`)
	}
	const at = "[steps 0 toolCalls 0 outcome"
	for _, tc := range []struct {
		name string
		data []byte
		want string // the issues
	}{
		{"nothing", nil, "[] is not valid JSON: unexpected end of JSON input"},
		{"no JSON", []byte(`{"version":`), "[] is not valid JSON at byte 11: unexpected end of JSON input"},
		{"trailing data", append(doc(""), '}'), "[] is not valid JSON at byte 201: invalid character '}' after top-level value"},
		{"not UTF-8", doc(",\"x\":\"\xff\""), "[] is not UTF-8"},
		{"too deep", doc(`,"x":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001)), "[] is nested deeper than 1000"},
		{"no object", []byte(`[]`), "[] want an object, got a list"},
		{"null", []byte(`null`), "[] want an object, got null"},
		{"a member twice", doc(`,"id":"r2"`), `[id] duplicate key "id"`},
		{"a member twice, written differently", doc(`,"i\u0064":"r2"`), `[id] duplicate key "id"`},
		{"an argument twice", msg(`{"role":"assistant","toolCalls":[{"toolCallId":"c","toolName":"n","args":{"a":1,"a":2}}]}`),
			`[messages 0 toolCalls 0 args a] duplicate key "a"`},
		{"a byte twice", msg(`{"role":"user","content":[{"type":"image","image":{"0":1,"1":2,"0":3}}]}`), `[messages 0 content 0 image 0] duplicate key "0"`},
		{"a byte twice, later", msg(`{"role":"user","content":[{"type":"image","image":{"1":1,"0":2,"1":3}}]}`),
			`[messages 0 content 0 image 1] duplicate key "1"`},

		{"no version", with(t, "version", ""), "[version] want svc-run-state/ and a version such as 1.2"},
		{"version null", with(t, "version", "null"), "[version] want svc-run-state/ and a version such as 1.2"},
		{"version empty", with(t, "version", `""`), "[version] want svc-run-state/ and a version such as 1.2"},
		{"version of no string", with(t, "version", "1.2"), "[version] want svc-run-state/ and a version such as 1.2"},
		{"no label", with(t, "version", `"1.2"`), "[version] want svc-run-state/ and a version such as 1.2"},
		{"another label", with(t, "version", `"svc-workflow-checkpoint/1.0"`), "[version] want svc-run-state/ and a version such as 1.2"},
		{"no minor", with(t, "version", `"svc-run-state/1"`), "[version] want svc-run-state/ and a version such as 1.2"},
		{"three numbers", with(t, "version", `"svc-run-state/1.2.3"`), "[version] want svc-run-state/ and a version such as 1.2"},
		{"signed", with(t, "version", `"svc-run-state/+1.2"`), "[version] want svc-run-state/ and a version such as 1.2"},

		{"all required members", []byte(`{"version":"svc-run-state/1.1"}`),
			`[id] "id" is missing; [agentId] "agentId" is missing; [sessionId] "sessionId" is missing; [status] "status" is missing; ` +
				`[steps] "steps" is missing; [messages] "messages" is missing; [pendingApprovals] "pendingApprovals" is missing; ` +
				`[handoffs] "handoffs" is missing; [usage] "usage" is missing; [startedAt] "startedAt" is missing`},
		{"all required members of 1.0", []byte(`{"version":"svc-run-state/1.0"}`),
			`[id] "id" is missing; [agentId] "agentId" is missing; [sessionId] "sessionId" is missing; [status] "status" is missing; ` +
				`[steps] "steps" is missing; [messages] "messages" is missing; [usage] "usage" is missing; [startedAt] "startedAt" is missing`},
		{"id of no string", with(t, "id", "7"), "[id] want text, got a number"},
		{"agentId of no string", with(t, "agentId", "{}"), "[agentId] want text, got an object"},
		{"currentAgentId of no string", doc(`,"currentAgentId":7`), "[currentAgentId] want text, got a number"},
		{"sessionId of no string", with(t, "sessionId", "[]"), "[sessionId] want text, got a list"},
		{"status null", with(t, "status", "null"), `[status] "status" is missing`},
		{"startedAt of no string", with(t, "startedAt", "0"), "[startedAt] want text, got a number"},
		{"steps of no list", with(t, "steps", "{}"), "[steps] want a list, got an object"},
		{"messages of no list", with(t, "messages", `""`), "[messages] want a list, got text"},
		{"pendingApprovals of no list", with(t, "pendingApprovals", "{}"), "[pendingApprovals] want a list, got an object"},
		{"handoffs of no list", with(t, "handoffs", "1"), "[handoffs] want a list, got a number"},
		{"usage of no object", with(t, "usage", "[]"), "[usage] want an object, got a list"},
		{"usageByModel of no object", doc(`,"usageByModel":[]`), "[usageByModel] want an object, got a list"},
		{"taintSummary of no object", doc(`,"taintSummary":true`), "[taintSummary] want an object, got true or false"},
		{"source kinds of no list", doc(`,"taintSummary":{"untrustedSourceKinds":"web"}`), "[taintSummary untrustedSourceKinds] want a list, got text"},
		{"promotedTools of no list", doc(`,"promotedTools":"x"`), "[promotedTools] want a list, got text"},
		{"todos of no list", doc(`,"todos":{}`), "[todos] want a list, got an object"},
		{"pendingSubRuns of no list", doc(`,"pendingSubRuns":{}`), "[pendingSubRuns] want a list, got an object"},
		{"a child without state", doc(`,"pendingSubRuns":[{"toolCallId":"c","toolName":"n"}]`), `[pendingSubRuns 0 state] "state" is missing`},
		{"a child with a bad label", doc(`,"pendingSubRuns":[{},{"toolCallId":"c","toolName":"n","state":{"version":"x"}}]`),
			"[pendingSubRuns 1 state version] want svc-run-state/ and a version such as 1.2"},
		{"children too deep", nested(33), "[" + strings.Repeat("pendingSubRuns 0 state ", 32) + "pendingSubRuns 0 state] want at most 32 child runs in each other"},
		{"error of no object", doc(`,"error":"boom"`), "[error] want an object, got text"},
		{"error hint", doc(`,"error":{"hint":1}`), "[error hint] want text, got a number"},

		{"step of no object", step("1"), "[steps 0] want an object, got a number"},
		{"empty step", step("{}"),
			`[steps 0 stepNumber] "stepNumber" is missing; [steps 0 startedAt] "startedAt" is missing; [steps 0 toolCalls] "toolCalls" is missing`},
		{"step number", step(`{"stepNumber":1.5,"startedAt":"t","toolCalls":[]}`),
			"[steps 0 stepNumber] want a whole number, written with digits only, got 1.5"},
		{"step number below zero", step(`{"stepNumber":-1,"startedAt":"t","toolCalls":[]}`), "[steps 0 stepNumber] want a number from 0 up, got -1"},
		{"usage below zero", doc(`,"usageByModel":{"m":{"promptTokens":-1,"cacheWriteTokens":"-0.5","cost":{"amount":-0.01}}}`),
			"[usageByModel m promptTokens] want a number from 0 up, got -1; " +
				"[usageByModel m cacheWriteTokens] want a number from 0 up, got -0.5; " +
				"[usageByModel m cost amount] want a number from 0 up, got -0.01"},
		{"step usage", step(`{"stepNumber":1,"startedAt":"t","toolCalls":[],"usage":7}`), "[steps 0 usage] want an object, got a number"},
		{"step agent", step(`{"stepNumber":1,"startedAt":"t","toolCalls":[],"agentId":7,"endedAt":{}}`),
			"[steps 0 agentId] want text, got a number; [steps 0 endedAt] want text, got an object"},
		{"provider response", step(`{"stepNumber":1,"startedAt":"t","toolCalls":[],"providerResponse":{"text":1,"toolCalls":2}}`),
			`[steps 0 providerResponse text] want text, got a number; [steps 0 providerResponse toolCalls] want a list, got a number; ` +
				`[steps 0 providerResponse modelId] "modelId" is missing`},
		{"empty call", step(`{"stepNumber":1,"startedAt":"t","toolCalls":[{}]}`),
			`[steps 0 toolCalls 0 call] "call" is missing; [steps 0 toolCalls 0 outcome] "outcome" is missing; ` +
				`[steps 0 toolCalls 0 stepNumber] "stepNumber" is missing`},
		{"empty outcome", outcome("{}"),
			`[steps 0 toolCalls 0 outcome toolCallId] "toolCallId" is missing; [steps 0 toolCalls 0 outcome toolName] "toolName" is missing`},
		{"empty kind", outcome(`{"toolCallId":"c","toolName":"n","kind":""}`), at + " kind] is empty"},
		{"flags", outcome(`{"toolCallId":"c","toolName":"n","recoverable":1,"bufferTruncated":"yes"}`),
			"[steps 0 toolCalls 0 outcome recoverable] want true or false, got a number; " +
				"[steps 0 toolCalls 0 outcome bufferTruncated] want true or false, got text"},
		{"error texts", outcome(`{"toolCallId":"c","toolName":"n","kind":"timeout","message":1,"hint":2,"recoveryHint":3}`),
			"[steps 0 toolCalls 0 outcome message] want text, got a number; [steps 0 toolCalls 0 outcome hint] want text, got a number; " +
				"[steps 0 toolCalls 0 outcome recoveryHint] want text, got a number"},
		{"handle", outcome(`{"toolCallId":"c","toolName":"n","resultHandle":{"preview":1}}`),
			`[steps 0 toolCalls 0 outcome resultHandle preview] want text, got a number; ` +
				`[steps 0 toolCalls 0 outcome resultHandle uri] "uri" is missing; ` +
				`[steps 0 toolCalls 0 outcome resultHandle kind] "kind" is missing`},
		{"content parts", outcome(`{"toolCallId":"c","toolName":"n","contentParts":[{"type":"image","image":{"enc":"base64","data":"?"}}]}`),
			"[steps 0 toolCalls 0 outcome contentParts 0 image data] want base64 text"},

		{"message of no object", msg(`"hi"`), "[messages 0] want an object, got text"},
		{"no role", msg(`{"content":"hi"}`), `[messages 0 role] "role" is missing`},
		{"content", msg(`{"role":"user","content":{}}`), "[messages 0 content] want text or a list of parts, got an object"},
		{"part of no object", msg(`{"role":"user","content":["hi"]}`), "[messages 0 content 0] want an object, got text"},
		{"part without type", msg(`{"role":"user","content":[{"text":7}]}`),
			`[messages 0 content 0 text] want text, got a number; [messages 0 content 0 type] "type" is missing`},
		{"base64 without padding", msg(`{"role":"user","content":[{"type":"file","file":{"enc":"base64","data":"AA"}}]}`),
			"[messages 0 content 0 file data] want base64 text"},
		{"data of no string", msg(`{"role":"user","content":[{"type":"file","file":{"enc":"base64","data":[1]}}]}`),
			"[messages 0 content 0 file data] want base64 text"},
		{"reference to nothing", msg(`{"role":"user","content":[{"type":"audio","audio":{"enc":"url"}}]}`),
			`[messages 0 content 0 audio href] "href" is missing`},
		{"tool calls", msg(`{"role":"assistant","toolCalls":[{"toolCallId":1}]}`),
			`[messages 0 toolCalls 0 toolCallId] want text, got a number; [messages 0 toolCalls 0 toolName] "toolName" is missing`},

		{"empty approval", with(t, "pendingApprovals", "[{}]"),
			`[pendingApprovals 0 toolCallId] "toolCallId" is missing; [pendingApprovals 0 toolName] "toolName" is missing; ` +
				`[pendingApprovals 0 requestedAt] "requestedAt" is missing`},
		{"approval", with(t, "pendingApprovals", `[{"toolCallId":"c","toolName":"n","requestedAt":"t","subRunToolCallId":["c"],"expiresAt":5,"grantedBy":[1],"approversNeeded":-2}]`),
			"[pendingApprovals 0 subRunToolCallId] want text, got a list; [pendingApprovals 0 expiresAt] want text, got a number; " +
				"[pendingApprovals 0 grantedBy 0] want text, got a number; " +
				"[pendingApprovals 0 approversNeeded] want a number from 0 up, got -2"},
		{"empty handoff", with(t, "handoffs", `[{"inputFilter":{},"inheritedSecrets":"k"}]`),
			`[handoffs 0 inputFilter kind] "kind" is missing; [handoffs 0 inheritedSecrets] want a list, got text; ` +
				`[handoffs 0 fromAgentId] "fromAgentId" is missing; [handoffs 0 toAgentId] "toAgentId" is missing; ` +
				`[handoffs 0 stepNumber] "stepNumber" is missing; [handoffs 0 at] "at" is missing`},
	} {
		if s, got := issues(t, tc.data, fault.RunStateMalformed); got != tc.want || s != nil {
			t.Errorf("%s: Read(%.200s) = %v, %s\nwant no state, %s", tc.name, tc.data, s, got, tc.want)
		}
	}
}

// issues reads data that cannot be read and returns the issues as a text.
func issues(t *testing.T, data []byte, kind *fault.Kind) (*runstate.State, string) {
	t.Helper()
	s, err := runstate.Read(data)
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != kind {
		t.Errorf("Read(%.200s) = %v, want an error of kind %s", data, err, kind.Code)
		return s, ""
	}
	var all []string
	for _, issue := range f.Issues {
		all = append(all, fmt.Sprintf("%v %s", issue.Path, issue.Message))
	}
	return s, strings.Join(all, "; ")
}

// nested is a state with a chain of pending child runs.
func nested(depth int) []byte {
	s := fmt.Sprintf(minimal, "")
	for range depth {
		s = fmt.Sprintf(minimal, `,"pendingSubRuns":[{"toolCallId":"c","toolName":"n","state":`+s+`}]`)
	}
	return []byte(s)
}

func TestUnsupported(t *testing.T) {
	const want = "this version of agentd does not read it"
	child := func(version string) []byte {
		return fmt.Appendf(nil, minimal, `,"pendingSubRuns":[{"toolCallId":"c","toolName":"n","state":{"version":"`+version+`"}}]`)
	}
	for _, tc := range []struct {
		data []byte
		want string
	}{
		{with(t, "version", `"svc-run-state/2.0"`), "[version] " + want},
		{with(t, "version", `"svc-run-state/99999999999999999999.0"`), "[version] " + want},
		{[]byte(`{"version":"svc-run-state/2.0"}`), "[version] " + want},
		{child("svc-run-state/10.0"), "[pendingSubRuns 0 state version] " + want},
	} {
		if s, got := issues(t, tc.data, fault.RunStateVersionUnsupported); got != tc.want || s != nil {
			t.Errorf("Read(%s) = %v, %s, want no state, %s", tc.data, s, got, tc.want)
		}
	}
}

// TestManyIssues checks that the error stays small.
func TestManyIssues(t *testing.T) {
	_, got := issues(t, with(t, "messages", "["+strings.Repeat("1,", 999)+"1]"), fault.RunStateMalformed)
	if !strings.HasSuffix(got, "[messages 99] want an object, got a number; [] and 900 more") {
		t.Errorf("issues of 1000 problems = %s, want 100 and a count", got)
	}
	long := strings.Repeat("k", 30_000)
	_, got = issues(t, fmt.Appendf(nil, minimal, `,"`+long+`":{`+strings.Repeat(`"a":1,`, 50)+`"a":1}`), fault.RunStateMalformed)
	if len(got) > 70_000 || !strings.HasSuffix(got, "[] and 48 more") {
		t.Errorf("issues with long paths take %d bytes and end in %q, want at most 70000 and a count", len(got), got[len(got)-60:])
	}
}

// TestLenient is what older writers need, and what only a person would call wrong.
func TestLenient(t *testing.T) {
	for _, tc := range []struct {
		name, members, want string // want is a part of what is written
	}{
		{"current agent", ``, `"currentAgentId":"a"`},
		{"current agent null", `,"currentAgentId":null`, `"currentAgentId":"a"`},
		{"null is absent", `,"error":null,"todos":null,"usageByModel":null,"taintSummary":null`, `"attemptCount":1}},"startedAt":"2026-01-02T03:04:05.000Z"}`},
		{"no user", `,"userId":7,"finishedAt":{}`, `"startedAt":"2026-01-02T03:04:05.000Z"}`},
		{"usage by agent", ``, `"usageByModel":{"a":{"promptTokens":0,"completionTokens":0,"totalTokens":0,"cachedReadTokens":0,"cacheWriteTokens":0,"attemptCount":1}}`},
		{"usage by no model", `,"usageByModel":{}`, `"usageByModel":{}`},
		{"usage coerced", `,"usageByModel":{"m":{"promptTokens":" 12 ","completionTokens":true,"totalTokens":1e300,"reasoningTokens":"-x","cachedReadTokens":null,"cacheWriteTokens":2.9,"cost":{"amount":"NaN"},"attemptCount":"x"},"n":1}`,
			`"usageByModel":{"m":{"promptTokens":12,"completionTokens":1,"totalTokens":9007199254740991,"reasoningTokens":0,"cachedReadTokens":0,"cacheWriteTokens":2,"cost":{"amount":0,"currency":"USD"},"attemptCount":0}}`},
		{"cost of no object", `,"usageByModel":{"m":{"cost":5}}`, `"usageByModel":{"m":{"promptTokens":0,"completionTokens":0,"totalTokens":0,"cachedReadTokens":0,"cacheWriteTokens":0,"attemptCount":1}}`},
		{"taint", `,"taintSummary":{"untrustedSeen":1,"sensitiveSeen":true,"untrustedSourceKinds":["web",null]}`,
			`"taintSummary":{"untrustedSeen":false,"sensitiveSeen":true,"untrustedSourceKinds":["web"]}`},
		{"lists of strings", `,"promotedTools":["a",1,"b"]`, `"promotedTools":["a","b"]`},
		{"todos", `,"todos":[{"id":"1","content":"c","status":"s"},{"id":"2","content":"c"},7]`, `"todos":[{"id":"1","content":"c","status":"s"}],"startedAt"`},
		{"children", `,"pendingSubRuns":[{"toolName":"n","state":{}},{"toolCallId":"c"},7]`, `}},"startedAt"`},
		{"error", `,"error":{}`, `"error":{"message":"unknown","code":"unknown"}`},
		{"error of other types", `,"error":{"message":1,"code":[]}`, `"error":{"message":"unknown","code":"unknown"}`},
	} {
		data := fmt.Appendf(nil, minimal, tc.members)
		if got := encode(t, read(t, data)); !bytes.Contains(got, []byte(tc.want)) {
			t.Errorf("%s: Encode(Read(%s)) =\n%s\nwant it to have\n%s", tc.name, data, got, tc.want)
		}
		checkStable(t, data)
	}
	data := with(t, "steps", `[{"stepNumber":1,"startedAt":"t","toolCalls":[{"call":{"toolCallId":"c","toolName":"n"},"stepNumber":1,`+
		`"outcome":{"toolCallId":"c","toolName":"n","output":null,"durationMs":-1,"kind":null}}]}]`)
	if got := string(encode(t, read(t, data))); !strings.Contains(got, `"outcome":{"toolCallId":"c","toolName":"n","output":null,"durationMs":0}`) {
		t.Errorf("an outcome without a kind is written in %s, want it as a result", got)
	}
}

func TestVersions(t *testing.T) {
	for _, version := range []string{"0.1", "0.9", "1.0", "1.1", "1.2", "1.9", "1.123456789012345678901", "01.02"} {
		s := read(t, with(t, "version", `"svc-run-state/`+version+`"`))
		if s.Version != runstate.Version {
			t.Errorf("Read(%s).Version = %s, want %s", version, s.Version, runstate.Version)
		}
	}
	read(t, nested(32))
}

func TestByteRepair(t *testing.T) {
	for in, want := range map[string]string{
		`{"0":104,"1":105}`:             `{"enc":"base64","data":"aGk="}`,
		`{"1":105,"0":104}`:             `{"enc":"base64","data":"aGk="}`,
		`{"0":0}`:                       `{"enc":"base64","data":"AA=="}`,
		`{"enc":"base64","data":""}`:    `{"enc":"base64","data":""}`,
		`{"enc":"url","href":"ftp://"}`: `{"enc":"url","href":"ftp://"}`,
		// None of these is a byte array.
		`{}`:                                     `{}`,
		`{"1":104}`:                              `{"1":104}`,
		`{"0":256}`:                              `{"0":256}`,
		`{"0":-1}`:                               `{"0":-1}`,
		`{"0":1.5}`:                              `{"0":1.5}`,
		`{"0":"1"}`:                              `{"0":"1"}`,
		`{"00":1}`:                               `{"00":1}`,
		`{"0":1,"length":1}`:                     `{"0":1,"length":1}`,
		`{"0":1,"2":1}`:                          `{"0":1,"2":1}`,
		`[104,105]`:                              `[104,105]`,
		`"https://example.org/a"`:                `"https://example.org/a"`,
		`{"enc":"gzip","data":"?"}`:              `{"enc":"gzip","data":"?"}`,
		`{"enc":7,"data":"?"}`:                   `{"enc":7,"data":"?"}`,
		`{ "type" : "Buffer" , "data" : [ 1 ] }`: `{"type":"Buffer","data":[1]}`,
	} {
		for _, field := range []string{"image", "audio", "file"} {
			data := with(t, "messages", `[{"role":"user","content":[{"type":"`+field+`","`+field+`":`+in+`}]}]`)
			want := `"messages":[{"role":"user","content":[{"type":"` + field + `","` + field + `":` + want + `}]}]`
			if got := encode(t, read(t, data)); !bytes.Contains(got, []byte(want)) {
				t.Errorf("%s %s is written as\n%s\nwant it to have\n%s", field, in, got, want)
			}
			checkStable(t, data)
		}
	}
	// Elsewhere such objects are what they are.
	data := with(t, "messages", `[{"role":"assistant","content":"","toolCalls":[{"toolCallId":"c","toolName":"n","args":{"0":104,"1":105}}]}]`)
	if got := encode(t, read(t, data)); !bytes.Contains(got, []byte(`"args":{"0":104,"1":105}`)) {
		t.Errorf("arguments with the keys 0 and 1 are written as\n%s\nwant them as they were", got)
	}
}
