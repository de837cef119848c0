package server_test

import (
	"net/http"
	"strings"
	"testing"

	"agentd/ws"
	"agentd/ws/wstest"
)

// dial opens a WebSocket as a client of the protocol does.
func (r *rig) dial(header http.Header, protocols ...string) (*wstest.Conn, error) {
	return wstest.Dial(r.t.Context(), "ws"+strings.TrimPrefix(r.url, "http")+"/v1/ws", &wstest.DialOptions{Header: header, Protocols: protocols})
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// The upgrade tells by close codes who is refused.
func TestUpgradeIsGuarded(t *testing.T) {
	t.Parallel()
	s := newSweep(t)
	const protocol = subprotocol
	ticket := func(token string) string {
		t.Helper()
		value, err := find(s.do("POST", "/v1/session/ws-ticket", token, "").body, ".ticket")
		if err != nil {
			t.Fatal(err)
		}
		return "ticket." + value
	}
	reader := s.token("agents:read")
	used := ticket(reader)
	first, err := s.dial(nil, protocol, used)
	if err != nil {
		t.Fatal(err)
	}
	defer first.CloseNow()
	id, gone := s.mint(0, "agents:read")
	expired := s.expired(1, "agents:read")[0]
	lost := ticket(gone)
	if ans := s.do("DELETE", "/v1/tokens/"+id, s.admin, ""); ans.StatusCode != http.StatusNoContent {
		t.Fatalf("DELETE token = %d", ans.StatusCode)
	}
	for _, tc := range []struct {
		name      string
		header    http.Header
		protocols []string
		code      ws.Code // 0: let in
		reason    string
	}{
		{"no credentials", nil, []string{protocol}, 4001, "auth.required"},
		{"a malformed token", bearer("garbage"), []string{protocol}, 4002, "auth.invalid"},
		{"an unknown token", bearer("svc_live_v1_" + strings.Repeat("a", 49)), []string{protocol}, 4002, "auth.invalid"},
		{"a revoked token", bearer(gone), []string{protocol}, 4002, "auth.invalid"},
		{"an expired token", bearer(expired), []string{protocol}, 4002, "auth.invalid"},
		{"a ticket of a revoked token", nil, []string{protocol, lost}, 4002, "auth.invalid"},
		{"a used ticket", nil, []string{protocol, used}, 4002, "auth.invalid"},
		{"an unknown ticket and a good token", bearer(reader), []string{protocol, "ticket.x"}, 4002, "auth.invalid"},
		{"no subprotocol", bearer(reader), nil, 4008, "protocol.violation"},
		{"another subprotocol", bearer(reader), []string{"svc.protocol.v2"}, 4008, "protocol.violation"},
		{"a good token", bearer(reader), []string{"x", protocol}, 0, ""},
		{"a ticket", nil, []string{ticket(reader), protocol}, 0, ""},
		{"any token", bearer(s.token("secrets:read")), []string{protocol}, 0, ""},
	} {
		conn, err := s.dial(tc.header, tc.protocols...)
		if err != nil {
			t.Errorf("upgrade with %s: %v, want a handshake", tc.name, err)
			continue
		}
		if want := protocol; tc.code != 4008 && conn.Protocol() != want {
			t.Errorf("upgrade with %s settles on %q, want %q", tc.name, conn.Protocol(), want)
		}
		if tc.code == 0 {
			if err := conn.Write(t.Context(), ws.Text, []byte(`{"v":"1","jsonrpc":"2.0","id":1,"method":"ping"}`)); err != nil {
				t.Errorf("upgrade with %s: %v", tc.name, err)
			}
		}
		_, frame, err := conn.Read(t.Context())
		switch e, closed := err.(*ws.CloseError); {
		case tc.code == 0 && (err != nil || string(frame) != `{"v":"1","kind":"pong"}`):
			t.Errorf("upgrade with %s: %s, %v; want a pong", tc.name, frame, err)
		case tc.code != 0 && (!closed || e.Code != tc.code || e.Reason != tc.reason):
			t.Errorf("upgrade with %s: %v, want close %d %s", tc.name, err, tc.code, tc.reason)
		}
		conn.CloseNow()
	}
}
