package cli_test

import (
	"testing"

	"agentd/server/rest"
)

// The commands show and apply the rules without a server, and refuse to close a session with an open run.
func TestRetention(t *testing.T) {
	dir := t.TempDir()
	do := func(args ...string) said { return spawn(t, dir, nil, nil, append(args, "--dev")...).wait() }
	do("run", "assistant", "what time is it", "--session", "s1").want(t, 0, "", "")
	do("sessions", "close", "s1").want(t, 0, "Closed session s1.", "")
	do("sessions", "close", "none").want(t, 1, "", "session-not-found")
	do("sessions", "show", "s1").want(t, 0, "closed: ", "")
	do("retention", "show").want(t, 0, "spans", "").want(t, 0, "retention.sessionsDays", "")
	var answer rest.RetentionAnswer
	do("retention", "run", "--dry-run", "--json").want(t, 0, "", "").decode(t, &answer)
	if s := answer.Sweep; !s.DryRun || s.Deleted != 0 || len(s.Rules) == 0 || s.Rules[0].Rule != "spans" {
		t.Errorf("a dry run = %+v", s)
	}
	do("retention", "run").want(t, 0, "spans", "")
}
