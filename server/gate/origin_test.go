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
		ok           bool
	}{
		{"127.0.0.1:8080", "", true},
		{"localhost", "", true},
		{"LOCALHOST:1", "", true},
		{"[::1]:8080", "", true},
		{"127.8.8.8:1", "", true},
		{"box.lan:8080", "", true},
		{"agents.example:9", "", true},
		{"other.example:81", "", true},
		{"other.example:82", "", false},
		{"evil.example:8080", "", false},
		{"127.0.0.1.evil.example", "", false},
		{"", "", false},
		{"127.0.0.1:8080", "http://127.0.0.1:8080", true},
		{"127.0.0.1:8080", "http://127.0.0.1:9090", false},
		{"127.0.0.1:8080", "https://evil.example", false},
		{"127.0.0.1:8080", "null", false},
		{"127.0.0.1:8080", "https://ui.example", true},
		{"127.0.0.1:8080", "https://ui.example.evil.example", false},
		{"evil.example", "http://evil.example", false},
	} {
		r := httptest.NewRequest("POST", "/v1/agents", nil)
		r.Host = tc.host
		if tc.origin != "" {
			r.Header.Set("Origin", tc.origin)
		}
		if err := o.Check(r); (err == nil) != tc.ok || err != nil && !fault.Is(err, fault.OriginDenied) {
			t.Errorf("Check(Host %q, Origin %q) = %v, want allowed %v", tc.host, tc.origin, err, tc.ok)
		}
	}
	all := &gate.Origins{AllowOrigins: []string{"*"}}
	r := httptest.NewRequest("POST", "http://127.0.0.1/v1/agents", nil)
	r.Header.Set("Origin", "https://anything.example")
	if err := all.Check(r); err != nil {
		t.Errorf("Check with * = %v", err)
	}
}
