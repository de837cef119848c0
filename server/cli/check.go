package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"agentd/server"
	"agentd/server/config"
)

func (c *call) printConfig(context.Context) error {
	_, err := c.stdout.Write(c.cfg.Print())
	return err
}

func (c *call) printSchema(context.Context) error {
	_, err := c.stdout.Write(config.Schema())
	return err
}

func (c *call) checkConfig(context.Context) error {
	if err := built(c.cfg); err != nil {
		return advised(err, "Correct that, and check again.")
	}
	outbound, warnings, dues := c.cfg.Targets(), warnings(c.cfg), dues(c.cfg)
	if outbound == nil {
		outbound = []config.Target{}
	}
	return c.show(true, struct {
		OK       bool                `json:"ok"`
		File     string              `json:"file,omitempty"`
		Outbound []config.Target     `json:"outbound"`
		Dues     map[string][]string `json:"dues,omitempty"` // of triggers, by id
		Warnings []string            `json:"warnings"`
	}{true, c.file(), outbound, dues, warnings}, func(w sheet) {
		w.say("OK: %s is valid.\n\n", cmp.Or(c.file(), "the configuration without a file"))
		if len(outbound) == 0 {
			w.say("The server reaches no host and starts no program.\n")
		} else {
			w.say("The server reaches these hosts and programs, and no others:\n")
		}
		for _, t := range outbound {
			w.say("  %s %s\t%s\n", t.Kind, t.ID, destination(t))
		}
		if len(dues) > 0 {
			w.say("\nTriggers are due, in UTC:\n")
		}
		for _, id := range slices.Sorted(maps.Keys(dues)) {
			w.say("  %s\t%s\n", id, strings.Join(dues[id], "  "))
		}
		if len(warnings) > 0 {
			w.say("\nWarnings:\n")
		}
		for _, text := range warnings {
			w.say("  - %s\n", text)
		}
	})
}

// dues are the next three of each cron text, by trigger.
func dues(cfg *config.Config) map[string][]string {
	all := map[string][]string{}
	for id, t := range cfg.Triggers {
		for _, due := range t.Dues(time.Now(), 3) {
			all[id] = append(all[id], due.Format(time.RFC3339))
		}
	}
	return all
}

// warnings are what is allowed, and is dangerous or will not work here.
func warnings(cfg *config.Config) []string {
	all := []string{}
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if cfg.Audit.Enabled && cfg.Audit.PassphraseRef == "" && cfg.Storage.Encryption.PassphraseRef == "" {
		warn("audit.enabled is true, but audit.passphraseRef is not set: the server will not start")
	}
	if cfg.Auth.Kind == "token" && cfg.Auth.PepperRef == "" {
		warn("auth.pepperRef is not set: `agentd start` and the token commands will refuse (pre-bind-pepper-missing)")
	}
	if cfg.Storage.Encryption.Enabled {
		warn("storage.encryption.enabled is true: this build cannot encrypt its database and will refuse to open it")
	}
	all = append(all, server.Warnings(cfg)...)
	for _, t := range cfg.Targets() {
		if t.Command == nil {
			continue
		}
		if _, err := exec.LookPath(t.Command[0]); err != nil {
			warn("%s %s: the program %q is not found here", t.Kind, t.ID, t.Command[0])
		}
	}
	return all
}
