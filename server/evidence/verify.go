package evidence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"agentd/server/audit"
	"agentd/server/event"
	"agentd/store"
)

// A Problem is something that is wrong with a bundle.
type Problem struct {
	Member  string `json:"member"` // its name, or manifest
	Problem string `json:"problem"`
}

// A Report is what a verification has found.
type Report struct {
	OK       bool      `json:"ok"`
	RunID    string    `json:"runId,omitempty"`
	Problems []Problem `json:"problems"`

	Members    int         `json:"members"` // that are as the manifest says, where it says
	Events     int         `json:"events"`
	FirstEvent int         `json:"firstEvent,omitempty"` // those before it were deleted with their steps; 0: it has all
	Folded     []int64     `json:"folded,omitempty"`     // entries about calls of deleted events
	Calls      int         `json:"calls"`
	Arguments  int         `json:"arguments"`            // calls of which the chain has the digest of the arguments
	StartedBy  string      `json:"startedBy,omitempty"`  // the principal
	StartEntry int64       `json:"startEntry,omitempty"` // that says so; 0: none does, it is the bundle's own word
	Decisions  int         `json:"decisions"`            // that were found in the journal and in the chain
	Asked      int         `json:"asked,omitempty"`      // of these: shown by requests only, since no tool events were recorded
	Unmade     []int64     `json:"unmade,omitempty"`     // entries of decisions that were recorded and then, it seems for a crash, not made
	Entries    int         `json:"entries"`
	Omitted    int         `json:"omitted,omitempty"`
	Checkpoint *audit.Head `json:"checkpoint,omitempty"` // with a good signature
	SignedAt   int64       `json:"signedAt,omitempty"`   // milliseconds since 1970
	// WritersWord are the members of which the chain shows only what its entries say of calls, decisions and the start.
	WritersWord []string `json:"writersWord,omitempty"`
	Key         string   `json:"key"` // given, or bundle: then the bundle's own word is taken
}

// maxProblems is how many problems a report has.
const maxProblems = 100

// Verify checks a bundle: that its members are as its manifest says and, when they are, what they mean. The key is the
// one that must have signed; nil takes the one in the bundle. The caller bounds the size of text; memory is at most a
// hundred bytes for each byte of it.
func Verify(text []byte, key ed25519.PublicKey) Report {
	v := newVerifier(Manifest{}, map[string][]byte{})
	if key != nil {
		v.report.Key = "given"
	}
	v.split(text)
	if len(v.report.Problems) == 0 {
		v.meaning(key)
	}
	v.report.OK = len(v.report.Problems) == 0
	return v.report
}

type verifier struct {
	report   Report
	manifest Manifest
	bodies   map[string][]byte

	entries  []audit.Entry
	accounts []account // of the entries
	servers  []configLine
	topics   map[string]*topic // by the id of a call
	imported bool              // as an entry says
	workflow bool              // whether the run is one of a workflow
}

func newVerifier(m Manifest, bodies map[string][]byte) *verifier {
	return &verifier{report: Report{Problems: []Problem{}, Key: "bundle"}, manifest: m, bodies: bodies, topics: map[string]*topic{}}
}

func (v *verifier) bad(member, format string, args ...any) {
	if len(v.report.Problems) < maxProblems {
		v.report.Problems = append(v.report.Problems, Problem{member, fmt.Sprintf(format, args...)})
	}
}

// meaning checks what the members say.
func (v *verifier) meaning(key ed25519.PublicKey) {
	v.report.Omitted, v.report.FirstEvent, v.report.WritersWord = v.manifest.Omitted, v.manifest.FirstEvent, writersWord
	v.run()
	v.events()
	v.journal()
	checkpoint, ok := v.checkpoint(v.key(key))
	v.proven(checkpoint, ok)
	v.started()
	v.said()
}

// each decodes the lines of a member.
func each[T any](v *verifier, member string, fn func(i int, line T)) {
	body := v.bodies[member]
	for i := 0; len(body) > 0; i++ {
		text, rest, ended := bytes.Cut(body, []byte{'\n'})
		body = rest
		var line T
		if err := json.Unmarshal(text, &line); err != nil || !ended {
			v.bad(member, "line %d is not what this member has", i+1)
			return
		}
		fn(i, line)
	}
}

// one decodes a member of one line.
func one[T any](v *verifier, member string) (line T, ok bool) {
	n := 0
	each(v, member, func(_ int, l T) { line, n = l, n+1 })
	if n != 1 {
		v.bad(member, "it has %d lines that can be read, want 1", n)
	}
	return line, n == 1
}

