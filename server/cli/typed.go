package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"syscall"
)

// maxTyped is how long a line may be that a person types.
const maxTyped = 64 << 10

// typed reads a line that is typed from now on: what was typed before is dropped, since it answers another question.
// When ctx ends first, nothing is taken and the error is its cause. The terminal hands over one line at a time, so
// nothing of the next is ever held here.
func typed(ctx context.Context, tty *os.File, prompt func()) (string, error) {
	wakes, wake, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer wakes.Close()
	defer wake.Close()
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		wake.Write([]byte{0}) //nolint:errcheck // an empty pipe takes a byte
		close(woken)
	})
	defer func() {
		if !stop() {
			<-woken
		}
	}()
	if err := discardInput(tty.Fd()); err != nil {
		return "", fmt.Errorf("the terminal does not drop earlier input: %w", err)
	}
	prompt()
	var line []byte
	for {
		if err := readable(tty, wakes); err != nil {
			return "", err
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		var b [4096]byte
		n, err := tty.Read(b[:])
		line = append(line, b[:n]...)
		switch {
		case err != nil:
			return "", err
		case n == 0:
			return "", io.EOF
		case line[len(line)-1] == '\n', len(line) > maxTyped:
			return strings.TrimSpace(strings.ToValidUTF8(string(line), "")), nil
		}
	}
}

// readable waits until one of the files has something to read.
func readable(files ...*os.File) error {
	for {
		var set syscall.FdSet
		last := 0
		for _, f := range files {
			fd := int(f.Fd())
			last = max(last, fd)
			if !include(&set, fd) {
				return syscall.EMFILE
			}
		}
		if err := selectReading(last+1, &set); err != syscall.EINTR {
			return err
		}
	}
}

// include adds a descriptor to a set, whose words have another name and size on each system.
func include(set *syscall.FdSet, fd int) bool {
	words := reflect.ValueOf(set).Elem().Field(0)
	bits := words.Type().Elem().Bits()
	if fd >= words.Len()*bits {
		return false
	}
	switch word := words.Index(fd / bits); {
	case word.CanInt():
		word.SetInt(word.Int() | 1<<(fd%bits))
	default:
		word.SetUint(word.Uint() | 1<<(fd%bits))
	}
	return true
}
