package server_test

import (
	"testing"

	"agentd/server/config"
)

// BenchmarkAudit measures what the audit chain costs requests (P18): the same ones without it, with audit.wait writes
// and with all.
func BenchmarkAudit(b *testing.B) {
	for _, req := range []struct {
		name, method, path, body string
		status, clients          int
	}{
		{"read", "GET", "/v1/agents", "", 200, 64},
		{"run", "POST", "/v1/agents/noop/stream", `{"input":"hello"}`, 202, 64},
		{"run-alone", "POST", "/v1/agents/noop/stream", `{"input":"hello"}`, 202, 1},
	} {
		for _, wait := range []string{"off", "writes", "all"} {
			b.Run(req.name+"/"+wait, func(b *testing.B) {
				addr, token := benchServer(b, func(cfg *config.Config) {
					cfg.Audit.Enabled = wait != "off"
					if cfg.Audit.Enabled {
						cfg.Audit.Wait, cfg.Audit.PassphraseRef = wait, cfg.Auth.PepperRef
					}
				})
				load(b, addr, req.clients, request(req.method, req.path, addr, token, req.body), req.status)
			})
		}
	}
}
