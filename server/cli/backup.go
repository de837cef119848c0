package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentd/server"
	"agentd/server/audit"
	"agentd/server/backup"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/secret"
	"agentd/store"
)

// site is where the files of a configuration are, without symbolic links.
func site(cfg *config.Config) backup.Site {
	files := server.AuditFiles(cfg)
	s := backup.Site{backup.Database: cfg.Resolve(cfg.Storage.Path), backup.Chain: files.Path, backup.Checkpoints: files.Checkpoints.Path, backup.Secrets: cfg.SecretsPath()}
	for name, path := range s {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			s[name] = real
		}
	}
	return s
}

// pepperPrint is the fingerprint of the pepper of a configuration; empty when it has none.
func (c *call) pepperPrint(cfg *config.Config) (string, error) {
	if cfg.Auth.Kind != "token" || cfg.Auth.PepperRef == "" {
		return "", nil
	}
	secrets, err := server.SecretsFor(cfg, c.log(), string(cfg.Auth.PepperRef))
	if err != nil {
		return "", err
	}
	pepper, err := secrets.Resolve(string(cfg.Auth.PepperRef))
	if err != nil {
		return "", secret.Unresolvable("auth.pepperRef", cfg.Auth.PepperRef.String(), err)
	}
	return backup.PepperPrint(pepper), nil
}

func (c *call) backupStorage(ctx context.Context) error {
	name, err := filepath.Abs(c.args[0])
	if err != nil {
		return notReplaced(c.args[0], err)
	}
	from, m := site(c.cfg), backup.Manifest{CreatedAt: time.Now().UnixMilli(), Version: server.Version}
	if m.Pepper, err = c.pepperPrint(c.cfg); err != nil {
		return err
	}
	var size int64
	write := func() error {
		if exists(from[backup.Chain]) { // to record this may have made it
			if err := readChain(ctx, c.chainFiles(), func(l *audit.Log) error {
				m.AuditKey = audit.KeyOf(l.PublicKey()).Fingerprint
				return nil
			}); err != nil {
				return err
			}
		}
		return interruptible(ctx, func(ctx context.Context) error {
			return create(name, func(f *os.File) (err error) {
				if err = from.Create(ctx, backup.Paced(f, from[backup.Database]), &m); err == nil {
					size, err = f.Seek(0, io.SeekCurrent)
				}
				return err
			})
		})
	}
	record := audit.Record{Action: audit.StorageBackup, Target: "storage", Metadata: map[string]any{"file": name}}
	if err := c.recorded(ctx, record, nil, write); err != nil {
		return onDisk("The backup could not be written", err)
	}
	return c.report(map[string]any{"file": name, "sizeBytes": size, "manifest": m}, "Wrote %d bytes to %s. Keep the configuration, the passphrases and the pepper elsewhere.", size, printable(name))
}

// create makes a file that is not there, with all that fill writes or not at all. It is durable, and only its owner may read it.
func create(name string, fill func(*os.File) error) error {
	if exists(name) {
		return fault.Invalid(fmt.Sprintf("The file %s exists.", name)).Advise("Name a file that does not exist; no backup replaces another.")
	}
	folder := filepath.Dir(name)
	f, err := os.CreateTemp(folder, ".agentd-backup-*")
	if err != nil {
		return notReplaced(name, err)
	}
	defer os.Remove(f.Name()) // its other name stays
	if err := fill(f); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return notReplaced(name, err)
	}
	if err := os.Link(f.Name(), name); err != nil { // unlike a rename, it replaces nothing
		return notReplaced(name, err)
	}
	return store.Sync(folder)
}

// onDisk gives an error of the file system a code.
func onDisk(what string, err error) error {
	_, file := errors.AsType[*fs.PathError](err)
	_, link := errors.AsType[*os.LinkError](err)
	_, call := errors.AsType[*os.SyscallError](err)
	if fault.Of(err).Kind != fault.Internal || !file && !link && !call {
		return err
	}
	return fault.New(fault.StorageFailed, "%s: %v.", what, err).Because(err).Advise("Check free space and permissions of the folder, and repeat the command.")
}

