// Package client watches a subject of a server over svc.protocol.v1, and goes on where it was when a connection is lost.
//
//	         .----------------- wait <---------------- lost --.
//	         v                                                |
//	dial -> open -> initialize -> subscribe after the cursor -> frames -> the run has ended, a refusal, ctx: close 1000
//
// The cursor is the id of the latest event that was handed over. The server goes on behind it, so a durable event is
// neither missed nor doubled, also when the server was killed meanwhile.
package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"agentd/server/fault"
)

const (
	firstWait = 500 * time.Millisecond // before the first attempt to connect again, at most; each one more doubles it
	lastWait  = 30 * time.Second       // and so far
)

// Options say what to watch, and where.
type Options struct {
	// Server tells where to dial. It is asked before each attempt: a server that was started again may listen elsewhere.
	Server func() (Place, error)
	// Header goes with the upgrade, such as Authorization.
	Header  http.Header
	Subject string
	Since   string // the id of the event after which to begin; empty: all that is kept
	Version string // of this program
	// MaxFrame is how many bytes a frame may have. Default 1 MiB.
	MaxFrame int
	// Lost is told why a connection was lost, before the next attempt is waited for. It may be nil.
	Lost func(err error)
}

// A Place is where a server is to be met.
type Place struct {
	URL  string                                                               // ws or wss
	Dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: by the URL's host and port
	TLS  *tls.Config                                                          // nil: the system's trust
}

// A Frame is what the server sends about the subject. Members that its kind does not have are empty.
type Frame struct {
	Kind    string          `json:"kind"` // event, lifecycle or replay-marker
	EventID string          `json:"eventId"`
	Subject string          `json:"subject"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
	Status  string          `json:"status"`
	Reason  string          `json:"reason"`

	Raw []byte `json:"-"` // the whole frame; valid until the next one
}

// Ended reports whether nothing comes after the frame, because the run is over.
func (f *Frame) Ended() bool {
	return f.Kind == "lifecycle" && (f.Status == "completed" || f.Status == "failed" || f.Status == "aborted")
}

// Watch hands over the frames of a subject until a run's has ended (nil), yield fails (its error), ctx ends (its cause),
// or the server refuses (a *fault.Error, with the server's code where it told one). A connection that is lost is replaced
// for as long as ctx lasts, once there has been one on which the server took the subscription.
func Watch(ctx context.Context, o Options, yield func(*Frame) error) error {
	w := &watcher{o: o, yield: yield, cursor: o.Since}
	for attempt := 0; ; attempt++ {
		began, cursor := time.Now(), w.cursor
		err := w.connect(ctx)
		lost, again := err.(lostError)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !again:
			return err
		case !w.subscribed:
			return lost.error
		case w.cursor != cursor, time.Since(began) > lastWait:
			attempt = 0 // it was of some use
		}
		if o.Lost != nil {
			o.Lost(lost.error)
		}
		select {
		case <-time.After(wait(attempt)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// wait is how long to wait before the next attempt: exponential, with full jitter, so that clients that were lost
// together do not come back together.
func wait(attempt int) time.Duration {
	return rand.N(min(lastWait, firstWait<<min(attempt, 16)))
}

// A lostError is one after which another attempt may do better.
type lostError struct{ error }

func lost(err error) error { return lostError{err} }

func unreachable(format string, args ...any) *fault.Error {
	return fault.New(fault.ServerUnreachable, format, args...)
}
