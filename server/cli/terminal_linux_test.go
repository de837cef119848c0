package cli_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"
)

// terminal makes a pseudo terminal: what is written to the second end is read from the first, as on a screen.
func terminal(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	control := func(f *os.File, request uintptr, arg *uint32) {
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
			t.Fatalf("ioctl %#x: %v", request, errno)
		}
	}
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var unlock, number uint32
	control(screen, syscall.TIOCSPTLCK, &unlock)
	control(screen, syscall.TIOCGPTN, &number)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close(); tty.Close() })
	return screen, tty
}

func TestOnATerminal(t *testing.T) {
	t.Parallel()
	screen, tty := terminal(t)
	p := command(t, newSite(t), "run", "twice", "6*7")
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = tty, tty, tty
	p.start().wait().want(t, 0, "", "")
	b := make([]byte, 4096)
	n, err := screen.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	const want = "│ Let me see.\r\n" +
		"\x1b[2m· calculator {\"expression\":\"6*7\"}\x1b[0m|" +
		"\x1b[2m· calculator → {\"result\":\"42\",\"exact\":true}\x1b[0m|" +
		"│ It is {\"result\":\"42\",\"exact\":true}.\r\n"
	if got := strings.ReplaceAll(string(b[:n]), "\x1b[0m\r\n", "\x1b[0m|"); got != want {
		t.Errorf("the screen shows\n%q, want\n%q", got, want)
	}

	p = command(t, newSite(t), "run", "same")
	p.cmd.Stdin = tty
	p.start().wait().want(t, 2, "", "the input is missing: pass it as an argument, or on stdin")
}

// TestOnATerminalWithoutControl: what an agent says cannot change how a terminal shows what comes after it.
func TestOnATerminalWithoutControl(t *testing.T) {
	t.Parallel()
	const said = "a\x1b[8mb\u009b2Jc\x1b]52;c;aGk=\ad\re\tf\x7f\n"
	screen, tty := terminal(t)
	p := command(t, newSite(t), "run", "same")
	p.cmd.Stdin, p.cmd.Stdout = strings.NewReader(said), tty
	p.start().wait().want(t, 0, "", "")
	b := make([]byte, 4096)
	n, err := screen.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b[:n]), "│ a [8mb 2Jc ]52;c;aGk= d e    f \r\n"; got != want {
		t.Errorf("the screen shows %q, want %q", got, want)
	}
	p = command(t, newSite(t), "run", "same")
	p.cmd.Stdin = strings.NewReader(said)
	p.start().wait().want(t, 0, said, "") // a pipe gets every byte
}
