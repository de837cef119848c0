package outbound_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/outbound/outboundtest"
)

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		addr  string
		place outbound.Place
		kind  string
	}{
		{"8.8.8.8", outbound.Public, "a public address"},
		{"1.1.1.1", outbound.Public, ""},
		{"172.15.255.255", outbound.Public, ""},
		{"172.32.0.0", outbound.Public, ""},
		{"100.63.255.255", outbound.Public, ""},
		{"100.128.0.0", outbound.Public, ""},
		{"192.167.255.255", outbound.Public, ""},
		{"192.169.0.0", outbound.Public, ""},
		{"223.255.255.255", outbound.Public, ""},
		{"10.0.0.0", outbound.Inside, "a private address"},
		{"10.255.255.255", outbound.Inside, ""},
		{"172.16.0.1", outbound.Inside, ""},
		{"172.31.255.255", outbound.Inside, ""},
		{"192.168.1.1", outbound.Inside, ""},
		{"127.0.0.1", outbound.Inside, "a loopback address"},
		{"127.255.255.254", outbound.Inside, ""},
		{"100.64.0.1", outbound.Inside, "carrier"},
		{"198.18.0.1", outbound.Inside, ""},
		{"100.100.100.200", outbound.Never, "metadata"},
		{"169.254.169.254", outbound.Never, "metadata"},
		{"168.63.129.16", outbound.Never, "metadata"},
		{"169.254.0.1", outbound.Never, "link-local"},
		{"0.0.0.0", outbound.Never, ""},
		{"0.1.2.3", outbound.Never, ""},
		{"192.0.0.192", outbound.Never, ""},
		{"203.0.113.7", outbound.Never, ""},
		{"224.0.0.1", outbound.Never, "multicast"},
		{"255.255.255.255", outbound.Never, ""},
		{"2606:4700:4700::1111", outbound.Public, ""},
		{"2a00:1450::1", outbound.Public, ""},
		{"::1", outbound.Inside, "a loopback address"},
		{"fd12:3456::1", outbound.Inside, "a unique local address"},
		{"fc00::1", outbound.Inside, ""},
		{"::", outbound.Never, ""},
		{"fe80::1", outbound.Never, "link-local"},
		{"fe80::1%eth0", outbound.Never, "link-local"},
		{"fec0::1", outbound.Never, ""},
		{"ff02::1", outbound.Never, "multicast"},
		{"fd00:ec2::254", outbound.Never, "metadata"},
		{"2001:db8::1", outbound.Never, ""},
		{"2001::1", outbound.Never, ""}, // Teredo
		{"3fff::1", outbound.Never, ""},
		{"100::1", outbound.Never, ""},
		{"4000::1", outbound.Never, "reserved"},
		// Addresses of IPv4 in those of IPv6.
		{"::ffff:10.1.2.3", outbound.Inside, "a private address"},
		{"::ffff:169.254.169.254", outbound.Never, "metadata"},
		{"::ffff:8.8.8.8", outbound.Public, ""},
		{"::10.1.2.3", outbound.Inside, "leads to a private address"},
		{"::ffff:0:10.1.2.3", outbound.Inside, ""},
		{"64:ff9b::10.1.2.3", outbound.Inside, "leads to a private address"},
		{"64:ff9b::169.254.169.254", outbound.Never, "leads to the metadata"},
		{"64:ff9b::8.8.8.8", outbound.Public, ""},
		{"64:ff9b:1::8.8.8.8", outbound.Never, ""},
		{"2002:0a01:0203::1", outbound.Inside, "leads to a private address"},
		{"2002:a9fe:a9fe::", outbound.Never, "leads to the metadata"},
		{"2002:0808:0808::1", outbound.Public, ""},
		{"2002:7f00:0001::1", outbound.Inside, "leads to a loopback"},
	} {
		kind, place := outbound.Classify(netip.MustParseAddr(tc.addr))
		if place != tc.place || !strings.Contains(kind, tc.kind) {
			t.Errorf("Classify(%s) = %s, %d, want %d and %q", tc.addr, kind, place, tc.place, tc.kind)
		}
	}
	if kind, place := outbound.Classify(netip.Addr{}); place != outbound.Never {
		t.Errorf("Classify() of no address = %s, %d, want never", kind, place)
	}
}

// TestClassifyEmbedded holds all spellings of an address of IPv4 to one answer.
func TestClassifyEmbedded(t *testing.T) {
	for range 20000 {
		four := binary.BigEndian.AppendUint32(nil, rand.Uint32())
		if rand.IntN(2) == 0 {
			copy(four, [][]byte{{10}, {127}, {169, 254}, {192, 168}, {172, 16}, {100, 64}}[rand.IntN(6)])
		}
		want, place := outbound.Classify(netip.AddrFrom4([4]byte(four)))
		for _, before := range [][]byte{append(make([]byte, 10), 0xFF, 0xFF), {0, 0x64, 0xFF, 0x9B, 0, 0, 0, 0, 0, 0, 0, 0}, {0x20, 0x02}} {
			six := append(slices.Clone(before), four...)
			six = append(six, make([]byte, 16-len(six))...)
			if _, got := outbound.Classify(netip.AddrFrom16([16]byte(six))); got != place {
				t.Fatalf("Classify(%v) = %d, want %d as for %v (%s)", netip.AddrFrom16([16]byte(six)), got, place, four, want)
			}
		}
	}
}

