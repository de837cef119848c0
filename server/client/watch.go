package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"agentd/server/fault"
	"agentd/server/sse"
)

const (
	firstWait = 200 * time.Millisecond // before the first attempt to connect again, at most; each further one doubles it
	lastWait  = 30 * time.Second       // and no wait is longer
	silence   = 2 * time.Minute        // without a byte, after which a connection counts as lost; servers send comments
)

// A Watch follows a stream of events. When the connection is lost, it connects again, and asks for what comes after the
// latest event that it has handed over: so no event that the server keeps is missed or doubled, also after a restart.
//
//	         .----- wait <----- lost --.
//	         v                         |
//	connect after the cursor -> frames -> the run has ended, a refusal, ctx
type Watch struct {
	// Client finds the server. It is called before each attempt: a server that was started again may listen elsewhere.
	Client func() (*Client, error)
	Path   string         // of the stream, such as /runs/ID/events
	Open   *http.Response // of a stream that is open already; nil: there is none
	Cursor string         // id of the event after which to begin; empty: with the first that is kept
	// Lost is called with the reason before each further attempt. If it returns an error, the watch ends with that.
	Lost func(error) error

	accepted bool // by the server, once
	paused   bool // the latest frame says that the run waits
}

// A Frame is one frame of a stream. Members that its kind does not have are empty.
type Frame struct {
	Kind    string          `json:"kind"` // event, lifecycle or replay-marker
	EventID string          `json:"eventId"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
	Status  string          `json:"status"`
	Reason  string          `json:"reason"` // why the server ends the stream; empty: because of the run's status
	Code    string          `json:"code"`   // of an error
	Message string          `json:"message"`

	Raw []byte `json:"-"` // the whole frame; valid until the next one
}

// Ended reports whether nothing comes after the frame, because the run is over.
func (f *Frame) Ended() bool {
	return f.Kind == "lifecycle" && f.Reason == "" && (f.Status == "completed" || f.Status == "failed" || f.Status == "aborted")
}

// Run hands over frames until a run's have ended (nil), yield or Lost fails (its error), ctx ends (its cause), or the
// server refuses (its error). It connects again only where the server has accepted the stream before.
func (w *Watch) Run(ctx context.Context, yield func(*Frame) error) error {
	for attempt := 0; ; attempt++ {
		began, cursor := time.Now(), w.Cursor
		err := w.connect(ctx, yield)
		lost, again := errors.AsType[lostError](err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !again:
			return err
		case !w.accepted:
			return lost.error
		}
		if w.Cursor != cursor || time.Since(began) > lastWait {
			attempt = 0 // it was of some use
		}
		if w.paused && lost.error == io.EOF { // the server ends some streams when the run waits
			w.paused = false
			continue
		}
		if err := w.Lost(lost.error); err != nil {
			return err
		}
		select {
		case <-time.After(rand.N(min(lastWait, firstWait<<min(attempt, 16)))): // clients that were lost together come back apart
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A lostError is one after which another attempt may do better.
type lostError struct{ error }

// connect opens a stream, unless one is open, and hands over its frames. The error is nil only when the run has ended.
func (w *Watch) connect(ctx context.Context, yield func(*Frame) error) error {
	res := w.Open
	if w.Open = nil; res == nil {
		c, err := w.Client()
		if err != nil {
			return lostError{err}
		}
		defer c.Close()
		header := http.Header{"Accept": {"text/event-stream"}}
		if w.Cursor != "" {
			header.Set("Last-Event-ID", w.Cursor)
		}
		if res, err = c.Send(ctx, http.MethodGet, w.Path, nil, header); err != nil {
			if s := fault.Of(err).Kind.Status; s == 0 || s >= 500 || s == http.StatusTooManyRequests {
				return lostError{err}
			}
			return err
		}
	}
	w.accepted = true
	defer res.Body.Close()
	defer context.AfterFunc(ctx, func() { res.Body.Close() })()
	if res.StatusCode == http.StatusNoContent { // the run has ended, and nothing of it is new
		return nil
	}
	if !IsStream(res) {
		return fault.New(fault.ServerUnreachable, "The server does not send events.").Advise("Check `server.sse.enabled` of that server.")
	}
	return w.read(res.Body, yield)
}

// IsStream reports whether an answer is a stream of events.
func IsStream(res *http.Response) bool {
	return strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
}

func (w *Watch) read(body io.ReadCloser, yield func(*Frame) error) error {
	events := sse.NewReader(&heard{body, time.AfterFunc(silence, func() { body.Close() })}, maxAnswer)
	for {
		ev, err := events.Next()
		if errors.Is(err, sse.ErrTooLong) {
			return fault.New(fault.ServerUnreachable, "The server sends an event of more than %d MiB.", maxAnswer>>20)
		}
		if err == io.EOF {
			return lostError{err}
		}
		if err != nil {
			return lostError{fault.New(fault.ServerUnreachable, "The connection is lost: %v.", fault.Innermost(err)).Because(err)}
		}
		f := &Frame{Raw: ev.Data}
		if err := json.Unmarshal(ev.Data, f); err != nil {
			return fault.New(fault.ServerUnreachable, "The server does not send events of agentd.").Because(err)
		}
		switch {
		case f.Reason == "server-shutdown":
			return lostError{fault.New(fault.ServerDraining, "The server stops.")}
		case f.Code == "replay.failed":
			return lostError{fault.New(fault.ServerUnreachable, "%s", f.Message)}
		case f.Kind == "error":
			return fault.Told(cmp.Or(f.Code, fault.ServerUnreachable.Code), f.Message, "")
		case f.Reason != "":
			return lostError{fault.New(fault.ServerUnreachable, "The server has closed the stream (%s).", f.Reason)}
		case f.Kind != "event" && f.Kind != "lifecycle" && f.Kind != "replay-marker":
			continue
		}
		if err := yield(f); err != nil || f.Ended() {
			return err
		}
		if w.paused = f.Kind == "lifecycle"; f.Kind == "event" {
			w.Cursor = f.EventID
		}
	}
}

// heard postpones the end of a silence with each piece that is read.
type heard struct {
	io.Reader
	late *time.Timer
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if err != nil {
		h.late.Stop()
	} else {
		h.late.Reset(silence)
	}
	return n, err
}
