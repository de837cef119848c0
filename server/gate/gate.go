// Package gate is the ordered stages that every request passes before an endpoint.
//
//	recover and request id -> log -> CORS (answers preflight) -> mux -> rate limit -> authenticate -> audit ->
//	CSRF and, without tokens, origin -> draining -> scope -> body limit -> idempotency -> endpoint
//
// Where tokens have their own rate, a request authenticates before the rate limit, which counts it for its principal or,
// without one, for its address.
//
// Each stage is a decision, a function from a request to an error, and a small handler around it. The stages before
// draining are the gate's, as the row of the route asks for them; those after it belong to the route.
package gate

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/tracecontext"
)

// Options are what a gate works with.
type Options struct {
	BasePath   string // "/v1"
	TrustProxy bool   // take the client's address from X-Forwarded-For
	Verifier   *auth.Verifier
	Tickets    *auth.Tickets // where there is a Verifier
	Origins    Origins       // checked when there is no Verifier
	CORS       CORS
	CSRF       CSRF
	Limiter    *Limiter // nil: addresses may send as much as they like
	PerToken   *Limiter // for requests with a valid token; nil: they count for their address, too
	Audit      Audit
	Metrics    *metrics.Inventory
	Logger     *slog.Logger
}

// Gate is the part of the way that all requests have in common. It is the handler of the HTTP server.
type Gate struct {
	opts     Options
	mux      *http.ServeMux
	draining atomic.Bool
}

// A Row is a route: what the gate does for its requests, and who answers them.
type Row struct {
	Pattern  string // of [http.ServeMux]
	Public   bool   // the route needs no token
	Probe    bool   // requests are not counted, and may name the server by its address; see [Origins.Check]
	Upgrade  bool   // the endpoint authenticates, after the handshake
	Signed   bool   // the endpoint authenticates with [Gate.Signed], once it has the body
	Ticketed bool   // a ticket in the query stands for the token, since a browser's EventSource can send none

	Action  audit.Action // that the route takes, for the audit chain; empty: it takes none
	Refused audit.Action // written instead of Action for a refusal; empty: Action
	Target  string       // of the action, such as "run:{runId}" with a parameter of the path

	// Serve answers. An error is rendered as [Gate.Fail] does.
	Serve func(w http.ResponseWriter, r *http.Request) error
}

// New makes a gate without routes. A nil Verifier lets everybody in as anonymous with all scopes (auth.kind=none).
func New(o Options) *Gate {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gate{opts: o, mux: http.NewServeMux()}
	g.Handle(Row{Pattern: "/", Serve: g.unmatched})
	return g
}

// Handle adds routes. It must be called before the gate serves.
func (g *Gate) Handle(rows ...Row) {
	for _, row := range rows {
		g.mux.HandleFunc(row.Pattern, func(w http.ResponseWriter, r *http.Request) { g.pass(w.(*recorder), r, &row) })
	}
}

// Drain makes the gate return [Draining] from now on.
func (g *Gate) Drain() { g.draining.Store(true) }

// Draining refuses new work while the server stops; reading still works.
func (g *Gate) Draining() error {
	if g.draining.Load() {
		return fault.New(fault.ServerDraining, "The server is stopping.").After(5 * time.Second)
	}
	return nil
}

// Request is what the gate has found out about a request.
type Request struct {
	ID        string
	IP        netip.Addr // zero when unknown
	Principal auth.Principal

	entry entry
}

type requestKey struct{}

// Of returns what the gate has found out. It is for the transport layer only, which passes the principal on as a
// parameter.
func Of(r *http.Request) *Request {
	q, _ := r.Context().Value(requestKey{}).(*Request)
	if q == nil {
		return &Request{}
	}
	return q
}

type insideKey struct{}

// Inside is the context of requests that a process sends to its own handler, without a network in between: they are the
// principal's, and are not limited, authenticated or held to their origin. No header or address gives a request this
// context, so none that comes from outside can have it.
func Inside(ctx context.Context, p auth.Principal) context.Context {
	return context.WithValue(ctx, insideKey{}, p)
}

// ServeHTTP takes a request through the stages.
func (g *Gate) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	q := &Request{ID: requestID(r.Header.Get("X-Request-Id")), IP: g.clientIP(r)}
	caller := tracecontext.Of(r.Header)
	caller.Request = q.ID
	r = r.WithContext(tracecontext.With(context.WithValue(r.Context(), requestKey{}, q), caller))
	w := &recorder{ResponseWriter: rw, g: g, r: r, q: q, start: time.Now()}
	bound(rw, r)
	h := w.Header()
	h.Set("X-Request-Id", q.ID)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	defer g.finish(w, r, q)
	defer g.caught(w, r)
	for name, values := range g.opts.CORS.headers(r, &g.opts.CSRF, g.opts.Verifier == nil) {
		h[name] = values
	}
	switch {
	case preflight(r):
		w.WriteHeader(http.StatusNoContent)
	case clean(r.URL.Path):
		g.mux.ServeHTTP(w, r)
	default: // for which the mux would answer with a redirect
		g.pass(w, r, &Row{Serve: g.unmatched})
	}
}

