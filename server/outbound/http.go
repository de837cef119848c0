package outbound

import (
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"agentd/server/fault"
)

// Transport makes the connections of a setting as [Guard.Dialer] does. It opens one for each request, uses no proxy, and
// does not ask for compressed answers, because a compressed stream arrives in lumps.
func (g *Guard) Transport(setting string, targets ...string) *http.Transport {
	return &http.Transport{
		DialContext:            g.Dialer(setting, targets...),
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    Timeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableKeepAlives:      true,
		DisableCompression:     true,
	}
}

// framing are the headers that net/http writes itself.
var framing = []string{"Connection", "Content-Length", "Host", "Trailer", "Transfer-Encoding", "Upgrade"}

// Headers makes the configured headers of a request, secrets filled in. The issues, under "headers", name those that HTTP
// cannot carry (RFC 9110, sections 5.5 and 5.6.2), that net/http writes itself, and that are in own, which the caller sets.
func Headers(configured map[string]string, own ...string) (h http.Header, issues []fault.Issue) {
	h = http.Header{}
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		value, canonical := configured[name], http.CanonicalHeaderKey(name)
		switch {
		case name == "" || strings.ContainsFunc(name, notToken) || !HeaderValue(value):
			issues = append(issues, fault.At("is not a valid HTTP header", "headers", name))
		case slices.Contains(framing, canonical) || slices.Contains(own, canonical):
			issues = append(issues, fault.At("is a header that the server sets", "headers", name))
		case h[canonical] != nil:
			issues = append(issues, fault.At("is given twice", "headers", name))
		default:
			h.Set(name, value)
		}
	}
	return h, issues
}

func notToken(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// HeaderValue reports whether a text can be the value of a header: it has no control characters but tabs.
func HeaderValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7F })
}

// RetryAfter is how long a server asks to wait, at most most and 0 where it does not ask: Retry-After in seconds or as a
// date (RFC 9110, section 10.2.3), or the more exact Retry-After-Ms that some servers add.
func RetryAfter(h http.Header, most time.Duration) time.Duration {
	value, unit := h.Get("Retry-After"), time.Second
	if ms := h.Get("Retry-After-Ms"); ms != "" {
		if n, err := strconv.ParseFloat(ms, 64); err == nil && n > 0 {
			value, unit = ms, time.Millisecond
		}
	}
	if n, err := strconv.ParseFloat(value, 64); err == nil && n > 0 {
		return time.Duration(min(n, float64(most/unit)) * float64(unit))
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now := time.Now()
	if sent, err := http.ParseTime(h.Get("Date")); err == nil { // the clock that the date was made with
		now = sent
	}
	return min(max(0, at.Sub(now)), most)
}

// Line is the beginning of a text on one line: at most most characters, without control characters.
func Line(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(text, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if r := []rune(text); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return text
}

// Reason is why a server could not be reached, such as ": connection refused", and empty for rare reasons. It is for messages
// that anybody may see: errors of the network show addresses, also those of name servers.
func Reason(err error) string {
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, nameless := errors.AsType[*net.DNSError](err)
	switch {
	case untrusted:
		return ": its certificate is not trusted"
	case nameless:
		return ": its name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return ": connection refused"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ": it did not answer in time"
	}
	return ""
}
