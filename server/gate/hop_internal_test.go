package gate

import (
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestHop(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "192.0.2.1:80": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"2001:db8::1": "2001:db8::1", "[2001:db8::1]": "2001:db8::1", "[2001:db8::1]:443": "2001:db8::1", "fe80::1%eth0": "fe80::1",
		"": "", "unknown": "", "_hidden": "", "192.0.2": "", "192.0.2.1:": "", "192.0.2.1:99999": "", "[192.0.2.1]": "", "[2001:db8::1": "",
		"2001:db8::1]": "", "[2001:db8::1]x": "", "[[2001:db8::1]]": "", "192.0.2.1 192.0.2.2": "", "host:80": "",
	} {
		ip, ok := hop(text)
		if ok != (want != "") || ok && ip.String() != want {
			t.Errorf("hop(%q) = %v, %v, want %q", text, ip, ok, want)
		}
	}
}

// The client is what the proxy says last, or the connection: nothing else that a client sends decides.
func FuzzForwardedFor(f *testing.F) {
	for _, s := range []string{"192.0.2.1", "192.0.2.1, 198.51.100.1:80", "[2001:db8::1]:80", "x,[::1", ",", "fe80::1%eth0"} {
		f.Add(s, "203.0.113.9")
	}
	g := New(Options{TrustProxy: true})
	f.Fuzz(func(t *testing.T, sent, last string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "127.0.0.1:1"
		r.Header.Set("X-Forwarded-For", sent)
		own := g.clientIP(r)
		if !own.IsValid() || own.Is4In6() || own.Zone() != "" {
			t.Errorf("clientIP(%q) = %v, want a plain address", sent, own)
		}
		if ip, err := netip.ParseAddr(last); err != nil || ip.Zone() != "" {
			return
		} else if r.Header.Add("X-Forwarded-For", last); g.clientIP(r) != ip.Unmap() {
			t.Errorf("clientIP(%q, %q) = %v, want what the proxy adds", sent, last, g.clientIP(r))
		}
		if strings.HasSuffix(sent, ", unknown") && own != netip.MustParseAddr("127.0.0.1") {
			t.Errorf("clientIP(%q) = %v, want that of the connection", sent, own)
		}
	})
}
