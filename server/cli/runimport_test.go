package cli_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestRunsImport takes a run that waits to another site and decides on it there.
func TestRunsImport(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, dir string) {
		home := newGatedSite(t)
		w := park(t, home, "clerk", "ann")
		shown := spawn(t, home, nil, nil, "runs", "show", w[0].RunID, "--json").wait().want(t, 0, "", "").stdout
		write(t, filepath.Join(dir, "run.json"), shown)

		s := spawn(t, dir, nil, nil, "runs", "import", "run.json", "--session", "moved", "--json").wait().want(t, 0, `"status": "awaiting_approval"`, "")
		var made struct {
			RunID, SessionID string
			Warnings         []string
		}
		if s.decode(t, &made); made.RunID != w[0].RunID || made.SessionID != "moved" || len(made.Warnings) != 0 {
			t.Errorf("import = %+v", made)
		}
		again := func(stdin string, args ...string) said {
			return spawn(t, dir, strings.NewReader(stdin), nil, append([]string{"runs", "import", "-"}, args...)...).wait()
		}
		again(shown).want(t, 1, "", "agentd: run-exists: ")
		other := strings.ReplaceAll(shown, made.RunID, "another")
		again(other, "--session", "moved").want(t, 1, "", "agentd: session-busy: ").want(t, 1, "", "--session")
		again(other).want(t, 0, "Took over run another, which waits for approval; decide with `agentd runs approve another`.\n", "")
		again(strings.ReplaceAll(other, "clerk", "same")).want(t, 1, "", "agentd: run-state-unfit: ").want(t, 1, "", "agentId: is no agent of kind llm here")
		again("{").want(t, 1, "", "agentd: run-state-malformed: ")
		again(`{"x": "`+strings.Repeat("a", 4<<20)+`"}`).want(t, 1, "", "agentd: body-too-large: ")
		spawn(t, dir, nil, nil, "runs", "import", "absent").wait().want(t, 1, "", "cannot be read")

		spawn(t, dir, nil, nil, "runs", "approve", made.RunID).wait().want(t, 0, "Done: paid\n", "")
		if here, there := payments(t, dir), payments(t, home); here != 1 || there != 0 {
			t.Errorf("%d payments here and %d there, want 1 and 0", here, there)
		}
		spawn(t, dir, nil, nil, "sessions", "messages", "moved").wait().want(t, 0, "calls pay {\"to\":\"ann\"}", "").want(t, 0, "Done: paid", "")
		spawn(t, dir, nil, nil, "storage", "verify").wait().want(t, 0, "undamaged", "")
	})
}
