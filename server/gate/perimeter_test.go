package gate_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/gate"
)

// request makes a request; headers alternate between name and value.
func request(method string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "/v1/agents", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// through is the answer of a gate whose only route says "in".
func through(o gate.Options, r *http.Request) *httptest.ResponseRecorder {
	o.BasePath = "/v1"
	g := gate.New(o)
	handle(g, "/v1/agents", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("in")) }) //nolint:errcheck
	w := httptest.NewRecorder()
	r.Host = "localhost"
	g.ServeHTTP(w, r)
	return w
}

func TestCORS(t *testing.T) {
	one := gate.CORS{AllowOrigins: []string{"https://a.example"}, AllowMethods: []string{"GET", "POST"}, AllowHeaders: []string{"X", "Y"}, MaxAgeSeconds: 600}
	all := gate.CORS{AllowOrigins: []string{"*"}}
	credentials := gate.CORS{AllowOrigins: []string{"*"}, AllowCredentials: true}
	const ask = "Access-Control-Request-Method"
	for _, tc := range []struct {
		name   string
		cors   gate.CORS
		r      *http.Request
		status int
		want   string // the headers: allow-origin, vary, credentials, methods, headers, age
	}{
		{"no origin", one, request("GET"), 200, "-|-|-|-|-|-"},
		{"allowed", one, request("GET", "Origin", "https://a.example"), 200, "https://a.example|Origin|true|-|-|-"},
		{"another scheme", one, request("GET", "Origin", "http://a.example"), 403, "-|-|-|-|-|-"},
		{"denied by default", gate.CORS{}, request("GET", "Origin", "https://a.example"), 403, "-|-|-|-|-|-"},
		{"null", one, request("GET", "Origin", "null"), 403, "-|-|-|-|-|-"},
		{"all", all, request("GET", "Origin", "https://b.example"), 200, "*|-|-|-|-|-"},
		{"all with credentials", credentials, request("GET", "Origin", "https://b.example"), 200, "https://b.example|Origin|true|-|-|-"},
		{"preflight", one, request("OPTIONS", "Origin", "https://a.example", ask, "POST"), 204, "https://a.example|Origin|true|GET, POST|X, Y|600"},
		{"preflight of a stranger", one, request("OPTIONS", "Origin", "https://b.example", ask, "POST"), 204, "-|-|-|-|-|-"},
		{"preflight without origin", one, request("OPTIONS", ask, "POST"), 204, "-|-|-|-|-|-"},
	} {
		w := through(gate.Options{CORS: tc.cors, Origins: gate.Origins{AllowOrigins: tc.cors.AllowOrigins}}, tc.r)
		var got []string
		for _, name := range []string{"Access-Control-Allow-Origin", "Vary", "Access-Control-Allow-Credentials", "Access-Control-Allow-Methods",
			"Access-Control-Allow-Headers", "Access-Control-Max-Age"} {
			v := w.Header().Get(name)
			if v == "" {
				v = "-"
			}
			got = append(got, v)
		}
		if all := strings.Join(got, "|"); w.Code != tc.status || all != tc.want {
			t.Errorf("%s: %d %s, want %d %s", tc.name, w.Code, all, tc.status, tc.want)
		}
	}
}

func TestCSRF(t *testing.T) {
	csrf := gate.CSRF{Enabled: true, CookieName: "svc_csrf", HeaderName: "X-CSRF-Token", SafeMethods: []string{"GET", "HEAD", "OPTIONS"}}
	own := []string{"Origin", "http://localhost"}
	with := func(more ...string) []string { return append(append([]string{}, own...), more...) }
	for _, tc := range []struct {
		name   string
		r      *http.Request
		status int
		offers bool
	}{
		{"curl", request("POST"), 200, false},
		{"page without proof", request("POST", own...), 403, false},
		{"page by its fetch metadata", request("POST", "Sec-Fetch-Site", "same-origin"), 403, false},
		{"page by its cookie", request("POST", "Cookie", "a=b"), 403, false},
		{"safe method", request("GET", own...), 200, true},
		{"safe method with cookie", request("GET", with("Cookie", "svc_csrf=abc")...), 200, false},
		{"both", request("POST", with("Cookie", "svc_csrf=abc", "X-CSRF-Token", "abc")...), 200, false},
		{"cookie only", request("POST", with("Cookie", "svc_csrf=abc")...), 403, false},
		{"header only", request("POST", with("X-CSRF-Token", "abc")...), 403, false},
		{"different", request("POST", with("Cookie", "svc_csrf=abc", "X-CSRF-Token", "abd")...), 403, false},
		{"empty", request("POST", with("Cookie", "svc_csrf=", "X-CSRF-Token", "")...), 403, false},
		{"the last cookie counts", request("POST", with("Cookie", "svc_csrf=x; svc_csrf=abc", "X-CSRF-Token", "abc")...), 200, false},
		{"bearer", request("POST", with("Authorization", "Bearer x")...), 200, false},
		{"no bearer", request("POST", with("Authorization", "Basic x")...), 403, false},
	} {
		w := through(gate.Options{CSRF: csrf}, tc.r)
		cookie := w.Header().Get("Set-Cookie")
		if w.Code != tc.status || (cookie != "") != tc.offers {
			t.Errorf("%s: %d with cookie %q, want %d, offered %v", tc.name, w.Code, cookie, tc.status, tc.offers)
		}
		if tc.offers && (!strings.HasPrefix(cookie, "svc_csrf=") || !strings.HasSuffix(cookie, "; Path=/; Secure; SameSite=Strict") || len(cookie) != len("svc_csrf=; Path=/; Secure; SameSite=Strict")+32) {
			t.Errorf("%s: cookie %q", tc.name, cookie)
		}
	}
	csrf.Enabled = false
	if w := through(gate.Options{CSRF: csrf}, request("POST", own...)); w.Code != 200 {
		t.Errorf("switched off: %d, want 200", w.Code)
	}
}

