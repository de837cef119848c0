package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/server/fault"
	"agentd/server/webhook"
)

// Secrets of tests.
const (
	whsec  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // of the tests of Standard Webhooks' libraries
	public = "It's a Secret to Everybody"             // of GitHub's documentation
)

// headers makes the headers of a request from names and values.
func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

// sum is the signature of a text, made without the package.
func sum(secret, text string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func verifier(t testing.TB, s webhook.Scheme, secrets ...string) *webhook.Verifier {
	t.Helper()
	all := make([][]byte, len(secrets))
	for i, s := range secrets {
		all[i] = []byte(s)
	}
	v, err := webhook.New(s, all...)
	if err != nil {
		t.Fatalf("New(%+v) = %v", s, err)
	}
	return v
}

func signer(t testing.TB, secrets ...string) *webhook.Signer {
	t.Helper()
	all := make([][]byte, len(secrets))
	for i, s := range secrets {
		all[i] = []byte(s)
	}
	s, err := webhook.NewSigner(all...)
	if err != nil {
		t.Fatalf("NewSigner = %v", err)
	}
	return s
}

// sign returns the headers of a signed request.
func sign(t testing.TB, s *webhook.Signer, id, body string) http.Header {
	t.Helper()
	h := http.Header{}
	if err := s.Sign(h, id, []byte(body)); err != nil {
		t.Fatalf("Sign(%s) = %v", id, err)
	}
	return h
}

// at runs a test at a time, in seconds since 1970.
func at(t *testing.T, seconds int64, test func(*testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Unix(seconds, 0)))
		test(t)
	})
}

// stripeBody is the event of the tests of Stripe's library for .NET.
const stripeBody = `{
  "id": "evt_123",
  "object": "event",
  "account": "acct_123",
  "api_version": "2017-05-25",
  "created": 1533204620,
  "data": {
    "object": {
      "id": "ii_123",
      "object": "invoiceitem",
      "amount": 1000,
      "currency": "usd",
      "customer": "cus_123",
      "date": 1533204620,
      "description": "Test Invoice Item",
      "discountable": false,
      "invoice": "in_123",
      "livemode": false,
      "metadata": {},
      "period": {
        "start": 1533204620,
        "end": 1533204620
      },
      "plan": null,
      "proration": false,
      "quantity": null,
      "subscription": null
    }
  },
  "livemode": false,
  "pending_webhooks": 1,
  "request": {
    "id": "req_123",
    "idempotency_key": "idempotency-key-123"
  },
  "type": "invoiceitem.created"
}
`