// pass takes a request through the stages that its row asks for.
func (g *Gate) pass(w *recorder, r *http.Request, row *Row) {
	w.row = row
	err := g.admit(w, r, row)
	if err == nil {
		err = row.Serve(w, r)
	}
	if err != nil {
		g.Fail(w, r, err)
	}
	w.count()   //nolint:errcheck // the answer is given, and counts for the address
	w.release() //nolint:errcheck // release has answered
}

// admit is the stages from the rate limit to CSRF.
func (g *Gate) admit(w *recorder, r *http.Request, row *Row) error {
	if p, ok := r.Context().Value(insideKey{}).(auth.Principal); ok {
		return g.inside(w, r, row, p)
	}
	w.uncounted = !row.Probe
	if g.opts.PerToken == nil {
		if err := w.count(); err != nil {
			return err
		}
	}
	by, err := g.authenticate(r, w.q, row)
	if !row.Upgrade || !credentials(r) { // else the endpoint finds out whose they are
		if refused := w.count(); refused != nil {
			w.q.Principal = auth.Principal{} // so it is not recorded, as where addresses are limited
			err = refused
		}
	}
	switch {
	case err != nil:
		g.denied(r, w.q, err)
		return err
	case w.q.Principal.Kind != "" || row.Upgrade || row.Signed:
		g.granted(r, w.q, by)
		w.record()
	}
	return g.protect(w, r, row)
}

// inside admits a request of this process. Before an action is taken, an entry shows that the chain can be written: so
// nothing is done that cannot be recorded.
func (g *Gate) inside(w *recorder, r *http.Request, row *Row, p auth.Principal) error {
	w.q.Principal = p
	w.record()
	if row.Action == "" || r.Method == http.MethodGet {
		return nil
	}
	return g.Record(r.Context(), p, audit.Record{Action: audit.AuthGranted, Target: r.URL.Path,
		Metadata: map[string]any{"by": "cli", "method": method(r.Method), "requestId": w.q.ID}}, nil)
}

// bodyTimeout is how long a client may take to send its body, which net/http waits for even when nobody reads it.
const bodyTimeout = 30 * time.Second

// bound limits how long a client may take to send and to read. net/http lifts the first bound when all of the body has
// come; the other is set when the answer begins.
func bound(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	rc.SetWriteDeadline(time.Time{}) //nolint:errcheck // that of the answer before
	if r.ContentLength != 0 {
		rc.SetReadDeadline(time.Now().Add(bodyTimeout)) //nolint:errcheck // a recorder in a test has none
	}
}

// count counts the request, once: for its principal where tokens have their own rate, else for its address.
func (w *recorder) count() error {
	o := &w.g.opts
	if !w.uncounted {
		return nil
	}
	w.uncounted = false
	switch {
	case o.PerToken != nil && w.q.Principal.Kind == auth.KindToken:
		return o.PerToken.TakeFrom(w.q.Principal).write(w.Header(), "with this token, or others of its lineage")
	case o.Limiter != nil:
		return o.Limiter.Take(w.q.IP).write(w.Header(), "from this address")
	}
	return nil
}

// credentials reports whether an upgrade carries a token or a ticket.
func credentials(r *http.Request) bool {
	_, ok := Bearer(r)
	return ok || strings.Contains(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), "ticket.")
}

// open reports whether requests for a row need no token: those for public routes and those outside the base path.
func (g *Gate) open(r *http.Request, row *Row) bool {
	return row.Public || !strings.HasPrefix(r.URL.Path, g.opts.BasePath+"/")
}

// protect refuses what a web page may have made its reader's browser send.
func (g *Gate) protect(w http.ResponseWriter, r *http.Request, row *Row) error {
	if g.opts.Verifier == nil {
		if err := g.opts.Origins.Check(r, row.Probe); err != nil {
			return err
		}
	}
	if g.open(r, row) || row.Signed { // no page makes a signature
		return nil
	}
	if err := g.opts.CSRF.Check(r); err != nil {
		return err
	}
	listed, all := g.opts.CORS.allows(r)
	g.opts.CSRF.offer(w, r, listed || all)
	return nil
}

// clean reports whether a path is as [http.ServeMux] matches it. The mux redirects requests for other paths.
func clean(p string) bool {
	c := path.Clean(p)
	return strings.HasPrefix(p, "/") && (c == p || c+"/" == p)
}

// caught answers for a handler that panicked. It is one of the two edges at which panics stop.
func (g *Gate) caught(w *recorder, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p != http.ErrAbortHandler {
		g.opts.Logger.Error("handler panicked", "request", w.q.ID, "panic", p, "stack", string(debug.Stack()))
		if w.status == 0 || w.room > 0 {
			g.Fail(w, r, fault.New(fault.Internal, "The server could not complete the request."))
			w.release() //nolint:errcheck // release has answered
			return
		}
	}
	w.abandon()
	panic(http.ErrAbortHandler) // cut the answer, so that nobody takes it for whole
}

