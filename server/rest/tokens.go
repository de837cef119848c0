package rest

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/message"
	"agentd/store"
)

// Token is the record of a bearer token. Times are ISO-8601.
type Token struct {
	ID         string   `json:"id"`
	Label      string   `json:"label,omitempty"`
	Scopes     []string `json:"scopes"`
	MintedBy   string   `json:"mintedBy,omitempty" doc:"Id of the token that minted it. Absent if the operator created it."`
	Lineage    string   `json:"lineage" doc:"Id of the first token of the lineage, from which the token was minted, directly or through others. A lineage counts as one principal."`
	CreatedAt  string   `json:"createdAt"`
	LastUsedAt string   `json:"lastUsedAt,omitempty"`
	ExpiresAt  string   `json:"expiresAt,omitempty"`
	RevokedAt  string   `json:"revokedAt,omitempty"`
}

// tokenOf is the wire form of a token's record.
func tokenOf(v store.Token) Token {
	t := Token{ID: v.ID, Label: v.Label, Scopes: v.Scopes, MintedBy: v.Minter, Lineage: cmp.Or(v.Root, v.ID), CreatedAt: message.Millis(v.Created)}
	if v.LastUsed != 0 {
		t.LastUsedAt = message.Millis(v.LastUsed)
	}
	if v.Expires != 0 {
		t.ExpiresAt = message.Millis(v.Expires)
	}
	if v.Revoked != 0 {
		t.RevokedAt = message.Millis(v.Revoked)
	}
	return t
}

// TokenList is the answer of GET /tokens.
type TokenList struct {
	Tokens []Token `json:"tokens"`
}

// MintedToken is the answer of POST /tokens.
type MintedToken struct {
	Token   Token  `json:"token"`
	Raw     string `json:"raw" doc:"The token itself. The server shows it only once."`
	Warning string `json:"warning"`
}

// MintWarning goes with every token that is shown.
const MintWarning = "Store this token now: it cannot be shown again."

// MintBody asks for a token.
type MintBody struct {
	Label       string   `json:"label,omitempty" check:"1..256"`
	Scopes      []string `json:"scopes" check:"required 1..256"`
	Env         string   `json:"env,omitempty" check:"1.." doc:"One of auth.tokenEnvironments. Default: live."`
	ExpiresInMS int64    `json:"expiresInMs,omitempty" check:"1.." doc:"The token expires no later than the caller's token. expiresAt in the answer shows when."`
}

// Tokens is the routes of tokens.
type Tokens struct{ Issuer *auth.Issuer }

// Routes are the rows of the table.
func (a *Tokens) Routes() []Route {
	return []Route{
		{Method: "GET", Path: "/tokens", Access: "tokens:list", Summary: "List the tokens that are not revoked, or all tokens, in the order of their creation.",
			Endpoint: call(http.StatusOK, func(ctx context.Context, _ Call, in struct {
				Revoked string `query:"revoked" enum:"include" doc:"include also lists revoked tokens."`
			}) (TokenList, error) {
				stored, err := a.Issuer.List(ctx, in.Revoked != "")
				list := TokenList{Tokens: []Token{}}
				for _, v := range stored {
					list.Tokens = append(list.Tokens, tokenOf(v))
				}
				return list, err
			})},
		{Method: "POST", Path: "/tokens", Access: "tokens:create", Action: audit.TokenCreate, Target: "token", Secret: true,
			Summary: "Create a token with no more scopes and no later expiry than the caller's token.", Errors: []*fault.Kind{fault.ScopeEscalation},
			Endpoint: call(http.StatusCreated, func(ctx context.Context, c Call, in struct{ Body MintBody }) (MintedToken, error) {
				v, raw, err := a.Issuer.Mint(ctx, c.Principal, auth.MintRequest{Label: in.Body.Label, Scopes: in.Body.Scopes,
					Env: in.Body.Env, ExpiresIn: duration(in.Body.ExpiresInMS), Also: func(tx *store.Tx, v store.Token) error {
						c.Request.Did("token:"+v.ID, map[string]any{"scopes": v.Scopes})
						return c.Request.Commit(tx, http.StatusCreated)
					}})
				return MintedToken{Token: tokenOf(v), Raw: string(raw), Warning: MintWarning}, err
			})},
		{Method: "DELETE", Path: "/tokens/{id}", Access: "tokens:revoke", Action: audit.TokenRevoke, Target: "token:{id}", Summary: "Revoke a token for good, with all tokens minted from it.",
			Errors: []*fault.Kind{fault.TokenNotFound},
			Endpoint: call(http.StatusNoContent, func(ctx context.Context, c Call, in struct {
				ID string `path:"id"`
			}) (none, error) {
				_, err := a.Issuer.Revoke(ctx, in.ID, func(tx *store.Tx, others []string) error {
					c.Request.On("", revokedAlso(others))
					return c.Keep(tx, store.KeyRecord{Status: http.StatusNoContent}, nil)
				})
				return none{}, err
			})},
	}
}

// revokedAlso is the metadata of a revocation in the audit chain: the first hundred of the further tokens that it ended, and
// their number.
func revokedAlso(ids []string) map[string]any {
	const most = 100
	if len(ids) == 0 {
		return nil
	}
	return map[string]any{"also": ids[:min(most, len(ids))], "alsoCount": len(ids)}
}

// duration converts milliseconds; the result is at most a hundred years.
func duration(ms int64) time.Duration {
	const most = 100 * 365 * 24 * time.Hour
	return min(time.Duration(min(ms, int64(most/time.Millisecond)))*time.Millisecond, most)
}
