// Package notify reports to receivers outside what has happened to runs. It writes a row in the transaction of the change, and then
// sends signed requests until the receiver has answered one with 2xx, or three days have passed.
//
//	commit of a run ── Note: a row for each target that wants its type
//	Run ── for each target: what waits ── webhook.Target.Begin ── POST ── End ── the outcome, in one transaction
//
// A crash between an answer and its transaction repeats the request under the same webhook-id: a receiver gets each
// notification at least once.
package notify

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"agentd/server/event"
	"agentd/server/id"
	"agentd/server/run"
	"agentd/server/webhook"
	"agentd/store"
)

// The types of notifications.
const (
	ApprovalRequested = "approval.requested"
	RunCompleted      = "run.completed"
	RunFailed         = "run.failed"
	BudgetExceeded    = "budget.exceeded"
)

// budgetCode is the code of the error of a run that has exceeded its budget.
const budgetCode = "budget-exceeded"

// A Target is a receiver, and what it is told.
type Target struct {
	ID     string // see TargetID
	URL    string
	On     []string // types
	Agents []string // agents and workflows; empty: all
	Signer *webhook.Signer
	// Transport makes the connections. It follows no redirects.
	Transport http.RoundTripper
}

// TargetID is what names the receiver at an address in rows and in the log: its host, and a digest of the address, because a
// path or query may be secret.
func TargetID(address string) string {
	sum := sha256.Sum256([]byte(address))
	host := ""
	if u, err := url.Parse(address); err == nil {
		host = u.Host
	}
	return host + "#" + hex.EncodeToString(sum[:4])
}

// Options are what a daemon is made from.
type Options struct {
	Targets []Target // with different addresses
	Store   *store.Notifications
	Logger  *slog.Logger
}

// Daemon writes notifications and delivers them. Its methods may be called from any goroutine.
type Daemon struct {
	o    Options
	wake []chan struct{} // of each target; it holds one
	all  chan struct{}   // a place for each attempt in progress
}

// New makes a daemon. It starts nothing.
func New(o Options) *Daemon {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	d := &Daemon{o: o, all: make(chan struct{}, maxAttempts)}
	for range o.Targets {
		d.wake = append(d.wake, make(chan struct{}, 1))
	}
	return d
}

// body is what a receiver gets.
type body struct {
	Type      string `json:"type"`
	Timestamp string `json:"timestamp"`
	Sequence  int64  `json:"sequence"` // from 1, without gaps for a target
	Data      data   `json:"data"`
}

// data is what a notification holds of a run: ids and states, nothing that a model or a person wrote.
type data struct {
	RunID           string `json:"runId"`
	Kind            string `json:"kind"` // agent or workflow
	Owner           string `json:"owner"`
	SessionID       string `json:"sessionId,omitempty"`
	Status          string `json:"status"`
	ErrorCode       string `json:"errorCode,omitempty"`
	ToolCallID      string `json:"toolCallId,omitempty"`
	ToolName        string `json:"toolName,omitempty"`
	ArgumentsSHA256 string `json:"argumentsSha256,omitempty"`
}

// Note returns what writes the notifications of a commit in its transaction, or nil if it has none. The run was in another
// status before the commit.
func (d *Daemon) Note(row *store.Run, was store.Status, list []run.Happening) func(*store.Tx) error {
	var all []body
	add := func(typ string, v data) { all = append(all, body{Type: typ, Data: v}) }
	of := data{RunID: row.ID, Kind: row.Kind, Owner: row.Owner, SessionID: row.Session, Status: string(row.Status)}
	for _, h := range list {
		if h.Event == event.ApprovalRequested {
			v := of
			v.ToolCallID, v.ToolName, v.ArgumentsSHA256 = h.ToolCallID, h.ToolName, h.ArgsDigest
			add(ApprovalRequested, v)
		}
	}
	if row.Status != was && row.Parent == 0 && row.Host == 0 { // the end of what another run called is a part of that one's
		switch row.Status {
		case store.Completed:
			add(RunCompleted, of)
		case store.Failed:
			var failed struct{ Code string }
			json.Unmarshal(row.Error, &failed) //nolint:errcheck // without a code there is none to show
			of.ErrorCode = failed.Code
			add(RunFailed, of)
			if failed.Code == budgetCode {
				add(BudgetExceeded, of)
			}
		}
	}
	if !slices.ContainsFunc(d.o.Targets, func(t Target) bool {
		return slices.ContainsFunc(all, func(b body) bool { return t.wants(b) })
	}) {
		return nil
	}
	return func(tx *store.Tx) error {
		for i, t := range d.o.Targets {
			for _, b := range all {
				if t.wants(b) {
					if err := d.add(tx, t.ID, b); err != nil {
						return err
					}
					d.kick(i)
				}
			}
		}
		return nil
	}
}

func (t *Target) wants(b body) bool {
	return slices.Contains(t.On, b.Type) && (len(t.Agents) == 0 || slices.Contains(t.Agents, b.Data.Owner))
}

// add writes a notification. The row keeps its body without the sequence, which send adds.
func (d *Daemon) add(tx *store.Tx, target string, b body) error {
	now := time.Now()
	b.Timestamp = now.UTC().Format(time.RFC3339Nano)
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return d.o.Store.Add(tx, &store.Notification{ID: "msg_" + id.New(), Target: target, Type: b.Type, Body: text, At: now.UnixMilli()})
}

// kick has the daemon look at a target soon.
func (d *Daemon) kick(target int) {
	select {
	case d.wake[target] <- struct{}{}:
	default:
	}
}