// TestPublishedVectors has signatures that others published.
func TestPublishedVectors(t *testing.T) {
	for name, test := range map[string]struct {
		scheme       webhook.Scheme
		secret, body string
		headers      http.Header
		at           int64
		id           string
	}{
		"standard": {webhook.Scheme{Name: webhook.Standard}, whsec, `{"test": 2432232314}`,
			headers("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp", "1614265330",
				"webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
			1614265330, "msg_p5jXN8AQM9LWM0D4loKWxJek"},
		"github": {webhook.Scheme{Name: webhook.GitHub}, public, "Hello, World!",
			headers("X-Hub-Signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"),
			1700000000, digest("757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")},
		"stripe": {webhook.Scheme{Name: webhook.Stripe}, "webhook_secret", stripeBody,
			headers("Stripe-Signature", "t=1533204620,v1=f0bdba6d4eacbd8ad8a3bbadd7248e633ec1477f7899c124c51b39405fa36613,"+
				"v0=63f3a72374a733066c4be69ed7f8e5ac85c22c9f0a6a612ab9a025a9e4ee7eef"),
			1533204620 + 100, "evt_123"},
	} {
		t.Run(name, func(t *testing.T) {
			at(t, test.at, func(t *testing.T) {
				v := verifier(t, test.scheme, test.secret)
				if id, err := v.Verify(test.headers, []byte(test.body)); id != test.id || err != nil {
					t.Errorf("Verify = %q, %v, want %q", id, err, test.id)
				}
				if _, err := v.Verify(test.headers, []byte(test.body+" ")); !fault.Is(err, fault.SignatureWrong) {
					t.Errorf("Verify of another body = %v, want signature-wrong", err)
				}
			})
		})
	}
}

// digest is the SHA-256 of bytes in hex.
func digest(text string) string {
	b, _ := hex.DecodeString(text)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestSignVector(t *testing.T) {
	at(t, 1614265330, func(t *testing.T) {
		h := sign(t, signer(t, whsec), "msg_p5jXN8AQM9LWM0D4loKWxJek", `{"test": 2432232314}`)
		want := headers("Webhook-Id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "Webhook-Timestamp", "1614265330",
			"Webhook-Signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
		if fmt.Sprint(h) != fmt.Sprint(want) {
			t.Errorf("Sign = %v, want %v", h, want)
		}
	})
}

// TestAttemptsAreSignedAfresh has the attempts of one event: the time moves, the id stays, and an old attempt is refused.
func TestAttemptsAreSignedAfresh(t *testing.T) {
	at(t, 1700000000, func(t *testing.T) {
		s, v := signer(t, whsec), verifier(t, webhook.Scheme{Name: webhook.Standard}, whsec)
		body := []byte("{}")
		first := sign(t, s, "msg_1", "{}")
		time.Sleep(301 * time.Second)
		second := sign(t, s, "msg_1", "{}")
		if _, err := v.Verify(first, body); !fault.Is(err, fault.SignatureOld) {
			t.Errorf("Verify of the first attempt = %v, want signature-old", err)
		}
		if id, err := v.Verify(second, body); id != "msg_1" || err != nil {
			t.Errorf("Verify of the second attempt = %q, %v, want msg_1", id, err)
		}
		if first.Get("Webhook-Signature") == second.Get("Webhook-Signature") {
			t.Error("both attempts have the same signature")
		}
	})
}

func TestTolerance(t *testing.T) {
	hmacTimed := webhook.Scheme{Name: webhook.HMAC, Header: "X-Signature", Encoding: "hex", Prefix: "sha256=", TimestampHeader: "X-Timestamp"}
	for name, make := range map[string]func(now string) (*webhook.Verifier, http.Header){
		"standard": func(now string) (*webhook.Verifier, http.Header) {
			key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(whsec, "whsec_"))
			return verifier(t, webhook.Scheme{Name: webhook.Standard}, whsec), headers("webhook-id", "a", "webhook-timestamp", now,
				"webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(sum(string(key), "a."+now+`.{"id":"a"}`)))
		},
		"stripe": func(now string) (*webhook.Verifier, http.Header) {
			return verifier(t, webhook.Scheme{Name: webhook.Stripe}, whsec),
				headers("Stripe-Signature", "t="+now+",v1="+hex.EncodeToString(sum(whsec, now+`.{"id":"a"}`)))
		},
		"hmac": func(now string) (*webhook.Verifier, http.Header) {
			return verifier(t, hmacTimed, public),
				headers("X-Timestamp", now, "X-Signature", "sha256="+hex.EncodeToString(sum(public, now+`.{"id":"a"}`)))
		},
	} {
		at(t, 1700000000, func(t *testing.T) {
			for off, want := range map[int64]*fault.Kind{-1e9: fault.SignatureOld, -301: fault.SignatureOld, -300: nil, 0: nil, 300: nil, 301: fault.SignatureEarly, 1e10: fault.SignatureEarly} {
				v, h := make(strconv.FormatInt(1700000000+off, 10))
				if _, err := v.Verify(h, []byte(`{"id":"a"}`)); want == nil && err != nil || want != nil && !fault.Is(err, want) {
					t.Errorf("%s: Verify of a request signed at %+d s = %v, want %v", name, off, err, want)
				}
			}
		})
	}
}

// TestSecretsInTurn has the change of a secret: both sides have two for a while, and any that they share is enough.
func TestSecretsInTurn(t *testing.T) {
	const other, third = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"
	at(t, 1700000000, func(t *testing.T) {
		body := []byte("{}")
		for _, test := range []struct {
			sent, known []string
			want        *fault.Kind
		}{
			{[]string{whsec}, []string{whsec}, nil},
			{[]string{whsec, other}, []string{other}, nil},
			{[]string{other, whsec}, []string{other}, nil},
			{[]string{whsec}, []string{other, third, whsec}, nil},
			{[]string{third}, []string{"whsec_" + third}, nil},
			{[]string{whsec}, []string{other, third}, fault.SignatureWrong},
			{[]string{whsec, other}, []string{third}, fault.SignatureWrong},
		} {
			h := sign(t, signer(t, test.sent...), "msg_1", "{}")
			_, err := verifier(t, webhook.Scheme{Name: webhook.Standard}, test.known...).Verify(h, body)
			if test.want == nil && err != nil || test.want != nil && !fault.Is(err, test.want) {
				t.Errorf("signed with %v and verified with %v: %v, want %v", test.sent, test.known, err, test.want)
			}
		}
	})
}

// TestHeaders has the headers of each scheme that are missing, malformed, or as others write them. NOW and SIG in them stand for the
// time and for the right signature.
func TestHeaders(t *testing.T) {
	const now = "1700000000"
	long := strings.Repeat("x", webhook.MaxHeader)
	standard := func(pairs ...string) []string {
		all := map[string]string{"webhook-id": "a", "webhook-timestamp": "NOW", "webhook-signature": "v1,SIG"}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		var list []string
		for name, value := range all {
			if value != "-" {
				list = append(list, name, value)
			}
		}
		return list
	}
	std, stripe, github := webhook.Scheme{Name: webhook.Standard}, webhook.Scheme{Name: webhook.Stripe}, webhook.Scheme{Name: webhook.GitHub}
	plain := webhook.Scheme{Name: webhook.HMAC, Header: "X-Sig", Encoding: "base64"}
	timed := webhook.Scheme{Name: webhook.HMAC, Header: "X-Sig", Encoding: "hex", Prefix: "v1=", TimestampHeader: "X-At"}
	zeros := strings.Repeat("0", 64)
	for _, test := range []struct {
		scheme webhook.Scheme
		pairs  []string
		want   *fault.Kind
	}{
		{std, standard(), nil},
		{std, standard("webhook-signature", "v1a,abc v1,SIG"), nil},
		{std, standard("webhook-signature", "v2 v1,SIG "), nil},
		{std, standard("webhook-signature", "v1,"+strings.Repeat("A", 43)+"= v1,SIG"), nil},
		{std, standard("webhook-id", "-"), fault.SignatureMissing},
		{std, standard("webhook-id", ""), fault.SignatureMissing},
		{std, standard("webhook-timestamp", "-"), fault.SignatureMissing},
		{std, standard("webhook-signature", "-"), fault.SignatureMissing},
		{std, standard("webhook-id", "a.b"), fault.SignatureMalformed},
		{std, standard("webhook-id", "a b"), fault.SignatureMalformed},
		{std, standard("webhook-id", "ä"), fault.SignatureMalformed},
		{std, standard("webhook-id", long[:webhook.MaxID+1]), fault.SignatureMalformed},
		{std, standard("webhook-timestamp", "0NOW"), fault.SignatureMalformed},
		{std, standard("webhook-timestamp", "+NOW"), fault.SignatureMalformed},
		{std, standard("webhook-timestamp", "NOW.0"), fault.SignatureMalformed},
		{std, standard("webhook-timestamp", "NOW00"), fault.SignatureMalformed},
		{std, standard("webhook-signature", "SIG"), fault.SignatureMalformed},
		{std, standard("webhook-signature", "v1a,SIG"), fault.SignatureMalformed},
		{std, standard("webhook-signature", "v1,SIG="), fault.SignatureMalformed},
		{std, standard("webhook-signature", "v1,"+strings.Repeat("A", 42)+"B="), fault.SignatureMalformed}, // bits left over
		{std, standard("webhook-signature", strings.Repeat("v1,SIG ", 16)), nil},
		{std, standard("webhook-signature", strings.Repeat("v1,SIG ", 17)), fault.SignatureMalformed},
		{std, standard("webhook-signature", "v1,SIG "+long), fault.SignatureMalformed},
		{std, append(standard(), "webhook-id", "a"), fault.SignatureMalformed},
		{std, append(standard(), "webhook-signature", "v1,SIG"), fault.SignatureMalformed},
		{std, standard("webhook-signature", "v1,"+strings.Repeat("A", 43)+"="), fault.SignatureWrong},

		{stripe, []string{"Stripe-Signature", "t=NOW,v1=SIG"}, nil},
		{stripe, []string{"Stripe-Signature", "v1=SIG,t=NOW"}, nil},
		{stripe, []string{"Stripe-Signature", "t=NOW,v1=" + zeros + ",v1=SIG,v0=x,y"}, nil},
		{stripe, nil, fault.SignatureMissing},
		{stripe, []string{"Stripe-Signature", "v1=SIG"}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=NOW"}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=NOW,v0=SIG"}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=NOW,t=NOW,v1=SIG"}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=,v1=SIG"}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=NOW,v1="}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=NOW" + strings.Repeat(",v1=SIG", 17)}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=NOW,v1=SIG," + long}, fault.SignatureMalformed},
		{stripe, []string{"Stripe-Signature", "t=NOW,v1=" + zeros}, fault.SignatureWrong},

		{github, []string{"X-Hub-Signature-256", "sha256=SIG"}, nil},
		{github, []string{"X-Hub-Signature", "sha256=SIG"}, fault.SignatureMissing},
		{github, []string{"X-Hub-Signature-256", "sha1=SIG"}, fault.SignatureMalformed},
		{github, []string{"X-Hub-Signature-256", "sha256=SIG0"}, fault.SignatureMalformed},
		{github, []string{"X-Hub-Signature-256", "sha256=" + zeros}, fault.SignatureWrong},

		{plain, []string{"X-Sig", "SIG"}, nil},
		{plain, []string{"X-Sig", "SIG,SIG"}, fault.SignatureMalformed},
		{plain, []string{"X-Sig", zeros}, fault.SignatureMalformed},
		{timed, []string{"X-At", "NOW", "X-Sig", "v1=SIG"}, nil},
		{timed, []string{"X-Sig", "v1=SIG"}, fault.SignatureMissing},
		{timed, []string{"X-At", "NOW", "X-Sig", "SIG"}, fault.SignatureMalformed},
		{timed, []string{"X-At", "x", "X-Sig", "v1=SIG"}, fault.SignatureMalformed},
		{timed, []string{"X-At", "1700000001", "X-Sig", "v1=SIG"}, fault.SignatureWrong},
	} {
		at(t, 1700000000, func(t *testing.T) {
			const body = `{"id":"a"}`
			values := strings.NewReplacer("NOW", now, "SIG", right(test.scheme, now, body))
			pairs := make([]string, len(test.pairs))
			for i, text := range test.pairs {
				pairs[i] = values.Replace(text)
			}
			_, err := verifier(t, test.scheme, secretOf(test.scheme)).Verify(headers(pairs...), []byte(body))
			if test.want == nil && err != nil || test.want != nil && !fault.Is(err, test.want) {
				t.Errorf("%s: Verify(%.100q) = %v, want %v", test.scheme.Name, test.pairs, err, test.want)
			}
			checkError(t, err)
		})
	}
}

func secretOf(s webhook.Scheme) string {
	if s.Name == webhook.Standard {
		return whsec
	}
	return public
}

// right is the signature of a body, of the id "a", in the encoding of a scheme.
func right(s webhook.Scheme, now, body string) string {
	switch {
	case s.Name == webhook.Standard:
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(whsec, "whsec_"))
		return base64.StdEncoding.EncodeToString(sum(string(key), "a."+now+"."+body))
	case s.Name == webhook.Stripe || s.TimestampHeader != "":
		return hex.EncodeToString(sum(public, now+"."+body))
	case s.Encoding == "base64":
		return base64.StdEncoding.EncodeToString(sum(public, body))
	}
	return hex.EncodeToString(sum(public, body))
}

