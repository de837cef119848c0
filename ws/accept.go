package ws

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Names of fields, as http.Header has them.
const (
	headerAccept     = "Sec-Websocket-Accept"
	headerExtensions = "Sec-Websocket-Extensions"
	headerKey        = "Sec-Websocket-Key"
	headerProtocol   = "Sec-Websocket-Protocol"
	headerVersion    = "Sec-Websocket-Version"
)

// AcceptOptions are what a server chooses for one connection.
type AcceptOptions struct {
	Options
	Protocol string      // the subprotocol to choose, one that the client offers; "": none
	Header   http.Header // further fields of the answer, none of them of the handshake
}

// IsUpgrade reports whether a request asks for a WebSocket, by a proper handshake or not. Only a GET over HTTP/1.1 can: in
// HTTP/1.0 the field means nothing (RFC 9110, section 7.8), and a HEAD is answered like a GET without the field.
func IsUpgrade(r *http.Request) bool {
	return r.ProtoAtLeast(1, 1) && r.Method != http.MethodHead && offersWebSocket(r.Header)
}

// CheckHandshake checks that a request is a client's opening handshake (section 4.2.1). It sends nothing, so a server can
// do further checks before Accept. The error is a *HandshakeError.
func CheckHandshake(r *http.Request) error {
	switch {
	case r.ProtoMajor != 1: // item 1
		return badRequest("the request is not HTTP/1.1")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return &HandshakeError{http.StatusMethodNotAllowed, http.Header{"Allow": {http.MethodGet}}, "the method is not GET"}
	case !IsUpgrade(r): // item 3
		return upgradeRequired("Upgrade does not name websocket")
	case !hasToken(r.Header, "Connection", "upgrade"): // item 4
		return badRequest("Connection does not name upgrade")
	case r.ContentLength != 0 || len(r.TransferEncoding) > 0: // its bytes would be taken for frames
		return badRequest("the request has a body")
	}
	if v := r.Header.Values(headerVersion); len(v) != 1 || v[0] != "13" { // item 6, and section 4.4
		return upgradeRequired(headerVersion + " is not 13")
	}
	if v := r.Header.Values(headerKey); len(v) != 1 || !isKey(v[0]) { // item 5
		return badRequest("%s is not 16 bytes in base64", headerKey)
	}
	if _, err := Protocols(r.Header); err != nil { // item 8
		return err
	}
	return checkExtensions(r.Header) // item 9
}

// upgradeRequired is the answer of section 4.2.2 to other versions, with the Upgrade of RFC 9110, section 15.5.22.
func upgradeRequired(message string) *HandshakeError {
	return &HandshakeError{
		Status:  http.StatusUpgradeRequired,
		Header:  http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, headerVersion: {"13"}},
		Message: message,
	}
}

func isKey(s string) bool {
	var key [18]byte
	if len(s) != base64.StdEncoding.EncodedLen(16) {
		return false
	}
	n, err := base64.StdEncoding.Decode(key[:], []byte(s))
	return err == nil && n == 16
}

// acceptValue answers a key (section 4.2.2, item 5.4).
func acceptValue(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Accept completes a handshake (section 4.2.2) and takes over the connection, whose deadlines it clears. It declines
// extensions. Nil options are the zero ones.
//
// The error is a *HandshakeError if nothing has been sent; after any other, the connection is gone and there is nobody to
// answer. Afterwards the caller may use neither w nor r. The handler should return, and another goroutine should read.
func Accept(w http.ResponseWriter, r *http.Request, o *AcceptOptions) (*Conn, error) {
	if err := CheckHandshake(r); err != nil {
		return nil, err
	}
	if o == nil {
		o = &AcceptOptions{}
	}
	answer, err := switching(r, o)
	if err != nil {
		return nil, &HandshakeError{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, &HandshakeError{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	early, err := rw.Reader.Peek(rw.Reader.Buffered()) // a client may send frames before it has the answer
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err == nil {
		err = nc.SetWriteDeadline(time.Now().Add(o.withDefaults().WriteTimeout))
	}
	if err == nil {
		_, err = nc.Write(answer)
	}
	if err != nil {
		nc.Close() //nolint:errcheck // it is of no use
		return nil, fmt.Errorf("ws: accept: %w", err)
	}
	return newConn(nc, early, o.Protocol, o.Options), nil
}

// switching makes the answer to a handshake.
func switching(r *http.Request, o *AcceptOptions) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
	fmt.Fprintf(&b, "Sec-WebSocket-Accept: %s\r\n", acceptValue(r.Header.Get(headerKey)))
	if o.Protocol != "" {
		if offered, _ := Protocols(r.Header); !slices.Contains(offered, o.Protocol) {
			return nil, fmt.Errorf("the client does not offer the protocol %q", o.Protocol)
		}
		fmt.Fprintf(&b, "Sec-WebSocket-Protocol: %s\r\n", o.Protocol)
	}
	for name := range o.Header {
		name = http.CanonicalHeaderKey(name)
		if name == "Upgrade" || name == "Connection" || strings.HasPrefix(name, "Sec-Websocket-") {
			return nil, fmt.Errorf("the field %s belongs to the handshake", name)
		}
	}
	if err := o.Header.Write(&b); err != nil {
		return nil, err
	}
	b.WriteString("\r\n")
	return b.Bytes(), nil
}
