package external_test

import (
	"testing"

	"agentd/server/agent"
	"agentd/server/external"
	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/outbound/outboundtest"
)

func TestHTTPOutboundDenied(t *testing.T) {
	dns := &outboundtest.Names{Known: map[string][]string{"bot": {"fd12::1", "192.168.0.1"}}}
	var denied []outbound.Denial
	a := newHTTP(t, external.HTTPOptions{URL: "https://bot.test/run",
		Outbound: outbound.New(outbound.Options{Resolver: dns.Resolver(), Denied: func(d outbound.Denial) { denied = append(denied, d) }})})
	if res, err := a.Run(t.Context(), agent.Input{RunID: "r", AgentID: "bot"}); !fault.Is(err, fault.OutboundDenied) {
		t.Errorf("Run() = %+v, %v, want outbound-denied", res, err)
	}
	if len(denied) != 2 || denied[0].Setting != "agents.bot.url" || denied[0].Target != "bot.test:443" {
		t.Errorf("denials %+v, want both addresses, of agents.bot.url and bot.test:443", denied)
	}
}

// TestHTTPNoAddress: who starts a run is not told at which address the server, or the one of names, was looked for.
func TestHTTPNoAddress(t *testing.T) {
	dns := &outboundtest.Names{Known: map[string][]string{"bot": {"127.0.0.1"}}}
	for host, want := range map[string]string{
		"bot.test:1": "The agent's server could not be reached: connection refused.",
		"none.test":  "The agent's server could not be reached: its name cannot be resolved.",
	} {
		a := newHTTP(t, external.HTTPOptions{URL: "http://" + host + "/run",
			Outbound: outbound.New(outbound.Options{Resolver: dns.Resolver(), AllowPrivate: []string{"bot.test"}})})
		if _, err := a.Run(t.Context(), agent.Input{RunID: "r", AgentID: "bot"}); !fault.Is(err, fault.AgentUnreachable) || fault.Of(err).Message != want {
			t.Errorf("Run() at %s = %v, want %q", host, err, want)
		}
	}
}
