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

// preflight reports whether a browser asks for a permission with this request, which is all that it does.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
}

// headers are what the answer to a request has to have: what a browser is to allow to the page that sent it. An origin
// that is not allowed gets none; the browser then keeps the answer from the page.
func (c *CORS) headers(r *http.Request) http.Header {
	origin := r.Header.Get("Origin")
	all := slices.Contains(c.AllowOrigins, "*")
	if origin == "" || !all && !slices.Contains(c.AllowOrigins, origin) {
		return nil
	}
	h := http.Header{}
	if all && !c.AllowCredentials {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Vary", "Origin")
	}
	if c.AllowCredentials {
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	if preflight(r) {
		h.Set("Access-Control-Allow-Methods", strings.Join(c.AllowMethods, ", "))
		h.Set("Access-Control-Allow-Headers", strings.Join(c.AllowHeaders, ", "))
		h.Set("Access-Control-Max-Age", strconv.Itoa(c.MaxAgeSeconds))
	}
	return h
}
