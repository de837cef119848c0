package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"text/tabwriter"
	"time"

	"agentd/auth"
	"agentd/server"
	"agentd/server/audit"
	"agentd/server/config"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/server/rest"
	"agentd/store"
)

// token is the wire form of a token, with what the API does not show.
type token struct {
	rest.Token
	RevokedAt string `json:"revokedAt,omitempty"`
}

func tokenOf(v store.Token) token {
	t := token{Token: rest.TokenOf(v)}
	if v.Revoked != 0 {
		t.RevokedAt = message.Millis(v.Revoked)
	}
	return t
}

func (c *call) createToken(ctx context.Context) error {
	if len(c.flags.scopes) == 0 {
		return c.cmd.misused("--scope is missing.")
	}
	return c.issuing(ctx, func(s *scribe, issuer *auth.Issuer, _ *store.DB) error {
		v, raw, err := issuer.Mint(ctx, auth.Anonymous(), auth.MintRequest{Label: c.flags.label, Scopes: c.flags.scopes,
			Env: c.flags.env, ExpiresIn: time.Duration(c.flags.expires)})
		if err != nil {
			return advised(err, "Correct the flags that the issues name; `agentd token create --help` explains them.")
		}
		scopes := make([]any, len(v.Scopes))
		for i, scope := range v.Scopes {
			scopes[i] = scope
		}
		if err := s.begin(ctx, audit.Record{Action: "token:create", Target: "token:" + v.ID, Metadata: map[string]any{"scopes": scopes}}); err != nil {
			_, undo := issuer.Revoke(context.WithoutCancel(ctx), v.ID) // nobody has seen it
			return errors.Join(err, undo)
		}
		t := tokenOf(v)
		if c.flags.json {
			return c.printJSON(struct {
				Token token  `json:"token"`
				Raw   string `json:"raw"`
			}{t, string(raw)})
		}
		fmt.Fprintf(c.stderr, "Token %s\n  scopes:  %s\n  expires: %s\n%s\n", t.ID, strings.Join(t.Scopes, " "), cmp.Or(t.ExpiresAt, "never"), rest.MintWarning)
		_, err = fmt.Fprintln(c.stdout, string(raw))
		return err
	})
}

func (c *call) revokeToken(ctx context.Context) error {
	return c.issuing(ctx, func(s *scribe, issuer *auth.Issuer, db *store.DB) error {
		id := c.args[0]
		entry := audit.Record{Action: "token:revoke", Target: "token:" + id}
		if _, err := db.Tokens().Get(ctx, id); errors.Is(err, store.ErrNotFound) {
			err := fault.New(fault.TokenNotFound, "There is no token %.80q.", id).Advise("List the tokens with `agentd token list`.")
			s.try(ctx, c, entry, err)
			return err
		}
		if err := s.begin(ctx, entry); err != nil {
			return err
		}
		also, err := issuer.Revoke(ctx, id)
		if err != nil {
			return err
		}
		v, err := db.Tokens().Get(ctx, id)
		if err != nil {
			return err
		}
		if c.flags.json {
			return c.printJSON(struct {
				Token token    `json:"token"`
				Also  []string `json:"also,omitempty"` // ids of tokens that descend from it
			}{tokenOf(v), also})
		}
		fmt.Fprintf(c.stdout, "Revoked token %s.\n", id)
		for _, other := range also {
			fmt.Fprintf(c.stdout, "Revoked token %s, which descends from it.\n", other)
		}
		return nil
	})
}

func (c *call) listTokens(ctx context.Context) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, c.storeOptions(cfg, store.Options{ReadOnly: true}))
	if errors.Is(err, fs.ErrNotExist) {
		return advised(err, "Make the database with `agentd token create` or `agentd start`.")
	}
	if err != nil {
		return err
	}
	defer db.Close()
	stored, err := db.Tokens().List(ctx, c.flags.all)
	if err != nil {
		return err
	}
	tokens := []token{}
	for _, v := range stored {
		tokens = append(tokens, tokenOf(v))
	}
	if c.flags.json {
		return c.printJSON(map[string][]token{"tokens": tokens})
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tLABEL\tSCOPES\tCREATED\tEXPIRES\tLAST USED\tREVOKED\tMINTED BY")
	for _, t := range tokens {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, cmp.Or(printable(t.Label), "-"), strings.Join(t.Scopes, ","), t.CreatedAt,
			cmp.Or(t.ExpiresAt, "never"), cmp.Or(t.LastUsedAt, "-"), cmp.Or(t.RevokedAt, "-"), cmp.Or(t.MintedBy, "-"))
	}
	return w.Flush()
}

// issuing gives fn an issuer on the store: as its holder or, when a server holds it, beside that server. What fn does, it
// has the scribe record.
func (c *call) issuing(ctx context.Context, fn func(*scribe, *auth.Issuer, *store.DB) error) error {
	cfg, db, err := c.own(ctx)
	if fault.Is(err, fault.StoreLocked) {
		db, err = store.Open(ctx, c.storeOptions(cfg, store.Options{Beside: true}))
	}
	if err != nil {
		return err
	}
	defer db.Close()
	issuer, err := server.NewIssuer(cfg, c.log(), db, nil)
	if err != nil {
		return err
	}
	return c.chronicle(ctx, cfg, func(s *scribe) error { return fn(s, issuer, db) })
}

func (c *call) storeOptions(cfg *config.Config, o store.Options) store.Options {
	o.Path, o.Durability, o.Logger = cfg.Resolve(cfg.Storage.Path), cfg.Storage.Durability, c.log()
	o.Holder = store.Holder{Command: c.cmd.name}
	return o
}
