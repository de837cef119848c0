package webhook_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentd/server/fuzztest"
	"agentd/server/webhook"
)

// fuzz tries headers of a scheme. NOW and SIG in them stand for the time and for the signature of the body and the id "a". Whoever
// knows no secret gets no further than an error: what is accepted has the right signature in it.
func fuzz(t *testing.T, s webhook.Scheme, body string, pairs ...string) {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	sig := right(s, now, body)
	values := strings.NewReplacer("NOW", now, "SIG", sig)
	h, size, signed := http.Header{}, len(body), false
	for i := 0; i < len(pairs); i += 2 {
		value := values.Replace(pairs[i+1])
		h.Add(pairs[i], value)
		size += len(value)
		signed = signed || strings.Contains(strings.ToLower(value), strings.ToLower(sig))
	}
	v := verifier(t, s, secretOf(s))
	fuzztest.Check(t, size, func() {
		id, err := v.Verify(h, []byte(body))
		checkError(t, err)
		if err == nil && (!signed || id == "" || len(id) > webhook.MaxID) {
			t.Errorf("Verify(%q, %q) = %q, without the signature %s", h, body, id, sig)
		}
	})
}

func FuzzStandard(f *testing.F) {
	f.Add("a", "NOW", "v1,SIG", "{}")
	f.Add("a.b", "1700000000", "v1a,x v1,SIG v2", "")
	f.Fuzz(func(t *testing.T, id, at, signature, body string) {
		fuzz(t, webhook.Scheme{Name: webhook.Standard}, body, "webhook-id", id, "webhook-timestamp", at, "webhook-signature", signature)
	})
}

func FuzzStripe(f *testing.F) {
	f.Add("t=NOW,v1=SIG,v0=x", `{"id":"a"}`)
	f.Add("v1=SIG,v1=SIG,t=NOW,t=1", `{"ID":"a"}`)
	f.Fuzz(func(t *testing.T, signature, body string) {
		fuzz(t, webhook.Scheme{Name: webhook.Stripe}, body, "Stripe-Signature", signature)
	})
}

// FuzzHMAC is also of github, whose header is of this kind.
func FuzzHMAC(f *testing.F) {
	f.Add("v1=SIG", "NOW", "x", true)
	f.Add("v1=SIG", "", "", false)
	f.Fuzz(func(t *testing.T, signature, at, body string, base64 bool) {
		s := webhook.Scheme{Name: webhook.HMAC, Header: "X-Sig", Encoding: "hex", Prefix: "v1=", TimestampHeader: "X-At"}
		if base64 {
			s.Encoding, s.TimestampHeader = "base64", ""
		}
		fuzz(t, s, body, "X-Sig", signature, "X-At", at)
	})
}