// checkError holds an error to what every error of Verify keeps: a kind and a hint, and no secret.
func checkError(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	f := fault.Of(err)
	if f.Kind == fault.Internal || f.NextStep() == "" {
		t.Errorf("%v has no kind or no hint", err)
	}
	for _, secret := range []string{whsec, strings.TrimPrefix(whsec, "whsec_"), public} {
		if strings.Contains(err.Error()+f.NextStep(), secret) {
			t.Errorf("%v shows a secret", err)
		}
	}
}

func TestEventIDs(t *testing.T) {
	const now = "1700000000"
	timed := webhook.Scheme{Name: webhook.HMAC, Header: "X-Sig", Encoding: "hex", TimestampHeader: "X-At"}
	at(t, 1700000000, func(t *testing.T) {
		// The signature's case changes nothing of the id, and neither does the time that is signed with the body.
		github, body := verifier(t, webhook.Scheme{Name: webhook.GitHub}, public), "x"
		sig := hex.EncodeToString(sum(public, body))
		for _, text := range []string{sig, strings.ToUpper(sig)} {
			if id, err := github.Verify(headers("X-Hub-Signature-256", "sha256="+text), []byte(body)); id != digest(sig) || err != nil {
				t.Errorf("Verify(github, %s) = %q, %v, want %q", text, id, err, digest(sig))
			}
		}
		for _, seconds := range []string{now, "1700000100"} {
			id, err := verifier(t, timed, public).Verify(headers("X-At", seconds, "X-Sig", right(timed, seconds, body)), []byte(body))
			if want := digest(hex.EncodeToString([]byte(body))); id != want || err != nil {
				t.Errorf("Verify(hmac at %s) = %q, %v, want %q", seconds, id, err, want)
			}
		}
		stripe := webhook.Scheme{Name: webhook.Stripe}
		for body, want := range map[string]string{
			`{"id":"evt_1","ID":"evt_2"}`: "evt_1", `{"ID":"evt_2"}`: "", `{}`: "", `{"id":""}`: "", `{"id":1}`: "", `{"id":null}`: "", `[]`: "", `null`: "",
			`{"id":"a b"}`: "", `{"id":"` + strings.Repeat("x", webhook.MaxID+1) + `"}`: "", `{"id":"a"`: "", ``: "",
		} {
			id, err := verifier(t, stripe, public).Verify(headers("Stripe-Signature", "t="+now+",v1="+right(stripe, now, body)), []byte(body))
			if id != want || want == "" && !fault.Is(err, fault.ConfigInvalid) || want != "" && err != nil {
				t.Errorf("Verify(stripe, %.40s) = %q, %v, want %q", body, id, err, want)
			}
		}
	})
}