func (g *Gate) finish(w *recorder, r *http.Request, q *Request) {
	took := time.Since(w.start)
	route := "none"
	if w.row != nil && w.row.Pattern != "/" && w.row.Pattern != "" {
		_, route, _ = strings.Cut(w.row.Pattern, " ")
	}
	if m := g.opts.Metrics; m != nil {
		m.HTTPRequests.With(route, method(r.Method), strconv.Itoa(w.status)).Inc()
		m.HTTPDuration.Observe(took.Seconds())
		m.HTTPLatency.Observe(took.Seconds())
	}
	if g.opts.Logger.Enabled(r.Context(), slog.LevelDebug) {
		tracecontext.Log(r.Context(), g.opts.Logger).Debug("request", "method", r.Method, "path", r.URL.Path, "status", w.status,
			"ms", took.Milliseconds(), "token", q.Principal.TokenID)
	}
}

// methods are those that routes may have, in the order of the header Allow.
var methods = []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}

// method bounds the values of a metric's label.
func method(m string) string {
	if slices.Contains(methods, m) {
		return m
	}
	return "other"
}

// unmatched answers requests that no route takes.
func (g *Gate) unmatched(w http.ResponseWriter, r *http.Request) error {
	var allow []string
	for _, m := range methods {
		if _, pattern := g.mux.Handler(&http.Request{Method: m, Host: r.Host, URL: r.URL}); pattern != "/" && clean(r.URL.Path) {
			allow = append(allow, m)
		}
	}
	if allow == nil {
		return fault.New(fault.NotFound, "No route matches %s %s.", method(r.Method), r.URL.Path)
	}
	names := strings.Join(allow, ", ")
	w.Header().Set("Allow", names)
	return fault.New(fault.MethodNotAllowed, "The path accepts only %s.", names)
}

// requestID takes over an id of 1 to 128 visible ASCII characters and replaces any other.
func requestID(given string) string {
	if len(given) == 0 || len(given) > 128 || strings.ContainsFunc(given, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return id.New()
	}
	return given
}

// clientIP is the address of the connection or, behind a proxy that is trusted, the hop that it names last: what
// stands further left in X-Forwarded-For may be invented by the client, and what cannot be read names nobody.
func (g *Gate) clientIP(r *http.Request) netip.Addr {
	if g.opts.TrustProxy {
		hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
		if ip, ok := hop(strings.TrimSpace(hops[len(hops)-1])); ok {
			return ip
		}
	}
	if ap, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return ap.Addr().Unmap()
	}
	return netip.Addr{}
}

// hop reads an address as proxies write it: 192.0.2.1, 192.0.2.1:80, 2001:db8::1, [2001:db8::1] or [2001:db8::1]:80.
func hop(text string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		var ap netip.AddrPort
		if ap, err = netip.ParseAddrPort(text); err == nil {
			ip = ap.Addr()
		}
	}
	if inner, ok := strings.CutPrefix(text, "["); ok && err != nil {
		if inner, ok = strings.CutSuffix(inner, "]"); ok && strings.Contains(inner, ":") {
			ip, err = netip.ParseAddr(inner)
		}
	}
	return ip.Unmap().WithZone(""), err == nil
}

// TicketParameter is the query parameter of rows that are ticketed.
const TicketParameter = "ticket"

// authenticate finds the principal, and what proves it: bearer or ticket. A bad ticket is refused even beside a good token.
func (g *Gate) authenticate(r *http.Request, q *Request, row *Row) (by string, err error) {
	if g.open(r, row) || row.Signed {
		return "", nil
	}
	if g.opts.Verifier == nil {
		q.Principal = auth.Anonymous()
		return "", nil
	}
	if row.Upgrade {
		return "", nil
	}
	if row.Ticketed {
		if ticket := r.URL.Query().Get(TicketParameter); ticket != "" {
			q.Principal, err = g.opts.Tickets.Take(ticket)
			return "ticket", err
		}
	}
	raw, ok := Bearer(r)
	if !ok {
		return "", fault.New(fault.AuthRequired, "The request carries no bearer token.")
	}
	q.Principal, err = g.opts.Verifier.Verify(r.Context(), q.IP, auth.Raw(raw))
	return "bearer", err
}

// Signed authenticates a request of a row that is Signed by a signature over its body. check returns whose it is; an error that
// is not of status 401 is about a request whose signature is good. What check refuses counts for the lockout of the address as
// a bad token does, and is recorded; a good signature passes also from an address that is locked out.
func (g *Gate) Signed(r *http.Request, check func() (auth.Principal, error)) error {
	q := Of(r)
	var p auth.Principal
	try := func() (err error) {
		p, err = check()
		return err
	}
	var err error
	if v := g.opts.Verifier; v != nil {
		err = v.Attempt(r.Context(), q.IP, try)
	} else {
		err = try()
	}
	if err != nil {
		if kind := fault.Of(err).Kind; kind.Status == http.StatusUnauthorized || kind == fault.AuthLockedOut {
			g.denied(r, q, err)
			return err
		}
	}
	q.Principal = p
	return err
}

// Bearer is the token in a request's Authorization header.
func Bearer(r *http.Request) (token string, ok bool) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(rest)
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}
