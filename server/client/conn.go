package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"agentd/server/fault"
	"agentd/server/message"
	"agentd/ws"
)

const (
	subprotocol = "svc.protocol.v1"

	answerTime = 30 * time.Second // for the handshake, and again for the answers to the requests
	pingEvery  = 30 * time.Second
	silence    = 2 * time.Minute // without a pong; also how long one frame may take
)

// Close codes that mean that no attempt will do better. All others are passing.
var final = map[ws.Code]*fault.Kind{
	4001: fault.AuthRequired, 4002: fault.AuthInvalid, 4003: fault.AuthRevoked,
	4008: fault.ServerUnreachable, // it speaks another protocol
}

// Codes of RPC errors that are passing.
const (
	codeInternal = -32603
	codeLimited  = -32004
)

// Ids of the two requests.
const (
	initializeID = `"initialize"`
	subscribeID  = `"subscribe"`
)

type watcher struct {
	o          Options
	yield      func(*Frame) error
	cursor     string
	subscribed bool // on some connection
}

// connect opens a connection and hands over its frames. The error is nil only when the run has ended.
func (w *watcher) connect(ctx context.Context) error {
	at, err := w.o.Server()
	if err != nil {
		return lost(err)
	}
	limit, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := ws.Dial(limit, at.URL, &ws.DialOptions{Dial: at.Dial, TLS: at.TLS, Protocols: []string{subprotocol}, Header: w.o.Header,
		Options: ws.Options{MaxMessage: w.o.MaxFrame, MessageTimeout: silence}})
	if err != nil {
		return notOpened(at.URL, err)
	}
	if conn.Protocol() != subprotocol {
		conn.Close(ctx, 4008, "protocol.violation") //nolint:errcheck // it is over either way
		return unreachable("What answers at %s does not speak %s.", at.URL, subprotocol).Advise("Check which server listens there.")
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	over, leave := context.WithCancel(ctx)
	defer leave()
	tasks.Go(func() { // the reader must go on while the close frames are exchanged
		<-over.Done()
		conn.Close(context.WithoutCancel(ctx), ws.CodeNormal, "client-disconnect") //nolint:errcheck // it is over either way
	})
	tasks.Go(func() { keepAlive(over, conn) })
	return w.converse(ctx, conn)
}

// notOpened classifies the failure of a handshake.
func notOpened(url string, err error) error {
	answer, answered := errors.AsType[*ws.DialError](err)
	if !answered {
		return lost(unreachable("The server at %s does not answer: %v.", url, innermost(err)).Because(err))
	}
	var doc struct{ Error, Message, Hint string }
	if json.Unmarshal(answer.Body, &doc) != nil || doc.Error == "" {
		err = unreachable("What answers at %s is no agentd: status %d.", url, answer.Status).Advise("Check which process listens there.")
	} else {
		err = fault.Told(doc.Error, doc.Message, doc.Hint)
	}
	switch {
	case answer.Status >= 500, answer.Status == http.StatusTooManyRequests:
		return lost(err)
	case answer.Status == http.StatusNotFound:
		return fault.New(fault.NotFound, "There is no WebSocket at %s.", url).Advise("Check the address, and `server.ws` of that server.")
	}
	return err
}

// innermost is the last part of a network error, without addresses that are told already.
func innermost(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

// keepAlive pings until ctx ends, and gives up a connection whose peer has not answered for long.
func keepAlive(ctx context.Context, conn *ws.Conn) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for began := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if last := conn.LastPong(); time.Since(last) > silence && time.Since(began) > silence {
			conn.CloseNow()
			return
		}
		conn.Ping(context.WithoutCancel(ctx)) //nolint:errcheck // the reader notices
	}
}

// An answer is a frame of any kind, as far as it matters here.
type answer struct {
	ID     json.RawMessage `json:"id"`
	Result struct {
		SubscriptionID string `json:"subscriptionId"`
	} `json:"result"`
	Error *rpcError `json:"error"`

	SubscriptionID string `json:"subscriptionId"`
	Code           string `json:"code"`
	Message        string `json:"message"`
	Frame
}

type rpcError struct {
	Code    int                          `json:"code"`
	Message string                       `json:"message"`
	Data    struct{ Error, Hint string } `json:"data"`
}

func (e *rpcError) refusal() error {
	err := told(e.Data.Error, e.Message, e.Data.Hint)
	if e.Code == codeInternal || e.Code == codeLimited {
		return lost(err)
	}
	return err
}

// told is an error as the server tells it, which may leave parts out.
func told(code, message, hint string) *fault.Error {
	return fault.Told(cmp.Or(code, fault.ServerUnreachable.Code), cmp.Or(message, "The server does not say what is wrong."), hint)
}

// converse sends both requests and reads what comes. The end of ctx cuts off none of that: it closes the connection, and
// with that all ends.
func (w *watcher) converse(ctx context.Context, conn *ws.Conn) error {
	whole := context.WithoutCancel(ctx)
	late := time.AfterFunc(answerTime, conn.CloseNow)
	defer late.Stop()
	info := map[string]string{"name": "agentd", "version": w.o.Version}
	if err := send(whole, conn, initializeID, "initialize", map[string]any{"clientInfo": info}); err != nil {
		return closed(err)
	}
	subscription := ""
	for {
		typ, raw, err := conn.Read(whole)
		if err != nil {
			return closed(err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var a answer
		if err := json.Unmarshal(raw, &a); err != nil || typ != ws.Text {
			return unreachable("The server sends what is no frame of %s.", subprotocol)
		}
		switch {
		case a.Error != nil:
			return a.Error.refusal()
		case string(a.ID) == initializeID:
			params := map[string]string{"subject": w.o.Subject}
			if w.cursor != "" {
				params["sinceEventId"] = w.cursor
			}
			if err := send(whole, conn, subscribeID, "subscription.subscribe", params); err != nil {
				return closed(err)
			}
		case string(a.ID) == subscribeID:
			late.Stop()
			subscription, w.subscribed = a.Result.SubscriptionID, true
		case subscription == "" || a.SubscriptionID != subscription:
		case a.Kind == "error" && a.Code == "replay.failed":
			return lost(told(a.Code, a.Message, ""))
		case a.Kind == "error":
			return told(a.Code, a.Message, "")
		case a.Kind == "event" || a.Kind == "lifecycle" || a.Kind == "replay-marker":
			a.Raw = raw
			if err := w.yield(&a.Frame); err != nil {
				return err
			}
			if a.Kind == "event" {
				w.cursor = a.EventID
			}
			if a.Ended() {
				return nil
			}
		}
	}
}

func send(ctx context.Context, conn *ws.Conn, id, method string, params any) error {
	b, err := message.Encode(struct {
		V       string          `json:"v"`
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Method  string          `json:"method"`
		Params  any             `json:"params"`
	}{"1", "2.0", json.RawMessage(id), method, params})
	if err != nil {
		return err
	}
	return conn.Write(ctx, ws.Text, b)
}

// closed classifies the end of a connection.
func closed(err error) error {
	var reason string
	e, byPeer := errors.AsType[*ws.CloseError](err)
	switch {
	case !byPeer:
		return lost(unreachable("The connection is lost: %v.", innermost(err)).Because(err))
	case e.Reason != "":
		reason = ": " + e.Reason
	}
	kind := final[e.Code]
	if kind == nil {
		return lost(unreachable("The server has closed the connection (%d%s).", e.Code, reason))
	}
	f := fault.New(kind, "The server has closed the connection (%d%s).", e.Code, reason)
	if kind == fault.ServerUnreachable {
		f.Advise("Use the program in the server's version.")
	}
	return f
}
