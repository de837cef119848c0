package evidence_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"agentd/server/evidence"
)

// The bundles off and recorded are of two runs of one chain, under one checkpoint: each was started and its call granted
// over HTTP, the first in a server with audit.toolEvents off, the second in one with security.

func TestVerifyRequests(t *testing.T) {
	for name, want := range map[string]evidence.Report{
		"approved.jsonl": {Decisions: 1},
		"recorded.jsonl": {Decisions: 1, StartEntry: 8, StartedBy: "token:01a1ff6e-f928-7f1f-9083-b67691e4c272"},
		"off.jsonl":      {Decisions: 1, Asked: 1, StartEntry: 3, StartedBy: "token:01a1ff6e-f928-7f1f-9083-b67691e4c272"},
	} {
		r := evidence.Verify(fixture(t, name), nil)
		if !r.OK || r.Members != 9 || r.Decisions != want.Decisions || r.Asked != want.Asked || r.StartEntry != want.StartEntry ||
			want.StartedBy != "" && r.StartedBy != want.StartedBy {
			t.Errorf("Verify(%s) = %+v, want it whole with %+v", name, r, want)
		}
	}
}

// change replaces text in a member; there must be some.
func (p parts) change(t *testing.T, member, old, now string) {
	t.Helper()
	if !bytes.Contains(p.bodies[member], []byte(old)) {
		t.Fatalf("the member %s has no %s", member, old)
	}
	p.bodies[member] = bytes.ReplaceAll(p.bodies[member], []byte(old), []byte(now))
}

// drop takes lines out of a member; there must be some.
func (p parts) drop(t *testing.T, member, holding string) {
	t.Helper()
	kept := slices.DeleteFunc(linesOf(p.bodies[member]), func(l []byte) bool { return bytes.Contains(l, []byte(holding)) })
	if len(kept) == len(linesOf(p.bodies[member])) {
		t.Fatalf("no line of the member %s has %s", member, holding)
	}
	p.bodies[member] = slices.Concat(kept...)
}

// startOf is the line of a start of a server among the entries.
func (p parts) startOf(t *testing.T) []byte {
	t.Helper()
	for _, l := range linesOf(p.bodies["entries"]) {
		if bytes.Contains(l, []byte(`"action":"server:start"`)) {
			return l
		}
	}
	t.Fatal("there is no start of a server")
	return nil
}

// TestVerifyForgedRequests changes who started a run, and what is said of decisions that only requests tell of, and makes
// all hashes of the bundle fit again.
func TestVerifyForgedRequests(t *testing.T) {
	silent := apart(t, fixture(t, "off.jsonl"))
	// unspoken takes the entry of the decision's own out, and puts the start of the silent server in the place of the
	// one that recorded tool events.
	unspoken := func(p *parts) {
		p.drop(t, "entries", "tool:approval:granted")
		p.drop(t, "entries", `"action":"server:start"`)
		p.bodies["entries"] = slices.Concat(silent.startOf(t), p.bodies["entries"])
		p.bodies["config"] = silent.bodies["config"]
	}
	resumed := `/resume","ts":`
	for name, tt := range map[string]struct {
		bundle string
		change func(*parts)
		member string // "": it is whole
		says   string
	}{
		"started by somebody else": {"recorded.jsonl", func(p *parts) { p.change(t, "run", `"startedBy":"token:`, `"startedBy":"token:x`) }, "run", "and entry 8 names"},
		"started by the cli": {"off.jsonl", func(p *parts) {
			p.change(t, "run", `"startedBy":"token:01a1ff6e-f928-7f1f-9083-b67691e4c272"`, `"startedBy":"cli"`)
		}, "run", `"cli" started it, and entry 3`},
		"started by nobody":        {"off.jsonl", func(p *parts) { p.change(t, "run", `"startedBy":"token:`, `"was":"token:`) }, "run", `"" started it`},
		"the start says otherwise": {"off.jsonl", func(p *parts) { p.change(t, "entries", `"toolEvents":"off"`, `"toolEvents":"all"`) }, "entries", "something else than its hash"},
		"config says off":          {"recorded.jsonl", func(p *parts) { p.change(t, "config", `"security"`, `"off"`) }, "config", "starts of servers"},
		"config says nothing":      {"off.jsonl", func(p *parts) { p.change(t, "config", `,"toolEvents":"off"`, ``) }, "config", "starts of servers"},
		"config says it is older": {"off.jsonl", func(p *parts) {
			p.change(t, "config", `,"toolEvents":"off"`, ``)
			p.manifest.V = evidence.First
		}, "entries", "tool events were recorded"},
		"no request for the decision":  {"off.jsonl", func(p *parts) { p.drop(t, "entries", resumed) }, "entries", "no entry for the decision"},
		"denied, and granted in truth": {"off.jsonl", func(p *parts) { p.deny(t) }, "calls", "granted: false"},
		"decided by somebody else":     {"off.jsonl", func(p *parts) { p.change(t, "calls", `"by":"token:`, `"by":"token:x`) }, "calls", "was decided by"},
		"decided when it had expired": {"off.jsonl", func(p *parts) {
			p.change(t, "calls", `"by":"token:01a1ff6e-f928-7f1f-9083-b67691e4c272"`, `"by":"expiry"`)
		}, "calls", "was decided by"},
		"no entry where there was one":  {"recorded.jsonl", func(p *parts) { p.drop(t, "entries", "tool:approval:granted") }, "entries", "tool events were recorded"},
		"no start of the silent server": {"off.jsonl", func(p *parts) { p.drop(t, "entries", `"action":"server:start"`); p.bodies["config"] = nil }, "entries", "tool events were recorded"},
		"another server, and another word": {"recorded.jsonl", func(p *parts) {
			unspoken(p)
			p.deny(t)
		}, "calls", "granted: false"},
		"another server, and no request": {"recorded.jsonl", func(p *parts) {
			unspoken(p)
			p.drop(t, "entries", resumed)
		}, "entries", "no entry for the decision"},
		// What is left of the decision is still what was decided.
		"another server, the same word": {"recorded.jsonl", unspoken, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := apart(t, fixture(t, tt.bundle))
			tt.change(&p)
			r := evidence.Verify(p.together(t), nil)
			found := slices.ContainsFunc(r.Problems, func(p evidence.Problem) bool { return p.Member == tt.member && strings.Contains(p.Problem, tt.says) })
			if r.OK != (tt.member == "") || found == r.OK {
				t.Errorf("Verify = %+v, want %q to be told that %q", r, tt.member, tt.says)
			}
		})
	}
	// Entries can be left out, and then the report takes nobody's word for the chain's.
	p := apart(t, fixture(t, "off.jsonl"))
	p.drop(t, "entries", "/agents/clerk/run")
	if r := evidence.Verify(p.together(t), nil); !r.OK || r.StartEntry != 0 || r.StartedBy == "" {
		t.Errorf("Verify without the entry of the start = %+v, want it whole and nobody named by an entry", r)
	}
}

// deny turns the decision of the journal into its opposite, also among the approvals.
func (p parts) deny(t *testing.T) {
	t.Helper()
	for _, member := range []string{"calls", "approvals"} {
		p.change(t, member, `"granted":true`, `"granted":false`)
	}
	p.change(t, "approvals", `"status":"granted"`, `"status":"denied"`)
}
