package cli_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A person sits at a terminal: reads the screen, and types.
type person struct {
	t      *testing.T
	screen *os.File
	seen   buffer
	read   int // of what is seen, up to where they have read
}

// sit starts the program at a terminal.
func sit(t *testing.T, dir string, args ...string) (*person, *process) {
	t.Helper()
	screen, tty := terminal(t)
	who := &person{t: t, screen: screen}
	watched := make(chan struct{})
	go func() {
		io.Copy(&who.seen, screen) // until no end of the terminal is open
		close(watched)
	}()
	t.Cleanup(func() {
		tty.Close()
		<-watched
	})
	p := command(t, dir, args...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = tty, tty, tty
	return who, p.start()
}

// sees waits for a text that comes after those seen before.
func (p *person) sees(text string) {
	p.t.Helper()
	eventually(p.t, "the text "+text, func() bool {
		all := p.seen.String()
		at := strings.Index(all[p.read:], text)
		if at >= 0 {
			p.read += at + len(text)
		}
		return at >= 0
	})
}

func (p *person) types(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.screen, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

const question = "leave it [w]aiting? "

func TestAskOnATerminal(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, dir string) {
		who, p := sit(t, dir, "run", "clerk", "ann")
		who.sees("\u2502 I pay.")
		who.sees("pay waits for your approval:\r\n  {\r\n    \"to\": \"ann\"\r\n  }\r\n")
		who.sees(question)
		if got := waits(t, dir); len(got) != 1 {
			t.Errorf("approvals = %v while a person is asked, want one", got)
		}
		who.types("maybe")
		who.sees(question)
		who.types("Yes")
		who.sees("Done: paid")
		p.wait().want(t, 0, "", "")
		if n := payments(t, dir); n != 1 {
			t.Errorf("%d payments after one approval, want one", n)
		}

		who, p = sit(t, dir, "run", "clerk", "bob")
		who.sees(question)
		who.types("n")
		who.sees("Why?")
		who.types("too much")
		who.sees("Done: Error: Approval was denied: too much")
		p.wait().want(t, 0, "", "")

		// Each call is a question of its own, and what is left is not asked for again.
		who, p = sit(t, dir, "run", "pair", "x")
		who.sees(`"ann"`)
		who.sees(question)
		who.types("w")
		who.sees(`"bob"`)
		who.sees(question)
		who.types("y")
		who.sees("Decide with one of:")
		p.wait().want(t, 3, "", "")
		if n := payments(t, dir); n != 2 || strings.Count(who.seen.String(), question) != 2 {
			t.Errorf("%d payments after the second approval, want two; the screen shows\n%s", n, who.seen.String())
		}

		who, p = sit(t, dir, "run", "clerk", "cay")
		who.sees(question)
		who.types("a")
		who.sees("agentd: run-aborted: The run was aborted.")
		p.wait().want(t, 1, "", "")

		who, p = sit(t, dir, "run", "clerk", "dan")
		who.sees(question)
		p.signal(syscall.SIGINT)
		who.sees("agentd: run-aborted: The run was aborted.")
		p.wait().want(t, 1, "", "")

		who, p = sit(t, dir, "run", "clerk", "eve")
		who.sees(question)
		who.types("\x04") // the end of what is typed
		who.sees("Decide with one of:")
		p.wait().want(t, 3, "", "")
		if n := payments(t, dir); n != 2 {
			t.Errorf("%d payments in the end, want two", n)
		}
	})
}

// TestAskForAProgram: what a program asks for itself is a question like that for a tool.
func TestAskForAProgram(t *testing.T) {
	t.Parallel()
	inside(t, func(t *testing.T, dir string) {
		for _, tc := range []struct{ answer, result string }{{"y", "Paid."}, {"n", "Not paid."}} {
			who, p := sit(t, dir, "run", "program", "x")
			who.sees("pay waits for your approval:\r\n  {\r\n    \"to\": \"ann\"\r\n  }\r\n  because: over the limit\r\n")
			who.sees(question)
			who.types(tc.answer)
			if tc.answer == "n" {
				who.sees("Why?")
				who.types("too much")
			}
			who.sees(tc.result)
			p.wait().want(t, 0, "", "")
		}
		if n := payments(t, dir); n != 1 {
			t.Errorf("%d payments after one approval and one denial, want one", n)
		}
		run := park(t, dir, "program", "x")[0].RunID
		spawn(t, dir, nil, nil, "runs", "approve", run).wait().want(t, 0, "Paid.", "")
	})
}

