package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/rest"
	"agentd/server/session"
	"agentd/store"
)

func (c *call) exportSession(ctx context.Context) error {
	id, name := c.args[0], c.flags.output
	if name == "" {
		defer surviveClosedPipe()()
		return c.conversing(ctx, func(from conversations) error { return from.export(ctx, id, c.stdout) })
	}
	var size int64
	err := c.writeFile(ctx, name, func(ctx context.Context, f *os.File) error {
		return c.conversing(ctx, func(from conversations) (err error) {
			if err = from.export(ctx, id, f); err == nil {
				size, err = f.Seek(0, io.SeekCurrent)
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	if c.flags.json {
		return c.printJSON(map[string]any{"sessionId": id, "file": name, "bytes": size})
	}
	_, err = fmt.Fprintf(c.stdout, "Wrote session %s to %s (%d bytes).\n", id, name, size)
	return err
}

// writeFile makes a file of what fill writes, or leaves it as it was, also when it is interrupted.
func (c *call) writeFile(ctx context.Context, name string, fill func(context.Context, *os.File) error) error {
	return interruptible(ctx, func(ctx context.Context) error {
		err := replace(name, func(f *os.File) error { return fill(ctx, f) })
		if err != nil && ctx.Err() != nil {
			fmt.Fprintf(c.stderr, "agentd: interrupted; %s is as it was\n", name)
			return exitCode(exitFailed)
		}
		return err
	})
}

// replace puts what fill writes in the place of a file, all of it or nothing. Nobody else may read the new one.
func replace(name string, fill func(*os.File) error) error {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return usage("-o names %s, which is no file.", name).Advise("Name a file, or leave -o out to write to stdout.")
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
	return fault.Invalid(fmt.Sprintf("The file %s cannot be written: %v.", name, innermost(err))).Because(err).
		Advise("Check that its folder exists and that you may write there.")
}

func (c *call) importSession(ctx context.Context) error {
	file, err := c.readFile(c.args[0], session.MaxImport)
	if err != nil {
		return err
	}
	var made rest.SessionImport
	err = c.changing(ctx, func(remote *api) error { return remote.importSession(ctx, file, c.flags.as, &made) },
		func(s *scribe, db *store.DB) error {
			v, err := session.New(db.Sessions()).Import(ctx, bytes.NewReader(file), session.ImportOptions{As: c.flags.as, Maker: "cli", Also: func(_ *store.Tx, v session.Imported) error {
				id := v.Session.ID
				return s.begin(ctx, audit.Record{Action: "session:import", Target: "session:" + id, Context: audit.Context{SessionID: id}})
			}})
			made = rest.SessionImportOf(v)
			return err
		})
	if err != nil {
		return err
	}
	if c.flags.json {
		return c.printJSON(made)
	}
	for _, w := range made.Warnings {
		fmt.Fprintf(c.stderr, "agentd: %s\n", printable(w))
	}
	_, err = fmt.Fprintf(c.stdout, "Made session %s with %d message(s) and %d hand-off(s).\n", made.Session.ID, made.Messages, made.Handoffs)
	return err
}

// readFile reads a file that is named on the command line, - being stdin, or of a longer one the limit and a byte.
// Commands that write call it before they open the store: what they read from may be slow or never end, and nobody else
// could open the store meanwhile.
func (c *call) readFile(name string, limit int64) ([]byte, error) {
	from := c.stdin
	if name != "-" || from == nil {
		f, err := os.Open(name)
		if err != nil {
			return nil, unreadable(name, err)
		}
		defer f.Close()
		from = f
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(from, limit+1)); err != nil {
		return nil, unreadable(name, err)
	}
	return b.Bytes(), nil
}

func unreadable(name string, err error) error {
	hint := "Check that you may read it."
	if errors.Is(err, fs.ErrNotExist) {
		hint = "Check the name."
	}
	return fault.Invalid(fmt.Sprintf("The file %s cannot be read: %v.", name, innermost(err))).Because(err).Advise(hint)
}

func (s storedSessions) export(ctx context.Context, id string, w io.Writer) error {
	return s.Export(ctx, id, w, session.ExportOptions{Version: server.Version, Hash: true})
}

const jsonLines = "application/x-ndjson"

func (a *api) export(ctx context.Context, id string, w io.Writer) error {
	return a.download(ctx, http.MethodPost, sessionPath(id)+"/export", w)
}

// download writes an answer of JSON lines as it comes.
func (a *api) download(ctx context.Context, method, path string, w io.Writer) error {
	res, err := a.send(ctx, method, path, nil, http.Header{"Accept": {jsonLines}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	from := &sourceReader{r: res.Body}
	if _, err = io.Copy(w, from); from.err != nil {
		return fault.New(fault.ServerUnreachable, "The server at %s broke off in the middle of its answer: %v.", a.base, innermost(from.err)).
			Because(err).Advise("Run it again; what was written is not whole.")
	}
	return err
}

// sourceReader remembers why it could not be read any further.
type sourceReader struct {
	r   io.Reader
	err error
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

func (a *api) importSession(ctx context.Context, file []byte, as string, made *rest.SessionImport) error {
	query := ""
	if as != "" {
		query = "?as=" + url.QueryEscape(as)
	}
	res, err := a.send(ctx, "POST", "/sessions/import"+query, file, http.Header{"Content-Type": {jsonLines}})
	if err != nil {
		return err
	}
	return a.read(res, made)
}
