package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"agentd/server"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/store"
)

func (c *call) storeOptions(cfg *config.Config, o store.Options) store.Options {
	o.Path, o.Durability, o.Logger = cfg.Resolve(cfg.Storage.Path), cfg.Storage.Durability, c.log()
	o.Holder = store.Holder{Command: c.cmd.name}
	return o
}

// A soundness is what a look at one file of the storage came to.
type soundness struct {
	File   string         `json:"file"`
	Damage []store.Damage `json:"damage"`
}

// verifyFiles reads the database and the file of the audit chain whole, also beside a server that holds them.
func (c *call) verifyFiles(ctx context.Context, cfg *config.Config) ([]soundness, error) {
	db, err := store.Open(ctx, c.storeOptions(cfg, store.Options{ReadOnly: true}))
	if err != nil {
		return nil, err
	}
	main := soundness{File: db.Path()}
	main.Damage, err = db.Verify(ctx)
	if err := errors.Join(err, db.Close()); err != nil {
		return nil, err
	}
	files := server.AuditFiles(cfg)
	heads, err := os.Stat(files.Checkpoints.Path)
	if covered := err == nil && heads.Size() > 0; !exists(files.Path) && !covered {
		return []soundness{main}, nil
	} else if !exists(files.Path) {
		return []soundness{main, {files.Path, []store.Damage{{Place: "chain", Message: "it is missing, but its checkpoints exist: " + files.Checkpoints.Path}}}}, nil
	}
	a, err := store.OpenAudit(ctx, store.Options{Path: files.Path, ReadOnly: true, Logger: c.log()}, nil)
	if err != nil {
		return nil, err
	}
	chain := soundness{File: a.Path()}
	chain.Damage, err = a.Verify(ctx)
	return []soundness{main, chain}, errors.Join(err, a.Close())
}

func (c *call) verifyStorage(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	files, err := c.verifyFiles(ctx, cfg)
	if fault.Is(err, fault.StorageCorrupt) {
		return advised(err, restore)
	}
	if err != nil {
		return err
	}
	sound := true
	for i := range files {
		sound = sound && len(files[i].Damage) == 0
		if files[i].Damage == nil {
			files[i].Damage = []store.Damage{}
		}
	}
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
func (c *call) checkSoundness(ctx context.Context, d *diagnosis, cfg *config.Config) {
	files, err := c.verifyFiles(ctx, cfg)
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
