package ws

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A scanner reads a header value (RFC 9110, section 5.6).
type scanner struct {
	s   string
	err error // what is wrong with an element
}

func (s *scanner) space() { s.s = strings.TrimLeft(s.s, " \t") }

// accept skips the byte, if it is the next.
func (s *scanner) accept(b byte) bool {
	if s.s == "" || s.s[0] != b {
		return false
	}
	s.s = s.s[1:]
	return true
}

// token takes what is a token (section 5.6.2), which may be nothing.
func (s *scanner) token() string {
	n := 0
	for n < len(s.s) && isTokenByte(s.s[n]) {
		n++
	}
	token := s.s[:n]
	s.s = s.s[n:]
	return token
}

func isTokenByte(b byte) bool {
	switch {
	case b >= '0' && b <= '9', b >= 'A' && b <= 'Z', b >= 'a' && b <= 'z':
		return true
	}
	return strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}

// tokens reads a list of tokens, of all fields of that name.
func tokens(h http.Header, name string) ([]string, error) { return elements(h, name, (*scanner).token) }

// elements reads a list, of all fields of that name. Empty elements do not count (RFC 9110, section 5.6.1.2).
func elements(h http.Header, name string, element func(*scanner) string) ([]string, error) {
	var list []string
	for _, value := range h.Values(name) {
		for s := (scanner{s: value}); ; {
			s.space()
			if e := element(&s); e != "" {
				list = append(list, e)
			}
			if s.err != nil {
				return nil, s.err
			}
			s.space()
			if s.s == "" {
				break
			}
			if !s.accept(',') {
				return nil, errors.New("malformed list")
			}
		}
	}
	return list, nil
}

// protocol takes a protocol of Upgrade (RFC 9110, section 7.8), a token with or without a version, which may be nothing. One
// that breaks off within its version leaves the slash.
func (s *scanner) protocol() string {
	name := s.token()
	if version, ok := strings.CutPrefix(s.s, "/"); ok && name != "" {
		rest := scanner{s: version}
		if v := rest.token(); v != "" {
			*s = rest
			return name + "/" + v
		}
	}
	return name
}

// offersWebSocket reports whether Upgrade names the protocol of RFC 6455, which has no version there.
func offersWebSocket(h http.Header) bool {
	list, err := elements(h, "Upgrade", (*scanner).protocol)
	return err == nil && slices.ContainsFunc(list, func(p string) bool { return strings.EqualFold(p, "websocket") })
}

// hasToken reports whether a list of tokens has one, which is in lower case, in any case.
func hasToken(h http.Header, name, token string) bool {
	list, err := tokens(h, name)
	return err == nil && slices.ContainsFunc(list, func(t string) bool { return strings.EqualFold(t, token) })
}

// Protocols returns the subprotocols that a client offers in Sec-WebSocket-Protocol, in their order. The error is a
// *HandshakeError with status 400 if they are malformed or one is offered twice (section 4.1, item 10).
func Protocols(h http.Header) ([]string, error) {
	list, err := tokens(h, headerProtocol)
	if err != nil || len(list) == 0 && len(h.Values(headerProtocol)) > 0 {
		return nil, badRequest("%s is not a list of tokens", headerProtocol)
	}
	sorted := slices.Sorted(slices.Values(list)) // a header has room for thousands
	if len(slices.Compact(sorted)) < len(list) {
		// It does not say which one, as some clients put a secret there.
		return nil, badRequest("%s has an element twice", headerProtocol)
	}
	return list, nil
}

// checkExtensions checks the form of Sec-WebSocket-Extensions (section 9.1), of which no extension is ever accepted:
//
//	extension-list = 1#extension
//	extension      = token *( ";" token [ "=" ( token | quoted-string ) ] )
//
// A quoted string has to contain a token.
func checkExtensions(h http.Header) error {
	if _, err := elements(h, headerExtensions, (*scanner).extension); err != nil {
		return badRequest("%s: %v", headerExtensions, err)
	}
	return nil
}

func (s *scanner) extension() string {
	name := s.token()
	if name == "" {
		return ""
	}
	for s.space(); s.accept(';'); s.space() {
		s.space()
		if s.token() == "" {
			s.err = errors.New("parameter without a name")
			break
		}
		s.space()
		if !s.accept('=') {
			continue
		}
		s.space()
		quoted := s.accept('"')
		if s.token() == "" || quoted && !s.accept('"') {
			s.err = errors.New("parameter without a proper value")
			break
		}
	}
	return name
}

// HandshakeError is the error of a request that is not a proper opening handshake. Nothing has been sent: the caller answers.
type HandshakeError struct {
	Status  int         // of HTTP
	Header  http.Header // fields that the answer must have; nil: none
	Message string      // what is wrong, without values of the request
}

func (e *HandshakeError) Error() string { return "ws: handshake: " + e.Message }

func badRequest(format string, args ...any) *HandshakeError {
	return &HandshakeError{Status: http.StatusBadRequest, Message: fmt.Sprintf(format, args...)}
}
