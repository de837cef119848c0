package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"agentd/server/agent"
	"agentd/server/event"
	"agentd/server/fault"
	"agentd/server/hub"
	"agentd/server/message"
	"agentd/server/sse"
)

const (
	dialPatience   = 5 * time.Second
	answerPatience = 60 * time.Second // until the first byte of an answer
	maxAnswer      = 1 << 20          // of an answer that is no stream
	maxEvent       = 256 << 20        // of one event: the last one holds the whole state of the run
	maxReattach    = 3                // times in a row that a stream may break without an event
)

// A remoteRun is a run of a server that holds the store.
type remoteRun struct {
	client *http.Client
	base   string // the server's API
	token  string
	id     string
	stream *http.Response
	cursor string       // the latest event's id
	last   hub.Position // and its position
}

// startRemote starts a run in the server at an address, with a token if there is one. The run's events come for as long
// as ctx lasts.
func startRemote(ctx context.Context, address, token string, req agent.StartRequest) (*remoteRun, error) {
	base, err := reachable(address)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: dialPatience}
	r := &remoteRun{base: base, token: token, client: &http.Client{
		Transport:     &http.Transport{DialContext: dialer.DialContext, ResponseHeaderTimeout: answerPatience}, // no proxy: it would get the token
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	body, err := message.Encode(struct {
		Input     json.RawMessage `json:"input"`
		SessionID string          `json:"sessionId,omitempty"`
		UserID    string          `json:"userId,omitempty"`
	}{req.Input, req.SessionID, req.UserID})
	if err != nil {
		return nil, err
	}
	if r.stream, err = r.do(ctx, "POST", "/agents/"+url.PathEscape(req.AgentID)+"/stream", body, ""); err != nil {
		return nil, err
	}
	r.id = r.stream.Header.Get("X-Run-Id")
	if !isStream(r.stream) {
		var started struct{ RunID string }
		json.NewDecoder(io.LimitReader(r.stream.Body, maxAnswer)).Decode(&started) //nolint:errcheck // then the id is unknown
		r.close()
		return nil, fault.New(fault.ServerUnreachable, "The server at %s started the run %s, but sends no events (server.sse.enabled).", r.base, started.RunID).
			Advise("Read its state with `GET /runs/{runId}/state`.")
	}
	return r, nil
}

// reachable is the address with a host that can be dialled: a server that listens everywhere is met on loopback.
func reachable(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return "", fault.New(fault.ServerUnreachable, "The lock file names %q, which is no address of a server.", address)
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && ip.IsUnspecified() {
		loopback := "127.0.0.1"
		if ip.Is6() {
			loopback = "::1"
		}
		u.Host = net.JoinHostPort(loopback, u.Port())
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

func isStream(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
}

// do sends a request that asks for events, those after a cursor if there is one. The error is the server's own, or
// server-unreachable.
func (r *remoteRun) do(ctx context.Context, method, path string, body []byte, cursor string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	if cursor != "" {
		req.Header.Set("Last-Event-ID", cursor)
	}
	res, err := r.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, r.unreachable(err)
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, r.refusal(res)
	}
	return res, nil
}

func (r *remoteRun) unreachable(err error) error {
	e := fault.New(fault.ServerUnreachable, "The server at %s does not answer: %v.", r.base, innermost(err)).Because(err)
	if r.id != "" {
		e.Message = fmt.Sprintf("The connection to the server at %s is lost; run %s goes on there: %v.", r.base, r.id, innermost(err))
		e.Advise("Follow it with `GET /runs/" + r.id + "/events` when the server is back.")
	}
	return e
}

// innermost is the last part of a network error, without addresses that were told already.
func innermost(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}

// refusal is the server's error as it told it.
func (r *remoteRun) refusal(res *http.Response) error {
	var doc failure
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if json.Unmarshal(b, &doc) != nil || doc.Error == "" {
		return fault.New(fault.ServerUnreachable, "What answers at %s is no agentd: status %d.", r.base, res.StatusCode).
			Advise("Check which process listens there.")
	}
	e := told(doc.Error, doc.Message, doc.Hint)
	e.Issues = doc.Issues
	if e.Kind == fault.AuthRequired {
		e.Advise("Set AGENTD_TOKEN to a token of that server; `agentd token create` makes one.")
	}
	return e
}

// told is a failure that a server or a run told of; its code may be one that this version does not know.
func told(code, text, hint string) *fault.Error {
	kind := fault.ByCode(code)
	if kind == nil {
		kind = &fault.Kind{Code: code}
	}
	return fault.New(kind, "%s", text).Advise(hint)
}

func (r *remoteRun) close() error {
	defer r.client.CloseIdleConnections()
	return r.stream.Body.Close()
}

func (r *remoteRun) abort(ctx context.Context) error {
	res, err := r.do(ctx, "POST", "/runs/"+url.PathEscape(r.id)+"/abort", nil, "")
	if err == nil {
		err = res.Body.Close()
	}
	return err
}

// errBroken says that a stream ended before its run.
var errBroken = errors.New("the stream ended too early")

func (r *remoteRun) follow(ctx context.Context, yield func(*hub.Entry)) error {
	first := r.stream.Body // later ones belong to a request that ends with ctx
	defer context.AfterFunc(ctx, func() { first.Close() })()
	for broken := 0; ; broken++ {
		before := r.last
		err := r.read(yield)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errBroken):
			return err
		}
		if r.last != before {
			broken = 0
		}
		if broken == maxReattach {
			return r.unreachable(err)
		}
		r.stream.Body.Close()
		again, err := r.do(ctx, "GET", "/runs/"+url.PathEscape(r.id)+"/events", nil, r.cursor)
		if err != nil {
			return err
		}
		r.stream = again
	}
}

// A frame is the data of one event of the stream, of either kind.
type frame struct {
	Payload json.RawMessage
	Type    string // of the payload
	Status  string // of a lifecycle frame
	Reason  string
}

// read yields what one stream brings. It returns nil when the run is over, and errBroken when the stream is.
func (r *remoteRun) read(yield func(*hub.Entry)) error {
	events := sse.NewReader(r.stream.Body, maxEvent)
	for {
		ev, err := events.Next()
		if errors.Is(err, sse.ErrTooLong) {
			return err
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		if ev.Type == "replay-marker" {
			continue
		}
		var f frame
		if err := json.Unmarshal(ev.Data, &f); err != nil {
			return fault.New(fault.ServerUnreachable, "What answers at %s sends no events of agentd.", r.base).Because(err)
		}
		if ev.Type != "lifecycle" {
			r.take(ev.ID, f, yield)
			continue
		}
		switch f.Reason {
		case "flow.throttled": // stdout is slow; what was missed is stored
			return errBroken
		case "server-shutdown":
			return fault.New(fault.ServerDraining, "The server stops; run %s goes on when it is back.", r.id).
				Advise("Follow it with `GET /runs/" + r.id + "/events` then.")
		}
		return nil
	}
}

// take yields an event unless it has been yielded.
func (r *remoteRun) take(id string, f frame, yield func(*hub.Entry)) {
	cur, ok := event.ParseCursor(id)
	pos := hub.Position{Seq: cur.Seq, Sub: cur.Sub}
	if !ok || !pos.After(r.last) {
		return
	}
	r.cursor, r.last = id, pos
	yield(&hub.Entry{Pos: pos, ID: id, Type: f.Type, Payload: f.Payload})
}
