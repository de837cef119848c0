package rest

import (
	"cmp"
	"context"
	"net/http"

	"agentd/auth"
	"agentd/server/audit"
	"agentd/server/fault"
	"agentd/server/gate"
	"agentd/server/message"
	"agentd/server/openapi"
	"agentd/server/run"
	"agentd/server/stream"
)

// TicketAnswer is the answer of POST /session/ws-ticket.
type TicketAnswer struct {
	Ticket    string `json:"ticket" doc:"Offer it as the subprotocol ticket.<value>, or send it as ?ticket= to an event stream. It is valid for one connection."`
	ExpiresAt int64  `json:"expiresAt" doc:"Milliseconds since 1970; expiresAtIso is the same."`
	ExpiryISO string `json:"expiresAtIso"`
	TTLMS     int64  `json:"ttlMs"`
}

// Realtime is the routes of the WebSocket transport.
type Realtime struct {
	Path    string // of the upgrade
	Streams *stream.Service
	Tickets *auth.Tickets
}

// Routes are the rows of the table.
func (a *Realtime) Routes() []Route {
	return []Route{
		{Method: "GET", Path: a.Path, Access: Upgrade, Starts: true,
			Summary: "Upgrade to a WebSocket with the subprotocol `svc.protocol.v1`. The server checks the token or ticket after the handshake, and refuses it with a close code.",
			Errors:  []*fault.Kind{fault.HandshakeInvalid, fault.UpgradeRequired, fault.Overloaded},
			Answers: []openapi.Response{{Status: 101, Description: "The connection speaks svc.protocol.v1."}},
			Endpoint: streamed(func(w http.ResponseWriter, r *http.Request, _ Call, _ struct{}) error {
				bearer, ok := gate.Bearer(r)
				if !ok {
					bearer = "" // of another scheme
				}
				return a.Streams.ServeWS(w, r, gate.Of(r).IP, bearer)
			})},
		{Method: "POST", Path: "/session/ws-ticket", Access: Anyone, Action: audit.TicketIssue, Target: "ticket", Secret: true,
			Summary: "Issue a single-use ticket, with which a browser opens a WebSocket or an event stream.",
			Endpoint: call(http.StatusCreated, func(_ context.Context, c Call, _ struct{}) (TicketAnswer, error) {
				value, expires := a.Tickets.Issue(c.Principal)
				return TicketAnswer{Ticket: value, ExpiresAt: expires.UnixMilli(), ExpiryISO: message.Time(expires), TTLMS: a.Tickets.TTL().Milliseconds()}, nil
			})},
	}
}

// Cancel aborts a run for a client of the realtime protocol, if the client may. It reports whether the run had not ended
// yet. Only an abort, or the refusal of one, has an entry in the audit chain.
func (a *Runs) Cancel(ctx context.Context, p auth.Principal, runID string, c stream.Cancellation) (bool, error) {
	known, err := a.Engine.Identify(ctx, runID)
	if err != nil {
		return false, err
	}
	entry := audit.Record{Action: c.Action, Target: "run:" + runID, Context: audit.Context{RunID: known.ID, SessionID: known.Session},
		Metadata: abortDetails(c.Drain, c.OnPendingApprovals)}
	entry.Metadata["transport"] = "ws"
	if err := gate.Covered(p, Access("agents:invoke:"+ofOwner).scope(nil, known)); err != nil {
		return false, cmp.Or(a.Record(ctx, p, entry, err), err)
	}
	row, err := a.Engine.Find(ctx, runID)
	if err != nil || row.Status.Terminal() {
		return false, err
	}
	if err := a.Record(ctx, p, entry, nil); err != nil {
		return false, err
	}
	_, err = a.Engine.Abort(ctx, runID, run.AbortOptions{Drain: c.Drain, OnPending: c.OnPendingApprovals, Reason: c.Reason, NoWait: true})
	return err == nil, err
}

// abortDetails is what the audit chain says of an abort.
func abortDetails(drain bool, onPending string) map[string]any {
	return map[string]any{"drain": drain, "onPendingApprovals": cmp.Or(onPending, "deny")}
}
