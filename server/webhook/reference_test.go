package webhook_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"agentd/server/fault"
	"agentd/server/webhook"
)

// call is what testdata/peer.cjs does: it signs, or verifies if there are headers.
type call struct {
	Secret  string            `json:"secret"`
	Body    string            `json:"body"`
	ID      string            `json:"id,omitempty"`
	Seconds int64             `json:"seconds,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
}

// peer makes calls of the reference library of Standard Webhooks, which the node_modules of the folder in AGENTD_WEBHOOKS has.
func peer(t *testing.T, calls []call) (answers []string) {
	t.Helper()
	in, err := json.Marshal(calls)
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	node := exec.CommandContext(t.Context(), "node", "testdata/peer.cjs")
	node.Env = append(os.Environ(), "NODE_PATH="+filepath.Join(os.Getenv("AGENTD_WEBHOOKS"), "node_modules"))
	node.Stdin, node.Stderr = bytes.NewReader(in), &stderr
	out, err := node.Output()
	if err == nil {
		err = json.Unmarshal(out, &answers)
	}
	if err != nil || len(answers) != len(calls) {
		t.Fatalf("peer.cjs answers %d of %d calls: %v\n%s", len(answers), len(calls), err, stderr.Bytes())
	}
	return answers
}

// request is a signed request, or one that was altered after that.
type request struct {
	altered          string // what was, empty if nothing
	secret, body, id string
	seconds          int64
	signature        string
}

func (r request) headers() http.Header {
	return headers("webhook-id", r.id, "webhook-timestamp", strconv.FormatInt(r.seconds, 10), "webhook-signature", r.signature)
}

// alterations are requests that no receiver may accept, beside the one that it must.
func (r request) alterations() []request {
	all := []request{r}
	alter := func(what string, change func(*request)) {
		r := r
		r.altered = what
		change(&r)
		all = append(all, r)
	}
	alter("body", func(r *request) { r.body += " " })
	alter("id", func(r *request) { r.id += "x" })
	alter("time", func(r *request) { r.seconds++ })
	alter("secret", func(r *request) { r.secret = "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32)) })
	alter("version", func(r *request) { r.signature = strings.ReplaceAll(r.signature, "v1,", "v2,") })
	alter("signature", func(r *request) {
		first := "A"
		if strings.HasPrefix(r.signature, "v1,A") {
			first = "B"
		}
		r.signature = "v1," + first + r.signature[len("v1,A"):]
	})
	return all
}

// TestReference has the reference library verify what we sign, and verifies what it signs, both also altered.
func TestReference(t *testing.T) {
	if os.Getenv("AGENTD_WEBHOOKS") == "" {
		t.Skip("AGENTD_WEBHOOKS is not set: .ci/run sets it, and runs this test")
	}
	now := time.Now().Unix()
	random := rand.New(rand.NewPCG(1, 2))
	var ours, theirs []request
	for i := range 50 {
		key := make([]byte, 24+random.IntN(41)) // as many bytes as the specification permits
		for j := range key {
			key[j] = byte(random.Uint32())
		}
		r := request{
			secret: "whsec_" + base64.StdEncoding.EncodeToString(key), id: fmt.Sprintf("msg_%d", i), seconds: now,
			body: `{"text":"` + strings.Repeat("ä€𝄞 ", random.IntN(50)) + `"}`,
		}
		if i == 0 {
			r.body = ""
		}
		theirs = append(theirs, r)
		h := sign(t, signer(t, r.secret), r.id, r.body)
		r.seconds, _ = strconv.ParseInt(h.Get("Webhook-Timestamp"), 10, 64)
		r.signature = h.Get("Webhook-Signature")
		ours = append(ours, r.alterations()...)
	}
	for i, late := range []int64{-1000, 1000} { // signed correctly, but old or early
		theirs = append(theirs, request{altered: "clock", secret: whsec, body: "{}", id: fmt.Sprintf("msg_clock_%d", i), seconds: now + late})
	}
	// A change of secrets: two signatures, of which the receiver knows one.
	for _, known := range []string{theirs[1].secret, theirs[2].secret} {
		h := sign(t, signer(t, theirs[1].secret, theirs[2].secret), "msg_two", "{}")
		seconds, _ := strconv.ParseInt(h.Get("Webhook-Timestamp"), 10, 64)
		ours = append(ours, request{secret: known, body: "{}", id: "msg_two", seconds: seconds, signature: h.Get("Webhook-Signature")})
	}

	var calls []call
	for _, r := range ours {
		h := map[string]string{}
		for name := range r.headers() {
			h[name] = r.headers().Get(name)
		}
		calls = append(calls, call{Secret: r.secret, Body: r.body, Headers: h})
	}
	for _, r := range theirs {
		calls = append(calls, call{Secret: r.secret, Body: r.body, ID: r.id, Seconds: r.seconds})
	}
	answers := peer(t, calls)
	for i, r := range ours {
		if (answers[i] == "verified") != (r.altered == "") {
			t.Errorf("the library says %q of a request of ours, altered %q: %+v", answers[i], r.altered, r)
		}
	}
	for i, r := range theirs {
		r.signature = answers[len(ours)+i]
		all := []request{r}
		if r.altered == "" {
			all = r.alterations()
		}
		for _, r := range all {
			id, err := verifier(t, webhook.Scheme{Name: webhook.Standard}, r.secret).Verify(r.headers(), []byte(r.body))
			if r.altered == "" && (id != r.id || err != nil) || r.altered != "" && err == nil {
				t.Errorf("Verify of a request of the library, altered %q = %q, %v", r.altered, id, err)
			}
			if r.altered == "clock" && !fault.Is(err, fault.SignatureOld) && !fault.Is(err, fault.SignatureEarly) {
				t.Errorf("Verify of a request of %+d s = %v, want signature-old or signature-early", r.seconds-now, err)
			}
		}
	}
	t.Logf("%d requests of ours and %d of the library", len(ours), len(theirs))
}
