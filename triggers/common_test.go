package triggers_test

import (
	"testing"

	"agentd/triggers"
)

// Triggers that differ in their spec only share the rest of their declaration; what is wrong with one is found all the same.
func TestCommonDeclarations(t *testing.T) {
	c := triggers.NewCompiler()
	d := triggers.Declaration{Kind: triggers.CronKind, Spec: "0 4 * * *", Agent: "a"}
	for _, spec := range []string{"0 4 * * *", "61 4 * * *", "5 4 * * *", "", "0 0 30 2 *"} {
		d.Spec = spec
		issues, valid := c.Check(d), spec == "0 4 * * *" || spec == "5 4 * * *"
		if (len(issues) == 0) != valid || !valid && issues[0].Path[0] != "spec" {
			t.Errorf("Check of the spec %q = %v", spec, issues)
		}
	}
	d.Timezone = "Nowhere"
	for range 2 {
		if issues := c.Check(d); len(issues) != 2 {
			t.Errorf("Check of a bad spec in a bad zone = %v, want 2 issues", issues)
		}
	}
	if issues := c.Check(triggers.Declaration{Kind: triggers.EventKind, Spec: "a b", Agent: "a"}); len(issues) != 1 || issues[0].Path[0] != "event" {
		t.Errorf("Check of an event without a valid name = %v", issues)
	}
}
