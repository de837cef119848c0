package evidence_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"agentd/server/audit"
	"agentd/server/evidence"
	"agentd/server/fuzztest"
	"agentd/server/message"
)

// The bundles approved and other in testdata are of version 1.0: of two runs of one chain, each with a call that was
// granted. Bundles of every version have to be read for ever, so they stay. Those of 1.1 are told of in requests_test.go.

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func publicKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	key, err := audit.ParseKey(fixture(t, "audit.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// parts is a bundle taken apart.
type parts struct {
	manifest evidence.Manifest
	bodies   map[string][]byte
	from     map[string]int // where each member begins in the file
}

func apart(t testing.TB, text []byte) parts {
	t.Helper()
	line, rest, _ := bytes.Cut(text, []byte{'\n'})
	p := parts{bodies: map[string][]byte{}, from: map[string]int{}}
	if err := json.Unmarshal(line, &p.manifest); err != nil {
		t.Fatal(err)
	}
	for _, m := range p.manifest.Members {
		p.from[m.Name], p.bodies[m.Name] = len(text)-len(rest), rest[:m.Bytes]
		rest = rest[m.Bytes:]
	}
	return p
}

// together makes a bundle again, as a forger would: with hashes that fit.
func (p parts) together(t testing.TB) []byte {
	t.Helper()
	hash := func(b []byte) string {
		sum := sha256.Sum256(b)
		return hex.EncodeToString(sum[:])
	}
	m, body := p.manifest, []byte{}
	m.Members = slices.Clone(m.Members)
	for i := range m.Members {
		b := p.bodies[m.Members[i].Name]
		m.Members[i].Bytes, m.Members[i].SHA256 = len(b), hash(b)
		body = append(body, b...)
	}
	m.SHA256 = ""
	line, err := message.Encode(m)
	if err == nil {
		m.SHA256 = hash(line)
		line, err = message.Encode(m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(append(line, '\n'), body...)
}

// blamed is the members that have problems, each once.
func blamed(r evidence.Report) (list []string) {
	for _, p := range r.Problems {
		list = append(list, p.Member)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func TestVerifyWhole(t *testing.T) {
	text := fixture(t, "approved.jsonl")
	for name, key := range map[string]ed25519.PublicKey{"bundle": nil, "given": publicKey(t)} {
		r := evidence.Verify(text, key)
		if !r.OK || r.Key != name || r.Decisions != 1 || r.Calls != 1 || r.Entries < 4 || r.Checkpoint == nil {
			t.Errorf("Verify with the key %s = %+v, want it whole", name, r)
		}
	}
	if again := apart(t, text).together(t); !bytes.Equal(again, text) {
		t.Error("the bundle, taken apart and put together, is another: the forgeries below would prove nothing")
	}
}

// TestVerifyUsedAgain is for a program that gives two of its calls one id.
func TestVerifyUsedAgain(t *testing.T) {
	p := apart(t, fixture(t, "approved.jsonl"))
	second := bytes.Replace(p.bodies["calls"], []byte(`"index":0`), []byte(`"index":1`), 1)
	p.bodies["calls"] = append(slices.Clone(p.bodies["calls"]), second...)
	p.bodies["approvals"] = append(slices.Clone(p.bodies["approvals"]), p.bodies["approvals"]...)
	if r := evidence.Verify(p.together(t), nil); !r.OK || r.Decisions != 2 {
		t.Errorf("Verify with two calls of one id = %+v, want it whole with two decisions", r)
	}
}

// TestVerifyFlips changes every byte of the file, one at a time. The member that has it is named, and no other.
func TestVerifyFlips(t *testing.T) {
	text := fixture(t, "approved.jsonl")
	p := apart(t, text)
	at := func(i int) string {
		name := "manifest"
		for _, m := range p.manifest.Members {
			if i >= p.from[m.Name] && m.Bytes > 0 {
				name = m.Name
			}
		}
		return name
	}
	named := map[string]bool{}
	for i := range text {
		changed := slices.Clone(text)
		changed[i] ^= 1
		r := evidence.Verify(changed, nil)
		if want := at(i); r.OK || !slices.Equal(blamed(r), []string{want}) {
			t.Fatalf("Verify with byte %d (%q) changed = %+v, want %s named", i, text[i], r, want)
		}
		named[at(i)] = true
	}
	if len(named) != len(p.manifest.Members)+1 {
		t.Errorf("%v were changed, want the manifest and all of its members", named)
	}
}

func TestVerifyTruncated(t *testing.T) {
	text := fixture(t, "approved.jsonl")
	for n := range text {
		if r := evidence.Verify(text[:n], nil); r.OK || len(r.Problems) == 0 {
			t.Fatalf("Verify of the first %d bytes = %+v, want problems", n, r)
		}
	}
	if r := evidence.Verify(append(slices.Clone(text), '\n'), nil); !slices.Equal(blamed(r), []string{"manifest"}) {
		t.Errorf("Verify with a byte more = %+v, want manifest named", r)
	}
}

func TestVerifyWrongKey(t *testing.T) {
	key, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	if r := evidence.Verify(fixture(t, "approved.jsonl"), key); r.OK || !slices.Equal(blamed(r), []string{"checkpoint", "key"}) {
		t.Errorf("Verify with another key = %+v, want checkpoint and key named", r)
	}
}

// TestVerifyForged changes what members say, and makes all hashes of the bundle fit again.
func TestVerifyForged(t *testing.T) {
	other := apart(t, fixture(t, "other.jsonl"))
	replace := func(member, old, now string) func(parts) {
		return func(p parts) { p.bodies[member] = bytes.ReplaceAll(p.bodies[member], []byte(old), []byte(now)) }
	}
	take := func(names ...string) func(parts) {
		return func(p parts) {
			for _, name := range names {
				p.bodies[name] = other.bodies[name]
			}
		}
	}
	without := func(member, part string) func(parts) {
		return func(p parts) {
			lines := slices.Collect(bytes.Lines(p.bodies[member]))
			p.bodies[member] = bytes.Join(slices.DeleteFunc(lines, func(l []byte) bool { return bytes.Contains(l, []byte(part)) }), nil)
		}
	}
	for name, tt := range map[string]struct {
		change func(parts)
		member string // one that must be named
		says   string
	}{
		"entries of another run":          {take("entries", "checkpoint"), "entries", "is not about the run"},
		"run of another run":              {take("run"), "run", "the manifest is of"},
		"events of another run":           {take("events"), "events", "is of the run"},
		"journal of another run":          {take("calls", "approvals"), "calls", "is not in the journal"},
		"approvals of another run":        {take("approvals"), "approvals", "not those of the journal"},
		"an entry that says else":         {replace("entries", "tool:approval:granted", "tool:approval:denied"), "entries", "something else than its hash"},
		"an entry in other form":          {replace("entries", `"entry":{`, `"entry":{ `), "entries", "canonical form"},
		"no entry for the decision":       {without("entries", "tool:approval:granted"), "entries", "no entry for the decision"},
		"no entry about the run":          {func(p parts) { p.bodies["entries"] = nil }, "entries", "none is about the run"},
		"a decision by somebody else":     {replace("calls", `"by":"token:`, `"by":"token:x`), "calls", "was decided by"},
		"a decision that is another":      {replace("calls", `"granted":true`, `"granted":false`), "calls", "granted: false"},
		"a decision for other arguments":  {replace("calls", `"granted":true,"argsSha256":"`, `"granted":true,"argsSha256":"0`), "calls", "for other arguments"},
		"no decision":                     {replace("calls", `"decision":{`, `"was":{`), "calls", "has no decision"},
		"another configuration":           {replace("config", `"configSha256":"`, `"configSha256":"0`), "config", "starts of servers"},
		"a checkpoint of another size":    {replace("checkpoint", `"size":`, `"size":1`), "checkpoint", "not signed"},
		"a checkpoint with another root":  {replace("checkpoint", `"rootHash":"`, `"rootHash":"0`), "checkpoint", "not signed"},
		"no checkpoint":                   {func(p parts) { p.bodies["checkpoint"] = nil }, "checkpoint", "want 1"},
		"a key that is none":              {replace("key", "BEGIN", "BEGAN"), "key", "it is not PEM"},
		"a proof that leads elsewhere":    {replace("entries", `"path":["`, `"path":["`+strings.Repeat("00", 32)+`","`), "entries", "not in the tree"},
		"an event that is left out":       {without("events", `"seq":2,`), "events", "is the event 3"},
		"a program that is none":          {func(p parts) { p.bodies["program"] = []byte("1\n") }, "program", "line 1"},
		"journal out of order":            {replace("calls", `"index":0`, `"index":1`), "calls", "is the call 1"},
		"a line that does not end":        {func(p parts) { p.bodies["events"] = bytes.TrimSpace(p.bodies["events"]) }, "events", "is not what"},
		"a path that is longer than any":  {replace("entries", `"path":["`, `"path":["zz","`), "entries", "not in the tree"},
		"a call that the chain names not": {replace("calls", `"toolCallId":"`, `"toolCallId":"x`), "calls", "is not in the journal"},
	} {
		t.Run(name, func(t *testing.T) {
			p := apart(t, fixture(t, "approved.jsonl"))
			tt.change(p)
			r := evidence.Verify(p.together(t), nil)
			found := slices.ContainsFunc(r.Problems, func(p evidence.Problem) bool { return p.Member == tt.member && strings.Contains(p.Problem, tt.says) })
			if r.OK || !found {
				t.Errorf("Verify = %+v, want %s to be told that %q", r, tt.member, tt.says)
			}
		})
	}
}

func FuzzVerify(f *testing.F) {
	whole := fixture(f, "approved.jsonl")
	f.Add(whole)
	f.Add(fixture(f, "other.jsonl"))
	f.Add(fixture(f, "recorded.jsonl"))
	f.Add(fixture(f, "off.jsonl"))
	p := apart(f, whole)
	p.bodies["entries"] = []byte("{\"entry\":{},\"path\":[]}\n")
	f.Add(p.together(f))
	f.Add([]byte(`{"v":"svc-evidence/1.0"}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		verifyCost.Check(t, len(text), func() { evidence.Verify(text, nil) })
		r := evidence.Verify(text, nil)
		if r.OK != (len(r.Problems) == 0) {
			t.Errorf("Verify = %+v, want problems or none", r)
		}
		if r.OK && !bytes.Equal(apart(t, text).together(t), text) {
			t.Errorf("Verify took %q, which is not in the form that is written", text)
		}
	})
}

// FuzzVerifyMember puts anything in the place of a member, with hashes that fit.
func FuzzVerifyMember(f *testing.F) {
	whole := apart(f, fixture(f, "approved.jsonl"))
	for i, m := range whole.manifest.Members {
		f.Add(uint8(i), whole.bodies[m.Name])
	}
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		p := apart(t, fixture(t, "approved.jsonl"))
		name := p.manifest.Members[int(which)%len(p.manifest.Members)].Name
		p.bodies[name] = body
		evidence.Verify(p.together(t), nil)
	})
}

// A decision is recorded before it is made. One that a crash kept from being made is told, and is no forgery; a call that
// was made without a decision is one.
func TestVerifyUnmade(t *testing.T) {
	undecided := func(phase string) evidence.Report {
		p := apart(t, fixture(t, "approved.jsonl"))
		var call, approval map[string]any
		for name, line := range map[string]*map[string]any{"calls": &call, "approvals": &approval} {
			if err := json.Unmarshal(p.bodies[name], line); err != nil {
				t.Fatal(err)
			}
			delete(*line, "decision")
		}
		call["phase"], approval["status"] = phase, "waiting"
		for name, line := range map[string]any{"calls": ordered(call, "index step toolCallId toolName phase argsSha256 attempts claimedAt settledAt childRunId reason"),
			"approvals": ordered(approval, "toolCallId toolName status argsSha256")} {
			b, err := message.Encode(line)
			if err != nil {
				t.Fatal(err)
			}
			p.bodies[name] = append(b, '\n')
		}
		if phase == "done" {
			p.bodies["approvals"] = nil
		}
		return evidence.Verify(p.together(t), publicKey(t))
	}
	if r := undecided("awaiting"); !r.OK || len(r.Unmade) != 1 || r.Decisions != 0 {
		t.Errorf("Verify of a call that waits = %+v, want it whole with a decision that was not made", r)
	}
	if r := undecided("done"); r.OK || !slices.Contains(blamed(r), "calls") || r.Unmade != nil {
		t.Errorf("Verify of a call that was made = %+v, want its journal blamed", r)
	}
}

// ordered is an object with members in the order of their names in the list; those that it lacks are left out.
func ordered(object map[string]any, names string) json.RawMessage {
	var b bytes.Buffer
	for _, name := range strings.Fields(names) {
		if v, ok := object[name]; ok {
			text, _ := json.Marshal(v)
			b.WriteString(map[bool]string{true: "{", false: ","}[b.Len() == 0] + `"` + name + `":` + string(text))
		}
	}
	return append(b.Bytes(), '}')
}

// verifyCost: members are read line by line, the entries also to write them again, and the hashes of proofs are a list.
var verifyCost = fuzztest.Cost{PerByte: 100, Base: 1 << 20}

func TestVerifyCost(t *testing.T) {
	whole := fixture(t, "approved.jsonl")
	for name, text := range fuzztest.JSON() {
		for _, m := range apart(t, whole).manifest.Members {
			p := apart(t, whole)
			p.bodies[m.Name] = append(p.bodies[m.Name], append(text, '\n')...)
			bundle := p.together(t)
			verifyCost.Check(t, len(bundle), func() { evidence.Verify(bundle, nil) })
			if t.Failed() {
				t.Fatal(name, m.Name)
			}
		}
		verifyCost.Check(t, len(text), func() { evidence.Verify(text, nil) })
	}
}

// TestVerifyFolded is for a run of a workflow that has deleted the events of its oldest steps, the first of two approvals among
// them. A bundle says from which event on it has them, and no other event may be missing.
func TestVerifyFolded(t *testing.T) {
	whole := apart(t, fixture(t, "folded.jsonl"))
	if r := evidence.Verify(whole.together(t), nil); !r.OK || r.FirstEvent != 1196 || r.Events != 25 || r.Calls != 1 || r.Decisions != 1 || len(r.Folded) != 2 {
		t.Fatalf("Verify = %+v, want it whole, with the events from 1196 on and two entries of folded calls", r)
	}
	for name, tt := range map[string]struct {
		change func(*parts)
		member string
		says   string
	}{
		"a gap":           {func(p *parts) { p.drop(t, "events", `{"seq":1200,`) }, "events", "line 5 is the event 1201"},
		"another first":   {func(p *parts) { p.drop(t, "events", `{"seq":1196,`) }, "events", "line 1 is the event 1197"},
		"nothing is said": {func(p *parts) { p.manifest.FirstEvent = 0 }, "events", "line 1 is the event 1196"},
		"from one on":     {func(p *parts) { p.manifest.FirstEvent = 1 }, "manifest", "begin with 1"},
		"an agent's run":  {func(p *parts) { p.change(t, "run", `"kind":"workflow"`, `"kind":"agent"`) }, "manifest", "begin with 1196"},
		"its decision":    {func(p *parts) { p.change(t, "calls", `"by":"cli:root"`, `"by":"cli:x"`) }, "calls", "was decided by"},
	} {
		t.Run(name, func(t *testing.T) {
			p := apart(t, fixture(t, "folded.jsonl"))
			tt.change(&p)
			r := evidence.Verify(p.together(t), nil)
			if r.OK || !slices.ContainsFunc(r.Problems, func(p evidence.Problem) bool { return p.Member == tt.member && strings.Contains(p.Problem, tt.says) }) {
				t.Errorf("Verify = %+v, want %q to be told that %q", r, tt.member, tt.says)
			}
		})
	}
}
