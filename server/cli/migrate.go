package cli

import (
	"context"
	"errors"
	"io/fs"

	"agentd/server/fault"
	"agentd/store"
)

// migrate brings the database to the schema of this version.
func (c *call) migrate(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, c.storeOptions(cfg, store.Options{ReadOnly: true}))
	if errors.Is(err, fs.ErrNotExist) {
		return advised(err, "Check `storage.path`; `agentd start` creates a database.")
	}
	behind := fault.Is(err, fault.SchemaBehind)
	if behind {
		db, err = store.Open(ctx, c.storeOptions(cfg, store.Options{}))
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
