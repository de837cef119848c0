package audit_test

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/audit"
)

// granted tells the entries of a chain about authentications: actor, address and proof.
func granted(t *testing.T, l *audit.Log) (list []string) {
	t.Helper()
	synctest.Wait() // until what was noted is durable
	page, _, err := l.List(t.Context(), audit.Query{Action: "auth:granted", Limit: 5000})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page {
		list = append(list, e.Actor.ID+" "+string(e.Decision)+" "+e.Target+" "+string(e.Metadata))
	}
	return list
}

func TestGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, audit.Options{})
		grant := func(actor, network, by string) {
			t.Helper()
			g := audit.Grant{Actor: audit.Actor{Kind: audit.ActorToken, ID: actor}, From: netip.MustParsePrefix(network), By: by, Method: "GET", Target: "/v1/runs", RequestID: "r"}
			if err := l.Granted(t.Context(), g); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			grant("a", "10.0.0.1/32", "bearer")
			grant("b", "10.0.0.1/32", "bearer")
			grant("a", "2001:db8::/64", "bearer")
		}
		want := []string{`a success /v1/runs {"address":"10.0.0.1","by":"bearer","method":"GET","requestId":"r"}`,
			`b success /v1/runs {"address":"10.0.0.1","by":"bearer","method":"GET","requestId":"r"}`,
			`a success /v1/runs {"address":"2001:db8::/64","by":"bearer","method":"GET","requestId":"r"}`}
		if got := granted(t, l); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("after 100 requests each: %q, want %q", got, want)
		}
		<-time.After(59 * time.Minute)
		grant("a", "10.0.0.1/32", "bearer")
		if n := len(granted(t, l)); n != 3 {
			t.Errorf("within the hour there are %d entries, want still 3", n)
		}
		<-time.After(time.Minute)
		grant("a", "10.0.0.1/32", "bearer")
		if n := len(granted(t, l)); n != 4 {
			t.Errorf("after an hour there are %d entries, want one more, 4", n)
		}
		grant("a", "10.0.0.1/32", "ticket")
		grant("a", "10.0.0.1/32", "ticket")
		if n := len(granted(t, l)); n != 6 {
			t.Errorf("after two tickets there are %d entries, want one of each, 6", n)
		}
	})
}

// TestGrantsAreBounded uses a token from more addresses than are told apart.
func TestGrantsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLog(t, audit.Options{})
		flood := func() {
			for i := range 1500 {
				g := audit.Grant{Actor: audit.Actor{Kind: audit.ActorToken, ID: "a"}, From: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32), By: "bearer"}
				if err := l.Granted(t.Context(), g); err != nil {
					t.Fatal(err)
				}
			}
		}
		flood()
		flood()
		if n := len(granted(t, l)); n != 1001 {
			t.Errorf("3000 requests from 1500 addresses made %d entries, want 1000 and one for the rest", n)
		}
		<-time.After(time.Hour)
		flood()
		if n := len(granted(t, l)); n != 2002 {
			t.Errorf("an hour later there are %d entries, want another 1000 and one for the rest", n)
		}
	})
}
