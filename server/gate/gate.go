// Package gate is the ordered stages that every request passes before an endpoint.
//
//	recover and request id -> log -> CORS (answers preflight) -> rate limit -> authenticate -> audit -> CSRF and, without
//	tokens, origin -> mux -> draining -> scope -> body limit -> idempotency -> endpoint
//
// Where tokens have a rate of their own, a request authenticates before the rate limit, because that needs to know whose
// request it counts: a principal's, or else the address's.
//
// Each stage is a decision, a function from a request to an error, and a small handler around it. The stages before
// the mux are the gate's; those after it belong to the route that the mux has found.
package gate

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"agentd/auth"
	"agentd/metrics"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/id"
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
	PerToken   *Limiter // for requests with a token that is good; nil: they count for their address, too
	Audit      Audit
	Metrics    *metrics.Inventory
	Logger     *slog.Logger
}

// Gate is the part of the way that all requests have in common.
type Gate struct {
	opts     Options
	public   map[string]bool // patterns that need no token
	probes   map[string]bool // patterns that are not limited and need no host by name
	upgrades map[string]bool // patterns whose routes find out themselves who calls
	ticketed map[string]bool // patterns that take a ticket in the query
	late     map[string]bool // patterns whose routes tell themselves of a refused token
	draining atomic.Bool
}

// New makes a gate. A nil Verifier lets everybody in as anonymous with all scopes (auth.kind=none).
func New(o Options) *Gate {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Gate{opts: o, public: map[string]bool{}, late: map[string]bool{}, ticketed: map[string]bool{}, upgrades: map[string]bool{}, probes: map[string]bool{}}
}

// Public exempts a mux pattern from authentication. It must be called before the gate serves.
func (g *Gate) Public(pattern string) { g.public[pattern] = true }

// Probe exempts a mux pattern from the rate limit, so that no probe is ever refused, and lets it be called by an address
// without a name; see [Origins.Check]. It must be called before the gate serves.
func (g *Gate) Probe(pattern string) { g.probes[pattern] = true }

// Late lets requests for a mux pattern pass with a token that is missing or wrong, which is [Request.Refused] then: the
// route refuses them once it has looked at their body. The principal is nobody. Everything else is as for other
// patterns: a wrong token counts towards a lockout, and who is locked out does not pass. It must be called before the
// gate serves.
func (g *Gate) Late(pattern string) { g.late[pattern] = true }

// Upgrade leaves it to a mux pattern's route to find out who calls. Without tokens the origin is checked as for others. It
// must be called before the gate serves.
func (g *Gate) Upgrade(pattern string) { g.upgrades[pattern] = true }

// Ticketed lets a client of a mux pattern tell who it is by a single-use ticket in the query, since a browser's EventSource can
// send no token. A ticket that is no good is not made up for by a good token. It must be called before the gate serves.
func (g *Gate) Ticketed(pattern string) { g.ticketed[pattern] = true }

// Drain makes the gate tell [Draining] from now on.
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
	Refused   error // why there is none; only where a pattern is late

	about audit.Context  // of its entry in the audit chain
	facts map[string]any // further metadata of that entry
}

// Concerns tells the audit stage which run a request is about and, where there is one, in which session: its path need
// not name them. Like [Request.Fact] it is for the goroutine of the request, before the answer begins to leave.
func (q *Request) Concerns(runID, sessionID string) {
	q.about = audit.Context{RunID: runID, SessionID: sessionID}
}

