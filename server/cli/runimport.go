package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"agentd/server/agent"
	"agentd/server/fault"
	"agentd/server/rest"
	"agentd/server/runstate"
	"agentd/store"
)

func (c *call) importRun(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	limit := int64(cfg.Server.MaxBodyBytes)
	file, err := c.readFile(c.args[0], limit)
	if err != nil {
		return err
	}
	if int64(len(file)) > limit {
		return fault.New(fault.BodyTooLarge, "The run state is larger than %d bytes.", limit)
	}
	doc := stateIn(file)
	local, remote, err := c.open(ctx, cfg)
	if err != nil {
		return err
	}
	var made rest.RunImport
	if remote != nil {
		err = errors.Join(remote.importRun(ctx, doc, c.flags.session, &made), remote.close())
	} else {
		var st *runstate.State
		if st, err = runstate.Read(doc); err == nil {
			scribe := &scribe{log: local.Audit()}
			var v agent.Imported
			v, err = local.Engine().Import(ctx, st, agent.ImportOptions{SessionID: c.flags.session, By: "cli", MayJoin: true, Also: func(_ *store.Tx, v agent.Imported) error {
				return scribe.begin(ctx, runRecord("run:import", v.RunID, st.AgentID))
			}})
			made, err = rest.RunImportOf(v), scribe.end(ctx, c, err)
		}
		err = errors.Join(err, local.Close())
	}
	switch {
	case fault.Is(err, fault.SessionExists), fault.Is(err, fault.SessionBusy):
		return advised(err, "Give the run another session with --session.")
	case err != nil:
		return err
	case c.flags.json:
		return c.printJSON(made)
	}
	for _, w := range made.Warnings {
		fmt.Fprintf(c.stderr, "agentd: %s\n", printable(w))
	}
	text := fmt.Sprintf("Took over run %s, which is %s.\n", made.RunID, made.Status)
	if made.Status == store.Awaiting {
		text = fmt.Sprintf("Took over run %s, which waits for approval; decide with `agentd runs approve %s`.\n", made.RunID, made.RunID)
	}
	_, err = io.WriteString(c.stdout, text)
	return err
}

// stateIn is the state in what `agentd runs show --json` and the API tell about a run, or the document itself.
func stateIn(doc []byte) []byte {
	var about struct{ Version, State json.RawMessage }
	if json.Unmarshal(doc, &about) == nil && about.Version == nil && about.State != nil {
		return about.State
	}
	return doc
}

func (a *api) importRun(ctx context.Context, state []byte, session string, made *rest.RunImport) error {
	query := ""
	if session != "" {
		query = "?sessionId=" + url.QueryEscape(session)
	}
	res, err := a.send(ctx, "POST", "/runs/import"+query, state, http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return err
	}
	return a.read(res, made)
}
