package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"agentd/auth"
	"agentd/server"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/manifest"
	"agentd/server/outbound"
	"agentd/server/secret"
	"agentd/store"
)

// Statuses of what the doctor finds.
const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
	statusSkip = "skip"
)

// A finding is the result of one check.
type finding struct {
	Check   string `json:"check"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

// A diagnosis is everything that the doctor found.
type diagnosis struct {
	Version  string          `json:"version"`
	Home     string          `json:"home"` // the folder of the configuration
	Platform string          `json:"platform"`
	Checks   []finding       `json:"checks"`
	Summary  map[string]int  `json:"summary"`
	Fixed    []string        `json:"fixedPerms,omitempty"`
	Outbound []config.Target `json:"outbound"`
}

func (d *diagnosis) find(check, status, hint, format string, args ...any) {
	d.Checks = append(d.Checks, finding{check, status, fmt.Sprintf(format, args...), hint})
}

// fails is find for an error.
func (d *diagnosis) fails(check string, err error) {
	f := fault.Of(err)
	message := f.Message
	if f.Kind == fault.Internal {
		message = err.Error()
	}
	for _, is := range f.Issues {
		message += "\n" + issue(is)
	}
	d.find(check, statusFail, f.NextStep(), "%s", message)
}

func (c *call) doctor(ctx context.Context) error {
	return c.diagnose(func(d *diagnosis) {
		if !c.flags.offline {
			c.checkFiles(d)
			c.checkSecrets(d)
			c.checkDatabase(ctx, d)
		}
		c.checkOutbound(d)
	})
}

func (c *call) secretsDoctor(context.Context) error {
	return c.diagnose(c.checkSecrets)
}

// diagnose checks the configuration and, if it is valid, runs the other checks. It shows all findings.
func (c *call) diagnose(checks func(*diagnosis)) error {
	d := &diagnosis{Version: server.Version, Platform: runtime.GOOS + "/" + runtime.GOARCH, Checks: []finding{}, Outbound: []config.Target{},
		Summary: map[string]int{statusOK: 0, statusWarn: 0, statusFail: 0, statusSkip: 0}}
	var err error
	if c.cfg, err = c.load(); fault.Is(err, fault.Usage) {
		return err
	}
	if err == nil {
		err = built(c.cfg)
	}
	if err != nil {
		d.fails("configuration", err)
	} else {
		d.Home = c.cfg.Resolve(".")
		d.find("configuration", statusOK, "", "%s is valid.", cmp.Or(c.file(), "The configuration without a file"))
		if !c.flags.offline {
			for _, text := range warnings(c.cfg) {
				d.find("configuration", statusWarn, "", "%s.", text)
			}
		}
		checks(d)
	}
	for _, f := range d.Checks {
		d.Summary[f.Status]++
	}
	return c.show(d.Summary[statusFail] == 0, d, d.say)
}

func (d *diagnosis) say(w sheet) {
	for _, f := range d.Checks {
		lines := strings.Split(f.Message, "\n")
		w.say("[%s]\t%s\t%s\n", strings.ToUpper(f.Status), f.Check, printable(lines[0]))
		for _, line := range lines[1:] {
			w.say("\t\t  - %s\n", printable(line))
		}
		if f.Hint != "" && f.Status != statusOK {
			w.say("\t\t  hint: %s\n", printable(f.Hint))
		}
	}
	for _, path := range d.Fixed {
		w.say("Removed group and other permissions from %s.\n", printable(path))
	}
	if len(d.Outbound) > 0 {
		w.say("\nThe server may contact these hosts and start these programs, and no others:\n")
	}
	for _, t := range d.Outbound {
		w.say("  %s\t%s\n", destination(t), t.Setting)
	}
	w.say("\n%d ok, %d warn, %d fail, %d skip\n", d.Summary[statusOK], d.Summary[statusWarn], d.Summary[statusFail], d.Summary[statusSkip])
}

// destination is where a target is, for people.
func destination(t config.Target) string {
	if t.Command != nil {
		return "runs " + printable(strings.Join(t.Command, " "))
	}
	return t.Address
}

// checkOutbound lists what the server could contact. With --offline, contact with another machine is a failure.
func (c *call) checkOutbound(d *diagnosis) {
	var beyond, programs []string
	for _, t := range c.cfg.Targets() {
		d.Outbound = append(d.Outbound, t)
		switch {
		case t.Command != nil:
			programs = append(programs, t.Setting)
		case !outbound.Local(t.Address):
			beyond = append(beyond, t.Address+" ("+t.Setting+")")
		}
	}
	switch {
	case beyond == nil:
		d.find("outbound", statusOK, "", "The server itself contacts nothing beyond this machine.")
	case c.flags.offline:
		d.find("outbound", statusFail, "Take these settings out, or give them addresses of this machine.",
			"The server may contact, with the system's name servers for those that are names:\n%s", strings.Join(beyond, "\n"))
	default:
		d.find("outbound", statusOK, "", "The server may contact %d host(s) beyond this machine, and no others.", len(beyond))
	}
	if programs != nil && c.flags.offline {
		d.find("outbound", statusWarn, "Look at these programs yourself: they are not watched.", "What programs contact is up to them: %s.", strings.Join(programs, ", "))
	}
}

// exists reports whether there is something at a path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// built is the error of a configuration that is valid but declares what cannot be built.
func built(cfg *config.Config) error {
	declared, err := manifest.Build(manifest.Options{Config: cfg, Offline: true})
	if err == nil {
		declared.Close()
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
func (c *call) guardedFiles() []guarded {
	db := c.cfg.Resolve(c.cfg.Storage.Path)
	all := []guarded{{path: filepath.Dir(db), folder: true}}
	if file := c.file(); file != "" && !c.flags.dev {
		all = append(all, guarded{path: file})
	}
	all = append(all, guarded{path: db}, guarded{path: db + "-wal", passing: true}, guarded{path: db + "-shm", passing: true},
		guarded{path: c.cfg.SecretsPath(), secret: true, passing: true})
	r := &secret.Resolver{Dir: c.cfg.Dir}
	for _, ref := range c.cfg.Refs() {
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
func (c *call) checkFiles(d *diagnosis) {
	good, missing := 0, []string{}
	for _, g := range c.guardedFiles() {
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
		if g.folder && c.cfg.Resolve(".") == g.path { // the configuration's own folder may be anything, such as /srv
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
func (c *call) checkSecrets(d *diagnosis) {
	secrets, report, err := server.Secrets(c.cfg, c.log(), nil)
	if err != nil {
		d.fails("secrets", err)
		return
	}
	message := "The active store is " + report.Active
	if report.DowngradedFrom != "" {
		message += ", not " + report.DowngradedFrom + ": " + report.DowngradeReason
	}
	d.find("secrets", statusOK, "", "%s.", message)
	for _, ref := range c.cfg.Refs() {
		where := dotted(ref.Path)
		value, err := secrets.Resolve(string(ref.Ref))
		if err != nil {
			err = secret.Unresolvable(where, ref.Ref.String(), err)
		} else if where == "auth.pepperRef" && c.cfg.Auth.Kind == "token" {
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
func (c *call) checkDatabase(ctx context.Context, d *diagnosis) {
	path := c.cfg.Resolve(c.cfg.Storage.Path)
	if c.cfg.Storage.Encryption.Enabled {
		d.fails("database", fault.New(fault.EncryptionUnsupported, "storage.encryption.enabled is true, but agentd cannot encrypt the database."))
		return
	}
	if !exists(path) {
		d.find("database", statusSkip, "", "%s is not there yet; `agentd start` makes it.", path)
		return
	}
	holder, held := store.FindHolder(path)
	db, err := store.Open(ctx, c.storeOptions(store.Options{ReadOnly: true}))
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
	c.checkSoundness(ctx, d)
}
