package gate

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"time"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
)

// Audit is the stage that records what principals do: one entry per request, whatever became of it. No byte of an
// answer leaves before its entry is durable, so an answer of up to heldAnswer is held back whole; a longer one, a stream
// and an upgrade have their entry before their first byte.
type Audit struct {
	Log *audit.Log // nil: nothing is recorded
	// Trailing lets the answer of a read leave while its entry is on its way.
	Trailing bool
}

// heldAnswer is how much of an answer waits in memory for its entry.
const heldAnswer = 64 << 10

// held is an answer that has not begun to leave.
type held struct {
	g     *Gate
	r     *http.Request
	q     *Request
	start time.Time
	body  []byte
	err   error // its entry could not be made: nothing of the answer leaves
}

var errRefused = errors.New("gate: the answer was refused, because it could not be recorded")

// hold begins to hold an answer back.
func (w *recorder) hold(g *Gate, r *http.Request, q *Request, start time.Time) {
	if g.opts.Audit.Log != nil {
		w.held = &held{g: g, r: r, q: q, start: start}
	}
}

// release makes the entry and lets go of what was held. It does nothing the second time, and when nothing is held.
func (w *recorder) release() error {
	h := w.held
	if h == nil {
		return w.refused
	}
	w.held = nil
	if err := h.record(w); err != nil {
		w.refuse(h, err)
		return err
	}
	if w.status == 0 {
		return nil
	}
	w.ResponseWriter.WriteHeader(w.status)
	if len(h.body) == 0 {
		return nil
	}
	_, err := w.ResponseWriter.Write(h.body)
	return err
}

// refuse answers with an error instead of what was held. What comes yet is dropped.
func (w *recorder) refuse(h *held, err error) {
	w.refused, w.status = err, 0
	for _, name := range []string{"Content-Length", "Content-Type", "Content-Encoding", "Content-Disposition", "Retry-After", "Www-Authenticate"} {
		w.Header().Del(name)
	}
	h.g.Fail(&refusal{w}, h.r, err)
}

// refusal writes the answer that stands in for one that was refused.
type refusal struct{ w *recorder }

func (f *refusal) Header() http.Header         { return f.w.Header() }
func (f *refusal) Unwrap() http.ResponseWriter { return f.w.ResponseWriter }
func (f *refusal) Write(b []byte) (int, error) { return f.w.ResponseWriter.Write(b) }
func (f *refusal) WriteHeader(status int) {
	f.w.status = status
	f.w.ResponseWriter.WriteHeader(status)
}

// abandon makes the entry of an answer that is cut off before anything of it has left.
func (w *recorder) abandon() {
	if h := w.held; h != nil {
		w.held = nil
		if w.status < 400 {
			w.status = http.StatusInternalServerError
		}
		if err := h.record(w); err != nil {
			h.g.opts.Logger.Error("request not recorded", "request", h.q.ID, "error", err)
		}
		w.refused = errRefused
	}
}

// record makes the entry.
func (h *held) record(w *recorder) error {
	p := h.q.Principal
	if p.Kind == "" {
		return nil
	}
	status := w.status
	if status == 0 {
		status = http.StatusOK // what net/http sends for a handler that writes nothing
	}
	meta := map[string]any{"method": method(h.r.Method), "status": status, "durationMs": time.Since(h.start).Milliseconds(), "requestId": h.q.ID}
	if key := h.r.Header.Get("Idempotency-Key"); key != "" && len(key) <= 255 {
		meta["idempotencyKey"] = key
	}
	if w.Header().Get("Idempotency-Replayed") == "true" {
		meta["idempotencyReplayed"] = true
	}
	maps.Copy(meta, h.q.facts)
	a := &h.g.opts.Audit
	do := a.Log.Append
	if a.Trailing && (h.r.Method == http.MethodGet || h.r.Method == http.MethodHead) {
		do = a.Log.Note
	}
	// The client may have left, and what it asked for is done all the same.
	return do(context.WithoutCancel(h.r.Context()), audit.Record{Actor: Actor(p), Action: audit.HTTPRequest, Target: h.r.URL.Path, Decision: Decision(status), Context: h.q.about, Metadata: meta})
}

