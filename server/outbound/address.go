package outbound

import (
	"encoding/binary"
	"net/netip"
	"strings"
)

// A Place says from where an address can be reached.
type Place int

const (
	Never  Place = iota // no name may have it: link-local, metadata of a cloud, reserved
	Inside              // of this machine or network: for names that may be inside
	Public
)

type block struct {
	prefix netip.Prefix
	place  Place
	kind   string
}

// blocks are the addresses that are not public, after the registries of special-purpose addresses of IANA (RFC 6890), and
// the few at which clouds answer with credentials. The first that matches counts.
var blocks = parse(`
	169.254.169.254/32 never  the metadata address of a cloud
	100.100.100.200/32 never  the metadata address of a cloud
	168.63.129.16/32   never  the metadata address of a cloud
	fd00:ec2::/32      never  the metadata address of a cloud
	fd20:ce::254/128   never  the metadata address of a cloud
	0.0.0.0/8          never  an address of no network
	10.0.0.0/8         inside a private address
	100.64.0.0/10      inside an address within a carrier's network
	127.0.0.0/8        inside a loopback address
	169.254.0.0/16     never  a link-local address
	172.16.0.0/12      inside a private address
	192.0.0.0/24       never  a reserved address
	192.0.2.0/24       never  an address for documentation
	192.88.99.0/24     never  a reserved address
	192.168.0.0/16     inside a private address
	198.18.0.0/15      inside an address for benchmarks
	198.51.100.0/24    never  an address for documentation
	203.0.113.0/24     never  an address for documentation
	224.0.0.0/4        never  a multicast address
	240.0.0.0/4        never  a reserved address
	::/128             never  an address of no network
	::1/128            inside a loopback address
	64:ff9b:1::/48     never  an address of a local translator
	100::/64           never  a discarding address
	2001::/23          never  a reserved address
	2001:db8::/32      never  an address for documentation
	3fff::/20          never  an address for documentation
	5f00::/16          never  a reserved address
	fc00::/7           inside a unique local address
	fe80::/10          never  a link-local address
	fec0::/10          never  a site-local address
	ff00::/8           never  a multicast address
`)

// carriers are blocks of IPv6 addresses that contain an IPv4 address, from the given byte on. That address counts.
var carriers = []struct {
	prefix netip.Prefix
	from   int
}{
	{netip.MustParsePrefix("::/96"), 12},           // IPv4-compatible (RFC 4291, section 2.5.5.1)
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12}, // IPv4-translated (RFC 2765)
	{netip.MustParsePrefix("64:ff9b::/96"), 12},    // NAT64 (RFC 6052)
	{netip.MustParsePrefix("2002::/16"), 2},        // 6to4 (RFC 3056)
}

func parse(table string) (all []block) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		place := Never
		if f[1] == "inside" {
			place = Inside
		}
		all = append(all, block{netip.MustParsePrefix(f[0]), place, strings.Join(f[2:], " ")})
	}
	return all
}

// Classify returns what an address is, in words with an article, and from where it can be reached.
func Classify(a netip.Addr) (kind string, place Place) {
	a = a.Unmap().WithZone("")
	for _, b := range blocks {
		if b.prefix.Contains(a) {
			return b.kind, b.place
		}
	}
	for _, c := range carriers {
		if c.prefix.Contains(a) {
			raw := a.As16()
			kind, place := Classify(netip.AddrFrom4([4]byte(raw[c.from:])))
			if place != Public {
				return "an address that leads to " + kind, place
			}
			return kind, place
		}
	}
	if !a.IsValid() || a.Is6() && binary.BigEndian.Uint16(a.AsSlice())>>13 != 1 { // 2000::/3 is all that is given out
		return "a reserved address", Never
	}
	return "a public address", Public
}
