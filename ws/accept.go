package ws

import (
	"bytes"
	"cmp"
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
	headerKey      = "Sec-Websocket-Key"
	headerProtocol = "Sec-Websocket-Protocol"
	headerVersion  = "Sec-Websocket-Version"
)

// HandshakeError is the error of a request that is not a proper opening handshake. Nothing has been sent: the caller answers.
type HandshakeError struct {
	Status  int         // of HTTP
	Header  http.Header // fields that the answer must have; nil: none
	Message string      // what is wrong, without values of the request
}

func (e *HandshakeError) Error() string { return "ws: handshake: " + e.Message }

func badRequest(message string) *HandshakeError {
	return &HandshakeError{Status: http.StatusBadRequest, Message: message}
}

// upgradeRequired is the answer of section 4.2.2 to other versions, with the Upgrade of RFC 9110, section 15.5.22.
func upgradeRequired(message string) *HandshakeError {
	return &HandshakeError{
		Status:  http.StatusUpgradeRequired,
		Header:  http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}, headerVersion: {"13"}},
		Message: message,
	}
}

// CheckHandshake checks that a request is a client's opening handshake (section 4.2.1) and returns the subprotocols that it
// offers. It sends nothing, so a server can do further checks before Accept. The error is a *HandshakeError.
//
// Only a GET over HTTP/1.1 can ask for a WebSocket: in HTTP/1.0 the field Upgrade means nothing (RFC 9110, section 7.8), and
// a HEAD is answered like a GET without the field. Offers of extensions are not read, as none is accepted.
func CheckHandshake(r *http.Request) (protocols []string, err error) {
	switch {
	case r.ProtoMajor != 1: // item 1
		return nil, badRequest("the request is not HTTP/1.1")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return nil, &HandshakeError{http.StatusMethodNotAllowed, http.Header{"Allow": {http.MethodGet}}, "the method is not GET"}
	case r.ProtoMinor < 1 || r.Method == http.MethodHead || !hasToken(r.Header, "Upgrade", "websocket"): // item 3
		return nil, upgradeRequired("Upgrade does not name websocket")
	case !hasToken(r.Header, "Connection", "upgrade"): // item 4
		return nil, badRequest("Connection does not name upgrade")
	case r.ContentLength != 0 || len(r.TransferEncoding) > 0: // its bytes would be taken for frames
		return nil, badRequest("the request has a body")
	}
	if v := r.Header.Values(headerVersion); len(v) != 1 || v[0] != "13" { // item 6, and section 4.4
		return nil, upgradeRequired(headerVersion + " is not 13")
	}
	keys := r.Header.Values(headerKey) // item 5
	if key, err := base64.StdEncoding.DecodeString(strings.Join(keys, ", ")); err != nil || len(key) != 16 {
		return nil, badRequest(headerKey + " is not 16 bytes in base64")
	}
	protocols = elements(r.Header, headerProtocol) // item 8
	if slices.ContainsFunc(protocols, isNoToken) || len(protocols) == 0 && r.Header[headerProtocol] != nil {
		return nil, badRequest(headerProtocol + " is not a list of tokens")
	}
	sorted := slices.Sorted(slices.Values(protocols)) // a header has room for thousands
	if len(slices.Compact(sorted)) < len(protocols) {
		// It does not say which one, as some clients put a secret there.
		return nil, badRequest(headerProtocol + " has an element twice")
	}
	return protocols, nil
}

// elements returns the elements of a list, of all fields of that name. Empty ones do not count (RFC 9110, section 5.6.1.2).
func elements(h http.Header, name string) (all []string) {
	for _, value := range h.Values(name) {
		for e := range strings.SplitSeq(value, ",") {
			if e = strings.Trim(e, " \t"); e != "" {
				all = append(all, e)
			}
		}
	}
	return all
}

// isNoToken reports whether a string is anything but a token (RFC 9110, section 5.6.2).
func isNoToken(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// hasToken reports whether a list has a token in any case. Upgrade names protocols, of which RFC 6455 has no version.
func hasToken(h http.Header, name, token string) bool {
	return slices.ContainsFunc(elements(h, name), func(e string) bool { return strings.EqualFold(e, token) })
}

// Accept completes a handshake (section 4.2.2) and takes over the connection, whose deadlines it clears.
//
// The error is a *HandshakeError if nothing has been sent; after any other, the connection is gone and there is nobody to
// answer. Afterwards the caller may use neither w nor r. The handler should return, and another goroutine should read.
func Accept(w http.ResponseWriter, r *http.Request, o Options) (*Conn, error) {
	offered, err := CheckHandshake(r)
	if err != nil {
		return nil, err
	}
	if o.Protocol != "" && !slices.Contains(offered, o.Protocol) {
		return nil, &HandshakeError{Status: http.StatusInternalServerError, Message: "the client does not offer " + o.Protocol}
	}
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, &HandshakeError{Status: http.StatusInternalServerError, Message: err.Error()}
	}
	early, _ := rw.Reader.Peek(rw.Reader.Buffered()) // a client may send frames before it has the answer
	c := &Conn{
		nc:           nc,
		maxMessage:   cmp.Or(o.MaxMessage, 1<<20),
		writeTimeout: cmp.Or(o.WriteTimeout, 10*time.Second),
		reading:      make(chan struct{}, 1),
		writing:      make(chan struct{}, 1),
	}
	c.in.init(early)
	sum := sha1.Sum([]byte(r.Header.Get(headerKey) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // item 5.4
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
	fmt.Fprintf(&b, "Sec-WebSocket-Accept: %s\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	if o.Protocol != "" {
		fmt.Fprintf(&b, "Sec-WebSocket-Protocol: %s\r\n", o.Protocol)
	}
	o.Header.Write(&b) //nolint:errcheck // a buffer takes everything
	b.WriteString("\r\n")
	nc.SetDeadline(time.Time{}) //nolint:errcheck // the write fails
	if err := c.send(b.Bytes()); err != nil {
		return nil, fmt.Errorf("ws: accept: %w", err)
	}
	return c, nil
}