// Actor is a principal as the audit chain names it.
func Actor(p auth.Principal) audit.Actor {
	switch p.Kind {
	case auth.KindToken:
		return audit.Actor{Kind: audit.ActorToken, ID: p.TokenID, Label: p.Label}
	case auth.KindOperator:
		return audit.Actor{Kind: audit.ActorCLI, ID: p.Label}
	}
	return audit.Actor{Kind: audit.ActorSystem, ID: "anonymous"}
}

// Decision is what became of a request that was answered with a status.
func Decision(status int) audit.Decision {
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
	v := audit.Denial{Code: kind.Code, IP: q.IP, Method: method(r.Method), Target: r.URL.Path, RequestID: q.ID}
	if err := g.opts.Audit.Log.Denied(context.WithoutCancel(r.Context()), v); err != nil {
		g.opts.Logger.Error("denied authentication not recorded", "request", q.ID, "error", err)
	}
}

// granted records an authentication, unless that of the same principal and address was recorded a while ago.
func (g *Gate) granted(r *http.Request, q *Request, by string) {
	if g.opts.Audit.Log == nil || q.Principal.Kind != auth.KindToken {
		return
	}
	v := audit.Grant{Actor: Actor(q.Principal), IP: q.IP, By: by, Method: method(r.Method), Target: r.URL.Path, RequestID: q.ID}
	if err := g.opts.Audit.Log.Granted(context.WithoutCancel(r.Context()), v); err != nil {
		g.opts.Logger.Error("authentication not recorded", "request", q.ID, "error", err)
	}
}

// Recognised tells who calls and what proves it, bearer or ticket, or why nobody does, where an endpoint has found out
// itself. The error is that of the rate limit: then the endpoint refuses the request with it.
func (w *recorder) Recognised(p auth.Principal, by string, err error) error {
	w.q.Principal = p
	if refused := w.limit(); refused != nil {
		w.q.Principal = auth.Principal{}
		return refused
	}
	if h := w.held; h != nil {
		if err != nil {
			h.g.denied(h.r, h.q, err)
		} else {
			h.g.granted(h.r, h.q, by)
		}
	}
	return nil
}

// limit counts a request that has not been counted yet.
func (w *recorder) limit() error {
	count := w.unlimited
	if w.unlimited = nil; count == nil {
		return nil
	}
	return count()
}

// recorder remembers the status for log and metrics, and holds an answer back until it is recorded.
type recorder struct {
	http.ResponseWriter
	q       *Request
	status  int
	held    *held // nil: what is written leaves at once
	refused error

	unlimited func() error // counts the request for the rate limit, which it has not been; nil: it has
}

func (w *recorder) WriteHeader(status int) {
	if w.refused != nil {
		return
	}
	w.begin(status)
	if w.held == nil {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.refused != nil {
		return 0, errRefused
	}
	w.begin(http.StatusOK)
	if h := w.held; h != nil {
		if len(h.body)+len(b) <= heldAnswer {
			h.body = append(h.body, b...)
			return len(b), nil
		}
		if err := w.release(); err != nil {
			return 0, err
		}
	}
	return w.ResponseWriter.Write(b)
}

// begin notes the status of an answer that begins, and how long the client may take to read it.
func (w *recorder) begin(status int) {
	if w.status == 0 {
		w.status = status
		http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTimeout)) //nolint:errcheck // a recorder in a test has none
	}
}

// FlushError is for http.ResponseController.
func (w *recorder) FlushError() error {
	if w.held != nil {
		w.begin(http.StatusOK)
	}
	if err := w.release(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack is for http.ResponseController. Who takes the connection over says what it is going to answer by SetStatus before.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if h := w.held; h != nil {
		w.held = nil
		if err := h.record(w); err != nil {
			w.refuse(h, err)
			return nil, nil, err
		}
	}
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		w.status = 0
	}
	return conn, rw, err
}

// SetStatus notes what an endpoint is going to answer that takes the connection over; 0 when it does not after all.
func (w *recorder) SetStatus(status int) { w.status = status }

// Unwrap gives http.ResponseController the writer below.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
