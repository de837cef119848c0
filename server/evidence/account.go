package evidence

import (
	"bytes"
	"encoding/json"
	"strings"

	"agentd/server/audit"
)

// A bearing is what an entry of the chain has to do with a run.
type bearing int

const (
	none    bearing = iota
	starts          // the entry is the start of a server
	concern         // it is about the run, or a request that started it or decided on a call
	touches         // it is another request that names the run
)

// An account is what an entry of the chain says of a run.
type account struct {
	bearing  bearing
	start    int // what it is worth as the entry of the start; its actor started the run, or imported it
	imported bool
	words    []word
}

// What entries are worth as the one of a start.
const (
	noStart      = iota
	startAgain   // a request that was sent before
	startRequest // a request: earlier versions recorded nothing else
	startEntry
)

// A word is what an entry says of a call: that it was asked for, or the decision on it.
type word struct {
	seq    int64
	action audit.Action // what was done, also where the entry is that of the request which did it
	by     string
	asked  bool // the entry is that of the request, which may come late: it waits for what the run does next
	void   bool // the action that an earlier entry records was not done: of earlier versions

	id, tool, digest, reason string // the digest is empty in entries of older servers
}

// implied reports whether it is the denial that an abort implies: the journal keeps no decision then.
func (w word) implied() bool { return w.action == audit.ApprovalDenied && w.by == "abort" }

func accountOf(e *audit.Entry, runID string) (a account) {
	about := e.Context != nil && e.Context.RunID == runID
	switch action := audit.Action(e.Action); {
	case action == audit.ServerStart:
		a.bearing = starts
	case action == audit.Subscribe && strings.Contains(e.Target, runID): // a subject may name the run
		a.bearing = touches
	case action == audit.HTTPRequest && (about || strings.Contains(e.Target, runID) || bytes.Contains(e.Metadata, []byte(runID))):
		a.bearing = touches
		a.request(e, runID, about)
	case action != audit.HTTPRequest && about:
		a.bearing = concern
		a.imported = action == audit.RunImport
		begins := action == audit.RunStart || action == audit.WorkflowExecute || action == audit.WorkflowRetry
		if (begins || a.imported) && e.Decision != audit.Denied {
			a.start = startEntry
		}
		a.event(e, action)
	}
	return a
}

// event reads an entry about a call.
func (a *account) event(e *audit.Entry, action audit.Action) {
	var what struct {
		ToolCallID, ArgsDigest, Reason string
		Void                           bool
	}
	if tool, ok := strings.CutPrefix(e.Target, "tool:"); ok && json.Unmarshal(e.Metadata, &what) == nil {
		a.words = []word{{seq: e.Seq, action: action, by: nameOf(e.Actor), void: what.Void, id: what.ToolCallID, tool: tool, digest: what.ArgsDigest, reason: what.Reason}}
	}
}

// request reads the entry of a request. Earlier versions have no other entry of a start, so there the path says what the
// request was; one that was refused names no run.
func (a *account) request(e *audit.Entry, runID string, about bool) {
	var what struct {
		Method              string
		IdempotencyReplayed bool
		Decisions           []struct {
			RunID, ToolCallID, ToolName, ArgsDigest, Reason string
			Granted                                         bool
		}
	}
	if e.Context == nil || json.Unmarshal(e.Metadata, &what) != nil {
		return
	}
	for _, d := range what.Decisions {
		if d.RunID != runID && (d.RunID != "" || !about) { // without a run, the call is of the one that the entry names
			continue
		}
		w := word{seq: e.Seq, action: audit.ApprovalDenied, by: nameOf(e.Actor), asked: true, id: d.ToolCallID, tool: d.ToolName, digest: d.ArgsDigest, reason: d.Reason}
		if d.Granted {
			w.action = audit.ApprovalGranted
		}
		a.words = append(a.words, w)
	}
	p := strings.Split(e.Target, "/")
	n := len(p)
	a.imported = n >= 2 && p[n-2] == "runs" && p[n-1] == "import"
	if about && what.Method == "POST" && (a.imported || n >= 3 && p[n-3] == "agents" && (p[n-1] == "run" || p[n-1] == "stream")) {
		a.start = startRequest
	}
	switch {
	case what.IdempotencyReplayed:
		a.start, a.words = min(a.start, startAgain), nil
	case a.start > noStart, len(a.words) > 0:
		a.bearing = concern
	}
}

// nameOf is an actor's name as the journal writes who decided, and as a run writes who started it.
func nameOf(a audit.Actor) string {
	switch a.Kind {
	case audit.ActorToken, audit.ActorCLI, audit.ActorHook:
		return a.Kind + ":" + a.ID
	}
	return a.ID
}

// isName reports whether a journal names this actor. Earlier versions wrote no user there.
func isName(name, journal string) bool {
	return name == journal || journal == "cli" && strings.HasPrefix(name, "cli:")
}

// started compares who, according to the bundle, started the run with the entry of the start. The last of several entries
// counts, since an erased run may have been imported again. The entry of a request counts only if the start has no entry of
// its own, and that of a repeated request only if there is no other. If no entry names the start, the report says so.
func (v *verifier) started() {
	by, best := "", 1
	for i, a := range v.accounts {
		if a.start >= best {
			v.report.StartEntry, by, best = v.entries[i].Seq, nameOf(v.entries[i].Actor), a.start
		}
	}
	if v.report.StartEntry != 0 && !isName(by, v.report.StartedBy) {
		v.bad(memberRun, "it says that %.128q started it, and entry %d names %.128q", v.report.StartedBy, v.report.StartEntry, by)
	}
}
