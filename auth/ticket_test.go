package auth_test

import (
	"reflect"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/auth"
	"agentd/server/fault"
)

// taken checks that the ticket is good, once.
func taken(t *testing.T, tickets *auth.Tickets, value string, want auth.Principal) {
	t.Helper()
	if p, err := tickets.Take(value); err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("Take(ticket of %s) = %+v, %v, want %+v", want.TokenID, p, err, want)
	}
	refused(t, tickets, value)
}

// refused checks that the ticket is refused, with the text that every refused ticket gets.
func refused(t *testing.T, tickets *auth.Tickets, value string) {
	t.Helper()
	_, unknown := tickets.Take("")
	p, err := tickets.Take(value)
	if !fault.Is(err, fault.AuthInvalid) || err.Error() != unknown.Error() || p.Kind != "" || p.Grant != nil {
		t.Errorf("Take() = %+v, %v, want nobody, %v", p, err, unknown)
	}
}

func token(id string) auth.Principal {
	return auth.Principal{
		Kind: auth.KindToken, TokenID: id, Label: "l", Grant: auth.Grant{{Resource: "agents", Action: "read"}},
	}
}

func TestTicketStandsForItsPrincipalOnce(t *testing.T) {
	tickets := auth.NewTickets(0)
	form := regexp.MustCompile(`^[A-Za-z0-9_-]{32}$`)
	seen := map[string]bool{}
	for _, p := range []auth.Principal{token("a"), token("a"), token("b"), auth.Anonymous()} {
		value, _ := tickets.Issue(p)
		if !form.MatchString(value) || seen[value] {
			t.Errorf("Issue() = %q, want 32 characters of base64url that were never there", value)
		}
		seen[value] = true
		refused(t, tickets, value[1:])
		taken(t, tickets, value, p)
	}
}

func TestTicketExpires(t *testing.T) {
	for name, tc := range map[string]struct{ ttl, token, want time.Duration }{
		"after five minutes":              {want: 5 * time.Minute},
		"after what is configured":        {ttl: time.Second, want: time.Second},
		"with its token":                  {token: time.Minute, want: time.Minute},
		"before its token":                {token: time.Hour, want: 5 * time.Minute},
		"at once, for the token did that": {token: -time.Second, want: -time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tickets := auth.NewTickets(tc.ttl)
				start := time.Now()
				p := token("a")
				if tc.token != 0 {
					p.Expires = start.Add(tc.token)
				}
				early, expires := tickets.Issue(p)
				late, _ := tickets.Issue(p)
				if got := expires.Sub(start); got != tc.want {
					t.Errorf("Issue() expires in %v, want %v", got, tc.want)
				}
				if tc.want > 0 {
					pass(tc.want - 1)
					taken(t, tickets, early, p)
					pass(1)
				}
				refused(t, tickets, late)
			})
		})
	}
}

// TestTicketsMakeRoom fills the room for tickets and looks which ones are lost then.
func TestTicketsMakeRoom(t *testing.T) {
	const room = 1000
	synctest.Test(t, func(t *testing.T) {
		tickets := auth.NewTickets(0)
		var values [room]string
		for i := range values {
			p := token(strconv.Itoa(i))
			if i == 500 {
				p.Expires = time.Now().Add(time.Second)
			}
			values[i], _ = tickets.Issue(p)
		}
		taken(t, tickets, values[7], token("7"))
		issue := func() { tickets.Issue(token("new")) }
		issue() // where 7 was
		pass(time.Second)
		issue() // where 500 was
		taken(t, tickets, values[0], token("0"))
		issue() // where 0 was
		issue() // where 1 is, the oldest
		refused(t, tickets, values[1])
		refused(t, tickets, values[500])
		taken(t, tickets, values[2], token("2"))
		taken(t, tickets, values[999], token("999"))
	})
}

func TestTicketsDieWithTheirToken(t *testing.T) {
	tickets := auth.NewTickets(0)
	a1, _ := tickets.Issue(token("a"))
	a2, _ := tickets.Issue(token("a"))
	b, _ := tickets.Issue(token("b"))
	anonymous, _ := tickets.Issue(auth.Anonymous())
	tickets.Revoke("a")
	tickets.Revoke("a")
	refused(t, tickets, a1)
	refused(t, tickets, a2)
	taken(t, tickets, b, token("b"))
	taken(t, tickets, anonymous, auth.Anonymous())

	late, _ := tickets.Issue(token("a"))
	refused(t, tickets, late)
	for i := range 1001 { // what is remembered of revocations is bounded
		tickets.Revoke(strconv.Itoa(i))
	}
	late, _ = tickets.Issue(token("1000"))
	refused(t, tickets, late)
}

// TestTicketsOfAVerifier wires the two as a server does.
func TestTicketsOfAVerifier(t *testing.T) {
	b := setUp(t, auth.Options{})
	tickets := auth.NewTickets(0)
	b.OnRevoke(tickets.Revoke)
	id, raw := b.mint(t, time.Hour)
	p, err := b.Verify(t.Context(), noIP, raw)
	if err != nil {
		t.Fatal(err)
	}
	good, _ := tickets.Issue(p)
	taken(t, tickets, good, p)
	dead, _ := tickets.Issue(p)
	if _, err := b.issuer.Revoke(t.Context(), id, nil); err != nil {
		t.Fatal(err)
	}
	refused(t, tickets, dead)
}

func TestTicketIsTakenByOne(t *testing.T) {
	tickets := auth.NewTickets(0)
	for range 100 {
		value, _ := tickets.Issue(token("a"))
		var wg sync.WaitGroup
		var won atomic.Int64
		for range 8 {
			wg.Go(func() {
				tickets.Issue(token("b"))
				if _, err := tickets.Take(value); err == nil {
					won.Add(1)
				}
				tickets.Revoke("c")
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Fatalf("Take() of one ticket succeeded %d times, want once", won.Load())
		}
	}
}

// FuzzTake guesses tickets. Only the value itself is one, and only once.
func FuzzTake(f *testing.F) {
	for _, s := range []string{"", "x", "ticket.x", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "\x00\xff"} {
		f.Add(s)
	}
	tickets := auth.NewTickets(0)
	f.Fuzz(func(t *testing.T, guess string) {
		value, _ := tickets.Issue(auth.Anonymous())
		if _, err := tickets.Take(guess); !fault.Is(err, fault.AuthInvalid) {
			t.Errorf("Take(%q) = %v, want auth-invalid", guess, err)
		}
		for i, want := range []bool{true, false} {
			if _, err := tickets.Take(value); (err == nil) != want {
				t.Errorf("Take(its value) = %v the time %d", err, i+1)
			}
		}
	})
}
