package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"agentd/server/fault"
)

// output writes what fill writes to stdout or to the file that -o names, and returns how long the file is. The file is
// replaced by all of it, or stays as it was, also at an interruption.
func (c *call) output(ctx context.Context, fill func(context.Context, io.Writer) error) (size int64, err error) {
	name := c.flags.output
	if name == "" {
		defer surviveClosedPipe()()
		return 0, fill(ctx, c.stdout)
	}
	err = interruptible(ctx, func(ctx context.Context) error {
		err := replace(name, func(f *os.File) error {
			err := fill(ctx, f)
			if err == nil {
				size, err = f.Seek(0, io.SeekCurrent)
			}
			return err
		})
		if err != nil && ctx.Err() != nil {
			fmt.Fprintf(c.stderr, "agentd: interrupted; %s is unchanged\n", name)
			return exitCode(exitFailed)
		}
		return err
	})
	return size, err
}

// replace puts what fill writes in the place of a file, all of it or nothing. Nobody else may read the new one.
func replace(name string, fill func(*os.File) error) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return usage("%s is not a file.", name).Advise("Name a file; without -o, the output goes to stdout.")
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".agentd-export-*")
	if err != nil {
		return notReplaced(name, err)
	}
	defer os.Remove(f.Name()) // of no effect once it has its name
	if err := fill(f); err != nil {
		return errors.Join(err, f.Close())
	}
	err = f.Sync()
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return notReplaced(name, err)
	}
	return nil
}

func notReplaced(name string, err error) error {
	return fault.Invalid(fmt.Sprintf("The file %s cannot be written: %v.", name, fault.Innermost(err))).Because(err).
		Advise("Check that its folder exists and that you may write there.")
}

// readFile reads a file that is named on the command line, - being stdin, or of a longer one the limit and a byte.
// Commands that write call it before they open the store: what they read from may be slow or never end, and nobody else
// could open the store meanwhile.
func (c *call) readFile(name string, limit int64) ([]byte, error) {
	from, err := c.source(name)
	if err == nil {
		defer from.Close()
		var b []byte
		if b, err = io.ReadAll(io.LimitReader(from, limit+1)); err == nil {
			return b, nil
		}
	}
	hint := "Check that you may read it."
	if errors.Is(err, fs.ErrNotExist) {
		hint = "Check the name."
	}
	return nil, fault.Invalid(fmt.Sprintf("The file %s cannot be read: %v.", name, fault.Innermost(err))).Because(err).Advise(hint)
}

// source opens a file that is named on the command line, - being stdin.
func (c *call) source(name string) (io.ReadCloser, error) {
	if name == "-" && c.stdin != nil {
		return io.NopCloser(c.stdin), nil
	}
	return os.Open(name)
}
