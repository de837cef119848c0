package provider_test

import (
	"strings"
	"testing"

	"agentd/server/fault"
	"agentd/server/outbound"
	"agentd/server/outbound/outboundtest"
	"agentd/server/provider"
)

func TestOutboundDenied(t *testing.T) {
	dns := &outboundtest.Names{Known: map[string][]string{"model": {"10.0.0.1"}}}
	denials := 0
	p := mustOpenAI(t, provider.OpenAIOptions{BaseURL: "http://model.test/v1", Retries: 3,
		Outbound: outbound.New(outbound.Options{Resolver: dns.Resolver(), Denied: func(outbound.Denial) { denials++ }})})
	defer p.Close()
	_, err := p.Stream(t.Context(), hello(), ignore)
	f := fault.Of(err)
	if f.Kind != fault.OutboundDenied || denials != 1 {
		t.Fatalf("Stream() = %v after %d denials, want outbound-denied at once", err, denials)
	}
	if !strings.Contains(f.Message, "model.test:80 was refused: the name has a private address.") || !strings.Contains(f.NextStep(), "`model.test`") {
		t.Errorf("Of(Stream()) = %v %q, hint %q", f.Kind.Code, f.Message, f.NextStep())
	}
}
