package ws

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Code is why a connection ends (RFC 6455, section 7.4). Codes 4000 to 4999 are for applications.
type Code uint16

const (
	CodeNormal         Code = 1000
	CodeGoingAway      Code = 1001
	CodeProtocol       Code = 1002 // a rule of framing is broken
	CodeNone           Code = 1005 // never sent: the peer's close frame had no code
	CodeAbnormal       Code = 1006 // never sent: there was no close frame
	CodeInvalidPayload Code = 1007 // text that is not UTF-8
	CodePolicy         Code = 1008
	CodeTooBig         Code = 1009
)

// canBeSent reports whether the code may stand in a close frame: section 7.4.1 keeps 1004, 1005, 1006 and 1015 out of
// it, and section 7.4.2 leaves the ranges below 1000, up to 2999 and from 5000 to nobody.
func (c Code) canBeSent() bool {
	return c >= 1000 && c <= 1003 || c >= 1007 && c <= 1014 || c >= 3000 && c <= 4999
}

// ErrClosed is the error of a connection that this side has closed.
var ErrClosed = errors.New("ws: connection closed")

// CloseError is the error of a connection that the peer has closed by a close frame, or whose peer broke a rule or exceeded
// a limit.
type CloseError struct {
	Code    Code   // CodeNone if the frame had none
	Reason  string // valid UTF-8 of at most 123 bytes
	Refused bool   // the peer broke a rule, and has been sent a close frame with this code and reason
}

func (e *CloseError) Error() string {
	if e.Refused {
		return fmt.Sprintf("ws: %s (code %d)", e.Reason, e.Code)
	}
	return fmt.Sprintf("ws: closed by the peer with code %d: %q", e.Code, e.Reason)
}

// CodeOf returns the code of an error of Read (section 7.1.5): the one that the peer sent, or CodeNone; the one that it was
// sent for breaking a rule; or CodeAbnormal for all else. It is 0 for nil.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*CloseError](err); ok {
		return e.Code
	}
	return CodeAbnormal
}

// maxReason is what a control frame has room for beside the code (section 5.5).
const maxReason = maxControl - 2

// closePayload makes the payload of a close frame (section 5.5.1), of a reason cut to what there is room for.
func closePayload(code Code, reason string) []byte {
	if code == CodeNone {
		return nil
	}
	reason = strings.ToValidUTF8(reason, "\uFFFD")
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "") // without half a character at the end
	return append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...)
}

// parseClose reads the payload of a close frame (section 5.5.1).
func parseClose(p []byte) *CloseError {
	switch {
	case len(p) == 0:
		return &CloseError{Code: CodeNone}
	case len(p) == 1:
		return &CloseError{CodeProtocol, "close frame with half a code", true}
	}
	code, reason := Code(binary.BigEndian.Uint16(p)), p[2:]
	if !code.canBeSent() {
		return &CloseError{CodeProtocol, fmt.Sprintf("close frame with code %d", code), true}
	}
	if !utf8.Valid(reason) {
		return &CloseError{CodeInvalidPayload, "close frame with a reason that is not UTF-8", true}
	}
	return &CloseError{code, string(reason), false}
}
