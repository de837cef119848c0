package gate

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"agentd/server/fault"
)

// CSRF protects browsers by double submit: a page proves that it is one of ours by sending the value of a cookie in a
// header, for pages of others cannot read the cookie. The zero value protects nothing.
type CSRF struct {
	Enabled     bool
	CookieName  string
	HeaderName  string
	SafeMethods []string
}

// fromBrowser reports whether a browser sent a request on behalf of a page. Others need no protection: nobody makes curl
// send what its user did not ask for.
func fromBrowser(r *http.Request) bool {
	for _, name := range []string{"Origin", "Sec-Fetch-Site", "Cookie"} {
		if r.Header.Get(name) != "" {
			return true
		}
	}
	return false
}

// Check refuses what a page may have made a browser send. A bearer token is proof enough: a browser sends none by itself.
func (c *CSRF) Check(r *http.Request) error {
	if _, bears := Bearer(r); bears || !c.Enabled || slices.Contains(c.SafeMethods, r.Method) || !fromBrowser(r) {
		return nil
	}
	cookie, header := c.cookie(r), r.Header.Get(c.HeaderName)
	if cookie == "" || subtle.ConstantTimeCompare([]byte(cookie), []byte(header)) != 1 {
		return fault.New(fault.CSRFDenied, "The header %s does not repeat the cookie %s.", c.HeaderName, c.CookieName)
	}
	return nil
}

// cookie is the value of the cookie; of several, the last counts.
func (c *CSRF) cookie(r *http.Request) (value string) {
	for _, cookie := range r.CookiesNamed(c.CookieName) {
		value = strings.TrimSpace(cookie.Value)
	}
	return value
}

// offer gives a browser that has no cookie one, so that a page of ours can prove itself from then on. A page of another origin
// that may read answers cannot read the cookie of this one, so a header holds the value, and the browser may send the
// cookie for it.
func (c *CSRF) offer(w http.ResponseWriter, r *http.Request, foreign bool) {
	if _, bears := Bearer(r); bears || !c.Enabled || !fromBrowser(r) {
		return
	}
	value := c.cookie(r)
	if value == "" {
		var b [24]byte
		rand.Read(b[:]) //nolint:errcheck // it never fails
		value = base64.RawURLEncoding.EncodeToString(b[:])
		// Scripts must be able to read it, so it is not HttpOnly.
		cookie := &http.Cookie{Name: c.CookieName, Value: value, Path: "/", SameSite: http.SameSiteStrictMode, Secure: true}
		if foreign {
			cookie.SameSite, cookie.Partitioned = http.SameSiteNoneMode, true
		}
		http.SetCookie(w, cookie)
	}
	if foreign && slices.Contains(c.SafeMethods, r.Method) {
		w.Header().Set(c.HeaderName, value)
	}
}
