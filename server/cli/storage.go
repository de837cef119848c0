package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"agentd/server"
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
	return append(all, soundness{chain.Path(), append([]store.Damage{}, damage...)}), errors.Join(err, chain.Close())
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
