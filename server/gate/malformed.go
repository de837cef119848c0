package gate

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"agentd/server/fault"
	"agentd/server/id"
	"agentd/server/message"
)

// Errors is a listener whose connections tell the errors of net/http as this package tells others. Those are the answers to
// what is no request, so that no handler ever sees it: net/http writes them as plain text, each by one Write to the
// connection, and each in one form, which nothing else has. Whatever does not have it passes unchanged.
//
// TLS connections stay as they are, since net/http has to recognise them.
func Errors(l net.Listener) net.Listener { return errorListener{l} }

type errorListener struct{ net.Listener }

func (l errorListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if _, secure := c.(*tls.Conn); err != nil || secure {
		return c, err
	}
	return errorConn{c}, nil
}

type errorConn struct{ net.Conn }

func (c errorConn) Write(b []byte) (int, error) {
	if f := foreign(b); f != nil {
		if _, err := c.Conn.Write(whole(f)); err != nil {
			return 0, err
		}
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// NetConn is the connection below, as of a [tls.Conn].
func (c errorConn) NetConn() net.Conn { return c.Conn }

// CloseWrite lets a client read an answer to a request that it has not sent to its end.
func (c errorConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// foreignHead is what stands in each of the answers after the status, and before the body, which repeats the status.
const foreignHead = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// maxForeign is more than any of them has.
const maxForeign = 512

// foreign is the error that an answer of net/http tells; nil for all else that is written to a connection.
func foreign(b []byte) *fault.Error {
	if len(b) < len(foreignHead) || len(b) > maxForeign {
		return nil
	}
	rest, ok := bytes.CutPrefix(b, []byte("HTTP/1.1 "))
	line, text, known := bytes.Cut(rest, []byte(foreignHead))
	if !ok || !known || len(line) < 3 {
		return nil
	}
	status, body := string(line), string(text)
	code, _ := strconv.Atoi(status[:3])
	_, why, told := strings.Cut(status, ": ")
	switch {
	case code == http.StatusNotImplemented && body == "Unsupported transfer encoding":
		return fault.New(fault.TransferCoding, "The body has a transfer coding that the server does not support.")
	case body != status:
	case code == http.StatusRequestHeaderFieldsTooLarge:
		return fault.New(fault.HeaderTooLarge, "The request line and the header fields are too long.")
	case code == http.StatusHTTPVersionNotSupported:
		return fault.New(fault.HTTPVersion, "The request has a version of HTTP that the server does not support.")
	case code == http.StatusBadRequest && told:
		return fault.New(fault.RequestMalformed, "The request is not valid HTTP: %s.", why)
	case code == http.StatusBadRequest:
		return fault.New(fault.RequestMalformed, "The request is not valid HTTP.")
	}
	return nil
}

// whole is an answer, after which the connection ends.
func whole(f *fault.Error) []byte {
	body, err := message.Encode(map[string]string{"error": f.Kind.Code, "message": f.Message, "hint": f.NextStep()})
	if err != nil {
		panic(fmt.Sprintf("gate: error does not encode: %v", err))
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nCache-Control: no-store\r\n"+
		"X-Content-Type-Options: nosniff\r\nX-Request-Id: %s\r\nConnection: close\r\n\r\n%s\n", f.Kind.Status, http.StatusText(f.Kind.Status), len(body)+1, id.New(), body)
}
