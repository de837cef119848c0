package cli

import (
	"context"
	"io"
	"net/http"
	"os"
)

func (c *call) cassette(ctx context.Context) error {
	id := c.args[0]
	write := func(ctx context.Context, w io.Writer) error {
		return c.reading(ctx, func(from records) error { return from.cassette(ctx, id, w) })
	}
	if c.flags.output == "" {
		defer surviveClosedPipe()()
		return write(ctx, c.stdout)
	}
	return c.writeFile(ctx, c.flags.output, func(ctx context.Context, f *os.File) error { return write(ctx, f) })
}

func (a *api) cassette(ctx context.Context, runID string, w io.Writer) error {
	return a.download(ctx, http.MethodGet, runPath(runID)+"/cassette", w)
}
