// Package notify reports to receivers outside what has happened. It writes a row in the transaction of the change, and then sends
// signed requests until the receiver has answered one with 2xx, or three days have passed.
//
//	commit of a run ── Note, Write: a row for each target that wants its type
//	Run ── for each target: what waits ── webhook.Target.Begin ── POST ── End ── the outcome, in one transaction
//
// A crash between an answer and its transaction repeats the request under the same webhook-id: a receiver gets each
// notification at least once.
package notify

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"agentd/metrics"
	"agentd/server/event"
	"agentd/server/expr"
	"agentd/server/id"
	"agentd/server/run"
	"agentd/server/span"
	"agentd/server/webhook"
	"agentd/store"
)

// The types of notifications.
const (
	ApprovalRequested = "approval.requested"
	RunCompleted      = "run.completed"
	RunFailed         = "run.failed"
	BudgetExceeded    = "budget.exceeded"
	TriggerMissed     = "trigger.missed"
	AuditBroken       = "audit.broken"
	HealthFailing     = "health.failing"

	test = "test" // of Test only
)

// budgetCode is the code of the error of a run that has exceeded its budget.
const budgetCode = "budget-exceeded"

// A Target is a receiver, and what agentd reports to it.
type Target struct {
	ID     string // see TargetID
	URL    string
	On     []string // types
	Agents []string // agents and workflows; empty: all
	// Template makes the body; nil: it is the JSON of a notification. Its variables are type, timestamp, sequence, data and
	// arguments.
	Template *expr.Template
	// Signer and Transport are needed by Run and Test only. Transport follows no redirects.
	Signer    *webhook.Signer
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
	Runs    *store.Runs
	Metrics *metrics.Inventory
	Logger  *slog.Logger
	// Arguments returns the arguments of a call that waits for a decision; nil if it does not wait. Templates may ask for them.
	Arguments func(ctx context.Context, runID, callID string) (json.RawMessage, error)
	// Redact hides the secrets that the server knows in the body that a template has made.
	Redact func(string) string
}

// Daemon writes notifications and delivers them. Its methods may be called from any goroutine.
type Daemon struct {
	o        Options
	wake     []chan struct{} // of each target; it holds one
	enabled  []atomic.Bool   // the row of a target has changed
	overflow atomic.Int64    // when the oldest last died because too many waited; 0: never
	testing  chan struct{}   // it holds one
}

// New makes a daemon. It starts nothing.
func New(o Options) *Daemon {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	d := &Daemon{o: o, enabled: make([]atomic.Bool, len(o.Targets)), testing: make(chan struct{}, 1)}
	for range o.Targets {
		d.wake = append(d.wake, make(chan struct{}, 1))
	}
	return d
}

// body is what a receiver gets, unless a template makes another one. A row keeps it without the sequence.
type body struct {
	Type      string          `json:"type"`
	Timestamp string          `json:"timestamp"`
	Sequence  int64           `json:"sequence,omitempty"` // from 1, without gaps for a target
	Data      json.RawMessage `json:"data"`
}

// ofRun is what a notification holds of a run: ids and states, nothing that a model or a person wrote.
type ofRun struct {
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

// Wants reports whether a target wants one of some types.
func (d *Daemon) Wants(types ...string) bool {
	return slices.ContainsFunc(d.o.Targets, func(t Target) bool {
		return slices.ContainsFunc(types, func(typ string) bool { return slices.Contains(t.On, typ) })
	})
}

// Note returns what writes the notifications of a commit in its transaction, or nil if it has none. The run was in another
// status before the commit.
func (d *Daemon) Note(row *store.Run, was store.Status, list []run.Happening) func(*store.Tx) error {
	type note struct {
		typ  string
		data ofRun
	}
	var all []note
	add := func(typ string, v ofRun) {
		if slices.ContainsFunc(d.o.Targets, func(t Target) bool { return t.wants(typ, row.Owner) }) {
			all = append(all, note{typ, v})
		}
	}
	of := ofRun{RunID: row.ID, Kind: row.Kind, Owner: row.Owner, SessionID: row.Session, Status: string(row.Status)}
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
	if all == nil {
		return nil
	}
	return func(tx *store.Tx) error {
		trace, err := d.trace(tx, row)
		for _, n := range all {
			if err == nil {
				err = d.write(tx, n.typ, row.Owner, trace, n.data)
			}
		}
		return err
	}
}

// trace is the traceparent of what happens in a run, whose row is in the store.
func (d *Daemon) trace(tx *store.Tx, row *store.Run) (string, error) {
	row, err := d.o.Runs.Find(tx, row.ID)
	root := row
	for err == nil && root.Parent != 0 {
		root, err = d.o.Runs.Number(tx, root.Parent)
	}
	if err != nil {
		return "", err
	}
	t, err := span.TraceOfRow(tx, d.o.Runs, root)
	return t.At(span.ID(row.N, span.OfRun, 0)).String(), err
}

// Write writes a notification about something else than a run, in the transaction of what it reports. owner is the agent or workflow
// that it concerns; empty: it concerns no single one, and reaches targets whatever their Agents are.
func (d *Daemon) Write(tx *store.Tx, typ, owner string, data any) error {
	return d.write(tx, typ, owner, "", data)
}

// Tell writes a notification in a transaction of its own. Where the store takes none, it sends the notification once, without a row.
func (d *Daemon) Tell(ctx context.Context, typ string, data any) {
	err := d.o.Store.Update(ctx, func(tx *store.Tx) error { return d.Write(tx, typ, "", data) })
	if err == nil || ctx.Err() != nil {
		return
	}
	d.o.Logger.Error("a notification could not be written: it is sent once", "type", typ, "error", err)
	v, err := d.row(typ, data)
	for i := range d.o.Targets {
		if t := &d.o.Targets[i]; err == nil && t.wants(typ, "") {
			d.send(ctx, t, v)
		}
	}
}

func (t *Target) wants(typ, owner string) bool {
	return slices.Contains(t.On, typ) && (owner == "" || len(t.Agents) == 0 || slices.Contains(t.Agents, owner))
}

func (d *Daemon) write(tx *store.Tx, typ, owner, trace string, data any) error {
	for i := range d.o.Targets {
		if t := &d.o.Targets[i]; t.wants(typ, owner) {
			v, err := d.row(typ, data)
			if err != nil {
				return err
			}
			v.Target, v.Trace = t.ID, trace
			if err := d.o.Store.Add(tx, v); err != nil {
				return err
			}
			d.kick(i)
		}
	}
	return nil
}

// row makes a notification, for no target yet.
func (d *Daemon) row(typ string, data any) (*store.Notification, error) {
	now := time.Now()
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(body{Type: typ, Timestamp: now.UTC().Format(time.RFC3339Nano), Data: raw})
	return &store.Notification{ID: "msg_" + id.New(), Type: typ, Body: text, At: now.UnixMilli()}, err
}

// kick has the daemon look at a target soon.
func (d *Daemon) kick(target int) {
	select {
	case d.wake[target] <- struct{}{}:
	default:
	}
}
