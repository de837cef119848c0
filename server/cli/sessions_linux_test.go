package cli_test

import "testing"

func TestDeleteAsksOnATerminal(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, dir string) {
		const question = "Erase session s1 with all that was said in it, for good? [y/N] "
		spawn(t, dir, nil, nil, "run", "same", "x", "--session", "s1").wait().want(t, 0, "x", "")
		for _, answer := range []string{"", "n", "maybe", "\x04"} {
			who, p := sit(t, dir, "sessions", "delete", "s1")
			who.sees(question)
			who.types(answer)
			who.sees("nothing was erased")
			p.wait().want(t, 1, "", "")
		}
		who, p := sit(t, dir, "sessions", "delete", "s1")
		who.sees(question)
		who.types("Yes")
		who.sees("Erased session s1.")
		p.wait().want(t, 0, "", "")
		spawn(t, dir, nil, nil, "sessions", "show", "s1").wait().want(t, 1, "", "session-not-found")
	})
}