func (v *verifier) run() {
	run, ok := one[struct {
		RunID, StartedBy, Kind string
		State                  runState
	}](v, memberRun)
	v.report.StartedBy = run.StartedBy
	v.showState(&run.State)
	if v.workflow = run.Kind == store.Workflow; v.workflow { // its state is its thread's
		run.State.ID = run.RunID
	}
	if ok && (run.RunID != v.manifest.RunID || run.State.ID != v.manifest.RunID) {
		v.bad(memberRun, "it is of the run %.64q, and its state of %.64q; the manifest is of %.64q", run.RunID, run.State.ID, v.manifest.RunID)
	}
	one[programLine](v, memberProgram)
}

func (v *verifier) events() {
	first := max(v.manifest.FirstEvent, 1)
	if v.manifest.FirstEvent != 0 && (first == 1 || !v.workflow) {
		v.bad(manifestName, "it says that the events begin with %d, which those of this run cannot", v.manifest.FirstEvent)
	}
	each(v, memberEvents, func(i int, e eventLine) {
		v.report.Events++
		if e.Seq != first+i {
			v.bad(memberEvents, "line %d is the event %d", i+1, e.Seq)
		}
		v.showEvent(&e)
		var of struct{ RunID string }
		if e.Type == event.AgentStart && (json.Unmarshal(e.Payload, &of) != nil || of.RunID != v.manifest.RunID) {
			v.bad(memberEvents, "the event %d (%s) is of the run %.64q", e.Seq, e.Type, of.RunID)
		}
	})
}

func (v *verifier) journal() {
	var calls []callLine
	each(v, memberCalls, func(i int, k callLine) {
		v.report.Calls++
		if k.Index != i {
			v.bad(memberCalls, "line %d is the call %d", i+1, k.Index)
		}
		calls = append(calls, k)
	})
	for i := range calls {
		t := v.topic(calls[i].ToolCallID)
		t.calls = append(t.calls, &calls[i])
	}
	if want, err := encodeLines(approvalsOf(calls)...); err != nil || !bytes.Equal(want, v.bodies[memberApprovals]) {
		v.bad(memberApprovals, "they are not those of the journal of calls")
	}
}

// key is the one that must have signed; nil when there is none.
func (v *verifier) key(given ed25519.PublicKey) ed25519.PublicKey {
	line, ok := one[keyLine](v, memberKey)
	if !ok {
		return given
	}
	own, err := audit.ParseKey([]byte(line.PublicKeyPEM))
	switch {
	case err != nil:
		v.bad(memberKey, "%v", err)
	case given != nil && !given.Equal(own):
		v.bad(memberKey, "it is not the key that was given")
	}
	if given != nil {
		return given
	}
	return own
}

func (v *verifier) checkpoint(key ed25519.PublicKey) (c audit.Checkpoint, ok bool) {
	if c, ok = one[audit.Checkpoint](v, memberCheckpoint); !ok {
		return c, false
	}
	if !c.Verify(key) {
		v.bad(memberCheckpoint, "it is not signed with the key")
		return c, true
	}
	v.report.Checkpoint, v.report.SignedAt = &c.Head, c.SignedAt
	return c, true
}

// proven checks the entries against the head of the chain.
func (v *verifier) proven(c audit.Checkpoint, signed bool) {
	last := int64(0)
	each(v, memberEntries, func(i int, line entryLine) {
		v.report.Entries++
		var e audit.Entry
		if json.Unmarshal(line.Entry, &e) != nil || !bytes.Equal(e.Line(nil), line.Entry) {
			v.bad(memberEntries, "line %d holds no entry in canonical form", i+1)
			return
		}
		if e.Seq <= last {
			v.bad(memberEntries, "entry %d comes after entry %d", e.Seq, last)
		}
		last = e.Seq
		a := accountOf(&e, v.manifest.RunID)
		if a.bearing == none {
			v.bad(memberEntries, "entry %d is not about the run", e.Seq)
		}
		hash := e.Sum()
		if hex.EncodeToString(hash[:]) != e.Hash {
			v.bad(memberEntries, "entry %d says something else than its hash", e.Seq)
		}
		if signed {
			root, ok := audit.RootOf(hash[:], audit.Proof{Seq: e.Seq, TreeSize: c.Head.Size, Path: line.Path})
			if !ok || hex.EncodeToString(root) != c.Head.RootHash {
				v.bad(memberEntries, "entry %d is not in the tree of the checkpoint", e.Seq)
			}
		}
		v.entries, v.accounts, v.imported = append(v.entries, e), append(v.accounts, a), v.imported || a.imported
		for _, w := range a.words {
			v.topic(w.id).hear(w)
		}
	})
	if !slices.ContainsFunc(v.entries, func(e audit.Entry) bool { return e.Action != string(audit.ServerStart) }) {
		v.bad(memberEntries, "none is about the run")
	}
	v.servers = configsOf(v.entries, v.manifest.V)
	if want, err := encodeLines(v.servers...); err != nil || !bytes.Equal(want, v.bodies[memberConfig]) {
		v.bad(memberConfig, "it is not what the starts of servers among the entries say")
	}
}