func TestConfiguration(t *testing.T) {
	good := webhook.Scheme{Name: webhook.HMAC, Header: "X-Sig", Encoding: "hex"}
	key := []byte(public)
	for _, test := range []struct {
		scheme  webhook.Scheme
		secrets [][]byte
		want    string // paths of the issues
	}{
		{good, [][]byte{key}, ""},
		{good, nil, "[secretRefs]"},
		{good, make([][]byte, webhook.MaxSecrets+1), "[secretRefs] [secretRefs 0] [secretRefs 1] [secretRefs 2] [secretRefs 3] [secretRefs 4] [secretRefs 5] [secretRefs 6] [secretRefs 7] [secretRefs 8]"},
		{good, [][]byte{key, make([]byte, webhook.MaxSecret+1)}, "[secretRefs 1]"},
		{webhook.Scheme{}, [][]byte{key}, "[scheme]"},
		{webhook.Scheme{Name: "gitlab"}, [][]byte{key}, "[scheme]"},
		{webhook.Scheme{Name: webhook.HMAC}, [][]byte{key}, "[header] [encoding]"},
		{webhook.Scheme{Name: webhook.GitHub, Header: "X", Encoding: "hex", Prefix: "x", TimestampHeader: "Y"}, [][]byte{key}, "[header] [encoding] [prefix] [timestampHeader]"},
		{webhook.Scheme{Name: webhook.HMAC, Header: "X Y", Encoding: "hex"}, [][]byte{key}, "[header]"},
		{webhook.Scheme{Name: webhook.HMAC, Header: "X", Encoding: "HEX"}, [][]byte{key}, "[encoding]"},
		{webhook.Scheme{Name: webhook.HMAC, Header: "X", Encoding: "hex", Prefix: "a\n"}, [][]byte{key}, "[prefix]"},
		{webhook.Scheme{Name: webhook.HMAC, Header: "X", Encoding: "hex", Prefix: strings.Repeat("x", 65)}, [][]byte{key}, "[prefix]"},
		{webhook.Scheme{Name: webhook.HMAC, Header: "X-A", Encoding: "hex", TimestampHeader: "x-a"}, [][]byte{key}, "[timestampHeader]"},
		{webhook.Scheme{Name: webhook.HMAC, Header: "X-A", Encoding: "hex", TimestampHeader: "é"}, [][]byte{key}, "[timestampHeader]"},
		{webhook.Scheme{Name: webhook.Standard}, [][]byte{[]byte(whsec)}, ""},
		{webhook.Scheme{Name: webhook.Standard}, [][]byte{[]byte(whsec), key}, "[secretRefs 1]"},
		{webhook.Scheme{Name: webhook.Standard}, [][]byte{[]byte("whsec_"), []byte(whsec[:len(whsec)-4])}, "[secretRefs 0] [secretRefs 1]"},
	} {
		_, err := webhook.New(test.scheme, test.secrets...)
		var paths []string
		if err != nil {
			for _, is := range fault.Of(err).Issues {
				paths = append(paths, fmt.Sprint(is.Path))
			}
			checkError(t, err)
		}
		if got := strings.Join(paths, " "); got != test.want || err != nil && !fault.Is(err, fault.ConfigInvalid) {
			t.Errorf("New(%+v, %d secrets) = %v, want issues at %s", test.scheme, len(test.secrets), err, test.want)
		}
	}
	if _, err := webhook.NewSigner([]byte("short")); !fault.Is(err, fault.ConfigInvalid) {
		t.Errorf("NewSigner(short) = %v, want config-invalid", err)
	}
	for _, name := range webhook.Schemes() {
		if issues := (webhook.Scheme{Name: name}).Check(); len(issues) > 0 && name != webhook.HMAC {
			t.Errorf("Check of %s = %v, want none", name, issues)
		}
	}
}

