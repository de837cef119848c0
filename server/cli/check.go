package cli

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"text/tabwriter"

	"agentd/server"
	"agentd/server/config"
)

func (c *call) printConfig(context.Context) error {
	cfg, err := c.load()
	if err == nil {
		_, err = c.stdout.Write(cfg.Print())
	}
	return err
}

func (c *call) printSchema(context.Context) error {
	_, err := c.stdout.Write(config.Schema())
	return err
}

func (c *call) checkConfig(context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if err := built(cfg); err != nil {
		return advised(err, "Correct that, and check again.")
	}
	outbound, warnings := cfg.Targets(), warnings(cfg)
	if c.flags.json {
		if outbound == nil {
			outbound = []config.Target{}
		}
		return c.printJSON(struct {
			OK       bool            `json:"ok"`
			File     string          `json:"file,omitempty"`
			Outbound []config.Target `json:"outbound"`
			Warnings []string        `json:"warnings"`
		}{true, c.file(), outbound, warnings})
	}
	name := c.file()
	if name == "" {
		name = "the configuration without a file"
	}
	fmt.Fprintf(c.stdout, "OK: %s is valid.\n\n", name)
	if len(outbound) == 0 {
		fmt.Fprintln(c.stdout, "The server reaches no host and starts no program.")
	} else {
		fmt.Fprintln(c.stdout, "The server reaches these hosts and programs, and no others:")
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		for _, t := range outbound {
			fmt.Fprintf(w, "  %s %s\t%s\n", t.Kind, t.ID, destination(t))
		}
		w.Flush()
	}
	if len(warnings) > 0 {
		fmt.Fprintln(c.stdout, "\nWarnings:")
	}
	for _, text := range warnings {
		fmt.Fprintf(c.stdout, "  - %s\n", text)
	}
	return nil
}

// withoutSecrets is a copy of the configuration whose references are empty, so that what it declares can be built, and
// so checked, without resolving one.
func withoutSecrets(cfg *config.Config) *config.Config {
	out := *cfg
	out.Auth.PepperRef, out.Storage.Encryption.PassphraseRef, out.Audit.PassphraseRef = "", "", ""
	out.Providers, out.Tools, out.Agents = maps.Clone(cfg.Providers), maps.Clone(cfg.Tools), maps.Clone(cfg.Agents)
	for id, p := range out.Providers {
		p.APIKeyRef, p.Headers = "", resolved(p.Headers)
		out.Providers[id] = p
	}
	for name, t := range out.Tools {
		t.Headers, t.Env = resolved(t.Headers), resolved(t.Env)
		out.Tools[name] = t
	}
	for id, a := range out.Agents {
		a.HMACRef, a.Headers, a.Env = "", resolved(a.Headers), resolved(a.Env)
		out.Agents[id] = a
	}
	return &out
}

func resolved(values map[string]config.Value) map[string]config.Value {
	values = maps.Clone(values)
	for name, v := range values {
		v.Ref = ""
		values[name] = v
	}
	return values
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
