package gate

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// CORS says which pages of other origins may read answers. The zero value allows none.
type CORS struct {
	AllowOrigins     []string // exact, or * for all
	AllowCredentials bool
	AllowMethods     []string
	AllowHeaders     []string
	MaxAgeSeconds    int
}

// Exposed are the headers of answers that pages of other origins may read, in addition to those that CORS always exposes and
// the one of [CSRF]. A header that an endpoint sets belongs here.
var Exposed = []string{"Allow", "Idempotency-Replayed", "Idempotency-Status", "Retry-After", "WWW-Authenticate", "X-Accel-Buffering",
	"X-Content-Type-Options", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-Request-Id", "X-Run-Id"}

// preflight reports whether a browser asks for a permission with this request, which is all that it does.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
}

// allows reports whether pages of the request's origin may read answers, because it or because every origin is listed.
func (c *CORS) allows(r *http.Request) (listed, all bool) {
	origin := r.Header.Get("Origin")
	return origin != "" && slices.Contains(c.AllowOrigins, origin), origin != "" && slices.Contains(c.AllowOrigins, "*")
}

// headers are what the answer to a request has to have: what a browser is to allow to the page that sent it. An origin
// that is not allowed gets none; the browser then keeps the answer from the page. Where the server asks for no token, the
// only credential is the cookie of [CSRF], which a page of an origin that is listed by name must be able to send.
func (c *CORS) headers(r *http.Request, csrf *CSRF, open bool) http.Header {
	listed, all := c.allows(r)
	if !listed && !all {
		return nil
	}
	h, credentials := http.Header{}, c.AllowCredentials || open && listed
	if all && !credentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		h.Set("Vary", "Origin")
	}
	if credentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if preflight(r) {
		h.Set("Access-Control-Allow-Methods", strings.Join(c.AllowMethods, ", "))
		h.Set("Access-Control-Allow-Headers", strings.Join(c.AllowHeaders, ", "))
		h.Set("Access-Control-Max-Age", strconv.Itoa(c.MaxAgeSeconds))
	} else {
		exposed := slices.Clone(Exposed)
		if csrf.Enabled {
			exposed = append(exposed, csrf.HeaderName)
		}
		h.Set("Access-Control-Expose-Headers", strings.Join(exposed, ", "))
	}
	return h
}
