package gate

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"strings"
	"time"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/store"
)

// Audit is the stage that records what principals do: one entry for each request, whatever its outcome, and one for the
// action of its route. An endpoint can have them written in the transaction of its effect; see [Request.Commit]. No byte of an
// answer leaves before its entries are durable, so an answer of up to heldAnswer is held back whole; a longer one, a stream
// and an upgrade have their entries before their first byte.
type Audit struct {
	Log *audit.Log // nil: nothing is recorded
	// Trailing lets the answer of a read leave while its entry is on its way.
	Trailing bool
}

// entry is what an endpoint adds to the entries of its request.
type entry struct {
	about   audit.Context  // of all entries
	facts   map[string]any // metadata of the request's entry
	target  string         // of the action's; empty: as the row says
	details map[string]any // metadata of the action's
	done    bool           // the action was taken, whatever the status of the answer

	writer   *recorder // of the answer; nil: nothing is recorded
	acted    bool      // the entry of the action is written with its effect, if there is one
	answered int       // the entry of the request is written with its effect, as answered with this status; 0: it is not
}

// Concerns says which run a request is about and, where there is one, in which session: its path need not name them.
// Like the other methods that say something for the audit chain, it is for the goroutine of the request, before the
// answer begins to leave.
func (q *Request) Concerns(runID, sessionID string) {
	q.entry.about = audit.Context{RunID: runID, SessionID: sessionID}
}

// Fact adds to the metadata of the request's entry. The value is as [audit.Record] takes it, and at most 32 KiB long.
func (q *Request) Fact(name string, value any) {
	if q.entry.facts == nil {
		q.entry.facts = map[string]any{}
	}
	q.entry.facts[name] = value
}

// On says what the route's action is about, where that is not as the row says, and what its entry carries.
func (q *Request) On(target string, details map[string]any) {
	q.entry.target, q.entry.details = target, details
}

// Did says that the route's action was taken, and on what: also when the answer turns out to be an error. A request with
// an answer of 2xx has taken it in any case.
func (q *Request) Did(target string, details map[string]any) {
	q.entry.target, q.entry.details, q.entry.done = target, details, true
}

// Commit writes entries in the transaction of the request's effect: the one of its action and, unless the status is 0, the one
// of the request as answered with that status. The transaction must be of the database with the outbox of the audit chain. If
// it fails, the request must be answered with an error.
func (q *Request) Commit(tx *store.Tx, status int) error {
	if q.entry.writer == nil {
		return nil
	}
	records := q.entry.writer.entries(cmp.Or(status, http.StatusOK))
	if status == 0 {
		records = records[:len(records)-1]
	}
	entries, err := q.entry.writer.g.opts.Audit.Log.Prepare(records...)
	if err != nil {
		return err
	}
	q.entry.acted, q.entry.answered = true, status
	return entries.Write(tx)
}

// entries are the records of a request that is answered with a status.
func (w *recorder) entries(status int) []audit.Record {
	q, r, header := w.q, w.r, w.Header()
	request := audit.Record{Actor: Actor(q.Principal), Action: audit.HTTPRequest, Target: r.URL.Path, Decision: decision(status), Context: q.entry.about,
		Metadata: map[string]any{"method": method(r.Method), "status": status, "durationMs": time.Since(w.start).Milliseconds(), "requestId": q.ID}}
	if key := r.Header.Get("Idempotency-Key"); key != "" && len(key) <= 255 {
		request.Metadata["idempotencyKey"] = key
	}
	again := header.Get("Idempotency-Replayed") == "true"
	if again {
		request.Metadata["idempotencyReplayed"] = true
	}
	maps.Copy(request.Metadata, q.entry.facts)
	action := audit.Record{Actor: request.Actor, Action: w.row.Action, Target: q.entry.target, Decision: audit.Success, Context: q.entry.about, Metadata: q.entry.details}
	if action.Target == "" {
		action.Target = target(w.row, r)
	}
	switch {
	case action.Action == "" || q.entry.acted:
	case w.scope != nil:
		if w.row.Refused != "" {
			action.Action = w.row.Refused
		}
		refuse(&action, w.scope)
		return []audit.Record{action, request}
	case q.entry.done || status < 300 && !again:
		return []audit.Record{action, request}
	}
	return []audit.Record{request}
}

