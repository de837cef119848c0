package server_test

import (
	"strings"
	"testing"

	"agentd/server"
	"agentd/server/config"
)

func TestWarnings(t *testing.T) {
	const limits, pages = "the limits count for the address that connects", "every web page"
	for text, want := range map[string][]string{
		`{"auth": {"kind": "none"}}`: nil,
		`{"auth": {"kind": "none"}, "server": {"cors": {"allowOrigins": ["*"]}}}`:                                   {pages},
		`{"auth": {"pepperRef": "file:p"}, "server": {"cors": {"allowOrigins": ["*"]}}}`:                            nil,
		`{"auth": {"pepperRef": "file:p"}, "server": {"host": "0.0.0.0"}}`:                                          {limits, "(60 requests in 1m0s, a lockout of 5m0s after 5 failed logins)"},
		`{"auth": {"pepperRef": "file:p"}, "server": {"host": "0.0.0.0", "trustProxy": true}}`:                      nil,
		`{"auth": {"pepperRef": "file:p"}, "server": {"host": "0.0.0.0", "socket": {"path": "s"}}}`:                 nil,
		`{"auth": {"kind": "none"}, "server": {"host": "0.0.0.0", "rateLimit": {"enabled": false}}}`:                nil,
		`{"auth": {"kind": "none"}, "server": {"host": "::", "rateLimit": {"perIpRequests": 7, "windowMs": 1000}}}`: {limits, "(7 requests in 1s)"},
	} {
		cfg, err := config.Parse([]byte(text), config.Options{Dir: t.TempDir()})
		if err != nil {
			t.Fatalf("Parse(%s) = %v", text, err)
		}
		all := strings.Join(server.Warnings(cfg), "\n")
		for _, part := range want {
			if !strings.Contains(all, part) {
				t.Errorf("Warnings(%s) = %s, want %q in it", text, all, part)
			}
		}
		if want == nil && (strings.Contains(all, limits) || strings.Contains(all, pages)) {
			t.Errorf("Warnings(%s) = %s, want neither of limits nor of pages", text, all)
		}
	}
}
