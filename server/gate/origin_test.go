package gate_test

import (
	"net/http/httptest"
	"testing"

	"agentd/server/fault"
	"agentd/server/gate"
)

func TestOrigins(t *testing.T) {
	o := &gate.Origins{Bound: "box.lan", AllowHosts: []string{"agents.example", "other.example:81"}, AllowOrigins: []string{"https://ui.example"}}
	for _, tc := range []struct {
		host, origin string
		want         string // all may call, only a probe, or none
	}{
		{"127.0.0.1:8080", "", "all"},
		{"localhost", "", "all"},
		{"LOCALHOST:1", "", "all"},
		{"[::1]:8080", "", "all"},
		{"127.8.8.8:1", "", "all"},
		{"box.lan:8080", "", "all"},
		{"agents.example:9", "", "all"},
		{"other.example:81", "", "all"},
		{"other.example:82", "", "none"},
		{"evil.example:8080", "", "none"},
		{"127.0.0.1.evil.example", "", "none"},
		{"127.0.0.1.", "", "none"},
		{"2130706433", "", "none"}, // 127.0.0.1 to some, but no browser sends it so
		// Nobody can make an address lead elsewhere than it does.
		{"10.0.0.7:8080", "", "probe"},
		{"10.0.0.7", "", "probe"},
		{"[2001:db8::7]:8080", "", "probe"},
		{"[2001:db8::7]", "", "probe"},
		{"0.0.0.0:8080", "", "probe"},
		{"", "", "probe"}, // no browser
		{":8080", "", "none"},
		{"10.0.0.7.evil.example", "", "none"},
		{"10-0-0-7.evil.example", "", "none"},
		{"10.0.0.7:8080", "http://10.0.0.7:8080", "probe"},
		{"10.0.0.7:8080", "https://ui.example", "probe"},
		{"10.0.0.7:8080", "https://evil.example", "none"},
		{"10.0.0.7:8080", "null", "none"},
		{"", "https://evil.example", "none"},
		{"127.0.0.1:8080", "http://127.0.0.1:8080", "all"},
		{"127.0.0.1:8080", "http://127.0.0.1:9090", "none"},
		{"127.0.0.1:8080", "https://evil.example", "none"},
		{"127.0.0.1:8080", "null", "none"},
		{"127.0.0.1:8080", "https://ui.example", "all"},
		{"127.0.0.1:8080", "https://ui.example.evil.example", "none"},
		{"evil.example", "http://evil.example", "none"},
	} {
		r := httptest.NewRequest("POST", "/v1/agents", nil)
		r.Host = tc.host
		if tc.origin != "" {
			r.Header.Set("Origin", tc.origin)
		}
		for _, probe := range []bool{false, true} {
			ok := tc.want == "all" || probe && tc.want == "probe"
			if err := o.Check(r, probe); (err == nil) != ok || err != nil && !fault.Is(err, fault.OriginDenied) {
				t.Errorf("Check(Host %q, Origin %q, probe %v) = %v, want allowed %v", tc.host, tc.origin, probe, err, ok)
			}
		}
	}
	all := &gate.Origins{AllowOrigins: []string{"*"}}
	r := httptest.NewRequest("POST", "http://127.0.0.1/v1/agents", nil)
	r.Header.Set("Origin", "https://anything.example")
	if err := all.Check(r, false); err != nil {
		t.Errorf("Check with * = %v", err)
	}
}
