package cli

import (
	"context"
	"errors"
	"io"
	"os"
)

func (c *call) cassette(ctx context.Context) error {
	return c.reading(ctx, func(from records) error {
		if c.flags.output == "" {
			return from.cassette(ctx, c.args[0], c.stdout)
		}
		out := &lateFile{path: c.flags.output}
		return errors.Join(from.cassette(ctx, c.args[0], out), out.close())
	})
}

// A lateFile is made with its first byte, so that a failure before leaves no empty file behind.
type lateFile struct {
	path string
	f    *os.File
}

func (l *lateFile) Write(b []byte) (int, error) {
	if l.f == nil {
		var err error
		if l.f, err = os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err != nil {
			return 0, err
		}
	}
	return l.f.Write(b)
}

func (l *lateFile) close() error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}

func (a *api) cassette(ctx context.Context, runID string, w io.Writer) error {
	res, err := a.do(ctx, "GET", runPath(runID)+"/cassette", nil, "")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(w, res.Body)
	return err
}
