package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"agentd/store"
)

// A Site is where the files of an instance are: absolute paths, by the names of members.
type Site map[string]string

// Create writes a backup of a site, also beside the processes that hold its files, which do not wait for it. All its members
// are as of one moment: the database and the chain do not contradict each other, and no checkpoint is ahead of its chain.
// Create completes the manifest.
func (s Site) Create(ctx context.Context, w io.Writer, m *Manifest) (err error) {
	chain := s[Chain]
	if !exists(chain) {
		chain = ""
	}
	var plain []Source
	var open []*os.File
	defer func() {
		for _, f := range open {
			err = errors.Join(err, f.Close())
		}
	}()
	files, err := store.Freeze(ctx, s[Database], chain, func() error {
		for _, name := range []string{Checkpoints, Secrets} {
			if !exists(s[name]) || name == Checkpoints && chain == "" {
				continue
			}
			f, err := os.Open(s[name])
			if err != nil {
				return err
			}
			open = append(open, f)
			info, err := f.Stat()
			if err != nil {
				return err
			}
			// Of the checkpoints, lines may follow from now on; a file of secrets is replaced as a whole.
			plain = append(plain, Source{name, info.Size(), func(w io.Writer) error {
				_, err := io.Copy(w, io.NewSectionReader(f, 0, info.Size()))
				return err
			}})
		}
		return nil
	})
	if err != nil {
		return err
	}
	sources := make([]Source, 0, len(files)+len(plain))
	for i, f := range files {
		defer f.Close() //nolint:errcheck // it was only read
		sources = append(sources, Source{Names[i], f.Size, func(w io.Writer) error { return f.Write(ctx, w) }})
	}
	m.Schema = files[0].Schema
	return Write(w, m, append(sources, plain...))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return path != "" && !errors.Is(err, fs.ErrNotExist)
}