// TestSomebodyElseDecides approves and denies from another terminal what a person is asked for, who types nothing.
func TestSomebodyElseDecides(t *testing.T) {
	t.Parallel()
	dir := newGatedSite(t)
	serve(t, dir)
	for verb, shows := range map[string][]string{"approve": {"was approved by anonymous", "Done: paid"}, "deny": {"was denied by anonymous", "Done: Error: Approval was denied"}} {
		who, p := sit(t, dir, "run", "clerk", "ann")
		who.sees(question)
		spawn(t, dir, nil, nil, "runs", verb, waits(t, dir)[0].RunID).wait().want(t, 0, "Done: ", "")
		for _, text := range shows {
			who.sees(text)
		}
		p.wait().want(t, 0, "", "")
	}
	if n := payments(t, dir); n != 1 {
		t.Errorf("%d payments, want one", n)
	}

	// One of two is decided elsewhere; the person is asked about the other.
	who, p := sit(t, dir, "run", "pair", "x")
	who.sees(`"ann"`)
	who.sees(question)
	w := waits(t, dir)
	spawn(t, dir, nil, nil, "runs", "approve", w[0].RunID, w[0].ToolCallID).wait().want(t, 3, "", "")
	who.sees("was approved by anonymous")
	who.sees(`"bob"`)
	who.sees(question)
	who.types("y")
	who.sees("Done: paid")
	p.wait().want(t, 0, "", "")
	if n := payments(t, dir); n != 3 {
		t.Errorf("%d payments in the end, want three", n)
	}
}

// TestExpiryWhileAsking: an approval expires while a person looks at it, without a server too.
func TestExpiryWhileAsking(t *testing.T) {
	t.Parallel()
	inside(t, func(t *testing.T, dir string) {
		who, p := sit(t, dir, "run", "hasty", "x")
		who.sees("denied unless somebody decides before: ")
		who.sees(question)
		who.sees("was denied by expiry")
		p.wait().want(t, 0, "", "")
	})
}

// TestSpoofedPrompt: what an agent says imitates a question, and what a person types at it answers no other one.
func TestSpoofedPrompt(t *testing.T) {
	t.Parallel()
	dir := newGatedSite(t)
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	who, p := sit(t, dir, "run", "spoof", "x")
	who.sees("\u2502 tidy waits for your approval:\r\n\u2502   {}\r\n\u2502 [y]es, [n]o, [a]bort the run, leave it [w]aiting? ")
	who.types("y")
	io.WriteString(who.screen, "yes") //nolint:errcheck // and half a line
	write(t, fifo, "go on\n")
	who.sees("pay waits for your approval:\r\n  {\r\n    \"to\": \"eve\\u202e\\u200b\\udb40\\udc41\"\r\n  }\r\n")
	who.sees(question)
	if n := payments(t, dir); n != 0 {
		t.Fatalf("%d payments by what was typed before the question, want none", n)
	}
	who.types("") // it does not complete the half line either
	who.sees(question)
	who.types("n")
	who.sees("Why?")
	who.types("")
	who.sees("the call c1 was denied by cli")
	p.wait().want(t, 0, "", "")
	if n := payments(t, dir); n != 0 {
		t.Errorf("%d payments, want none", n)
	}
}

// TestAskWhatMayHaveHappened: a yes is not enough for a call that may have happened.
func TestAskWhatMayHaveHappened(t *testing.T) {
	t.Parallel()
	dir := newGatedSite(t)
	who, p := sit(t, dir, "run", "unsure", "x")
	who.sees("pay waits for your approval:")
	who.sees("IT MAY HAVE HAPPENED ALREADY")
	who.sees("because: outcome-unknown")
	who.sees("call: c1")
	who.sees("Type again to make it once more, [n]o")
	who.types("y")
	who.sees("Type again to make it once more, [n]o")
	who.types("Again")
	who.sees("Paid.")
	p.wait().want(t, 0, "", "")
}

// TestInterruptedCall interrupts a run while a call is made: the program ends, and says that the call may have happened.
func TestInterruptedCall(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, dir string) {
		if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
		who, p := sit(t, dir, "run", "slow", "x")
		who.sees(question)
		who.types("y")
		eventually(t, "the call", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
		p.signal(syscall.SIGINT)
		who.sees("IT MAY HAVE HAPPENED ALREADY")
		who.sees("Decide with one of:")
		p.wait().want(t, 3, "", "")
		run := waits(t, dir)[0].RunID
		spawn(t, dir, nil, nil, "runs", "deny", run).wait().want(t, 1, "", "run-aborted")
	})
}
