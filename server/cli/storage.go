package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/store"
)

func (c *call) storeOptions(o store.Options) store.Options {
	o.Path, o.Durability, o.Logger = c.cfg.Resolve(c.cfg.Storage.Path), c.cfg.Storage.Durability, c.log()
	o.Holder = store.Holder{Command: c.cmd.name}
	return o
}

// A soundness is the result of verifying one file of the storage.
type soundness struct {
	File   string         `json:"file"`
	Damage []store.Damage `json:"damage"`
}

// verifyFiles reads the database and the file of the audit chain whole, also beside a server that holds them.
func (c *call) verifyFiles(ctx context.Context) ([]soundness, error) {
	db, err := store.Open(ctx, c.storeOptions(store.Options{ReadOnly: true}))
	if err != nil {
		return nil, err
	}
	all := []soundness{{db.Path(), []store.Damage{}}}
	damage, err := db.Verify(ctx)
	all[0].Damage = append(all[0].Damage, damage...)
	if err := errors.Join(err, db.Close()); err != nil {
		return nil, err
	}
	files := server.AuditFiles(c.cfg)
	if !exists(files.Path) {
		if heads, err := os.Stat(files.Checkpoints.Path); err == nil && heads.Size() > 0 {
			missing := store.Damage{Place: "chain", Message: "it is missing, but its checkpoints exist: " + files.Checkpoints.Path}
			all = append(all, soundness{files.Path, []store.Damage{missing}})
		}
		return all, nil
	}
	chain, err := store.OpenAudit(ctx, store.Options{Path: files.Path, ReadOnly: true, Logger: c.log()}, nil)
	if err != nil {
		return nil, err
	}
	damage, err = chain.Verify(ctx)
	sound := soundness{chain.Path(), append([]store.Damage{}, damage...)}
	if err = errors.Join(err, chain.Close()); err != nil {
		return nil, err
	}
	o, err := c.chainOptions()
	if err == nil {
		err = readChain(ctx, o, func(l *audit.Log) error {
			v, err := l.Verify(ctx, audit.Verification{Checkpoints: files.Checkpoints.Path})
			if err == nil && !v.OK {
				sound.Damage = append(sound.Damage, store.Damage{Place: "chain", Message: fmt.Sprintf("it is broken at entry %d (%s)", v.BrokenAt, v.Reason)})
			}
			return err
		})
	}
	return append(all, sound), err
}

func (c *call) verifyStorage(ctx context.Context) error {
	files, err := c.verifyFiles(ctx)
	if fault.Is(err, fault.StorageCorrupt) {
		return advised(err, restore)
	}
	if err != nil {
		return err
	}
	sound := !slices.ContainsFunc(files, func(f soundness) bool { return len(f.Damage) > 0 })
	return c.show(sound, struct {
		OK    bool        `json:"ok"`
		Files []soundness `json:"files"`
	}{sound, files}, func(w sheet) {
		for _, f := range files {
			if len(f.Damage) == 0 {
				w.say("%s is undamaged.\n", printable(f.File))
			}
			for _, d := range f.Damage {
				w.say("%s is DAMAGED: %s: %s\n", printable(f.File), printable(d.Place), printable(d.Message))
			}
		}
		if !sound {
			fmt.Fprintf(c.stderr, "  hint: %s\n", restore)
		}
	})
}

const restore = "Stop the server, keep a copy of the damaged files, and restore the backup of the whole folder."

// checkSoundness is [call.verifyFiles] for the doctor.
func (c *call) checkSoundness(ctx context.Context, d *diagnosis) {
	files, err := c.verifyFiles(ctx)
	if err != nil {
		d.fails("integrity", err)
		return
	}
	for _, f := range files {
		if len(f.Damage) == 0 {
			d.find("integrity", statusOK, "", "%s is undamaged.", f.File)
			continue
		}
		more := ""
		for _, damage := range f.Damage[:min(len(f.Damage), 10)] {
			more += "\n" + damage.Place + ": " + damage.Message
		}
		d.fails("integrity", fault.New(fault.StorageCorrupt, "%s is damaged.%s", f.File, more).Advise(restore))
	}
}

