package outbound_test

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"agentd/server/fuzztest"
	"agentd/server/outbound"
)

// FuzzHostPort makes targets of URLs: one that is dialled is always the one that was named, however it is written.
func FuzzHostPort(f *testing.F) {
	for _, s := range []string{"http://Example.COM/x", "https://h.:8443/", "http://[::1%25eth0]:8/", "http://[FD00::1]", "https://localhost..", "//x:", "http://127.0.0.1.:80", "http://\u0131", "http://u:p@h:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, err := url.Parse(text)
		if err != nil {
			return
		}
		fuzztest.Check(t, len(text), func() { outbound.Local(outbound.HostPort(u)) })
		target := outbound.HostPort(u)
		host, port, err := net.SplitHostPort(target)
		if err != nil || port == "" {
			if !strings.ContainsAny(u.Hostname(), "[]%") {
				t.Errorf("HostPort(%q) = %q, %v, want host:port", text, target, err)
			}
			return
		}
		if again := outbound.HostPort(&url.URL{Scheme: u.Scheme, Host: target}); again != target && !strings.HasSuffix(host, ".") && !strings.ContainsAny(host, "[]") {
			t.Errorf("HostPort(%q) = %q, and of that %q", text, target, again)
		}
		if want := u.Port(); want != "" && port != want || want == "" && port != map[bool]string{true: "443", false: "80"}[u.Scheme == "https"] {
			t.Errorf("HostPort(%q) = %q, want the port %q", text, target, want)
		}
		if addr, err := netip.ParseAddr(host); err == nil {
			if outbound.Local(target) != addr.Unmap().IsLoopback() {
				t.Errorf("Local(%q) = %v", target, outbound.Local(target))
			}
		} else if local := host == "localhost" || strings.HasSuffix(host, ".localhost"); outbound.Local(target) != local && !strings.HasSuffix(host, ".") {
			t.Errorf("Local(%q) = %v, want %v", target, outbound.Local(target), local)
		}
	})
}

// FuzzClassify looks at addresses in each of the ways in which one can be written: what is inside stays so.
func FuzzClassify(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "169.254.169.254", "10.1.2.3", "8.8.8.8", "::1", "2001:4860::1", "fe80::1%eth0", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"} {
		a := netip.MustParseAddr(s)
		f.Add(a.AsSlice())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, ok := netip.AddrFromSlice(raw)
		kind, place := outbound.Classify(a)
		if kind == "" || !ok && place != outbound.Never {
			t.Errorf("Classify(%v) = %q, %v", a, kind, place)
		}
		private := a.IsPrivate() || a.IsLoopback()
		if (private || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()) && place == outbound.Public {
			t.Errorf("Classify(%v) = %q, public", a, kind)
		}
		if a.Is6() {
			if _, zoned := outbound.Classify(a.WithZone("x")); zoned != place {
				t.Errorf("Classify(%v) = %v, with a zone %v", a, place, zoned)
			}
		}
		if !a.Is4() {
			return
		}
		four := a.As4()
		for _, prefix := range []string{"::ffff:0:0", "::", "64:ff9b::", "::ffff:0:0:0"} {
			b := netip.MustParseAddr(prefix).As16()
			copy(b[12:], four[:])
			carrier := netip.AddrFrom16(b)
			if _, carried := outbound.Classify(carrier); carried > place && !carrier.IsLoopback() {
				t.Errorf("Classify(%v) = %v, but in %v %v", a, place, carrier, carried)
			}
		}
	})
}
