package cli_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/server/evidence"
	"agentd/server/journal"
	"agentd/server/message"
)

// forge changes members of a bundle and makes all hashes match.
func forge(t *testing.T, bundle string, change func(member, body string) string) string {
	t.Helper()
	line, rest, _ := bytes.Cut([]byte(bundle), []byte{'\n'})
	var m evidence.Manifest
	if err := json.Unmarshal(line, &m); err != nil {
		t.Fatal(err)
	}
	sum := func(b []byte) string {
		s := sha256.Sum256(b)
		return hex.EncodeToString(s[:])
	}
	var bodies []byte
	for i := range m.Members {
		part := &m.Members[i]
		body := []byte(change(part.Name, string(rest[:part.Bytes])))
		rest = rest[part.Bytes:]
		part.Bytes, part.SHA256 = len(body), sum(body)
		bodies = append(bodies, body...)
	}
	m.SHA256 = ""
	line, err := message.Encode(m)
	if err == nil {
		m.SHA256 = sum(line)
		line, err = message.Encode(m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(line) + "\n" + string(bodies)
}

// TestForgedEvidence changes a payment in a bundle, in one member or in all that whoever wrote it can change, and makes
// the hashes match.
func TestForgedEvidence(t *testing.T) {
	for _, events := range []string{"security", "off"} {
		t.Run(events, func(t *testing.T) {
			dir := newEvidenceSite(t, `"enabled": true, "toolEvents": "`+events+`"`)
			t.Chdir(dir)
			srv := serve(t, dir)
			srv.token = adminToken(t)
			id := srv.approved("ann")
			srv.signal(syscall.SIGTERM)
			srv.wait().want(t, 0, "", "")
			bundle := here(t, "evidence", id).want(t, 0, "svc-evidence/1.2", "").stdout
			write(t, "whole", bundle)
			here(t, "evidence", "verify", "whole").want(t, 0, "of 1 of 1 calls shown by the chain", "").
				want(t, 0, "run, events, calls, approvals, program: the writer's word", "")
			_, after, _ := strings.Cut(bundle, `{"index":0,`)
			_, after, _ = strings.Cut(after, `"toolCallId":"`)
			call, _, _ := strings.Cut(after, `"`)
			old, now := journal.ArgsDigest([]byte(`{"to":"ann"}`)), journal.ArgsDigest([]byte(`{"to":"eve"}`))
			paid := strings.NewReplacer(`"to":"ann"`, `"to":"eve"`, old, now)
			only := func(name string) func(string, string) string {
				return func(member, body string) string {
					if member == name {
						return paid.Replace(body)
					}
					return body
				}
			}
			for name, change := range map[string]func(member, body string) string{
				"everywhere": func(member, body string) string {
					if member == "entries" {
						return body
					}
					return paid.Replace(body)
				},
				"the run":    only("run"),
				"the events": only("events"),
				"the tool": func(member, body string) string {
					if member == "entries" {
						return body
					}
					return strings.ReplaceAll(body, `"toolName":"pay"`, `"toolName":"see"`)
				},
				"the reason": func(member, body string) string {
					if member == "calls" || member == "approvals" {
						return strings.Replace(body, `"granted":true`, `"granted":true,"reason":"he told me to"`, 1)
					}
					return body
				},
			} {
				forged := forge(t, bundle, change)
				if forged == bundle {
					t.Fatalf("%s: nothing was changed", name)
				}
				write(t, "forged", forged)
				here(t, "evidence", "verify", "forged").want(t, 1, "NOT WHOLE", "").want(t, 1, call, "")
				write(t, "older", strings.Replace(forge(t, strings.Replace(strings.Replace(forged, "svc-evidence/1.2", "svc-evidence/1.1", 1),
					`"writersWord":["run","events","calls","approvals","program"],`, "", 1), func(_, body string) string {
					return strings.ReplaceAll(body, `"canonical":true,`, "")
				}), "", "", 0))
				here(t, "evidence", "verify", "older").want(t, 1, "NOT WHOLE", "").want(t, 1, call, "")
			}
		})
	}
}

// TestApproveOtherArguments gives a call other arguments, with the grant, and takes the evidence of that.
func TestApproveOtherArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agentd.json"), `{
		"auth": {"kind": "none"}, "storage": {"path": "data/data.db"},
		"audit": {"enabled": true, "passphraseRef": "env:AUDIT_PASSPHRASE"},
		"providers": {"script": {"kind": "scripted", "script": "script.json"}},
		"tools": {"pay": {"kind": "exec", "description": "Pays", "command": ["sh", "-c", "cat >> paid.txt; echo paid"], "approval": {"edit": true, "always": true}}},
		"agents": {"clerk": {"kind": "llm", "provider": "script", "model": "m", "tools": ["pay"], "permissions": {"deny": ["pay:amount=1000"]}}}
	}`)
	write(t, filepath.Join(dir, "script.json"), `{"turns": [{"when": {"step": 0}, "toolCalls": [{"name": "pay", "args": {"amount": 100}}]}, {"text": "Done: {{lastTool}}"}]}`)
	write(t, filepath.Join(dir, "new.json"), ` {"amount": 50.0} `)
	run := func(args ...string) said {
		return spawn(t, dir, nil, []string{"AUDIT_PASSPHRASE=correct horse battery staple"}, args...).wait()
	}
	run("run", "clerk", "go").want(t, 3, "", "waits for approval")
	var list struct{ Approvals []waiting }
	run("approvals", "--json").want(t, 0, "", "").decode(t, &list)
	id := list.Approvals[0].RunID
	run("runs", "approve", id, "--args", "{").want(t, 2, "", "--args is not JSON")
	run("runs", "approve", id, "--args", `{"amount": 1e3}`).want(t, 1, "", "edit-refused")
	run("runs", "deny", id, "--args", `{"amount": 1}`).want(t, 2, "", "")
	run("runs", "approve", id, "--args", "@new.json").want(t, 0, `A person allowed this call with other arguments: {"amount":50}`, "")
	if got := read(t, filepath.Join(dir, "paid.txt")); got != `{"amount":50}`+"\n" {
		t.Errorf("paid: %q", got)
	}
	bundle := run("evidence", id).want(t, 0, `"askedSha256":"`+journal.ArgsDigest([]byte(`{"amount":100}`))+`"`, "").
		want(t, 0, `"askedArgsDigest":"`+journal.ArgsDigest([]byte(`{"amount":100}`))+`"`, "").stdout
	write(t, filepath.Join(dir, "whole"), bundle)
	run("evidence", "verify", "whole").want(t, 0, "of 1 of 1 calls shown by the chain", "")
	for _, change := range [][2]string{{`"amount":50`, `"amount":500`}, {`"amount":100`, `"amount":50`}} {
		write(t, filepath.Join(dir, "forged"), forge(t, bundle, func(member, body string) string {
			if member == "entries" {
				return body
			}
			now := strings.NewReplacer(change[0]+"}", change[1]+"}", journal.ArgsDigest([]byte("{"+change[0]+"}")), journal.ArgsDigest([]byte("{"+change[1]+"}")))
			return now.Replace(body)
		}))
		run("evidence", "verify", "forged").want(t, 1, list.Approvals[0].ToolCallID, "")
	}
}
