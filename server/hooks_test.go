package server_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
)

// rigSecret is what the file pepper of a rig holds. It is base64 of 24 bytes, too.
const rigSecret = "0123456789abcdef0123456789ABCDEF"

const hooksConfig = `{"auth": {"perIpFailureThreshold": 3}, "audit": {"enabled": true, "passphraseRef": "file:pepper"},
	"workflows": {"flow": {"state": {"got": {}}, "output": "${ state.got }", "start": "take", "nodes": {"take": {"kind": "set", "values": {"got": "${ input }"}, "next": "end"}}}},
	"triggers": {"t": {"kind": "event", "event": "came", "workflow": "flow", "input": {"what": "${ headers['x-github-event'] }", "n": "${ event.n }"}}},
	"hooks": {
		"standard": {"event": "came", "verify": {"scheme": "standard-webhooks", "secretRefs": ["file:pepper"]}, "headers": ["X-GitHub-Event"]},
		"stripe": {"event": "came", "verify": {"scheme": "stripe", "secretRefs": ["file:pepper"]}, "headers": ["X-GitHub-Event"]},
		"github": {"event": "came", "verify": {"scheme": "github", "secretRefs": ["file:pepper"]}, "headers": ["X-GitHub-Event"]},
		"meter": {"event": "came", "verify": {"scheme": "hmac-sha256", "secretRefs": ["file:pepper"], "header": "X-Mac", "encoding": "base64", "prefix": "v1=", "timestampHeader": "X-Time"},
			"headers": ["X-GitHub-Event"]}}}`

func macOf(key, text string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// signedBy is the headers of a request to a hook of hooksConfig.
func signedBy(hook, id, body string) []string {
	now := fmt.Sprint(time.Now().Unix())
	switch hook {
	case "standard":
		key, _ := base64.StdEncoding.DecodeString(rigSecret)
		return []string{"Webhook-Id: " + id, "Webhook-Timestamp: " + now,
			"Webhook-Signature: v1," + base64.StdEncoding.EncodeToString(macOf(string(key), id+"."+now+"."+body))}
	case "stripe":
		return []string{"Stripe-Signature: t=" + now + ",v1=" + hex.EncodeToString(macOf(rigSecret, now+"."+body))}
	case "github":
		return []string{"X-Hub-Signature-256: sha256=" + hex.EncodeToString(macOf(rigSecret, body))}
	}
	return []string{"X-Time: " + now, "X-Mac: v1=" + base64.StdEncoding.EncodeToString(macOf(rigSecret, now+"."+body))}
}

// A request that any of the schemes signs fires the trigger of its event once, also when it comes again after a restart. The run sees
// the body and the headers that the hook names; the ledger names the hook.
func TestHooks(t *testing.T) {
	t.Parallel()
	r := newRig(t, hooksConfig, nil)
	runs := map[string]string{}
	for _, hook := range []string{"standard", "stripe", "github", "meter"} {
		body := `{"id": "evt_1", "n": "` + hook + `"}`
		ans := r.do("POST", "/v1/hooks/"+hook, "", body, append(signedBy(hook, "msg_1", body), "X-GitHub-Event: push", "X-Other: no")...)
		run, err := find(ans.body, ".fired[0].runId")
		if ans.StatusCode != 200 || err != nil || strings.Contains(ans.body, "duplicate") {
			t.Fatalf("POST /hooks/%s = %d %s, want a run", hook, ans.StatusCode, ans.body)
		}
		runs[hook] = run
		for range 100 {
			if out := r.do("GET", "/v1/runs/"+run+"/state", r.admin, ""); !strings.Contains(out.body, `"status":"completed"`) {
				time.Sleep(20 * time.Millisecond)
			} else if !strings.Contains(out.body, `{"n":"`+hook+`","what":"push"}`) {
				t.Fatalf("the run of %s is %s, want the body and the header in its output", hook, out.body)
			} else {
				break
			}
		}
	}
	r.stop()
	r.start()
	for hook, run := range runs {
		body := `{"id": "evt_1", "n": "` + hook + `"}`
		ans := r.do("POST", "/v1/hooks/"+hook, "", body, signedBy(hook, "msg_1", body)...)
		if ans.StatusCode != 200 || !strings.Contains(ans.body, `"duplicate":true`) || !strings.Contains(ans.body, run) {
			t.Errorf("POST /hooks/%s again = %d %s, want a duplicate with run %s", hook, ans.StatusCode, ans.body, run)
		}
	}
	ledger := r.do("GET", "/v1/triggers/t/firings", r.admin, "")
	if n := strings.Count(ledger.body, `"outcome":"fired"`); n != 4 || !strings.Contains(ledger.body, `"firedBy":"hook:github"`) {
		t.Errorf("the ledger is %s, want four firings by hooks", ledger.body)
	}
	log := r.do("GET", "/v1/audit?action=event:emit", r.admin, "")
	if n := strings.Count(log.body, `"eventId":"msg_1"`); n != 2 { // it came, and came again
		t.Errorf("the audit chain has %d entries of an event, want 2: %s", n, log.body)
	}
	if !strings.Contains(log.body, `"kind":"hook"`) || !strings.Contains(log.body, `"event:came"`) || strings.Contains(ledger.body+log.body, rigSecret) {
		t.Errorf("the audit chain has %s, want the events of hooks, and no secret", log.body)
	}
}

// What is signed badly is refused, recorded and counted; what is signed well passes a locked address. A hook needs no token, and a token
// does not help.
func TestHooksRefuse(t *testing.T) {
	t.Parallel()
	r := newRig(t, hooksConfig, nil)
	body := `{"n": 1}`
	good := signedBy("github", "", body)
	want := func(path, token, body string, headers []string, status int, code string) {
		t.Helper()
		ans := r.do("POST", path, token, body, headers...)
		if ans.StatusCode != status || ans.code() != code || ans.Header.Get("WWW-Authenticate") != "" {
			t.Errorf("POST %s %s = %d %s with the challenge %q, want %d %s without one", path, body, ans.StatusCode, ans.body, ans.Header.Get("WWW-Authenticate"), status, code)
		}
	}
	want("/v1/hooks/none", "", body, good, 404, "not-found")
	want("/v1/hooks/github", "", `no JSON`, signedBy("github", "", `no JSON`), 400, "config-invalid")
	want("/v1/hooks/stripe", "", body, signedBy("stripe", "", body), 400, "config-invalid") // without an id
	want("/v1/hooks/github", "", strings.Repeat(" ", 5<<20), good, 413, "body-too-large")
	want("/v1/hooks/github", r.admin, body, nil, 401, "signature-missing")
	want("/v1/hooks/github", "", body+" ", good, 401, "signature-wrong")
	want("/v1/hooks/github", "", body, []string{"X-Hub-Signature-256: sha1=00"}, 401, "signature-malformed")
	want("/v1/hooks/github", "", body+" ", good, 429, "auth-locked-out")
	want("/v1/hooks/github", "", body, good, 200, "")
	if log := r.do("GET", "/v1/audit?action=auth:denied:signature-wrong", r.admin, ""); !strings.Contains(log.body, "/v1/hooks/github") {
		t.Errorf("the audit chain has %s, want the refusal", log.body)
	}
	if runs := r.do("GET", "/v1/triggers/t/firings", r.admin, ""); strings.Count(runs.body, `"slot"`) != 1 {
		t.Errorf("the ledger is %s, want one firing", runs.body)
	}
}