// migrate brings the database to the schema of this version.
func (c *call) migrate(ctx context.Context) error {
	db, err := store.Open(ctx, c.storeOptions(store.Options{ReadOnly: true}))
	if errors.Is(err, fs.ErrNotExist) {
		return advised(err, "Check `storage.path`; `agentd start` creates a database.")
	}
	behind := fault.Is(err, fault.SchemaBehind)
	if behind {
		db, err = store.Open(ctx, c.storeOptions(store.Options{}))
	}
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		return err
	}
	since := map[bool]string{true: "now", false: "already"}[behind]
	return c.report(map[string]any{"schema": store.SchemaVersion(), "migrated": behind}, "The database has schema %d %s.", store.SchemaVersion(), since)
}

// A fileStatus is one file of `agentd storage status`.
type fileStatus struct {
	File      string `json:"file"`
	SizeBytes int64  `json:"sizeBytes"`
	WALBytes  int64  `json:"walBytes"`
	store.Space
}

// ofFiles calls fn for the database and then, if it is there, for the file of the audit chain.
func (c *call) ofFiles(ctx context.Context, o store.Options, fn func(path string, f storeFile) error) error {
	db, err := store.Open(ctx, c.storeOptions(o))
	if err != nil {
		return err
	}
	if err := errors.Join(fn(db.Path(), db), db.Close()); err != nil {
		return err
	}
	o.Path, o.Logger, o.Holder = server.AuditFiles(c.cfg).Path, c.log(), store.Holder{Command: c.cmd.name}
	if !exists(o.Path) {
		return nil
	}
	chain, err := store.OpenAudit(ctx, o, nil)
	if err != nil {
		return err
	}
	return errors.Join(fn(chain.Path(), chain), chain.Close())
}

// A storeFile is a [store.DB] or a [store.Audit].
type storeFile interface {
	Space(context.Context) (store.Space, error)
	Compact(context.Context) (before, after store.Space, err error)
	WALSize() int64
}

func (c *call) storageStatus(ctx context.Context) error {
	var all []fileStatus
	err := c.ofFiles(ctx, store.Options{ReadOnly: true}, func(path string, f storeFile) error {
		s, err := f.Space(ctx)
		all = append(all, fileStatus{path, s.Pages * s.PageSize, f.WALSize(), s})
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return advised(err, "Check `storage.path`; `agentd start` creates a database.")
	}
	if err != nil {
		return err
	}
	return c.show(true, map[string]any{"schema": store.SchemaVersion(), "files": all}, func(w sheet) {
		w.row("FILE", "BYTES", "FREE", "LOG")
		for _, f := range all {
			w.row(f.File, fmt.Sprint(f.SizeBytes), fmt.Sprint(f.FreePages*f.PageSize), fmt.Sprint(f.WALBytes))
		}
	})
}

func (c *call) compactStorage(ctx context.Context) error {
	if !exists(c.cfg.Resolve(c.cfg.Storage.Path)) {
		return fault.Invalid("There is no database.").Advise("Check `storage.path`; `agentd start` creates a database.")
	}
	type compaction struct {
		File      string `json:"file"`
		Freed     int64  `json:"freedBytes"`
		Free      int64  `json:"freePages"`
		Supported bool   `json:"supported"`
	}
	var all []compaction
	_, held := store.FindHolder(c.cfg.Resolve(c.cfg.Storage.Path))
	err := c.ofFiles(ctx, store.Options{Beside: held}, func(path string, f storeFile) error {
		before, after, err := f.Compact(ctx)
		all = append(all, compaction{path, before.Pages*before.PageSize - after.Pages*after.PageSize, after.FreePages, before.Returnable})
		return err
	})
	if fault.Is(err, fault.StoreLocked) {
		return advised(err, "Stop the server or the command that holds it.")
	}
	if err != nil {
		return err
	}
	return c.show(true, map[string]any{"files": all}, func(w sheet) {
		for _, f := range all {
			w.say("%s is %d bytes shorter.\n", printable(f.File), f.Freed)
			if !f.Supported {
				w.say("It was made without support for this, and keeps %d free pages.\n", f.Free)
			}
		}
	})
}
