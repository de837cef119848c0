package evidence

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"agentd/server/audit"
)

// A bearing is what an entry of the chain has to do with a run.
type bearing int

const (
	none    bearing = iota
	starts          // it is the start of a server
	own             // it is about the run itself
	tells           // it is a request that says who started the run, or who decided what
	touches         // it is another request that names the run
)

const (
	serverStart = "server:start"
	request     = "http:request"
	subscribe   = "subscription:subscribe" // its target names the run, too
)

func bearingOf(e *audit.Entry, runID string) bearing {
	about := e.Context != nil && e.Context.RunID == runID
	switch {
	case e.Action == subscribe && strings.Contains(e.Target, runID):
		return touches
	case e.Action == serverStart:
		return starts
	case e.Action != request && about:
		return own
	case e.Action != request || !about && !strings.Contains(e.Target, runID) && !bytes.Contains(e.Metadata, []byte(runID)):
		return none
	}
	if a := askOf(e); !a.IdempotencyReplayed && (about && a.starts || len(a.of(runID)) > 0) {
		return tells
	}
	return touches
}

// An ask is what an entry tells of a request.
type ask struct {
	Method              string
	IdempotencyReplayed bool
	Decisions           []askDecision
	starts              bool // the run that it names
}

type askDecision struct {
	RunID, ToolCallID string
	Granted           bool

	ToolName, ArgsDigest, Reason string // absent from entries of older servers
}

// askOf reads the entry of a request. A decision without a run is on a call of the run that the entry names.
func askOf(e *audit.Entry) (a ask) {
	if json.Unmarshal(e.Metadata, &a) != nil || e.Context == nil {
		return ask{}
	}
	for i := range a.Decisions {
		if a.Decisions[i].RunID == "" {
			a.Decisions[i].RunID = e.Context.RunID
		}
	}
	a.starts = a.Method == "POST" && startsRun(e.Target)
	return a
}

// of is what was decided on calls of a run.
func (a ask) of(runID string) []askDecision {
	return slices.DeleteFunc(slices.Clone(a.Decisions), func(d askDecision) bool { return d.RunID != runID })
}

// startsRun reports whether a path, below whatever base, is one at which runs are started or taken over. A request that
// is refused there names no run.
func startsRun(path string) bool {
	p := strings.Split(path, "/")
	n := len(p)
	switch {
	case n >= 2 && p[n-2] == "runs" && p[n-1] == "import":
		return true
	case n >= 3 && p[n-3] == "agents":
		return p[n-1] == "run" || p[n-1] == "stream"
	}
	return false
}
