package server

import (
	"fmt"
	"net"
	"os"

	"agentd/server/config"
)

// Warnings tells of settings that are allowed and dangerous, and of those that have no effect in this version.
func Warnings(cfg *config.Config) []string {
	all := []string{}
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if !loopback(cfg.Server.Host) {
		if cfg.Auth.Kind == "none" {
			warn("auth.kind is none and server.host is %s: anybody who reaches it is an administrator", cfg.Server.Host)
		}
		if cfg.Metrics.Enabled && !cfg.Metrics.RequireAuth {
			warn("metrics.requireAuth is false and server.host is %s: anybody who reaches it can read the metrics", cfg.Server.Host)
		}
		if !cfg.Server.TLSTerminatedUpstream {
			warn("server.tlsTerminatedUpstream is false and server.host is %s: without a proxy that speaks TLS, tokens travel unencrypted", cfg.Server.Host)
		}
	}
	if cfg.Server.Idempotency.RequireKey == "enforce" {
		warn("server.idempotency.requireKey has no effect in this version: Idempotency-Key is not read yet")
	}
	if os.Geteuid() == 0 {
		warn("the process runs as root: give it a user of its own")
	}
	return all
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}