// notes collects denials.
type notes struct {
	mu  sync.Mutex // guards all
	all []outbound.Denial
}

func (n *notes) take(d outbound.Denial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, d)
}

func TestDial(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) }))
	defer web.Close()
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	dns := &outboundtest.Names{Known: map[string][]string{
		"inside": {"127.0.0.1"}, "private": {"10.255.255.254"}, "six": {"::1"}, "ula": {"fd12::1"}, "meta": {"169.254.169.254"}, "nat": {"64:ff9b::a9fe:a9fe"},
		"mixed": {"169.254.169.254", "127.0.0.1"}, "zero": {"0.0.0.0"}, "mapped": {"::ffff:127.0.0.1"}, "cgnat": {"100.64.1.1"}, "none": {}}}
	for _, tc := range []struct {
		host    string // of the URL, which the setting names
		private string // outbound.allowPrivate
		named   string // what the setting names, when another host
		want    string // a part of the error; empty: it is reached
		denials int
		asks    bool
	}{
		{host: "127.0.0.1"},
		{host: "localhost"},
		{host: "LOCALHOST."},
		{host: "any.localhost"},
		{host: "inside.test", private: "inside.test", asks: true},
		{host: "Inside.Test", private: "INSIDE.test.", asks: true},
		{host: "mixed.test", private: "mixed.test", denials: -1, asks: true}, // as many as stand before the good one
		{host: "inside.test", want: "the name has a loopback address", denials: 1, asks: true},
		{host: "inside.test", private: "other.test", want: "the name has a loopback address", denials: 1, asks: true},
		{host: "private.test", want: "a private address", denials: 1, asks: true},
		{host: "six.test", want: "a loopback address", denials: 1, asks: true},
		{host: "mapped.test", want: "a loopback address", denials: 1, asks: true},
		{host: "ula.test", want: "a unique local address", denials: 1, asks: true},
		{host: "cgnat.test", want: "carrier", denials: 1, asks: true},
		{host: "mixed.test", want: "address", denials: 2, asks: true},
		{host: "meta.test", want: "the metadata address of a cloud", denials: 1, asks: true},
		{host: "meta.test", private: "meta.test", want: "the metadata address of a cloud", denials: 1, asks: true},
		{host: "nat.test", private: "nat.test", want: "leads to the metadata address", denials: 1, asks: true},
		{host: "zero.test", private: "zero.test", want: "an address of no network", denials: 1, asks: true},
		{host: "127.0.0.1", named: "127.0.0.2:" + port, want: "names another host", denials: 1},
		{host: "127.0.0.1", named: "127.0.0.1:1", want: "names another host", denials: 1},
		{host: "localhost", named: "127.0.0.1:" + port, want: "names another host", denials: 1},
		{host: "inside.test", private: "inside.test", named: "side.test:" + port, want: "names another host", denials: 1},
		{host: "none.test", want: "no such host", asks: true},
	} {
		dns.Asked.Store(0)
		var told notes
		var log bytes.Buffer
		g := outbound.New(outbound.Options{AllowPrivate: strings.Fields(tc.private), Resolver: dns.Resolver(), Denied: told.take,
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
		target := tc.named
		if target == "" {
			target = net.JoinHostPort(tc.host, port)
		}
		client := &http.Client{Transport: &http.Transport{DialContext: g.Dialer("tools.x.url", target), DisableKeepAlives: true}}
		resp, err := client.Get("http://" + net.JoinHostPort(tc.host, port) + "/")
		what := "GET " + tc.host + " with " + target + " and allowPrivate " + tc.private
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s = %v, want it reached", what, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s = %v, want an error with %q", what, err, tc.want)
		case tc.want != "" && tc.denials > 0:
			f := fault.Of(err)
			if f.Kind != fault.OutboundDenied || f.NextStep() == fault.OutboundDenied.Hint || strings.Contains(f.Message, "10.255") {
				t.Errorf("%s = %v, hint %q; want outbound-denied with a hint of its own and without the address", what, f, f.NextStep())
			}
		}
		if err == nil {
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if string(b) != net.JoinHostPort(tc.host, port) && !strings.Contains(tc.host, ".localhost") && !strings.HasSuffix(tc.host, ".") {
				t.Errorf("%s: Host is %q", what, b)
			}
		}
		if tc.denials >= 0 && len(told.all) != tc.denials || strings.Count(log.String(), "outbound connection refused") != len(told.all) {
			t.Errorf("%s: denials %+v and log %q, want %d", what, told.all, log.String(), tc.denials)
		}
		for _, d := range told.all {
			if d.Setting != "tools.x.url" || d.Target == "" || d.Reason == "" || d.Address.IsValid() != tc.asks {
				t.Errorf("%s: denial %+v, want setting, target, reason and the address that was refused", what, d)
			}
		}
		if asked := dns.Asked.Load(); (asked > 0) != tc.asks {
			t.Errorf("%s: %d questions were asked, want some: %v", what, asked, tc.asks)
		}
	}
}

