// Package fault declares every way in which a request, a start or a run can fail: code, status, close code and hint.
//
// A [Kind] is a row of the one table in kinds.go; an [Error] is one occurrence of it. Code returns errors up and
// renders them once, at the transport: as JSON by the REST layer, as frames by the stream layer, as two lines on
// stderr by the command line. [Of] is total, so a transport never has to guess: an unclassified error becomes
// [Internal], whose cause is logged and never shown.
package fault

import (
	"errors"
	"fmt"
	"time"
)

// A Kind is one row of the table of failures. Kinds are compared by identity.
type Kind struct {
	Code   string // stable, kebab-case; never reused for another meaning
	Status int    // HTTP status; 0 where the failure cannot answer a request
	Close  int    // WebSocket close code; 0 where the failure does not close a socket
	When   string // one sentence: when it happens
	Hint   string // the next thing to do; starts with a verb
}

// An Issue points at one bad place in an input.
type Issue struct {
	Path    []any  `json:"path"` // object keys (string) and array indices (int), outermost first
	Message string `json:"message"`
}

// An Error is one failure that a caller can act on. The zero value is not useful; see [New].
type Error struct {
	Kind       *Kind
	Message    string
	Hint       string         // overrides Kind.Hint when not empty
	Issues     []Issue        // for input errors: every problem found, not only the first
	Extra      map[string]any // further members of the JSON body (runId, status, denied, allowed)
	RetryAfter time.Duration  // > 0: how long the caller should wait
	Cause      error          // for the log only; never rendered to a client
}

// New returns an error of the given kind. The message is shown to the caller: it must hold no secret.
func New(kind *Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Told returns an error that another process reported. This version may not know its code. With an empty hint, the kind's
// holds.
func Told(code, message, hint string) *Error {
	kind := ByCode(code)
	if kind == nil {
		kind = &Kind{Code: code}
	}
	return New(kind, "%s", message).Advise(hint)
}

// Invalid returns a config-invalid error with the given issues.
func Invalid(message string, issues ...Issue) *Error {
	return &Error{Kind: ConfigInvalid, Message: message, Issues: issues}
}

// At makes an issue from a message and the path to the bad place.
func At(message string, path ...any) Issue { return Issue{Path: path, Message: message} }

// With returns e with one more member for its JSON body.
func (e *Error) With(key string, value any) *Error {
	if e.Extra == nil {
		e.Extra = map[string]any{}
	}
	e.Extra[key] = value
	return e
}

// Because returns e with a cause, which goes to the log only.
func (e *Error) Because(cause error) *Error { e.Cause = cause; return e }

// Advise returns e with another hint than its kind's.
func (e *Error) Advise(hint string) *Error { e.Hint = hint; return e }

// After returns e with the time a caller should wait before it tries again.
func (e *Error) After(d time.Duration) *Error { e.RetryAfter = d; return e }

// NextStep is the hint to show: the error's own or its kind's.
func (e *Error) NextStep() string {
	if e.Hint != "" {
		return e.Hint
	}
	return e.Kind.Hint
}

// Error is for logs: it includes the cause. Transports render Message instead.
func (e *Error) Error() string {
	s := e.Kind.Code + ": " + e.Message
	for _, is := range e.Issues {
		s += fmt.Sprintf("; %v %s", is.Path, is.Message)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap gives errors.Is and errors.As the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Of classifies any error. It returns nil only for nil; an error that holds no *Error becomes Internal with err as
// its cause.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return New(Internal, "The server could not complete the request.").Because(err)
}

// Is reports whether err is, or wraps, an Error of the given kind.
func Is(err error, kind *Kind) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Kind == kind
}

// Innermost is the last part of an error: what is wrong, without the address or the name that a message has already.
func Innermost(err error) error {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}