// Fact adds to the metadata of the request's entry. The value is as [audit.Record] takes it, and at most 32 KiB long.
func (q *Request) Fact(name string, value any) {
	if q.facts == nil {
		q.facts = map[string]any{}
	}
	q.facts[name] = value
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

// inside is the principal of a request of this process.
func inside(r *http.Request) (p auth.Principal, ok bool) {
	p, ok = r.Context().Value(insideKey{}).(auth.Principal)
	return p, ok
}

// Handler puts the stages before a mux.
func (g *Gate) Handler(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		q := &Request{ID: requestID(r.Header.Get("X-Request-Id")), IP: g.clientIP(r)}
		r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
		w := &recorder{ResponseWriter: rw, q: q}
		bound(rw, r)
		h := w.Header()
		h.Set("X-Request-Id", q.ID)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		handler, pattern := mux.Handler(r)
		defer g.finish(w, r, q, pattern, start)
		defer g.caught(w, r)
		for name, values := range g.opts.CORS.headers(r, &g.opts.CSRF, g.opts.Verifier == nil) {
			h[name] = values
		}
		if preflight(r) {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		found := pattern != "" && r.URL.Path == clean(r.URL.Path)
		var err error
		_, ours := inside(r)
		if g.opts.PerToken == nil && !ours {
			err = g.limit(h, q, pattern)
		}
		if err == nil {
			var by string
			by, err = g.authenticate(r, q, pattern)
			if g.opts.PerToken != nil && !ours {
				if g.upgrades[pattern] && credentials(r) { // whose are they? The route finds out
					w.unlimited = func() error { return g.limit(h, q, pattern) }
				} else if refused := g.limit(h, q, pattern); refused != nil {
					err, q.Principal = refused, auth.Principal{} // so it is not recorded, as where addresses are limited
				}
			}
			if err != nil {
				g.denied(r, q, err)
			} else if q.Principal.Kind != "" || g.upgrades[pattern] {
				g.granted(r, q, by)
				w.hold(g, r, q, start)
			}
			if err != nil && found && g.late[pattern] && fault.Of(err).Kind.Status == http.StatusUnauthorized {
				q.Refused, err = err, nil
			}
		}
		if err == nil && !ours {
			err = g.protect(w, r, pattern)
		}
		switch {
		case err != nil:
			g.Fail(w, r, err)
		case !found:
			g.Fail(w, r, unmatched(handler, w, r))
		default:
			mux.ServeHTTP(w, r)
			w.limit() //nolint:errcheck // it is answered, and counts for the address
		}
		w.release() //nolint:errcheck // whoever is to know has been told
	})
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

// limit counts the request: for its principal where tokens have a rate of their own, else for its address.
func (g *Gate) limit(h http.Header, q *Request, pattern string) error {
	switch {
	case g.probes[pattern]:
	case g.opts.PerToken != nil && q.Principal.Kind == auth.KindToken:
		return g.opts.PerToken.TakeFrom(q.Principal).tell(h, "with this token, or others of its lineage")
	case g.opts.Limiter != nil:
		return g.opts.Limiter.Take(q.IP).tell(h, "from this address")
	}
	return nil
}

// credentials reports whether an upgrade carries anything that may prove who calls.
func credentials(r *http.Request) bool {
	_, ok := Bearer(r)
	return ok || strings.Contains(strings.Join(r.Header.Values("Sec-WebSocket-Protocol"), ","), "ticket.")
}

// protect refuses what a web page may have made its reader's browser send.
func (g *Gate) protect(w http.ResponseWriter, r *http.Request, pattern string) error {
	if g.opts.Verifier == nil {
		if err := g.opts.Origins.Check(r, g.probes[pattern]); err != nil {
			return err
		}
	}
	if g.public[pattern] || !strings.HasPrefix(r.URL.Path, g.opts.BasePath+"/") {
		return nil
	}
	if err := g.opts.CSRF.Check(r); err != nil {
		return err
	}
	listed, all := g.opts.CORS.allows(r)
	g.opts.CSRF.offer(w, r, listed || all)
	return nil
}

func clean(p string) string {
	c := path.Clean(p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return c
}

// caught answers for a handler that panicked. It is one of the two edges at which panics stop.
func (g *Gate) caught(w *recorder, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		w.abandon()
		panic(p)
	}
	g.opts.Logger.Error("handler panicked", "request", Of(r).ID, "panic", p, "stack", string(debug.Stack()))
	if w.status != 0 {
		w.abandon()
		panic(http.ErrAbortHandler) // the answer has begun; cut it, so that nobody takes it for whole
	}
	g.Fail(w, r, fault.New(fault.Internal, "The server could not complete the request."))
	w.release() //nolint:errcheck // whoever is to know has been told
}

func (g *Gate) finish(w *recorder, r *http.Request, q *Request, pattern string, start time.Time) {
	took := time.Since(start)
	route := pattern
	if _, p, ok := strings.Cut(pattern, " "); ok {
		route = p
	}
	if route == "" {
		route = "none"
	}
	if m := g.opts.Metrics; m != nil {
		m.HTTPRequests.With(route, method(r.Method), strconv.Itoa(w.status)).Inc()
		m.HTTPDuration.Observe(took.Seconds())
	}
	if g.opts.Logger.Enabled(r.Context(), slog.LevelDebug) {
		g.opts.Logger.Debug("request", "id", q.ID, "method", r.Method, "path", r.URL.Path, "status", w.status,
			"ms", took.Milliseconds(), "token", q.Principal.TokenID)
	}
}

// method bounds the values of a metric's label.
func method(m string) string {
	switch m {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS":
		return m
	}
	return "other"
}

// requestID takes over an id of 1 to 128 visible ASCII characters and replaces any other.
func requestID(given string) string {
	for i := range len(given) {
		if given[i] <= ' ' || given[i] > '~' {
			return id.New()
		}
	}
	if len(given) == 0 || len(given) > 128 {
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

// TicketParameter is the query parameter of [Gate.Ticketed].
const TicketParameter = "ticket"

// authenticate finds the principal, and by what: bearer or ticket. Paths outside the base path and public routes have none.
func (g *Gate) authenticate(r *http.Request, q *Request, pattern string) (by string, err error) {
	if p, ok := inside(r); ok {
		q.Principal = p
		return "", nil
	}
	if g.public[pattern] || !strings.HasPrefix(r.URL.Path, g.opts.BasePath+"/") {
		return "", nil
	}
	if g.opts.Verifier == nil {
		q.Principal = auth.Anonymous()
		return "", nil
	}
	if g.upgrades[pattern] {
		return "", nil
	}
	if g.ticketed[pattern] {
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

// Bearer is the token in a request's Authorization header.
func Bearer(r *http.Request) (token string, ok bool) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	token = strings.TrimSpace(rest)
	return token, strings.EqualFold(scheme, "bearer") && token != ""
}

// unmatched is the error for a request that no route takes: the mux's own verdict, as a fault.
func unmatched(verdict http.Handler, w http.ResponseWriter, r *http.Request) error {
	probe := &probe{header: http.Header{}}
	verdict.ServeHTTP(probe, r)
	if allow := probe.header.Get("Allow"); probe.status == http.StatusMethodNotAllowed && allow != "" {
		w.Header().Set("Allow", allow)
		return fault.New(fault.MethodNotAllowed, "The path takes %s only.", allow)
	}
	return fault.New(fault.NotFound, "There is no route %s %s.", method(r.Method), r.URL.Path)
}

// probe takes an answer that is not sent.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(status int)      { p.status = status }
