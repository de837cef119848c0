package gate_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/store/storetest"
)

// A bad signature is answered and recorded as a bad token is, without a challenge for a token, and counts for the lockout. A good
// one passes also while the address is locked out, and its request and action are the hook's.
func TestSigned(t *testing.T) {
	l := openAudit(t)
	v, err := auth.NewVerifier(auth.Options{Tokens: storetest.Open(t).Tokens(), Pepper: []byte("a pepper, 32 bytes long at least, 0123456789"), Prefix: "svc", PerIPFailureThreshold: 2})
	if err != nil {
		t.Fatal(err)
	}
	g := gate.New(gate.Options{BasePath: "/v1", Verifier: v, Audit: gate.Audit{Log: l}, CSRF: gate.CSRF{Enabled: true, CookieName: "c", HeaderName: "h"}})
	g.Handle(gate.Row{Pattern: "POST /v1/hooks/{name}", Signed: true, Action: "event:emit", Target: "event:{name}", Serve: func(w http.ResponseWriter, r *http.Request) error {
		body, _ := io.ReadAll(r.Body)
		err := g.Signed(r, func() (auth.Principal, error) {
			switch string(body) {
			case "good":
				return auth.Hook("github", "push"), nil
			case "no event":
				return auth.Hook("github", "push"), fault.Invalid("The body is no event.")
			}
			return auth.Principal{}, fault.New(fault.SignatureWrong, "No.")
		})
		if err == nil {
			err = gate.Covered(gate.Of(r).Principal, auth.Scope{Resource: "triggers", Action: "emit", Target: r.PathValue("name")})
		}
		if err == nil {
			w.WriteHeader(http.StatusOK)
		}
		return err
	}})
	send := func(name, body string, want int) {
		t.Helper()
		r := httptest.NewRequest("POST", "/v1/hooks/"+name, strings.NewReader(body))
		r.Header.Set("Origin", "https://elsewhere.example")
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		if w.Code != want || w.Header().Get("WWW-Authenticate") != "" {
			t.Errorf("POST %q = %d %s with the challenge %q, want %d without one", body, w.Code, w.Body, w.Header().Get("WWW-Authenticate"), want)
		}
	}
	send("push", "good", 200)
	send("push", "bad", 401)
	send("push", "no event", 400) // its signature is good, so it counts for nothing
	send("push", "bad", 401)
	send("push", "bad", 429)
	send("push", "good", 200)
	send("deploy", "good", 403)
	want := []string{"POST /v1/hooks/push 200 success", "POST /v1/hooks/push 400 denied", "POST /v1/hooks/push 200 success", "POST /v1/hooks/deploy 403 denied"}
	if got := entries(t, l); !slices.Equal(got, want) {
		t.Errorf("the requests are recorded as %q, want %q", got, want)
	}
	page, _, err := l.List(t.Context(), audit.Query{Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range page {
		if e.Action != "http:request" {
			got = append(got, e.Actor.Kind+":"+e.Actor.ID+" "+e.Action+" "+string(e.Decision))
		}
	}
	slices.Sort(got)
	want = []string{"hook:github event:emit denied", "hook:github event:emit success", "hook:github event:emit success",
		"system:unauthenticated auth:denied:auth-locked-out denied", "system:unauthenticated auth:denied:signature-wrong denied"}
	if !slices.Equal(got, want) {
		t.Errorf("the actions are recorded as %q, want %q", got, want)
	}
}
