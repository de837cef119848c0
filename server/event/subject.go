package event

import (
	"strings"

	"agentd/server/fault"
)

// ValidID reports whether s can be the id of an agent, run, session or workflow: 1 to 128 of A-Z a-z 0-9 _ and -.
func ValidID(s string) bool { return isWord(s, 128, "_-") }

// A Subject is what clients subscribe to. Its text form is the key of the replay ring.
type Subject struct {
	Kind  SubjectKind
	Owner string // the session, agent or workflow id; empty for the two fixed subjects
	Run   string // the run id, for subjects of one run
}

// A SubjectKind is one production of the grammar.
type SubjectKind string

const (
	SessionEvents     SubjectKind = "session-events"
	SessionRunEvents  SubjectKind = "session-run-events"
	AgentRunEvents    SubjectKind = "agent-run-events"
	WorkflowEvents    SubjectKind = "workflow-events"
	WorkflowRunEvents SubjectKind = "workflow-run-events"
	MemoryConflicts   SubjectKind = "memory-conflicts"
	AuditEvents       SubjectKind = "audit-events"
)

// OfAgentRun is the subject of one agent run.
func OfAgentRun(agent, run string) Subject { return Subject{AgentRunEvents, agent, run} }

// OfWorkflow is the subject that mirrors every run of a workflow.
func OfWorkflow(workflow string) Subject { return Subject{WorkflowEvents, workflow, ""} }

// OfWorkflowRun is the subject of one run of a workflow.
func OfWorkflowRun(workflow, run string) Subject { return Subject{WorkflowRunEvents, workflow, run} }

// OfRun is the subject of one run of a kind.
func OfRun(kind, owner, run string) Subject {
	if kind == "workflow" {
		return OfWorkflowRun(owner, run)
	}
	return OfAgentRun(owner, run)
}

// OfSession is the subject that mirrors every run of a session.
func OfSession(session string) Subject { return Subject{SessionEvents, session, ""} }

// OfSessionRun is the subject of one run under its session.
func OfSessionRun(session, run string) Subject { return Subject{SessionRunEvents, session, run} }

// fixed are the subjects without ids.
var fixed = []struct {
	kind        SubjectKind
	text, scope string
}{{MemoryConflicts, "memory/conflicts", "memory:read"}, {AuditEvents, "audit/events", "audit:read"}}

// String is the text form.
func (s Subject) String() string {
	for _, f := range fixed {
		if f.kind == s.Kind {
			return f.text
		}
	}
	resource, _, _ := strings.Cut(string(s.Kind), "-")
	if s.Run != "" {
		return resource + ":" + s.Owner + "/runs/" + s.Run + "/events"
	}
	return resource + ":" + s.Owner + "/events"
}

// Scope is the scope that covers a subscription.
func (s Subject) Scope() string {
	for _, f := range fixed {
		if f.kind == s.Kind {
			return f.scope
		}
	}
	resource, _, _ := strings.Cut(string(s.Kind), "-")
	return resource + "s:read:" + s.Owner
}

// ParseSubject reads the text form. The error is config-invalid; its Extra member "reason" is subject-malformed,
// subject-wildcard or subject-unknown.
func ParseSubject(text string) (Subject, error) {
	refuse := func(reason, message string) (Subject, error) {
		return Subject{}, fault.Invalid(message).With("reason", reason)
	}
	switch {
	case text == "":
		return refuse("subject-malformed", "A subject is not empty.")
	case strings.ContainsAny(text, "*#"):
		return refuse("subject-wildcard", "Subjects have no wildcards.")
	}
	for _, f := range fixed {
		if f.text == text {
			return Subject{Kind: f.kind}, nil
		}
	}
	resource, rest, ok := strings.Cut(text, ":")
	path, tail := strings.CutSuffix(rest, "/events")
	if !ok || !tail {
		return refuse("subject-unknown", "Unknown subject grammar.")
	}
	owner, run, ofRun := strings.Cut(path, "/runs/")
	kind := SubjectKind(resource + "-events")
	if ofRun {
		kind = SubjectKind(resource + "-run-events")
	}
	switch kind {
	case SessionEvents, SessionRunEvents, AgentRunEvents, WorkflowEvents, WorkflowRunEvents:
	default:
		return refuse("subject-unknown", "Unknown subject grammar.")
	}
	if max(len(owner), len(run)) > 128 {
		return refuse("subject-malformed", "An id in a subject has at most 128 characters.")
	}
	if !ValidID(owner) || (ofRun && !ValidID(run)) {
		return refuse("subject-unknown", "Unknown subject grammar.")
	}
	return Subject{Kind: kind, Owner: owner, Run: run}, nil
}