// TestDialAsksOnce holds a dialer to one look-up: a name cannot have another address when it is used than when it was
// checked.
func TestDialAsksOnce(t *testing.T) {
	dns := &outboundtest.Names{Known: map[string][]string{"private": {"10.0.0.1"}}}
	g := outbound.New(outbound.Options{Resolver: dns.Resolver()})
	conn, err := g.Dialer("s", "private.test.:80")(t.Context(), "tcp", "private.test.:80")
	if err == nil {
		conn.Close()
	}
	if asked := dns.Asked.Load(); asked > 2 || !fault.Is(err, fault.OutboundDenied) {
		t.Errorf("dial = %v after %d questions, want outbound-denied after one for each family", err, asked)
	}
}

// TestDialRootedName holds a dialer to a name as it was given: with a dot at its end it is not looked for in the domains of
// the machine's own network, where somebody else may have it.
func TestDialRootedName(t *testing.T) {
	g := outbound.New(outbound.Options{Resolver: new(outboundtest.Names).Resolver()})
	for _, host := range []string{"none.test", "none.test."} {
		_, err := g.Dialer("s", host+":80")(t.Context(), "tcp", host+":80")
		if dns, ok := errors.AsType[*net.DNSError](err); !ok || dns.Name != host {
			t.Errorf("dial(%s) = %v, want an error of a look-up of %s", host, err, host)
		}
	}
}

func TestDialOtherNetworks(t *testing.T) {
	var g *outbound.Guard // one without options
	for _, network := range []string{"udp", "unix", "ip"} {
		if conn, err := g.Dialer("s", "127.0.0.1:1")(t.Context(), network, "127.0.0.1:1"); !fault.Is(err, fault.OutboundDenied) {
			t.Errorf("dial(%s) = %v, %v, want outbound-denied", network, conn, err)
		}
	}
	for _, address := range []string{"", "127.0.0.1", "127.0.0.1:1:1", "[::1", ":1"} {
		if conn, err := g.Dialer("s", "127.0.0.1:1", address)(t.Context(), "tcp", address); err == nil || conn != nil {
			t.Errorf("dial(%q) = %v, %v, want an error", address, conn, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Dialer("s", "127.0.0.1:1")(ended, "tcp", "127.0.0.1:1"); !errors.Is(err, context.Canceled) && err == nil {
		t.Errorf("dial() with a context that has ended = %v, want an error", err)
	}
}

// TestReason connects to what does not answer: the reason tells no address, that of the name server included.
func TestReason(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	g := outbound.New(outbound.Options{Resolver: new(outboundtest.Names).Resolver()})
	for target, want := range map[string]string{
		gone.Addr().String(): ": connection refused", "none.test:80": ": its name cannot be resolved",
		web.Listener.Addr().String(): ": its certificate is not trusted",
	} {
		client := &http.Client{Transport: &http.Transport{DialContext: g.Dialer("s", target), DisableKeepAlives: true}}
		resp, err := client.Get("https://" + target)
		if err == nil {
			resp.Body.Close()
		}
		if got := outbound.Reason(err); got != want {
			t.Errorf("Reason(%v) = %q, want %q", err, got, want)
		}
	}
	if got := outbound.Reason(&net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}); got != ": it did not answer in time" {
		t.Errorf("Reason() of a deadline = %q", got)
	}
	if got := outbound.Reason(errors.New("10.0.0.1 is strange")); got != "" {
		t.Errorf("Reason() of another error = %q, want nothing", got)
	}
}

func TestLocal(t *testing.T) {
	for target, want := range map[string]bool{
		"localhost:80": true, "LocalHost.:80": true, "x.localhost:1": true, "127.0.0.1:80": true, "127.9.9.9:80": true, "[::1]:80": true, "[::ffff:127.0.0.1]:80": true,
		"10.0.0.1:80": false, "0.0.0.0:80": false, "example.com:443": false, "localhost.example.com:80": false, "localhost": false, "": false,
	} {
		if got := outbound.Local(target); got != want {
			t.Errorf("Local(%q) = %v, want %v", target, got, want)
		}
	}
}

func TestHostPort(t *testing.T) {
	for in, want := range map[string]string{
		"http://Example.COM/x": "example.com:80", "https://h": "h:443", "https://h.:8443/": "h:8443", "http://[::1]/": "[::1]:80", "http://[FD00::1]:8/": "[fd00::1]:8",
	} {
		u, err := url.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := outbound.HostPort(u); got != want {
			t.Errorf("HostPort(%s) = %s, want %s", in, got, want)
		}
	}
}
