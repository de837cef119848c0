// Package outbound makes every connection that leaves the server: to hosts that the configuration names, at addresses
// that such a host may have, and to nothing else.
//
//	dial host:port ── not one of the setting's ─────────────── refused
//	  ├ an IP address: the configuration names it itself ───── connect
//	  ├ localhost: a loopback address, without a look-up ───── connect
//	  └ a name: resolved once; each address is checked when its socket is about to connect
//	      ├ public ─────────────────────────────────────────── connect
//	      ├ inside, and the name may be: allowPrivate ──────── connect
//	      └ inside, or never to be reached by a name ───────── refused
//
// No proxy is used, and redirects are dialled like everything else.
package outbound

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"agentd/server/fault"
	"agentd/server/tracecontext"
)

// Timeout is how long it may take to open one connection, the look-up of its name included.
const Timeout = 10 * time.Second

// Options are what a guard is made with. Every field is optional.
type Options struct {
	AllowPrivate []string      // names of hosts that may have addresses inside; see [Inside]
	Resolver     *net.Resolver // nil: the system's
	Logger       *slog.Logger  // takes refusals; nil: silence
	Denied       func(Denial)  // gets each refusal, maybe from several goroutines at once; must return soon
}

// A Denial is a connection that was refused.
type Denial struct {
	Setting string     // of the configuration, because of which it was tried: providers.local.baseUrl
	Target  string     // host:port
	Address netip.Addr // of the host; invalid where it was not looked up
	Reason  string     // in words, for people
}

// A Guard makes connections. It is safe for concurrent use. A nil *Guard is one without options.
type Guard struct{ opts Options }

// New makes a guard. It dials nothing.
func New(o Options) *Guard {
	o.AllowPrivate = slices.Clone(o.AllowPrivate)
	for i, host := range o.AllowPrivate {
		o.AllowPrivate[i] = name(host)
	}
	return &Guard{o}
}

// Dialer makes the connections of a setting of the configuration: to targets, each host:port, and to no others. It is the
// DialContext of a [http.Transport] without Proxy. Refusals are outbound-denied; other errors are those of a [net.Dialer].
func (g *Guard) Dialer(setting string, targets ...string) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := &dialer{guard: g, setting: setting}
	if d.guard == nil {
		d.guard = New(Options{})
	}
	for _, t := range targets {
		d.targets = append(d.targets, canonical(t))
	}
	return d.dial
}

// Deny refuses a connection that was not even tried, a redirect for instance: it writes to the log, calls the hook, and returns
// the error.
func (g *Guard) Deny(ctx context.Context, d Denial) *fault.Error {
	err := fault.New(fault.OutboundDenied, "The connection to %s was refused: %s.", d.Target, d.Reason)
	if g == nil {
		return err
	}
	if log := g.opts.Logger; log != nil {
		args := []any{"setting", d.Setting, "target", d.Target, "reason", d.Reason}
		if d.Address.IsValid() {
			args = append(args, "address", d.Address.String())
		}
		tracecontext.Log(ctx, log).Warn("outbound connection refused", args...)
	}
	if g.opts.Denied != nil {
		g.opts.Denied(d)
	}
	return err
}

// HostPort is the target of a URL: its host in lower case, and its port or that of its scheme.
func HostPort(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return net.JoinHostPort(name(u.Hostname()), port)
}

// name is a host's name in the form that is compared.
func name(host string) string {
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

// Local reports whether a target names this machine itself: localhost or a loopback address.
func Local(target string) bool {
	host, _, err := net.SplitHostPort(canonical(target))
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback() || err != nil && isLocalhost(host)
}

// isLocalhost reports whether a name stands for the loopback addresses (RFC 6761, section 6.3).
func isLocalhost(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

func canonical(target string) string {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return target // which nothing is compared equal to
	}
	return net.JoinHostPort(name(host), port)
}

// dialer is the connections of one setting.
type dialer struct {
	guard   *Guard
	setting string
	targets []string
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	target := canonical(address)
	host, port, err := net.SplitHostPort(target)
	if err != nil || !strings.HasPrefix(network, "tcp") || !slices.Contains(d.targets, target) {
		return nil, d.guard.Deny(ctx, Denial{Setting: d.setting, Target: target, Reason: d.setting + " names another host"}).
			Advise("Name the address in the configuration: agentd contacts no other.")
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	plain := &net.Dialer{}
	if _, err := netip.ParseAddr(host); err == nil {
		return plain.DialContext(ctx, network, target)
	}
	if isLocalhost(host) { // without a look-up
		conn, err := plain.DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			if six, err := plain.DialContext(ctx, network, net.JoinHostPort("::1", port)); err == nil {
				return six, nil
			}
		}
		return conn, err
	}
	checked := &net.Dialer{Resolver: d.guard.opts.Resolver,
		// The dialer passes the address of the socket itself, so no name server can answer otherwise between check and use.
		ControlContext: func(ctx context.Context, _, at string, _ syscall.RawConn) error {
			return d.check(ctx, host, target, at)
		}}
	// A dot at the end of the name stays: without it, the system also looks the name up in its search domains.
	conn, err := checked.DialContext(ctx, network, strings.ToLower(address))
	if refused, ok := errors.AsType[*fault.Error](err); ok {
		return nil, refused
	}
	return conn, err
}

// check decides about an address that a name has.
func (d *dialer) check(ctx context.Context, host, target, at string) error {
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		return d.guard.Deny(ctx, Denial{Setting: d.setting, Target: target, Reason: "its address cannot be read"})
	}
	kind, place := Classify(addr.Addr())
	if place == Public || place == Inside && slices.Contains(d.guard.opts.AllowPrivate, host) {
		return nil
	}
	refused := d.guard.Deny(ctx, Denial{Setting: d.setting, Target: target, Address: addr.Addr(), Reason: "the name has " + kind})
	if place == Inside {
		return refused.Advise("Add `" + host + "` to `outbound.allowPrivate` if the host may have a private address. Otherwise check its DNS.")
	}
	return refused.Advise("Check the DNS of the host, or give `" + d.setting + "` the address itself.")
}
