package config_test

import (
	"strings"
	"testing"
	"time"
)

// triggered is a configuration with an agent, a workflow and the given trigger t, which begins in line 5.
func triggered(text string) string {
	return `{"providers": {"p": {"kind": "scripted", "script": "demo.script.json"}},
"agents": {"writer": {"kind": "llm", "provider": "p", "model": "m"}},
"workflows": {"v": {"start": "a", "nodes": {"a": {"kind": "fail", "code": "c", "message": ""}}}},
"triggers": {"t":
` + text + `}}`
}

// hooked is a configuration with the given hook h, which begins in line 2.
func hooked(text string) string { return "{\"hooks\": {\"h\":\n" + text + "}}" }

func TestTriggerProblems(t *testing.T) {
	const daily, toV = `{"kind": "cron", "spec": "0 4 * * *", `, `"workflow": "v"}`
	for _, tt := range []struct{ name, text, want string }{
		{"no kind", triggered(`{"agent": "writer"}`), `triggers/t/kind | c:5:1: "kind" is missing`},
		{"no spec", triggered(`{"kind": "cron", ` + toV), `triggers/t/spec | c:5:1: "spec" is missing`},
		{"a field of another kind", triggered(daily + `"everyMs": 5000, ` + toV), `triggers/t/everyMs | c:5:39: "everyMs" is not a field of kind cron; it belongs to interval`},
		{"a condition of a schedule", triggered(daily + `"if": "true", ` + toV), `triggers/t/if | c:5:39: "if" is not a field of kind cron; it belongs to event`},
		{"no target", triggered(`{"kind": "cron", "spec": "0 4 * * *"}`), `triggers/t/agent | c:5:1: name an agent or a workflow`},
		{"two targets", triggered(daily + `"agent": "writer", ` + toV), `triggers/t/workflow | c:5:70: a trigger starts an agent or a workflow, not both`},
		{"unknown agent", triggered(daily + `"agent": "writr"}`), `triggers/t/agent | c:5:48: there is no agent "writr"; did you mean "writer"?`},
		{"unknown workflow", triggered(daily + `"workflow": "w"}`), `triggers/t/workflow | c:5:51: there is no workflow "w"`},
		{"an idle session with an expression", triggered(`{"kind": "idle", "afterMs": 1000, "session": "s-${ due }", ` + toV), `triggers/t/session | c:5:46: an idle trigger watches one session`},
		{"cron text", triggered(`{"kind": "cron", "spec": "0 25 * * *", ` + toV), `triggers/t/spec | c:5:29: hour, at character 3: "25" is not a number from 0 to 23`},
		{"cron text of four fields", triggered(`{"kind": "cron", "spec": "0 4 * *", ` + toV), `triggers/t/spec | c:5:2`},
		{"no such day", triggered(`{"kind": "cron", "spec": "0 0 30 2 *", ` + toV), `triggers/t/spec | c:5:26: no day of these months has such a date`},
		{"time zone", triggered(daily + `"timezone": "Europe/Berln", ` + toV), `triggers/t/timezone | c:5:51: "Europe/Berln" is no time zone`},
		{"the host's time zone", triggered(daily + `"timezone": "Local", ` + toV), `triggers/t/timezone | c:5:51: "Local" is no time zone`},
		{"interval below a second", triggered(`{"kind": "interval", "everyMs": 999, ` + toV), `triggers/t/everyMs | c:5:33: want a number from 1000`},
		{"date", triggered(daily + `"expiresAt": "2030-01-01", ` + toV), `triggers/t/expiresAt | c:5:52: want a time such as 2030-01-01T00:00:00Z`},
		{"event of a schedule", triggered(daily + `"input": {"a": ["${ event.id }"]}, ` + toV), `triggers/t/input/a/0 | c:5:59: `},
		{"session", triggered(`{"kind": "event", "event": "e", "session": "s-${ evnt.id }", ` + toV), `triggers/t/session | c:5:50: `},
		{"condition", triggered(`{"kind": "event", "event": "e", "if": "event.total +", ` + toV), `triggers/t/if | c:5:53: `},
		{"a condition that is none", triggered(`{"kind": "event", "event": "e", "if": "1 + 1", ` + toV), `triggers/t/if | c:5:40: `},
		{"name of an event", triggered(`{"kind": "event", "event": "a:b", ` + toV), `triggers/t/event | c:5:28: want 1 to 128 letters, digits, _, . and -`},
		{"scope", triggered(daily + `"scopes": ["agents"], ` + toV), `triggers/t/scopes/0 | c:5:50: want a scope: resource:action`},
		{"overlap", triggered(daily + `"overlap": "wait", ` + toV), `triggers/t/overlap | c:5:50: want skip, queue or allow`},
		{"id", strings.Replace(triggered(daily+toV), `"t"`, `"t:x"`, 1), `triggers/t:x | c:4:14: key "t:x": want 1 to 128 letters, digits, _ and -`},

		{"hook without a secret", hooked(`{"event": "push", "verify": {"scheme": "github", "secretRefs": []}}`), `hooks/h/verify/secretRefs | c:2:64: want at least one item`},
		{"hook without secrets", hooked(`{"event": "push", "verify": {"scheme": "github"}}`), `hooks/h/verify/secretRefs | c:2:29: "secretRefs" is missing`},
		{"hook without a scheme", hooked(`{"event": "push"}`), `hooks/h/verify | c:2:1: "verify" is missing`},
		{"unknown scheme", hooked(`{"event": "push", "verify": {"scheme": "gitlab", "secretRefs": ["env:A"]}}`), `hooks/h/verify/scheme | c:2:40: want github, hmac-sha256, standard-webhooks or stripe, got "gitlab"`},
		{"a secret in the file", hooked(`{"event": "push", "verify": {"scheme": "github", "secretRefs": ["hunter2"]}}`), `hooks/h/verify/secretRefs/0 | c:2:65: `},
		{"header of a scheme that has its own", hooked(`{"event": "push", "verify": {"scheme": "github", "secretRefs": ["env:A"], "header": "X"}}`), `hooks/h/verify/header | c:2:85: is only for the scheme hmac-sha256`},
		{"no header", hooked(`{"event": "push", "verify": {"scheme": "hmac-sha256", "secretRefs": ["env:A"], "encoding": "hex"}}`), `hooks/h/verify/header | c:2:29: is missing; the scheme hmac-sha256 needs it`},
		{"header that is none", hooked(`{"event": "push", "verify": {"scheme": "github", "secretRefs": ["env:A"]}, "headers": ["a b"]}`), `hooks/h/headers/0 | c:2:88: want a token of HTTP`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.text)
			got := problems(t, err)
			if len(got) != 1 || !strings.Contains(got[0], tt.want) {
				t.Errorf("Parse(%s) = %q, want only a problem %q", tt.text, got, tt.want)
			}
			if strings.Contains(strings.Join(got, ""), "hunter2") {
				t.Errorf("Parse(...) = %q, which repeats a secret", got)
			}
		})
	}
}

// The dues that people see are those of the text in its zone; other kinds have none.
func TestDues(t *testing.T) {
	c, err := parse(triggered(`{"kind": "cron", "spec": "30 2 * * *", "timezone": "Europe/Berlin", "workflow": "v"}, "i": {"kind": "interval", "everyMs": 1000, "workflow": "v"}`))
	if err != nil {
		t.Fatal(problems(t, err))
	}
	var got []string
	for _, due := range c.Triggers["t"].Dues(time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC), 3) {
		got = append(got, due.Format(time.RFC3339))
	}
	const want = "2026-03-28T01:30:00Z 2026-03-29T01:00:00Z 2026-03-30T00:30:00Z" // no clock shows 2:30 on the second of them
	if strings.Join(got, " ") != want || c.Triggers["i"].Dues(time.Now(), 3) != nil {
		t.Errorf("Dues(3) = %v, want %v; and none for an interval", got, want)
	}
}
