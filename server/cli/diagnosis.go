package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"agentd/auth"
	"agentd/server"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/manifest"
	"agentd/server/secret"
	"agentd/store"
)

// built is the error of a configuration that is valid but declares what cannot be built.
func built(cfg *config.Config) error {
	_, done, err := manifest.Build(manifest.Options{Config: cfg, Offline: true})
	if err == nil {
		done()
	}
	return err
}

// A guarded file or folder is one that nobody else should get at.
type guarded struct {
	path    string
	secret  bool // it holds a secret: others who may read it are a failure
	folder  bool
	passing bool // it comes and goes
}

// guardedFiles are those of a configuration.
func (c *call) guardedFiles(cfg *config.Config) []guarded {
	db := cfg.Resolve(cfg.Storage.Path)
	all := []guarded{{path: filepath.Dir(db), folder: true}}
	if file := c.file(); file != "" && !c.flags.dev {
		all = append(all, guarded{path: file})
	}
	all = append(all, guarded{path: db}, guarded{path: db + "-wal", passing: true}, guarded{path: db + "-shm", passing: true},
		guarded{path: cfg.SecretsPath(), secret: true, passing: true})
	r := &secret.Resolver{Dir: cfg.Dir}
	for _, ref := range cfg.Refs() {
		if parsed, err := secret.Parse(string(ref.Ref)); err == nil && parsed.Query["warnOnPermissions"] == "0" {
			continue
		}
		for _, path := range r.Files(string(ref.Ref)) {
			all = append(all, guarded{path: path, secret: true})
		}
	}
	if path := os.Getenv(secret.PassphraseAt); path != "" {
		all = append(all, guarded{path: path, secret: true})
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(g guarded) bool {
		defer func() { seen[g.path] = true }()
		return seen[g.path]
	})
}

// checkFiles looks at the rights of others, and with --fix-perms takes them away.
func (c *call) checkFiles(d *diagnosis, cfg *config.Config) {
	good, missing := 0, []string{}
	for _, g := range c.guardedFiles(cfg) {
		info, err := os.Stat(g.path)
		if os.IsNotExist(err) {
			if !g.passing {
				missing = append(missing, g.path)
			}
			continue
		}
		if err != nil {
			d.find("permissions", statusFail, "Check the folders above it.", "%s cannot be looked at: %v.", g.path, err)
			continue
		}
		open := info.Mode().Perm() & 0o077
		if g.folder && cfg.Resolve(".") == g.path { // the configuration's own folder may be anything, such as /srv
			open &= 0o022
		}
		switch {
		case open == 0:
			good++
		case c.flags.fixPerms:
			if err := os.Chmod(g.path, info.Mode().Perm()&^open); err != nil {
				d.find("permissions", statusFail, "Remove them as the owner of the file.", "The group and other permissions of %s cannot be removed: %v.", g.path, err)
				continue
			}
			d.Fixed = append(d.Fixed, g.path)
			good++
		default:
			status := map[bool]string{false: statusWarn, true: statusFail}[g.secret]
			d.find("permissions", status, "Remove them with `agentd doctor --fix-perms`, or with chmod go= and the path.",
				"Others have rights on %s: its mode is %04o.", g.path, info.Mode().Perm())
		}
	}
	if good > 0 {
		d.find("permissions", statusOK, "", "Nobody else gets at %d file(s) and folder(s).", good)
	}
	if len(missing) > 0 {
		d.find("permissions", statusSkip, "", "Not there yet: %s.", strings.Join(missing, ", "))
	}
}

// checkSecrets opens the active store and resolves every reference.
func (c *call) checkSecrets(d *diagnosis, cfg *config.Config) {
	secrets, report, err := server.Secrets(cfg, c.log(), nil)
	if err != nil {
		d.fails("secrets", err)
		return
	}
	message := "The active store is " + report.Active
	if report.DowngradedFrom != "" {
		message += ", not " + report.DowngradedFrom + ": " + report.DowngradeReason
	}
	d.find("secrets", statusOK, "", "%s.", message)
	for _, ref := range cfg.Refs() {
		where := dotted(ref.Path)
		value, err := secrets.Resolve(string(ref.Ref))
		if err != nil {
			err = secret.Unresolvable(where, ref.Ref.String(), err)
		} else if where == "auth.pepperRef" && cfg.Auth.Kind == "token" {
			err = auth.CheckPepper(value)
		}
		if err != nil {
			d.fails("secrets", err)
			continue
		}
		d.find("secrets", statusOK, "", "%s (%s) gives %d bytes.", where, ref.Ref, len(value))
	}
}

// checkDatabase opens the database for reading, also beside a server that holds it.
func (c *call) checkDatabase(ctx context.Context, d *diagnosis, cfg *config.Config) {
	path := cfg.Resolve(cfg.Storage.Path)
	if cfg.Storage.Encryption.Enabled {
		d.fails("database", fault.New(fault.EncryptionUnsupported, "storage.encryption.enabled is true, but agentd cannot encrypt the database."))
		return
	}
	if !exists(path) {
		d.find("database", statusSkip, "", "%s is not there yet; `agentd start` makes it.", path)
		return
	}
	holder, held := store.FindHolder(path)
	db, err := store.Open(ctx, c.storeOptions(cfg, store.Options{ReadOnly: true}))
	if err == nil {
		err = errors.Join(db.Ping(ctx), db.Close())
	}
	if err != nil {
		d.fails("database", err)
		return
	}
	by := ", and no process holds it"
	if held && holder.Address != "" {
		by = fmt.Sprintf("; process %d serves it at %s", holder.PID, holder.Address)
	} else if held {
		by = fmt.Sprintf("; process %d holds it", holder.PID)
	}
	d.find("database", statusOK, "", "%s can be read%s.", path, by)
	c.checkSoundness(ctx, d, cfg)
}
