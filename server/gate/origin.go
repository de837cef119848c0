package gate

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"agentd/server/fault"
)

// Origins says which web pages may call a server that lets everybody in. A browser sends such a server whatever any
// page asks for, and a page can make its own host name resolve to this machine (DNS rebinding).
type Origins struct {
	Bound        string   // the host that the listener is bound to
	AllowHosts   []string // further names that the Host header may have, with or without a port
	AllowOrigins []string // further origins, or * for all
}

// Check refuses a request with an Origin that is neither the server's own nor allowed, or with a Host that is neither
// a loopback name, the bound host nor allowed. A request without an Origin is no page's, unless its Host gives it away.
//
// A probe may also have an IP address as its Host, or none. Whoever probes a machine or scrapes it often knows no name of
// it, and neither can be the work of a page: the Host is what the page's address says, a browser always sends it, and an
// address resolves to nothing but itself.
func (o *Origins) Check(r *http.Request, probe bool) error {
	if !o.host(r.Host) && !(probe && nameless(r.Host)) {
		return fault.New(fault.OriginDenied, "The host %.100q is not one of this server's.", r.Host).
			Advise("Use a loopback name, or add the host to `server.allowHosts`.")
	}
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(o.AllowOrigins, "*") || slices.Contains(o.AllowOrigins, origin) {
		return nil
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return nil
	}
	return fault.New(fault.OriginDenied, "The origin %.100q may not call this server.", origin)
}

func (o *Origins) host(header string) bool {
	name := hostname(header)
	if ip, err := netip.ParseAddr(name); name == "localhost" || err == nil && ip.IsLoopback() {
		return true
	}
	if name == "" {
		return false
	}
	return name == strings.ToLower(o.Bound) || slices.Contains(o.AllowHosts, name) || slices.Contains(o.AllowHosts, strings.ToLower(header))
}

// nameless reports whether a Host header is empty or an IP address.
func nameless(header string) bool {
	_, err := netip.ParseAddr(hostname(header))
	return err == nil || header == ""
}

// hostname is a Host header without its port and brackets, in lower case.
func hostname(header string) string {
	if h, _, err := net.SplitHostPort(header); err == nil {
		header = h
	}
	return strings.ToLower(strings.Trim(header, "[]"))
}
