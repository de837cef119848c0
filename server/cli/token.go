package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"agentd/server"
	"agentd/server/fault"
	"agentd/server/rest"
)

func (c *call) createToken(ctx context.Context) error {
	if len(c.flags.scopes) == 0 {
		return c.cmd.misused("--scope is missing.")
	}
	body := rest.MintBody{Label: c.flags.label, Scopes: c.flags.scopes, Env: c.flags.env, ExpiresInMS: time.Duration(c.flags.expires).Milliseconds()}
	return c.issuing(ctx, server.Hold, func(d *door) error {
		var made rest.MintedToken
		if err := d.Call(ctx, "POST", "/tokens", body, &made); err != nil {
			if fault.Is(err, fault.ConfigInvalid) {
				err = advised(err, "Correct the flags that the issues name; `agentd token create --help` explains them.")
			}
			return err
		}
		t := made.Token
		if c.flags.json {
			return c.printJSON(struct {
				Token rest.Token `json:"token"`
				Raw   string     `json:"raw"`
			}{t, made.Raw})
		}
		fmt.Fprintf(c.stderr, "Token %s\n  scopes:  %s\n  expires: %s\n%s\n", t.ID, strings.Join(t.Scopes, " "), cmp.Or(t.ExpiresAt, "never"), made.Warning)
		_, err := fmt.Fprintln(c.stdout, made.Raw)
		return err
	})
}

func (c *call) revokeToken(ctx context.Context) error {
	id := c.args[0]
	return c.issuing(ctx, server.Hold, func(d *door) error {
		before, err := d.tokens(ctx, false)
		if err == nil {
			err = d.Call(ctx, "DELETE", at("/tokens", id, ""), nil, nil)
		}
		if err != nil {
			return err
		}
		after, err := d.tokens(ctx, true)
		if err != nil {
			return err
		}
		var doc struct {
			Token rest.Token `json:"token"`
			Also  []string   `json:"also,omitempty"` // ids of tokens that descend from it
		}
		for _, t := range after {
			wasGood := slices.ContainsFunc(before, func(b rest.Token) bool { return b.ID == t.ID })
			if t.ID == id {
				doc.Token = t
			} else if wasGood && t.RevokedAt != "" {
				doc.Also = append(doc.Also, t.ID)
			}
		}
		return c.show(true, doc, func(w sheet) {
			w.say("Revoked token %s.\n", id)
			for _, other := range doc.Also {
				w.say("Revoked token %s, which was minted from it.\n", other)
			}
		})
	})
}

func (c *call) listTokens(ctx context.Context) error {
	return c.issuing(ctx, server.Read, func(d *door) error {
		tokens, err := d.tokens(ctx, c.flags.all)
		if err != nil {
			return err
		}
		return c.show(true, rest.TokenList{Tokens: tokens}, func(w sheet) {
			w.row("ID", "LABEL", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED", "MINTED BY")
			for _, t := range tokens {
				w.row(t.ID, t.Label, strings.Join(t.Scopes, ","), t.CreatedAt, cmp.Or(t.ExpiresAt, "never"), t.LastUsedAt, t.RevokedAt, t.MintedBy)
			}
		})
	})
}

// tokens are the tokens, or only those that are not revoked.
func (d *door) tokens(ctx context.Context, all bool) ([]rest.Token, error) {
	which := ""
	if all {
		which = "include"
	}
	var list rest.TokenList
	err := d.Call(ctx, "GET", "/tokens"+query("revoked", which), nil, &list)
	return list.Tokens, err
}

// issuing is [call.through] for commands about tokens: without --url, they work on the files also beside a server, since
// its first token has to come from somewhere.
func (c *call) issuing(ctx context.Context, access server.Access, fn func(*door) error) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	var d *door
	if c.flags.url != "" {
		d, err = c.open(ctx, cfg, access)
	} else if d, err = c.inside(ctx, cfg, access, true); fault.Is(err, fault.StoreLocked) {
		d, err = c.inside(ctx, cfg, server.Beside, true)
	}
	if access == server.Read && errors.Is(err, fs.ErrNotExist) {
		err = advised(err, "Make the database with `agentd token create` or `agentd start`.")
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(d), d.close())
}
