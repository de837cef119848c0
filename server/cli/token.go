package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"agentd/server"
	"agentd/server/fault"
	"agentd/server/rest"
)

// The paths of lists of tokens.
const (
	goodTokens = "/tokens"
	allTokens  = "/tokens?revoked=include"
)

func (c *call) createToken(ctx context.Context) error {
	body := rest.MintBody{Label: c.flags.label, Scopes: c.flags.scopes, Env: c.flags.env, ExpiresInMS: time.Duration(c.flags.expires).Milliseconds()}
	return c.through(ctx, server.Hold, func(d *door) error {
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
	return c.through(ctx, server.Hold, func(d *door) error {
		var before, after rest.TokenList
		if err := d.Call(ctx, "GET", goodTokens, nil, &before); err != nil {
			return err
		}
		if err := d.Call(ctx, "DELETE", at("/tokens", id, ""), nil, nil); err != nil {
			return err
		}
		if err := d.Call(ctx, "GET", allTokens, nil, &after); err != nil {
			return err
		}
		var doc struct {
			Token rest.Token `json:"token"`
			Also  []string   `json:"also,omitempty"` // ids of tokens that descend from it
		}
		for _, t := range after.Tokens {
			wasGood := slices.ContainsFunc(before.Tokens, func(b rest.Token) bool { return b.ID == t.ID })
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
	path := goodTokens
	if c.flags.all {
		path = allTokens
	}
	var list rest.TokenList
	return c.fetch(ctx, path, &list, func(w sheet) {
		w.row("ID", "LABEL", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED", "MINTED BY")
		for _, t := range list.Tokens {
			w.row(t.ID, t.Label, strings.Join(t.Scopes, ","), t.CreatedAt, cmp.Or(t.ExpiresAt, "never"), t.LastUsedAt, t.RevokedAt, t.MintedBy)
		}
	})
}
