package cli

import (
	"embed"
	"io/fs"
	"maps"
	"net/netip"
	"os"

	"agentd/server/config"
	"agentd/server/fault"
)

//go:embed demo
var demoFiles embed.FS

// demo is an embedded file of the demo.
func demo(name string) []byte {
	b, err := demoFiles.ReadFile("demo/" + name)
	if err != nil {
		panic(err)
	}
	return b
}

// file is the configuration that is meant; empty when there is none, so that only defaults and variables hold.
func (c *call) file() string {
	if c.flags.config != "" {
		return c.flags.config
	}
	if name := c.getenv("AGENTD_CONFIG"); name != "" {
		return name
	}
	const here = "agentd.json"
	if _, err := os.Stat(here); err == nil {
		return here
	}
	return ""
}

// load reads the configuration, or takes the demo's. The demo heeds no variables: one that names a database or an
// address must not open it to everybody.
func (c *call) load() (*config.Config, error) {
	overrides := map[string]string{"server.host": c.flags.host, "server.port": c.flags.port, "secrets.source": c.flags.secretsSource}
	maps.DeleteFunc(overrides, func(_, value string) bool { return value == "" })
	if c.flags.strictSecrets {
		overrides["secrets.strict"] = "true"
	}
	if c.flags.dev {
		return c.loadDemo(overrides)
	}
	if c.flags.url != "" && c.flags.config == "" { // the server is another's, and so is its configuration
		return config.Load("", nil, overrides)
	}
	cfg, err := config.Load(c.file(), c.env, overrides)
	if f, ok := err.(*fault.Error); ok && f.Hint == "" {
		f.Advise("Correct the configuration, and check it with `agentd config check`.")
	}
	return cfg, err
}

func (c *call) loadDemo(overrides map[string]string) (*config.Config, error) {
	if c.flags.config != "" {
		return nil, c.cmd.misused("--dev and --config cannot be combined.")
	}
	if host := c.flags.host; host != "" && host != "localhost" {
		if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
			return nil, c.cmd.misused("--dev accepts every caller, and therefore listens only on loopback; --host is %q.", host)
		}
	}
	files, err := fs.Sub(demoFiles, "demo")
	if err != nil {
		return nil, err
	}
	return config.Parse(demo("agentd.json"), config.Options{Name: "the demo", Files: files, Overrides: overrides})
}