// refuse makes a record that of an action that was refused.
func refuse(r *audit.Record, err error) {
	f := fault.Of(err)
	r.Decision = decision(f.Kind.Status)
	if r.Metadata == nil {
		r.Metadata = map[string]any{}
	}
	r.Metadata["reason"] = f.Kind.Code
}

// target is what a row's action is about, by the path of the request.
func target(row *Row, r *http.Request) string {
	text, rest, found := strings.Cut(row.Target, "{")
	for found {
		var param, more string
		param, more, _ = strings.Cut(rest, "}")
		text += r.PathValue(param)
		more, rest, found = strings.Cut(more, "{")
		text += more
	}
	return text
}

// append writes the entries of the request.
func (w *recorder) append() error {
	if w.q.Principal.Kind == "" {
		return nil
	}
	status := w.status
	if status == 0 {
		status = http.StatusOK // what net/http sends for a handler that writes nothing
	}
	if status == w.q.entry.answered {
		return nil
	}
	a := &w.g.opts.Audit
	do := a.Log.Append
	if a.Trailing && (w.r.Method == http.MethodGet || w.r.Method == http.MethodHead) {
		do = a.Log.Note
	}
	// The client may have left, and what it asked for is done all the same.
	return do(context.WithoutCancel(w.r.Context()), w.entries(status)...)
}

// Record writes the entry of an action that is no request, such as one that is asked for over a WebSocket. Its actor is
// the principal, and its decision follows from the error with which it is refused, if there is one.
func (g *Gate) Record(ctx context.Context, p auth.Principal, r audit.Record, refused error) error {
	if g.opts.Audit.Log == nil {
		return nil
	}
	r.Actor, r.Decision = Actor(p), audit.Success
	if refused != nil {
		refuse(&r, refused)
	}
	return g.opts.Audit.Log.Append(context.WithoutCancel(ctx), r)
}

// Actor is a principal as the audit chain names it.
func Actor(p auth.Principal) audit.Actor {
	switch p.Kind {
	case auth.KindToken:
		return audit.Actor{Kind: audit.ActorToken, ID: p.TokenID, Label: p.Label}
	case auth.KindOperator:
		return audit.Actor{Kind: audit.ActorCLI, ID: p.Label}
	case auth.KindHook:
		return audit.Actor{Kind: audit.ActorHook, ID: p.Label}
	}
	return audit.Actor{Kind: audit.ActorSystem, ID: "anonymous"}
}

// decision is the outcome of a request that was answered with a status.
func decision(status int) audit.Decision {
	switch {
	case status >= 500 || status == 499: // the latter: the client had left
		return audit.Failed
	case status == http.StatusNotFound:
		return audit.NotFound
	case status >= 400:
		return audit.Denied
	}
	return audit.Success
}

// denied records an authentication that was refused.
func (g *Gate) denied(r *http.Request, q *Request, err error) {
	kind := fault.Of(err).Kind
	if g.opts.Audit.Log == nil || kind.Status != http.StatusUnauthorized && kind != fault.AuthLockedOut {
		return
	}
	v := audit.Denial{Code: kind.Code, From: auth.Network(q.IP), Method: method(r.Method), Target: r.URL.Path, RequestID: q.ID}
	if err := g.opts.Audit.Log.Denied(context.WithoutCancel(r.Context()), v); err != nil {
		g.opts.Logger.Error("failed login could not be recorded", "request", q.ID, "error", err)
	}
}

// granted records an authentication, unless that of the same principal and address was recorded a while ago.
func (g *Gate) granted(r *http.Request, q *Request, by string) {
	if g.opts.Audit.Log == nil || q.Principal.Kind != auth.KindToken {
		return
	}
	v := audit.Grant{Actor: Actor(q.Principal), From: auth.Network(q.IP), By: by, Method: method(r.Method), Target: r.URL.Path, RequestID: q.ID}
	if err := g.opts.Audit.Log.Granted(context.WithoutCancel(r.Context()), v); err != nil {
		g.opts.Logger.Error("authentication could not be recorded", "request", q.ID, "error", err)
	}
}
