// Package ws speaks the WebSocket protocol, version 13 (RFC 6455), on the server's side of a connection.
//
// A connection goes through these states. What happens first decides, and every later call returns the same:
//
//	open ──Close: close frame sent──▶ closing ──peer's close frame, or time──▶ TCP closed
//	open ──peer's close frame──▶ answered (by Read) ──Close──▶ TCP closed
//	open ──peer breaks a rule──▶ close frame sent (by Read) ──Close──▶ TCP closed
//	any  ──input or output fails or takes too long, CloseNow──▶ TCP closed
//
// So whoever opens a connection reads it until Read fails, and then calls Close or CloseNow. One goroutine reads. Any
// number may write: they take turns. Timeouts bound each call but Read between messages; CloseNow ends all of them. The
// package starts no goroutine.
//
// An idle connection holds about 1 KiB and no other buffer: memory for messages comes from pools and goes back as soon as
// the message is done. A server that reads in a fresh goroutine, after its handler has returned, also gives back what
// net/http holds for the request.
package ws

import (
	"net/http"
	"time"
)

// Type is the kind of a message (RFC 6455, section 5.6).
type Type byte

const (
	Text   Type = 1 // valid UTF-8
	Binary Type = 2
)

// Options are what a server chooses for one connection. Zero values take the defaults.
type Options struct {
	Protocol string      // the subprotocol to choose, one that the client offers; "": none
	Header   http.Header // further fields of the answer, none of them of the handshake

	// MaxMessage is the longest message that Read accepts, in bytes of payload. A longer one ends the connection with
	// code 1009, before its payload is read. Default 1 MiB.
	MaxMessage int

	// WriteTimeout is how long the writing of one message, batch or control frame may take before the connection fails.
	// The limit may be half as long again, as one deadline serves several writes. Default 10 s.
	WriteTimeout time.Duration
}

const (
	// messageTimeout is how long a message may take from its first byte to its last. A slower one ends the connection with
	// code 1008. Between messages, Read waits without limit.
	messageTimeout = 30 * time.Second
	// closeTimeout is how long Close waits for the peer.
	closeTimeout = 5 * time.Second
	// maxFrames is the number of frames that one message may come in. It bounds what empty frames can cost, which no limit
	// of bytes does; 4 MiB in frames of 64 bytes stay far below.
	maxFrames = 1 << 17
)
