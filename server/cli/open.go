package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"strconv"
	"strings"

	"agentd/server"
	"agentd/server/agent"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/rest"
	"agentd/store"
)

// open finds the API of the server that --url names, or opens the store to run agents in this process or, where a
// server holds it, finds that server's API.
func (c *call) open(ctx context.Context, cfg *config.Config) (*server.Local, *api, error) {
	if remote, err := c.named(); remote != nil || err != nil {
		return nil, remote, err
	}
	if err := shut(cfg.Hardening); err != nil {
		return nil, nil, err
	}
	local, err := server.Open(ctx, server.Options{Config: cfg, Logger: c.log(), Command: c.cmd.name}, server.Run, false)
	if !fault.Is(err, fault.StoreLocked) {
		return local, nil, err
	}
	remote, err := c.instead(cfg, err)
	return nil, remote, err
}

// instead is the API of the server because of which the store is locked.
func (c *call) instead(cfg *config.Config, locked error) (*api, error) {
	remote, err := c.holder(cfg)
	if remote == nil && err == nil {
		err = advised(locked, "Wait for that process to end, or start a server: commands then go through it.")
	}
	return remote, err
}

// holder is the API of the server that --url names or that holds the store; nil when there is neither.
func (c *call) holder(cfg *config.Config) (*api, error) {
	if remote, err := c.named(); remote != nil || err != nil {
		return remote, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	holder, _ := store.FindHolder(cfg.Resolve(cfg.Storage.Path))
	if holder.Address == "" {
		return nil, nil
	}
	return dial(holder.Address, token, cfg)
}

// named is the API of the server that --url names; nil without that flag.
func (c *call) named() (*api, error) {
	if c.flags.url == "" {
		return nil, nil
	}
	u, err := url.Parse(c.flags.url)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, c.cmd.misused("--url wants the URL of an API, such as http://127.0.0.1:8080/v1, without credentials.")
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	a := newAPI(strings.TrimSuffix(u.String(), "/"), token)
	a.keyed = true
	return a, nil
}

// token is the token for a server; empty: none is sent.
func (c *call) token() (string, error) {
	name := cmp.Or(c.flags.tokenEnv, "AGENTD_TOKEN")
	token := c.getenv(name)
	if token == "" && c.flags.tokenEnv != "" {
		return "", c.cmd.misused("the environment has no variable %.80q.", name)
	}
	return token, nil
}

// own opens the store to write to it. When somebody else holds it, the error is store-locked, and the configuration is
// there all the same.
func (c *call) own(ctx context.Context) (*config.Config, *store.DB, error) {
	cfg, err := c.load()
	if err != nil {
		return nil, nil, err
	}
	if cfg.Storage.Encryption.Enabled {
		return nil, nil, fault.New(fault.EncryptionUnsupported, "storage.encryption.enabled is true, but this build cannot encrypt its database.")
	}
	db, err := store.Open(ctx, c.storeOptions(cfg, store.Options{}))
	return cfg, db, err
}

// records is where runs are read. There are two: the store and a server that holds it.
type records interface {
	list(context.Context, store.RunFilter) ([]agent.Snapshot, error)
	show(ctx context.Context, runID string) (agent.Snapshot, error)
	waiting(context.Context) ([]agent.Waiting, error)
	cassette(ctx context.Context, runID string, w io.Writer) error
}

// reading gives fn the records: through the server that holds the store or, where none does, from the store itself.
func (c *call) reading(ctx context.Context, fn func(records) error) error {
	return runHint(c.either(ctx, func(remote *api) error { return fn(remote) }, func(db *store.DB) error {
		return fn(stored{agent.New(agent.Options{Runs: db.Runs(), Sessions: db.Sessions()})})
	}))
}

// either reads: there, through the server that holds the store, or here, in the store itself.
func (c *call) either(ctx context.Context, there func(*api) error, here func(*store.DB) error) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if remote, err := c.holder(cfg); err != nil {
		return err
	} else if remote != nil {
		return errors.Join(there(remote), remote.close())
	}
	db, err := store.Open(ctx, c.storeOptions(cfg, store.Options{ReadOnly: true}))
	if errors.Is(err, fs.ErrNotExist) {
		return advised(err, "Make the database with `agentd run` or `agentd start`.")
	}
	if err != nil {
		return err
	}
	return errors.Join(here(db), db.Close())
}

// runHint makes errors that speak of routes speak of commands.
func runHint(err error) error {
	switch {
	case fault.Is(err, fault.RunNotFound):
		return advised(err, "List the runs with `agentd runs list`.")
	case fault.Is(err, fault.RunNotSuspended), fault.Is(err, fault.RunConflict), fault.Is(err, fault.RunNotEnded):
		return advised(err, "Ask how it stands with `agentd runs show RUN`.")
	}
	return err
}

// stored reads runs in the store. Its engine runs nothing.
type stored struct{ engine *agent.Engine }

func (s stored) list(ctx context.Context, f store.RunFilter) ([]agent.Snapshot, error) {
	runs, _, err := s.engine.List(ctx, f)
	return runs, err
}

func (s stored) show(ctx context.Context, runID string) (agent.Snapshot, error) {
	return s.engine.Snapshot(ctx, runID)
}

func (s stored) waiting(ctx context.Context) ([]agent.Waiting, error) {
	return s.engine.Approvals(ctx, nil)
}

func (s stored) cassette(ctx context.Context, runID string, w io.Writer) error {
	return s.engine.Cassette(ctx, runID, w)
}

func runPath(runID string) string { return "/runs/" + url.PathEscape(runID) }

func (a *api) list(ctx context.Context, f store.RunFilter) ([]agent.Snapshot, error) {
	query := url.Values{"limit": {strconv.Itoa(f.Limit)}}
	if f.Status != "" {
		query.Set("status", string(f.Status))
	}
	for _, owner := range f.Owners {
		query.Set("agentId", owner)
	}
	var answer rest.RunList
	err := a.call(ctx, "GET", "/runs?"+query.Encode(), nil, &answer)
	return answer.Runs, err
}

func (a *api) show(ctx context.Context, runID string) (s agent.Snapshot, err error) {
	err = a.call(ctx, "GET", runPath(runID)+"/state", nil, &s)
	return s, err
}

func (a *api) waiting(ctx context.Context) ([]agent.Waiting, error) {
	var answer rest.ApprovalList
	err := a.call(ctx, "GET", "/approvals", nil, &answer)
	return answer.Approvals, err
}