// Within any stretch of the window's length, no more than the limit passes, and whoever waits as told passes.
func TestLimiterIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := gate.NewLimiter(time.Second, 10)
		a := netip.MustParseAddr("10.0.0.1")
		var passed []time.Time
		for range 400 {
			<-time.After(7 * time.Millisecond)
			rate := l.Take(a)
			if !rate.Refused {
				passed = append(passed, time.Now())
			}
			if rate.Remaining < 0 || rate.Reset <= 0 || rate.Reset > time.Second || rate.Refused != (rate.Refused && rate.Remaining == 0) {
				t.Fatalf("Take() = %+v", rate)
			}
		}
		for i := range passed {
			if i >= 10 && passed[i].Sub(passed[i-10]) < time.Second {
				t.Errorf("requests %d to %d passed within %v", i-10, i, passed[i].Sub(passed[i-10]))
			}
		}
		if len(passed) < 28 || len(passed) > 30 {
			t.Errorf("%d requests passed in 2.8 s, want all that the limit allows", len(passed))
		}
		for l.Take(a).Refused == false {
		}
		<-time.After(l.Take(a).Reset)
		if l.Take(a).Refused {
			t.Error("refused after the time to wait")
		}
	})
}

func TestLimiterTellsAddressesApart(t *testing.T) {
	l := gate.NewLimiter(time.Hour, 1)
	for _, tc := range []struct {
		ip      string
		refused bool
	}{
		{"10.0.0.1", false}, {"10.0.0.2", false}, {"10.0.0.1", true},
		{"2001:db8::1", false}, {"2001:db8::2", true}, {"2001:db8:0:1::1", false}, {"fe80::1%eth0", false}, {"fe80::2%eth1", true},
	} {
		if got := l.Take(netip.MustParseAddr(tc.ip)); got.Refused != tc.refused {
			t.Errorf("Take(%s) refused = %v, want %v", tc.ip, got.Refused, tc.refused)
		}
	}
	if l.Take(netip.Addr{}).Refused || !l.Take(netip.Addr{}).Refused {
		t.Error("the unknown address is not one address")
	}
}

// Addresses without end do not take memory without end, and one that is active is not forgotten for them.
func TestLimiterIsBounded(t *testing.T) {
	l := gate.NewLimiter(time.Hour, 1000)
	active := netip.MustParseAddr("10.0.0.1")
	used := 0
	for i := range 200_000 {
		l.Take(netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)}))
		if i%1000 == 0 {
			used++
			if got := l.Take(active); got.Remaining != 1000-used {
				t.Fatalf("after %d addresses the active one has %d left, want %d", i, got.Remaining, 1000-used)
			}
		}
	}
}

func TestRateLimitIsTold(t *testing.T) {
	o := gate.Options{Limiter: gate.NewLimiter(time.Minute, 2)}
	for i, want := range []string{"200 2 1 60 ", "200 2 0 60 ", "429 2 0 60 60"} {
		w := through(o, request("GET"))
		h := w.Header()
		got := fmt.Sprintf("%d %s %s %s %s", w.Code, h.Get("X-RateLimit-Limit"), h.Get("X-RateLimit-Remaining"), h.Get("X-RateLimit-Reset"), h.Get("Retry-After"))
		if got != want {
			t.Errorf("request %d: %s, want %s", i+1, got, want)
		}
	}
	if w := through(o, request("OPTIONS", "Origin", "http://x", "Access-Control-Request-Method", "GET")); w.Code != 204 {
		t.Errorf("a preflight is limited: %d", w.Code)
	}
}

func BenchmarkLimiter(b *testing.B) {
	l := gate.NewLimiter(time.Minute, 60)
	ip := netip.MustParseAddr("10.0.0.1")
	b.ReportAllocs()
	for b.Loop() {
		l.Take(ip)
	}
}