func (c *call) restoreStorage(ctx context.Context) (err error) {
	name, err := filepath.Abs(c.args[0])
	if err != nil {
		return err
	}
	if err := shut(c.cfg.Hardening); err != nil {
		return err
	}
	to := site(c.cfg)
	for _, member := range []string{backup.Database, backup.Chain} {
		claim, err := store.Claim(to[member], store.Holder{Command: c.cmd.name})
		if err != nil {
			return advised(err, "Stop the server or the command that holds it. Nothing was changed.")
		}
		defer claim.Close()
	}
	if j, err := to.Finish(); j != nil || err != nil {
		if err != nil {
			return err
		}
		return c.restored(j, "Finished the restore of %s that was interrupted.", printable(j.File))
	}
	err = interruptible(ctx, func(ctx context.Context) (err error) {
		f, err := os.Open(name)
		if err != nil {
			return fault.Invalid(fmt.Sprintf("The file %s cannot be read: %v.", name, fault.Innermost(err))).Because(err).Advise("Check its name and its permissions.")
		}
		defer f.Close()
		var made backup.Changes
		m, err := to.Unpack(f)
		if err == nil {
			made, err = c.prepare(ctx, to.Staged(), m, name)
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return errors.Join(err, to.Discard())
		}
		return to.Exchange(name, time.Now(), made) // the next restore removes what it leaves, or finishes what it began
	})
	if err != nil {
		return onDisk("The backup could not be unpacked", err)
	}
	j, err := to.Finish()
	if err != nil {
		return err
	}
	return c.restored(j, "Restored %s.", printable(name))
}

func (c *call) restored(j *backup.Journal, format string, args ...any) error {
	format += " %d run(s) that the backup shows as moving have ended as failed (restored). %d session(s), thread(s) and run(s) that were erased after it were erased again."
	format, args = format+" What was replaced has names that end in .bak.%d.", append(args, j.Ended, j.Erased, j.At)
	if j.NotErased != "" {
		format, args = format+" What was erased after the backup may be back: %s Erase them again.", append(args, printable(j.NotErased))
	}
	return c.report(j, format, args...)
}

// prepare checks the unpacked files of a backup, brings them to this version, and ends the runs that must not continue.
func (c *call) prepare(ctx context.Context, at backup.Site, m *backup.Manifest, file string) (made backup.Changes, err error) {
	cfg := *c.cfg
	cfg.Storage.Path, cfg.Audit.Path, cfg.Audit.Checkpoint.Path = at[backup.Database], at[backup.Chain], at[backup.Checkpoints]
	cfg.Secrets.Path = site(c.cfg)[backup.Secrets]
	if exists(at[backup.Secrets]) {
		cfg.Secrets.Path = at[backup.Secrets]
		if err := c.openSecrets(&cfg); err != nil {
			return made, err
		}
	}
	mark, err := c.pepperPrint(&cfg)
	if err != nil {
		return made, err
	}
	if mark != m.Pepper && mark != "" && m.Pepper != "" && !c.flags.newPepper {
		return made, fault.New(fault.BackupPepper, "The backup was made with another pepper.")
	}
	db, err := store.Open(ctx, store.Options{Path: cfg.Storage.Path, Holder: store.Holder{Command: c.cmd.name}, Logger: c.log()})
	switch {
	case fault.Is(err, fault.StorageCorrupt), fault.Is(err, fault.StoreUnusable), fault.Is(err, fault.SchemaChanged):
		return made, fault.New(fault.BackupInvalid, "The database in the backup cannot be used: %v.", fault.Innermost(err)).Because(err)
	case err != nil:
		return made, err
	}
	damage, err := db.Verify(ctx)
	if err = errors.Join(err, db.Close()); err != nil {
		return made, err
	}
	if len(damage) > 0 {
		return made, fault.New(fault.BackupInvalid, "The database in the backup is damaged: %s: %s.", damage[0].Place, damage[0].Message)
	}
	var chain audit.Options
	var last audit.Entry
	if exists(at[backup.Chain]) {
		if chain, last, err = c.checkChain(ctx, &cfg, m); err != nil {
			return made, err
		}
	} else {
		cfg.Audit.Enabled = false // the next start makes a chain
	}
	l, err := server.Open(ctx, server.Options{Config: &cfg, Logger: c.log(), Command: c.cmd.name}, server.Hold, false)
	if err != nil {
		return made, err
	}
	if made.Ended, err = l.EndLost(ctx, c.flags.resumeRuns); err == nil {
		made.Erased, made.NotErased = c.eraseAgain(ctx, l, last)
	}
	if err = errors.Join(err, l.Close()); err != nil || len(chain.Passphrase) == 0 {
		return made, err
	}
	log, err := audit.Open(ctx, chain)
	if err != nil {
		return made, err
	}
	return made, errors.Join(log.Append(ctx, entryOf(audit.Record{Action: audit.StorageRestore, Target: "storage",
		Metadata: map[string]any{"file": file, "createdAt": message.Millis(m.CreatedAt), "ended": made.Ended, "erased": made.Erased}}, nil)), log.Close())
}

