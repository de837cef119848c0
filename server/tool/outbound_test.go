package tool_test

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"agentd/server/outbound"
	"agentd/server/outbound/outboundtest"
	"agentd/server/tool"
)

func TestHTTPOutbound(t *testing.T) {
	to := ""
	addr := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/go" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		w.Write([]byte(`"arrived"`))
	})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(addr, "http://"))
	dns := &outboundtest.Names{Known: map[string][]string{"inside": {"127.0.0.1"}, "meta": {"169.254.169.254"}}}
	for _, tc := range []struct {
		name, url, to  string
		allow, private []string
		want           string
		denials        int
	}{
		{name: "a name inside", url: "http://inside.test:" + port + "/", want: "was refused: the name has a loopback address.", denials: 1},
		{name: "a name that may be", url: "http://inside.test:" + port + "/", private: []string{"inside.test"}, want: "arrived"},
		{name: "a redirect to metadata", url: addr + "/go", to: "http://meta.test/latest", allow: []string{"meta.test"}, private: []string{"meta.test"},
			want: "meta.test:80 was refused: the name has the metadata address", denials: 1},
		{name: "a redirect inside", url: addr + "/go", to: "http://inside.test:" + port + "/", allow: []string{"inside.test:" + port}, want: "a loopback address", denials: 1},
		{name: "a redirect to where it may", url: addr + "/go", to: "http://inside.test:" + port + "/", allow: []string{"inside.test:" + port}, private: []string{"inside.test"}, want: "arrived"},
		{name: "a redirect elsewhere", url: addr + "/go", to: "http://inside.test:" + port + "/", private: []string{"inside.test"}, want: "which is not allowed", denials: 1},
		{name: "a redirect to another port", url: addr + "/go", to: "http://127.0.0.1:1/", want: "which is not allowed", denials: 1},
	} {
		var denials []outbound.Denial
		g := outbound.New(outbound.Options{AllowPrivate: tc.private, Resolver: dns.Resolver(), Denied: func(d outbound.Denial) { denials = append(denials, d) }})
		to = tc.to
		text := use(t, t.Context(), newHTTP(t, tool.HTTPOptions{Method: "GET", URL: tc.url, AllowHosts: tc.allow, Outbound: g}), tool.Call{}, `{}`)
		if !strings.Contains(text, tc.want) || len(denials) != tc.denials {
			t.Errorf("%s: %q with denials %+v, want %q and %d", tc.name, text, denials, tc.want, tc.denials)
		}
		for _, d := range denials {
			if d.Setting != "tools.web.url" {
				t.Errorf("%s: denial %+v, want the setting tools.web.url", tc.name, d)
			}
		}
	}
}
