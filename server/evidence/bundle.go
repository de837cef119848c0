// Package evidence writes and verifies bundles: files that show what one run did and who allowed it, without the server.
//
// A bundle, `svc-evidence/1.2`, is lines of JSON. The first is the [Manifest]: the name, the length and the SHA-256 of
// each member. The members follow, in the order of the manifest, as one or more lines each:
//
//	run         the run with its whole state, as in `GET /runs/{id}/state`, and who started it
//	events      its durable events, one a line
//	calls       its journal of tool calls with the decisions on them, one a line
//	approvals   the calls that needed a person, one a line
//	config      the servers that the run was in: version, digest of the configuration and which tool events were recorded,
//	            one a line
//	program     the version of the program that wrote the bundle
//	key         the public key of the audit chain
//	checkpoint  a signed head of the chain that covers the entries
//	entries     the entries of the chain that concern the run, each with the proof that it is under that head
//
// The same run, chain and checkpoint give the same bytes. A whole bundle shows that its entries were in the chain when
// the holder of the key signed, and that the chain names whoever decided on each call. It also shows who started the run,
// if an entry names that. No entry does if the run is a child run, or if it started before there was a chain; a report
// says so.
//
// With audit.toolEvents off, a decision has no separate entry. The entry of the request that made it then names the call
// and the decision. The bundle says that tool events were not recorded. It cannot say so to hide a decision, because it
// shows no decision without an entry that names it. A run with a decision without a request, for example because an
// approval expired, therefore has no bundle.
//
// The entries about a call hold its tool and the digest of its arguments, and those of a decision its reason. Verification
// compares everything that the members show of the call with them: a payment that is changed throughout a bundle, with
// matching hashes, still differs from the chain. A call that needed no approval has an entry only with audit.toolEvents
// all.
//
// A run of a workflow deletes the events of its oldest steps. The manifest then names the first event that there is, and the
// calls of the deleted events are in the entries only; a report says so.
//
// A bundle does not show that no entry about the run was left out. What its members say beyond the entries rests on the
// word of whoever wrote it; the manifest names those members. A bundle is not encrypted.
package evidence

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"

	"agentd/server/message"
	"agentd/store"
)

// Version is the label of what this package writes. It reads [Second] and [First] too.
const Version = "svc-evidence/1.2"

// Second is the label of bundles whose manifest does not name the members that are the writer's word.
const Second = "svc-evidence/1.1"

// First is the label of bundles whose member config does not show which tool events were recorded.
const First = "svc-evidence/1.0"

// Limits of a bundle.
const (
	MaxBytes   = 256 << 20
	maxEntries = 10_000 // of the chain; starts of servers are not counted
)

// Names of the members.
const (
	memberRun        = "run"
	memberEvents     = "events"
	memberCalls      = "calls"
	memberApprovals  = "approvals"
	memberConfig     = "config"
	memberProgram    = "program"
	memberKey        = "key"
	memberCheckpoint = "checkpoint"
	memberEntries    = "entries"

	manifestName = "manifest" // of the first line, in reports
)

// memberNames are the names of all members, in their order.
var memberNames = []string{memberRun, memberEvents, memberCalls, memberApprovals, memberConfig, memberProgram, memberKey, memberCheckpoint, memberEntries}

// writersWord are the members of which the chain shows only what its entries say of calls, decisions and the start.
var writersWord = []string{memberRun, memberEvents, memberCalls, memberApprovals, memberProgram}

// A Manifest is the first line of a bundle.
type Manifest struct {
	V       string `json:"v"`
	RunID   string `json:"runId"`
	Omitted int    `json:"omitted,omitempty"` // requests that name the run and are beyond the limit of entries or after the checkpoint
	// FirstEvent is the first event of a run of a workflow whose oldest events were deleted with their steps; 0: it has all.
	FirstEvent int `json:"firstEvent,omitempty"`
	// WritersWord names the members that the chain does not prove, beyond what its entries say.
	WritersWord []string `json:"writersWord,omitempty"`
	Members     []Member `json:"members"`
	SHA256      string   `json:"sha256"` // of the manifest as it is with this empty
}

// A Member describes a part of the bundle.
type Member struct {
	Name   string `json:"name"`
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"` // hex
}

// seal gives the manifest its own hash.
func (m *Manifest) seal() error {
	m.SHA256 = ""
	b, err := message.Encode(m)
	m.SHA256 = sum(b)
	return err
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// A Bundle is a finished bundle.
type Bundle struct {
	Manifest Manifest
	bodies   map[string][]byte
}

// Write writes the bundle. The error is that of w.
func (b *Bundle) Write(w io.Writer) error {
	line, err := message.Encode(b.Manifest)
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	out.Write(append(line, '\n')) //nolint:errcheck // Flush returns the error
	for _, m := range b.Manifest.Members {
		out.Write(b.bodies[m.Name]) //nolint:errcheck
	}
	return out.Flush()
}

// An eventLine is a line of the member events.
type eventLine struct {
	Seq     int             `json:"seq"`
	At      int64           `json:"at"` // milliseconds since 1970
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

// A callLine is a line of the member calls.
type callLine struct {
	Index      int             `json:"index"`
	Step       int             `json:"step"`
	ToolCallID string          `json:"toolCallId"`
	ToolName   string          `json:"toolName"`
	Phase      store.Phase     `json:"phase"`
	ArgsSHA256 string          `json:"argsSha256"`
	Canonical  bool            `json:"canonical,omitempty"` // the digest is of the canonical form of the arguments
	Attempts   int             `json:"attempts"`
	ClaimedAt  int64           `json:"claimedAt,omitempty"`
	SettledAt  int64           `json:"settledAt,omitempty"`
	ChildRunID string          `json:"childRunId,omitempty"`
	Reason     string          `json:"reason,omitempty"`
	Decision   json.RawMessage `json:"decision,omitempty"` // a journal.Decided
}

// An approvalLine is a line of the member approvals.
type approvalLine struct {
	ToolCallID string          `json:"toolCallId"`
	ToolName   string          `json:"toolName"`
	Status     string          `json:"status"` // waiting, granted or denied
	ArgsSHA256 string          `json:"argsSha256"`
	Decision   json.RawMessage `json:"decision,omitempty"`
}

// A configLine is a line of the member config: what the entry server:start with that number says.
type configLine struct {
	Seq          int64  `json:"seq"`
	Version      string `json:"version"`
	ConfigSHA256 string `json:"configSha256"`
	ToolEvents   string `json:"toolEvents,omitempty"` // that were recorded: security, all or off; servers before 1.1 did not record it
}

type programLine struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

type keyLine struct {
	PublicKeyPEM string `json:"publicKeyPem"`
}

// An entryLine is a line of the member entries: an entry in canonical form, and its path to the root of the checkpoint.
type entryLine struct {
	Entry json.RawMessage `json:"entry"`
	Path  []string        `json:"path"`
}

// encodeLines writes values as lines.
func encodeLines[T any](values ...T) ([]byte, error) {
	var b bytes.Buffer
	for _, v := range values {
		line, err := message.Encode(v)
		if err != nil {
			return nil, err
		}
		b.Write(append(line, '\n'))
	}
	return b.Bytes(), nil
}