// eraseAgain erases in the database of a backup what the chain that is replaced says was erased after it, which is after the last
// entry of its own chain. It returns how much that was, and why there may be more.
func (c *call) eraseAgain(ctx context.Context, l *server.Local, last audit.Entry) (n int, unsure string) {
	if !exists(site(c.cfg)[backup.Database]) {
		return 0, "There is no database that it replaces."
	}
	if last.Seq == 0 || !exists(site(c.cfg)[backup.Chain]) {
		return 0, "There are not two audit chains to compare."
	}
	var busy error
	err := c.chain(ctx, func(replaced *audit.Log) error {
		begun := false
		for e, err := range replaced.Entries(ctx, audit.Query{From: last.Seq}) {
			if err != nil {
				return err
			}
			if !begun && e.Hash != last.Hash {
				return errors.New("it does not continue the chain of the backup")
			}
			if begun = true; e.Seq == last.Seq {
				continue
			}
			again, err := l.EraseAgain(ctx, e)
			if again {
				n++
			}
			if errors.Is(err, store.ErrConflict) {
				busy = fmt.Errorf("%s has a run that continues", e.Target)
			} else if err != nil {
				return err
			}
		}
		if !begun {
			return errors.New("it ends before the chain of the backup does")
		}
		return nil
	})
	if err = cmp.Or(err, busy); err != nil {
		unsure = fmt.Sprintf("The chain that it replaces could not be followed: %v.", fault.Innermost(err))
	}
	return n, unsure
}

// openSecrets opens the unpacked file of secrets, unless the configuration does not use it.
func (c *call) openSecrets(cfg *config.Config) error {
	_, report, err := server.Secrets(cfg, c.log(), nil)
	switch {
	case err == nil && report.Active != "encrypted-file" && slices.Contains(report.FallbackChain, "encrypted-file"):
		err = fault.New(fault.ResolutionFailed, "The backup has a file of secrets, and %s.", report.DowngradeReason)
	case !fault.Is(err, fault.ResolutionFailed):
		return err
	}
	return advised(err, "Set "+secret.Passphrase+" to the passphrase of that time. Nothing was changed.")
}

// checkChain verifies the unpacked chain, and returns what opens it and, if that can be read, its last entry.
func (c *call) checkChain(ctx context.Context, cfg *config.Config, m *backup.Manifest) (o audit.Options, last audit.Entry, err error) {
	if o = server.AuditFiles(cfg); cfg.Audit.Enabled {
		secrets, err := server.SecretsFor(cfg, c.log(), cmp.Or(string(cfg.Audit.PassphraseRef), string(cfg.Storage.Encryption.PassphraseRef)))
		if err != nil {
			return o, last, err
		}
		if o, err = server.AuditOptions(cfg, secrets); err != nil {
			return o, last, err
		}
	}
	o.Logger, o.Holder = c.log(), store.Holder{Command: c.cmd.name}
	err = readChain(ctx, o, func(l *audit.Log) error {
		if key := audit.KeyOf(l.PublicKey()).Fingerprint; key != m.AuditKey {
			return fault.New(fault.BackupInvalid, "The audit chain in the backup has the key %s, and its manifest names %.80q.", key, m.AuditKey)
		}
		v, err := l.Verify(ctx, audit.Verification{Checkpoints: o.Checkpoints.Path})
		if err == nil && !v.OK {
			return fault.New(fault.BackupInvalid, "The audit chain in the backup is broken at entry %d (%s).", v.BrokenAt, v.Reason)
		}
		if err != nil || len(o.Passphrase) == 0 {
			return err
		}
		page, _, err := l.List(ctx, audit.Query{Newest: true, Limit: 1})
		if len(page) > 0 {
			last = page[0]
		}
		return err
	})
	return o, last, err
}
