package stream

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"agentd/auth"
	"agentd/server/fault"
	"agentd/ws"
)

// ticketPrefix marks the offered subprotocol that is a ticket.
const ticketPrefix = "ticket."

// ServeWS answers an upgrade and authenticates the caller. A refusal is a close frame after the handshake, because browsers
// hide the HTTP status from the page, and clients stop trying at these codes. The order:
//
//	handshake (RFC 6455 section 4.2.1) 400, 426 -> stopping 503 -> store or verifier unable 503 -> 101
//	-> subprotocol 4008 -> ticket 4002 -> bearer 4002 -> neither 4001 -> the protocol
//
// Errors are returned while the status can still be chosen.
func (s *Service) ServeWS(w http.ResponseWriter, r *http.Request, ip netip.Addr, bearer string) error {
	offered, err := ws.CheckHandshake(r)
	if err != nil {
		return handshakeFault(w, err)
	}
	if err := s.draining(); err != nil { // before a ticket is used up
		return err
	}
	var principal auth.Principal
	refused, protocol := endProtocol, ""
	if slices.Contains(offered, Subprotocol) {
		protocol = Subprotocol
		var by string
		principal, by, err = s.recognise(r.Context(), ip, offered, bearer)
		if rec, ok := w.(interface {
			Recognised(p auth.Principal, by string, err error) error
		}); ok {
			if err := rec.Recognised(principal, by, err); err != nil {
				return err
			}
		}
		switch f := fault.Of(err); {
		case err == nil:
			refused = ending{}
		case fault.Is(err, fault.AuthRequired):
			refused = endRequired
		case f.Kind.Close != 0 || fault.Is(err, fault.AuthLockedOut):
			refused = endExpired
		default:
			return err
		}
	}
	h := w.Header().Clone()
	h.Del("Cache-Control")
	answers(w, http.StatusSwitchingProtocols)
	conn, err := ws.Accept(w, r, ws.Options{Protocol: protocol, Header: h, MaxMessage: maxFrame, WriteTimeout: writeTimeout})
	if err != nil {
		if _, ok := errors.AsType[*ws.HandshakeError](err); ok {
			answers(w, 0)
			return handshakeFault(w, err)
		}
		return nil // the client has gone
	}
	k := s.newSocket(r.Context(), principal, conn)
	if s.start(k.c, pingEvery) != nil { // the server began to stop a moment ago
		conn.CloseNow()
		return nil
	}
	if refused != (ending{}) {
		k.c.finish(refused)
	}
	go k.run(refused != (ending{})) // not here: this goroutine holds what the HTTP server needed
	return nil
}

// answers notes the status that an answer is going to have whose connection is taken over; 0 when it is not after all.
func answers(w http.ResponseWriter, status int) {
	if rec, ok := w.(interface{ SetStatus(int) }); ok {
		rec.SetStatus(status)
	}
}

// recognise finds out who calls, and by what: ticket or bearer. A good token does not make up for a bad ticket.
func (s *Service) recognise(ctx context.Context, ip netip.Addr, offered []string, bearer string) (p auth.Principal, by string, err error) {
	if s.opts.Verifier == nil {
		return auth.Anonymous(), "", nil
	}
	for _, o := range offered {
		if value, ok := strings.CutPrefix(o, ticketPrefix); ok && value != "" {
			p, err = s.opts.Tickets.Take(value)
			return p, "ticket", err
		}
	}
	if bearer == "" {
		return p, "", fault.New(fault.AuthRequired, "The upgrade carries neither a ticket nor a bearer token.")
	}
	p, err = s.opts.Verifier.Verify(ctx, ip, auth.Raw(bearer))
	return p, "bearer", err
}

// handshakeFault is the fault of an invalid handshake.
func handshakeFault(w http.ResponseWriter, err error) error {
	e, ok := errors.AsType[*ws.HandshakeError](err)
	if !ok {
		return err
	}
	for name, values := range e.Header {
		w.Header()[name] = values
	}
	switch e.Status {
	case http.StatusUpgradeRequired:
		return fault.New(fault.UpgradeRequired, "The request does not ask for a WebSocket: %s.", e.Message)
	case http.StatusInternalServerError:
		return err
	}
	return fault.New(fault.HandshakeInvalid, "The WebSocket handshake is not valid: %s.", e.Message)
}
