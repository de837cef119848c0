package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"agentd/server"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/outbound"
)

// Statuses of what the doctor finds.
const (
	statusOK   = "ok"
	statusWarn = "warn"
	statusFail = "fail"
	statusSkip = "skip"
)

// A finding is what one check came to.
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
	return c.diagnose(func(d *diagnosis, cfg *config.Config) {
		if !c.flags.offline {
			c.checkFiles(d, cfg)
			c.checkSecrets(d, cfg)
			c.checkDatabase(ctx, d, cfg)
		}
		c.checkOutbound(d, cfg)
	})
}

func (c *call) secretsDoctor(context.Context) error {
	return c.diagnose(c.checkSecrets)
}

// diagnose checks the configuration and, if it is valid, what else is asked for, and tells what was found.
func (c *call) diagnose(checks func(*diagnosis, *config.Config)) error {
	d := &diagnosis{Version: server.Version, Platform: runtime.GOOS + "/" + runtime.GOARCH, Checks: []finding{}, Outbound: []config.Target{},
		Summary: map[string]int{statusOK: 0, statusWarn: 0, statusFail: 0, statusSkip: 0}}
	cfg, err := c.load()
	if fault.Is(err, fault.Usage) {
		return err
	}
	if err == nil {
		err = built(cfg)
	}
	if err != nil {
		d.fails("configuration", err)
	} else {
		d.Home = cfg.Resolve(".")
		d.find("configuration", statusOK, "", "%s is valid.", cmp.Or(c.file(), "The configuration without a file"))
		if !c.flags.offline {
			for _, text := range warnings(cfg) {
				d.find("configuration", statusWarn, "", "%s.", text)
			}
		}
		checks(d, cfg)
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

// checkOutbound tells what the server could contact. Only who asks for offline wants there to be nothing.
func (c *call) checkOutbound(d *diagnosis, cfg *config.Config) {
	var beyond, programs []string
	for _, t := range cfg.Targets() {
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
