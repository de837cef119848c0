package cli

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"agentd/server"
	"agentd/server/client"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/store"
)

// A door is the API that a command talks to: that of a server or, where no server holds the database, this process's own.
type door struct {
	*client.Client
	local *server.Local // nil: the API is that of a server
}

func (d *door) close() error {
	d.Client.Close()
	if d.local == nil {
		return nil
	}
	return d.local.Close()
}

// hints are what to do on a command line about errors of the API, whose own hints name routes.
var hints = map[*fault.Kind]string{
	fault.AuthRequired:            "Set AGENTD_TOKEN, or the variable that --token-env names, to a token of that server; `agentd token create` makes one.",
	fault.AgentNotFound:           "List the agents with `agentd agents list`.",
	fault.RunNotFound:             "List the runs with `agentd runs list`.",
	fault.RunNotSuspended:         runState,
	fault.RunConflict:             runState,
	fault.RunNotEnded:             runState,
	fault.SessionNotFound:         "List the sessions with `agentd sessions list`.",
	fault.SessionBusy:             "Wait for that run. If its process was killed, `agentd start` continues it.",
	fault.SessionExists:           "Give the session another id with --as.",
	fault.ResumeWithoutSuspension: threadState,
	fault.ConcurrentResume:        threadState,
	fault.WorkflowVersionMismatch: "Resume with --allow-version-mismatch to continue under the present definition, or restore the earlier version.",
	fault.ThreadNotFound:          "List the threads with `agentd workflows threads WORKFLOW`.",
	fault.PauseNotFound:           threadState,
	fault.PauseAmbiguous:          "Name one of the waits with --name; `agentd workflows state WORKFLOW THREAD` lists them.",
	fault.ThreadOpen:              "See what it waits for with `agentd workflows state WORKFLOW THREAD`, abort it, or name another with --thread.",
	fault.ThreadRunning:           "Abort it with `agentd workflows abort WORKFLOW THREAD`, then delete it.",
	fault.NotRetryable:            threadState,
	fault.TriggerNotFound:         "List the triggers with `agentd triggers list`.",
	fault.TriggerNotFirable:       "Enable it with `agentd triggers enable TRIGGER`, or declare it in the configuration.",
	fault.TokenNotFound:           "List the tokens with `agentd token list`.",
}

const (
	runState    = "See its state with `agentd runs show RUN`."
	threadState = "See its state with `agentd workflows state WORKFLOW THREAD`."
)

// through gives fn the API, and closes it afterwards.
func (c *call) through(ctx context.Context, access server.Access, fn func(*door) error) error {
	d, err := c.open(ctx, access)
	if err != nil {
		return err
	}
	return errors.Join(fn(d), d.close())
}

// fetch reads an answer of the API into a document, and shows it.
func (c *call) fetch(ctx context.Context, path string, doc any, write func(sheet)) error {
	err := c.through(ctx, server.Read, func(d *door) error { return d.Call(ctx, "GET", path, nil, doc) })
	if err != nil {
		return err
	}
	return c.show(true, doc, write)
}

// download writes an answer of JSON Lines to stdout or to the file that -o names, and returns how long the file is.
func (c *call) download(ctx context.Context, method, path string) (size int64, err error) {
	return c.output(ctx, func(ctx context.Context, w io.Writer) error {
		return c.through(ctx, server.Read, func(d *door) error { return d.Download(ctx, method, path, w) })
	})
}

// open finds the API of the server that --url names or that holds the database. Where there is none, and for commands
// that work beside a server, it opens the database with an access.
func (c *call) open(ctx context.Context, access server.Access) (*door, error) {
	beside := c.cmd.beside
	if !beside || c.flags.url != "" {
		if remote, err := c.holder(); err != nil {
			return nil, err
		} else if remote != nil {
			return &door{Client: remote}, nil
		}
	}
	if access != server.Read {
		if err := shut(c.cfg.Hardening); err != nil {
			return nil, err
		}
	}
	o := server.Options{Config: c.cfg, Logger: c.log(), Command: c.cmd.name}
	local, err := server.Open(ctx, o, access, beside)
	if beside && fault.Is(err, fault.StoreLocked) {
		local, err = server.Open(ctx, o, server.Beside, true)
	}
	switch {
	case access == server.Read && errors.Is(err, fs.ErrNotExist):
		return nil, advised(err, "Make the database with `agentd run` or `agentd start`.")
	case fault.Is(err, fault.StoreLocked):
		return nil, advised(err, "Wait for that process to end, or start a server: commands then go through it.")
	case err != nil:
		return nil, err
	}
	api, err := client.New(client.Options{URL: "http://localhost" + c.cfg.Server.BasePath, Dial: local.Dial, Hints: hints})
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	return &door{api, local}, nil
}

// holder is the API of the server that --url names or that holds the database, called with the token of the environment
// if there is one; nil when there is no server.
func (c *call) holder() (*client.Client, error) {
	var o client.Options
	var err error
	if c.flags.url != "" {
		u, err := url.Parse(c.flags.url)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			return nil, c.cmd.misused("--url is not the URL of an API, such as http://127.0.0.1:8080/v1, without credentials.")
		}
		o.URL, o.Keyed = strings.TrimSuffix(u.String(), "/"), true
	} else {
		holder, _ := store.FindHolder(c.cfg.Resolve(c.cfg.Storage.Path))
		if holder.Address == "" {
			return nil, nil
		}
		if o, err = client.Locate(holder.Address); err != nil {
			return nil, err
		}
		o.Keyed, o.Again = c.cfg.Server.Idempotency.Enabled, c.cfg.Server.Idempotency.Enabled
		if file := c.cfg.Server.TLS.CertFile; file != "" {
			o.Certificate = c.cfg.Resolve(file)
		}
	}
	if o.Token = c.getenv(cmp.Or(c.flags.tokenEnv, "AGENTD_TOKEN")); o.Token == "" && c.flags.tokenEnv != "" {
		return nil, c.cmd.misused("the environment has no variable %.80q.", c.flags.tokenEnv)
	}
	o.Hints = hints
	return client.New(o)
}

// at is a path of the API below an element, such as /runs/ID/state.
func at(parent, id, child string) string { return parent + "/" + url.PathEscape(id) + child }

// query is the query with pairs of a name and a value, except those with an empty value.
func query(pairs ...string) string {
	set := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			set.Set(pairs[i], pairs[i+1])
		}
	}
	if len(set) == 0 {
		return ""
	}
	return "?" + set.Encode()
}

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
	switch {
	case c.flags.file != "" && c.file() == "": // the chain's file needs no configuration
		return config.Default(), nil
	case c.flags.dev:
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