func TestSecretsAreCopied(t *testing.T) {
	secret := []byte(public)
	v, err := webhook.New(webhook.Scheme{Name: webhook.GitHub}, secret)
	if err != nil {
		t.Fatal(err)
	}
	clear(secret)
	h := headers("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum(public, "x")))
	if _, err := v.Verify(h, []byte("x")); err != nil {
		t.Errorf("Verify after the caller erased its secret = %v, want none", err)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	v, s := verifier(t, webhook.Scheme{Name: webhook.GitHub}, public), signer(t, whsec)
	text := fmt.Sprintf("%v %+v %#v %v %+v %#v %v", v, v, v, s, s, *s, *v)
	key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(whsec, "whsec_"))
	for _, secret := range []string{public, fmt.Sprint([]byte(public)), fmt.Sprintf("%#v", []byte(public)), whsec, fmt.Sprint(key), fmt.Sprintf("%#v", key), string(key)} {
		if strings.Contains(text, secret) {
			t.Errorf("a print shows a secret: %s", text)
		}
	}
}

func TestSignRefusesAmbiguousIDs(t *testing.T) {
	for _, id := range []string{"", "a.b", "a b", "a\n", strings.Repeat("x", webhook.MaxID+1)} {
		h := http.Header{}
		if err := signer(t, whsec).Sign(h, id, nil); err == nil || len(h) > 0 {
			t.Errorf("Sign with the id %.20q = %v and sets %v, want an error", id, err, h)
		}
	}
}
