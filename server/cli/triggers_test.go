package cli_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentd/server/rest"
)

const triggerSite = `{"auth": {"kind": "none"}, "server": {"port": 0}, "storage": {"path": "data.db"},
	"workflows": {"flow": {"state": {"n": {}}, "output": "${ state.n }", "start": "s", "nodes": {"s": {"kind": "set", "values": {"n": "${ default(input.n, 0) }"}, "next": "end"}}}},
	"triggers": {
		"nightly": {"kind": "cron", "spec": "0 4 * * *", "workflow": "flow"},
		"order": {"kind": "event", "event": "order.created", "if": "event.n > 1", "workflow": "flow", "input": "${ event }"}}}`

// TestTriggers takes triggers through their lives on the command line, with a server and without.
func TestTriggers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "agentd.json")
	hooks := `, "hooks": {"shop": {"event": "order.creatd", "verify": {"scheme": "github", "secretRefs": ["env:HOOK"]}}}}`
	write(t, file, strings.TrimSuffix(triggerSite, "}")+hooks)
	do := func(args ...string) said {
		t.Helper()
		return spawn(t, dir, nil, nil, args...).wait()
	}
	do("config", "check").want(t, 0, "nightly  20", "").want(t, 0, "hooks.shop emits the event order.creatd, on which no trigger fires", "")
	do("triggers", "fire", "nightly").want(t, 1, "", "server-unreachable: No server holds the database.")
	write(t, file, triggerSite)
	s := serve(t, dir)
	do("triggers", "list").want(t, 0, "nightly  cron   0 4 * * *      workflow:flow  active", "")
	var fired rest.TriggerFired
	do("triggers", "fire", "nightly", "--json").want(t, 0, `"outcome": "fired"`, "").decode(t, &fired)
	eventually(t, "the run to end", func() bool { return s.status(fired.RunID) == "completed" })
	do("triggers", "show", "nightly").want(t, 0, "last fired:", "")
	do("triggers", "show", "nigtly").want(t, 1, "", "trigger-not-found")
	do("triggers", "firings", "nightly").want(t, 0, "manual  fired", "")
	do("triggers", "next", "nightly", "--limit", "1").want(t, 0, "T04:00:00.000Z\n", "")
	do("triggers", "emit", "order.created", `{"n": 2}`, "--id", "o1").want(t, 0, "trigger order: fired, run ", "")
	do("triggers", "emit", "order.created", `{"n": 2}`, "--id", "o1").want(t, 0, "event o1 came before; nothing has fired now", "")
	do("triggers", "emit", "order.created", `{"n": 1}`).want(t, 0, "no trigger fires on it", "")
	do("triggers", "emit", "order.created", `{}`).want(t, 1, "trigger order: failed (expression-failed)", "")
	do("triggers", "emit", "order.created", `{`).want(t, 2, "", "is not JSON")
	do("triggers", "disable", "nightly").want(t, 0, "disabled", "")
	do("triggers", "fire", "nightly").want(t, 1, "", "Enable it with `agentd triggers enable TRIGGER`")
	do("triggers", "enable", "nightly").want(t, 0, "active", "")
	s.signal(syscall.SIGTERM)
	s.wait()

	// Without a server, what is not declared any more shows up and can be pruned.
	write(t, file, `{"auth": {"kind": "none"}, "storage": {"path": "data.db"}}`)
	do("triggers", "list").want(t, 0, "nightly  cron   0 4 * * *      nightly  orphaned", "")
	do("triggers", "prune", "--yes").want(t, 2, "", "it needs --disabled, --orphaned or both")
	do("triggers", "delete", "order").want(t, 2, "", "--yes is missing")
	do("triggers", "delete", "order", "--yes").want(t, 0, "Deleted trigger order.", "")
	do("triggers", "prune", "--orphaned", "--yes").want(t, 0, "1 trigger(s) deleted.\n  nightly", "")
}
