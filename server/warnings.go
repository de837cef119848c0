package server

import (
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"agentd/server/config"
	"agentd/server/proc"
)

// Warnings reports settings that are allowed but dangerous.
func Warnings(cfg *config.Config) []string {
	all := []string{}
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	open := cfg.Server.Socket.Path == "" && !loopback(cfg.Server.Host)
	if open {
		if cfg.Auth.Kind == "none" {
			warn("auth.kind is none and server.host is %s: every caller is an administrator", cfg.Server.Host)
		}
		if cfg.Metrics.Enabled && !cfg.Metrics.RequireAuth {
			warn("metrics.requireAuth is false and server.host is %s: anybody who reaches it can read the metrics", cfg.Server.Host)
		}
		if !cfg.Server.TLSTerminatedUpstream && cfg.Server.TLS.CertFile == "" {
			warn("server.tlsTerminatedUpstream is false and server.host is %s: without a proxy that speaks TLS, tokens travel unencrypted", cfg.Server.Host)
		}
	}
	if open && !cfg.Server.TrustProxy {
		limits := []string{}
		if rate := cfg.Server.RateLimit; rate.Enabled {
			limits = append(limits, fmt.Sprintf("%d requests in %v", rate.PerIPRequests, rate.Window.Duration()))
		}
		if cfg.Auth.Kind == "token" {
			limits = append(limits, fmt.Sprintf("a lockout of %v after %d failed logins", cfg.Auth.PerIPLockout.Duration(), cfg.Auth.PerIPFailureThreshold))
		}
		if len(limits) > 0 {
			warn("server.trustProxy is false and server.host is %s: the limits count for the address that connects (%s); behind a proxy that is everybody's",
				cfg.Server.Host, strings.Join(limits, ", "))
		}
	}
	if cfg.Auth.Kind == "none" && slices.Contains(cfg.Server.CORS.AllowOrigins, "*") {
		warn("auth.kind is none and server.cors.allowOrigins has \"*\": every web page on a machine that reaches this server is an administrator")
	}
	fires := map[string]bool{}
	for _, t := range cfg.Triggers {
		fires[t.Event] = true
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Hooks)) {
		if h := cfg.Hooks[name]; !fires[h.Event] {
			warn("hooks.%s emits the event %s, on which no trigger fires", name, h.Event)
		}
	}
	named := map[string]bool{}
	for _, t := range cfg.Targets() {
		host, _, _ := net.SplitHostPort(t.Address)
		named[strings.ToLower(host)] = true
	}
	for _, host := range cfg.Outbound.AllowPrivate {
		if !named[strings.ToLower(host)] {
			warn("outbound.allowPrivate lists %s, which is the host of no url", host)
		}
	}
	if n, files := cfg.Server.MaxConnections, openFiles(); n > files/2 {
		warn("server.maxConnections is %d, and the process may have %d files open, which programs and the store need too", n, files)
	}
	if n, tasks := cfg.Server.MaxPrograms, proc.FreeTasks(); n > tasks/2 {
		warn("server.maxPrograms is %d, and the system has %d tasks left, which the server and what programs start need too", n, tasks)
	}
	if os.Geteuid() == 0 {
		warn("the process runs as root: run it as a separate user")
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
